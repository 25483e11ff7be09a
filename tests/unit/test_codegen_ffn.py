"""The ffn and layer_norm_ffn kernels: against numpy in float64, against their prediction, and broken on purpose."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atcfuse.codegen import GeneratedKernel, render_kernel
from atcfuse.kernel import load_kernels
from atcfuse.tiling import PLATFORM_910B, Platform
from atcfuse.tiling.ffn import plan, predict, problem_of
from atcfuse.twin import TwinResult, run_kernel

KERNELS = Path(__file__).parents[2] / "kernels"
FLOAT, FLOAT16, BFLOAT16 = 1, 10, 16
TOLERANCE = {FLOAT: 1e-5, FLOAT16: 2e-3, BFLOAT16: 1.6e-2}
SMALL = replace(PLATFORM_910B, cube_cores=2, vector_cores=4)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")

_erf = np.vectorize(math.erf, otypes=[np.float64])
ACTIVATIONS = {
    "gelu_erf": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0.0),
}


@dataclass(frozen=True)
class Case:
    """A signature. `weights` has a letter pair each for up, gate and down: `t` transposed or `n`, `b` with bias or `-`.

    `norm` is "" for the ffn kernel; `affine` the element type of gamma and beta; `added` what is added to the result:
    "", "operand" or "normalized".
    """

    dtype: int
    weights: str
    activation: str = "gelu_erf"
    gating: str = "none"
    norm: str = ""
    affine: int | None = None
    beta: bool = True
    added: str = ""
    normalized: bool = False
    epsilon: float = 1e-5

    @property
    def pairs(self) -> dict[str, str]:
        names = ("up", "gate", "down") if self.gating == "separate" else ("up", "down")
        return dict(zip(names, self.weights.split(), strict=True))

    @property
    def attributes(self) -> dict[str, Any]:
        flags = tuple(int(self.pairs.get(name, "n")[0] == "t") for name in ("up", "gate", "down"))
        plain: dict[str, Any] = {"activation": self.activation, "gating": self.gating, "transposed": flags}
        if not self.norm:
            return plain
        return {"norm": self.norm, "epsilon": self.epsilon, **plain, "add_normalized": int(self.added == "normalized")}

    @property
    def dtypes(self) -> dict[str, int]:
        types = {"x": self.dtype}
        if self.affine is not None:
            types["gamma"] = self.affine
            types |= {"beta": self.affine} if self.beta else {}
        types |= {f"w_{name}": self.dtype for name in self.pairs}
        types |= {f"b_{name}": self.dtype for name, pair in self.pairs.items() if pair[1] == "b"}
        types |= {"residual": self.dtype} if self.added == "operand" else {}
        return types | {"y": self.dtype} | ({"normalized": self.dtype} if self.normalized else {})

    def render(self) -> GeneratedKernel:
        spec = load_kernels(KERNELS)["layer_norm_ffn" if self.norm else "ffn"]
        return render_kernel(spec, self.attributes, self.dtypes, "Ascend910B1")


PLAIN = Case(FLOAT16, "nb nb", added="operand")
BERT = Case(FLOAT16, "nb nb", norm="layer_norm", affine=FLOAT16, added="normalized")
GPT = Case(FLOAT16, "nb nb", "gelu_tanh", norm="layer_norm", affine=FLOAT, added="operand")
LLAMA = Case(FLOAT16, "n- n- n-", "silu", "separate", "rms_norm", FLOAT16, beta=False, added="operand")
MIXED = Case(FLOAT16, "t- nb tb", "gelu_quick", "separate", added="")
PHI = Case(FLOAT16, "nb t-", "silu", "gate_up", "layer_norm", FLOAT16, normalized=True)
BERT_PACKED = Case(FLOAT, "tb nb", "gelu_erf", "up_gate", "rms_norm", None, normalized=True, added="operand")
T5 = Case(FLOAT, "n- n-", "relu", norm="rms_norm", affine=FLOAT, beta=False, added="operand")
BRAIN = Case(BFLOAT16, "nb tb tb", "gelu_tanh", "separate", "layer_norm", BFLOAT16, added="operand")
BRAIN_PACKED = Case(BFLOAT16, "tb n-", "silu", "gate_up", "rms_norm", FLOAT, beta=False, added="normalized")
BRAIN_PLAIN = Case(BFLOAT16, "n- nb", "relu")
SINGLE = Case(FLOAT, "nb nb", norm="layer_norm", affine=FLOAT, added="normalized", normalized=True)
CASES = [PLAIN, BERT, GPT, LLAMA, MIXED, PHI, BERT_PACKED, T5, BRAIN, BRAIN_PACKED, BRAIN_PLAIN, SINGLE]


def encode(values: Any, dtype: int) -> Any:
    """Float64 values rounded to an element type; bfloat16 as its bits."""
    if dtype != BFLOAT16:
        return values.astype(np.float16 if dtype == FLOAT16 else np.float32)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def decode(array: Any, dtype: int) -> Any:
    if dtype == BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def operand_shapes(case: Case, leading: Sequence[int], sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    hidden, inner, columns = sizes
    up = 2 * inner if case.gating in ("gate_up", "up_gate") else inner
    plain = {"w_up": (hidden, up), "w_gate": (hidden, inner), "w_down": (inner, columns)}
    flags = dict(zip(("w_up", "w_gate", "w_down"), case.attributes["transposed"], strict=True))
    shapes = {name: shape[::-1] if flags[name] else shape for name, shape in plain.items()}
    biases = {"b_up": (up,), "b_gate": (inner,), "b_down": (columns,)}
    rows = {"x": (*leading, hidden), "residual": (*leading, columns)}
    return {**rows, **shapes, **biases, "gamma": (hidden,), "beta": (hidden,)}


def make_inputs(case: Case, leading: Sequence[int], sizes: Sequence[int], mean: float = 0.7) -> dict[str, Any]:
    rng = np.random.default_rng(sum(sizes) + len(leading))
    shapes = operand_shapes(case, leading, sizes)
    inputs = {}
    for name, dtype in case.dtypes.items():
        if name not in shapes:
            continue
        values = rng.standard_normal(shapes[name])
        values = values * 1.5 + mean if name == "x" else values
        values = 1 + 0.3 * values if name == "gamma" else values
        fan = sizes[1] if name == "w_down" else sizes[0]
        values = values / fan**0.5 if name.startswith("w") else values
        inputs[name] = encode(values, dtype)
    return inputs


def reference(case: Case, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the operator means, in float64; what passes through the slot is rounded there."""
    exact = {name: decode(array, case.dtypes[name]) for name, array in inputs.items()}
    rows = exact["x"]
    if case.norm:
        rows = rows - rows.mean(-1, keepdims=True) if case.norm == "layer_norm" else rows
        rows = rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + case.epsilon)
        rows = rows * exact.get("gamma", 1.0) + exact.get("beta", 0.0)
    results = {"normalized": rows} if case.normalized else {}
    rows = decode(encode(rows, case.dtype), case.dtype)
    flags = dict(zip(("up", "gate", "down"), case.attributes["transposed"], strict=True))

    def project(values: Any, name: str) -> Any:
        weight = exact[f"w_{name}"]
        product = values @ (weight.T if flags[name] else weight) + exact.get(f"b_{name}", 0.0)
        return product if name == "down" else decode(encode(product, case.dtype), case.dtype)

    up = project(rows, "up")
    if case.gating == "none":
        hidden = ACTIVATIONS[case.activation](up)
    else:
        halves = np.split(up, 2, axis=-1) if case.gating != "separate" else [project(rows, "gate"), up]
        gate, up = halves[::-1] if case.gating == "up_gate" else halves
        hidden = ACTIVATIONS[case.activation](gate) * up
    y = project(decode(encode(hidden, case.dtype), case.dtype), "down")
    extra = {"operand": lambda: exact["residual"], "normalized": lambda: rows, "": lambda: 0.0}[case.added]()
    return {**results, "y": y + extra}


def check_numbers(case: Case, inputs: Mapping[str, Any], result: TwinResult) -> None:
    expected = reference(case, inputs)
    assert set(result.outputs) == set(expected)
    for name, want in expected.items():
        got = decode(result.outputs[name], case.dtype)
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= TOLERANCE[case.dtype] * max(1.0, np.abs(want).max()), name


def check_counts(case: Case, inputs: Mapping[str, Any], result: TwinResult, platform: Platform) -> None:
    shapes = {name: array.shape for name, array in inputs.items()}
    tiling = plan(problem_of(case.attributes, case.dtypes, shapes), platform)
    assert result.launch.blocks == tiling.blocks
    assert result.launch.workspace_bytes == tiling.workspace_bytes
    counted = {**result.counters, **result.counters["peak"]}
    predicted = vars(predict(tiling))
    assert {name: counted[name] for name in predicted} == predicted
    assert counted["ub"] <= platform.ub
    assert counted["l1"] <= platform.l1


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


def run(
    case: Case,
    leading: Sequence[int],
    sizes: Sequence[int],
    programs: Path,
    platform: Platform = PLATFORM_910B,
    mean: float = 0.7,
) -> None:
    inputs = make_inputs(case, leading, sizes, mean)
    result = run_kernel(case.render(), inputs, platform=platform, cache=programs)
    check_numbers(case, inputs, result)
    check_counts(case, inputs, result, platform)


@pytest.mark.parametrize(
    ("case", "leading", "sizes", "platform"),
    [
        (PLAIN, (2, 19), (64, 256, 64), PLATFORM_910B),
        (PLAIN, (37,), (40, 100, 33), SMALL),
        (PLAIN, (300,), (16, 5000, 24), SMALL),
        (BERT, (129,), (96, 384, 96), SMALL),
        (BERT, (), (40, 7, 40), SMALL),
        (GPT, (1, 3, 5), (100, 77, 100), PLATFORM_910B),
        (GPT, (17,), (9000, 40, 31), SMALL),
        (LLAMA, (270,), (48, 2600, 48), SMALL),
        (LLAMA, (3,), (200, 520, 200), PLATFORM_910B),
        (MIXED, (33,), (30, 65, 513), SMALL),
        (PHI, (40,), (64, 160, 64), SMALL),
        (BERT_PACKED, (21,), (72, 31, 257), SMALL),
        (T5, (140,), (64, 300, 64), SMALL),
        (BRAIN, (37,), (200, 600, 40), SMALL),
        (BRAIN_PACKED, (131,), (72, 257, 72), SMALL),
        (BRAIN_PLAIN, (20,), (33, 40, 50), PLATFORM_910B),
        (SINGLE, (21,), (8192, 33, 8192), SMALL),
        (SINGLE, (50,), (100, 200, 100), PLATFORM_910B),
    ],
)
def test_kernel_agrees_with_numpy_and_with_its_prediction(
    case: Case, leading: Sequence[int], sizes: Sequence[int], platform: Platform, programs: Path
) -> None:
    run(case, leading, sizes, programs, platform)
