"""Attention in numpy as ONNX defines it, and cases that run a generated kernel in the twin against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from atcfuse.codegen import GeneratedKernel, Signature, render_kernel
from atcfuse.codegen.attention import problem
from atcfuse.kernel import load_kernels
from atcfuse.tiling import PLATFORM_910B, Platform, Prediction
from atcfuse.tiling.attention import predict
from atcfuse.twin import TwinResult, run_kernel

KERNELS = Path(__file__).parents[2] / "kernels"
SPEC = load_kernels(KERNELS)["attention"]
ONNX_TYPES = {np.dtype(np.float16): 10, np.dtype(np.float32): 1, np.dtype(np.bool_): 9}
INF = float("inf")
LOWEST = float(np.finfo(np.float32).min)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Heads:
    """The static part of a case; `layouts` of q, k, v and the result, `attributes` beyond them."""

    heads: int = 2
    kv_heads: int = 2
    dim: int = 64
    value_dim: int = 64
    dtype: type = np.float16
    layouts: tuple[str, str, str, str] = ("BSH", "BSH", "BSH", "BSH")
    attributes: Mapping[str, Any] = field(default_factory=dict)
    soc: str = "Ascend910B1"


@dataclass(frozen=True)
class Outcome:
    """What the kernel gave, what numpy gives (both [B, N, S, D] float32), and the twin's and the predicted counts."""

    got: Array
    want: Array
    result: TwinResult
    predicted: Prediction

    @property
    def error(self) -> float:
        """The largest difference relative to the largest value; NaN places must be the same."""
        assert np.array_equal(np.isnan(self.got), np.isnan(self.want))
        largest = np.nanmax(np.abs(self.want), initial=1e-9)
        return float(np.nanmax(np.abs(self.got - self.want), initial=0.0) / largest)


def run(
    case: Heads,
    batch: int,
    queries: int,
    keys: int,
    cache: Path,
    bias: Array | None = None,
    mask: Array | None = None,
    platform: Platform = PLATFORM_910B,
    spread: float = 1.0,
) -> Outcome:
    """Generates the kernel, runs it on random operands (queries `spread` wide) and computes what it should give."""
    random = np.random.default_rng(queries * 1000 + keys)
    q = (spread * random.standard_normal((batch, case.heads, queries, case.dim))).astype(case.dtype)
    k = random.standard_normal((batch, case.kv_heads, keys, case.dim)).astype(case.dtype)
    v = random.standard_normal((batch, case.kv_heads, keys, case.value_dim)).astype(case.dtype)
    inputs = {
        name: lay_out(x, case.layouts[part], part) for part, (name, x) in enumerate((("q", q), ("k", k), ("v", v)))
    }
    inputs |= {name: x for name, x in (("bias", bias), ("mask", mask)) if x is not None}
    kernel = kernel_of(case, inputs)
    result = run_kernel(kernel, inputs, platform=platform, cache=cache)
    shapes = {name: x.shape for name, x in inputs.items()}
    predicted = predict(problem(kernel.signature, shapes), platform)
    assert not isinstance(predicted, str), predicted
    got = take_apart(result.outputs["out"], case.layouts[3], (batch, case.heads, queries, case.value_dim))
    want = reference(q, k, v, bias, mask, kernel.signature)
    return Outcome(got.astype(np.float32), want, result, predicted)


def kernel_of(case: Heads, inputs: Mapping[str, Array]) -> GeneratedKernel:
    """The kernel that a case needs for these inputs."""
    names = ("q_layout", "k_layout", "v_layout", "out_layout")
    attributes = {
        "num_heads": case.heads,
        "num_kv_heads": case.kv_heads,
        "head_dim": case.dim,
        "v_head_dim": case.value_dim,
        "scale": case.dim**-0.5,
        "softmax_precision": 1,
        **dict(zip(names, case.layouts, strict=True)),
        **{f"{name}_offset": _offset(case, part) for part, name in enumerate("qkv")},
        **case.attributes,
    }
    dtypes = {name: ONNX_TYPES[x.dtype] for name, x in inputs.items()}
    return render_kernel(SPEC, attributes, {**dtypes, "out": dtypes["q"]}, case.soc)


def _offset(case: Heads, part: int) -> int:
    heads = case.heads if part == 0 else case.kv_heads
    return {"B S (3 N D)": part * heads * case.dim, "B S (N 3 D)": part * case.dim}.get(case.layouts[part], 0)


def reference(q: Array, k: Array, v: Array, bias: Array | None, mask: Array | None, of: Signature) -> Array:
    """Attention in float32; q, k, v and the result are [batch, heads, positions, dim]."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, repeats, axis=1).astype(np.float32) for x in (k, v))
    scores = q.astype(np.float32) @ k.swapaxes(2, 3) * np.float32(of.number("scale"))
    cap = of.number("softcap")
    if cap:
        scores = cap * np.tanh(scores / cap)
    steps = [_biased, _masked]
    for step in reversed(steps) if of.integer("mask_first") else steps:
        scores = step(scores, bias, mask, of)
    scores = np.maximum(_causal(scores, of.text("causal")), np.float32(of.number("floor")))
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
    if of.text("masked_rows") == "zero":
        weights = np.nan_to_num(weights, nan=0.0)
    return np.asarray(weights @ v)


def _biased(scores: Array, bias: Array | None, mask: Array | None, of: Signature) -> Array:
    if bias is None:
        return scores
    bias = _repeated(bias, scores, of, "bias_cycles")
    with np.errstate(over="ignore"):
        return (scores + bias.astype(np.float32)).astype(bias.dtype).astype(np.float32)


def _masked(scores: Array, bias: Array | None, mask: Array | None, of: Signature) -> Array:
    if mask is None:
        return scores
    mask = _repeated(mask, scores, of, "mask_cycles")
    return np.where(mask == bool(of.integer("mask_keeps")), scores, np.float32(of.number("mask_fill")))


def _repeated(operand: Array, scores: Array, of: Signature, cycles: str) -> Array:
    """Operands with fewer batches than the scores, once for each run through them."""
    return np.concatenate([operand] * (len(scores) // len(operand))) if of.integer(cycles) else operand


def _causal(scores: Array, kind: str) -> Array:
    if kind == "none":
        return scores
    queries, keys = scores.shape[-2:]
    offset = keys - queries if kind == "bottom_right" else 0
    sees = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + offset
    return np.where(sees, scores, np.float32(-INF))


def lay_out(x: Array, layout: str, part: int = 0) -> Array:
    """[B, N, S, D] as memory of a layout, as one of three parts of a packed one; the rest must not be read."""
    batch, heads, positions, dim = x.shape
    if layout in ("B S (3 N D)", "B S (N 3 D)"):
        packed = np.full((batch, positions, 3, heads, dim), 1e4, dtype=x.dtype)
        packed[:, :, part] = x.transpose(0, 2, 1, 3)
        packed = packed if layout == "B S (3 N D)" else packed.swapaxes(2, 3)
        return np.ascontiguousarray(packed).reshape(batch, positions, 3 * heads * dim)
    order = {"BSH": (0, 2, 1, 3), "BSND": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3), "SBH": (2, 0, 1, 3)}
    order |= {"B N D S": (0, 1, 3, 2), "B S N:5 D": (0, 2, 1, 3)}
    moved = np.ascontiguousarray(x.transpose(order[layout]))
    if layout == "B S N:5 D":
        return np.pad(moved, ((0, 0), (0, 0), (0, 5 - heads), (0, 0)), constant_values=1e4)
    return moved.reshape(*moved.shape[:2], heads * dim) if layout in ("BSH", "SBH") else moved


def take_apart(x: Array, layout: str, shape: tuple[int, int, int, int]) -> Array:
    """Memory of a layout as [B, N, S, D]."""
    batch, heads, positions, dim = shape
    if layout == "BNSD":
        return x.reshape(shape)
    if layout == "SBH":
        return x.reshape(positions, batch, heads, dim).transpose(1, 2, 0, 3)
    return x.reshape(batch, positions, heads, dim).transpose(0, 2, 1, 3)
