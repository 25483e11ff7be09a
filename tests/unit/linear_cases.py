"""Signatures, inputs and the meaning in float64 for tests of the linear and layer_norm_linear kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atcfuse.codegen import GeneratedKernel, render_kernel
from atcfuse.kernel import KernelSpec, load_kernels

KERNELS = Path(__file__).parents[2] / "kernels"
FLOAT, FLOAT16, BFLOAT16 = 1, 10, 16
TOLERANCE = {FLOAT: 1e-5, FLOAT16: 2e-3, BFLOAT16: 1.2e-2}
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Case:
    """A signature: `parts` are the optional operands that it has, `affine` the element type of gamma and beta."""

    dtype: int = FLOAT16
    parts: str = ""
    activation: str = "none"
    scale: float = 1.0
    transposed: bool = False
    prologue: str = "none"
    norm: str = ""
    affine: int = FLOAT16
    epsilon: float = 1e-5
    folded: bool = False

    @property
    def has(self) -> frozenset[str]:
        return frozenset(self.parts.split())

    @property
    def spec(self) -> KernelSpec:
        return load_kernels(KERNELS)["layer_norm_linear" if self.norm else "linear"]

    @property
    def attributes(self) -> dict[str, Any]:
        before = {"norm": self.norm, "epsilon": self.epsilon} if self.norm else {"prologue": self.prologue}
        after = {"scale": self.scale, "activation": self.activation, "folded": int(self.folded)}
        return {**before, "transposed": int(self.transposed), **after}

    @property
    def dtypes(self) -> dict[str, int]:
        beside = ("bias", "gain", "residual", "residual2", "gain2", "shift", "normalized")
        names = ["x", "w", "y", *(n for n in beside if n in self.has)]
        affine = {name: self.affine for name in ("gamma", "beta") if name in self.has}
        return {**dict.fromkeys(names, self.dtype), **affine}

    def render(self) -> GeneratedKernel:
        return render_kernel(self.spec, self.attributes, self.dtypes, "Ascend910B1")


def encode(values: Array, dtype: int) -> Array:
    """Float64 values rounded to an element type; bfloat16 as its bits."""
    if dtype != BFLOAT16:
        return values.astype(np.float16 if dtype == FLOAT16 else np.float32)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def decode(array: Array, dtype: int) -> Array:
    if dtype == BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def make_inputs(case: Case, leading: Sequence[int], hidden: int, columns: int, mean: float = 0.4) -> dict[str, Array]:
    rng = np.random.default_rng(hidden + columns)
    shapes: dict[str, tuple[int, ...]] = {
        "x": (math.prod(leading), hidden) if case.folded else (*leading, hidden),
        "w": (columns, hidden) if case.transposed else (hidden, columns),
        **dict.fromkeys(("bias", "gain", "gain2", "shift"), (columns,)),
        **dict.fromkeys(("gamma", "beta"), (hidden,)),
        **dict.fromkeys(("residual", "residual2"), (*leading, columns)),
    }
    inputs = {}
    for name, dtype in case.dtypes.items():
        if name not in shapes:
            continue
        values = rng.standard_normal(shapes[name])
        values = values * 1.5 + mean if name == "x" else values
        values = 1 + 0.3 * values if name == "gamma" else values
        values = values / hidden**0.5 if name == "w" else values
        inputs[name] = encode(values, dtype)
    return inputs


def activated(kind: str, x: Array) -> Array:
    """The activations by their definitions."""
    with np.errstate(over="ignore"):
        sigmoid = {"silu": 1.0, "sigmoid": 1.0, "gelu_quick": 1.702}
        if kind in sigmoid:
            weight = 1 / (1 + np.exp(-sigmoid[kind] * x))
            return weight if kind == "sigmoid" else x * weight
    if kind == "gelu_erf":
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    if kind == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return {"none": x, "relu": np.maximum(x, 0), "relu_squared": np.maximum(x, 0) ** 2, "tanh": np.tanh(x)}[kind]


def reference(case: Case, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What the operator means, in float64; prepared rows are rounded before they are multiplied."""
    exact = {name: decode(array, case.dtypes[name]) for name, array in inputs.items()}
    rows = activated(case.prologue, exact["x"])
    if case.norm == "layer_norm":
        rows = rows - rows.mean(-1, keepdims=True)
    if case.norm:
        rows = rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + case.epsilon)
        rows = rows * exact.get("gamma", 1.0) + exact.get("beta", 0.0)
    results = {"normalized": rows} if "normalized" in case.has else {}
    weight = exact["w"].T if case.transposed else exact["w"]
    product = decode(encode(rows, case.dtype), case.dtype) @ weight + exact.get("bias", 0.0)
    product = product.reshape(exact["residual"].shape) if case.folded else product
    result = activated(case.activation, np.float32(case.scale) * product) * exact.get("gain", 1.0)
    total = result + exact.get("residual", 0.0) + exact.get("residual2", 0.0)
    return {**results, "y": total * exact.get("gain2", 1.0) + exact.get("shift", 0.0)}
