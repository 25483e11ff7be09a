"""What the fused operators compute, in float64: an oracle for their kernels that shares nothing with the templates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atcfuse.codegen import Signature
from atcfuse.codegen.signature import BFLOAT16, FLOAT16
from atcfuse.elementwise import parse_expression
from atcfuse.elementwise.evaluate import evaluate as evaluate_expression
from atcfuse.layout import LayoutFactor, parse_layout

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Mapping[str, Array]
Sizes = Mapping[str, int]
"""Extents by layout letter: B batch, S positions, N heads, D width."""


def evaluate(signature: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    """The outputs of a fused node in float64, by operand name; `inputs` as float64 (masks as bool)."""
    return ORACLES[signature.spec.name](signature, inputs, queries, keys, batch)


def rounded(values: Array, dtype: int) -> Array:
    """Values rounded to an element type, still float64; what exceeds it becomes infinite."""
    with np.errstate(over="ignore"):
        if dtype == BFLOAT16:
            return bfloat16_values(bfloat16_bits(values)).astype(np.float64)
        return values.astype(np.float16 if dtype == FLOAT16 else np.float32).astype(np.float64)


def bfloat16_bits(values: Array) -> Array:
    """The nearest bfloat16, ties to even, as bits in uint16."""
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(values, dtype=np.float32)
    bits = single.view(np.uint32)
    nearest = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    quiet = ((bits >> 16) | 0x40).astype(np.uint16)
    return np.where(np.isnan(single), quiet, nearest)


def bfloat16_values(bits: Array) -> Array:
    """The float32 values that bfloat16 bits stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def operand_sizes(signature: Signature, operand: str, queries: int, keys: int, batch: int) -> Sizes:
    """The extents that an operand of attention runs over."""
    heads = signature.integer("num_heads" if operand in ("q", "out") else "num_kv_heads")
    width = signature.integer("head_dim" if operand in ("q", "k") else "v_head_dim")
    return {"B": batch, "S": queries if operand in ("q", "out") else keys, "N": heads, "D": width}


def operand_factors(signature: Signature, operand: str, sizes: Sizes) -> list[LayoutFactor]:
    """The factors of an operand's memory, major first."""
    offset = 0 if operand == "out" else signature.integer(f"{operand}_offset")
    return parse_layout(signature.text(f"{operand}_layout"), offset, sizes)


def memory_shape(factors: list[LayoutFactor]) -> tuple[int, ...]:
    """The shape of the tensor in which an operand lies."""
    axes = max((f.axis for f in factors), default=-1) + 1
    return tuple(math.prod(f.size or 1 for f in factors if f.axis == axis) for axis in range(axes))


def _attention(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    def operand(name: str) -> Array:
        return _unfold(inputs[name], operand_factors(of, name, operand_sizes(of, name, queries, keys, batch)))

    q, k, v = (operand(name) for name in "qkv")
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * of.number("scale")
    cap = of.number("softcap")
    scores = cap * np.tanh(scores / cap) if cap else scores
    masking = [_biased, _masked] if not of.integer("mask_first") else [_masked, _biased]
    for step in masking:
        scores = step(of, inputs, scores)
    scores = np.maximum(_causal(of, scores), of.number("floor"))
    out = _softmax(of, scores) @ v
    return {"out": _fold(out, operand_factors(of, "out", operand_sizes(of, "out", queries, keys, batch)))}


def _biased(of: Signature, inputs: Arrays, scores: Array) -> Array:
    if "bias" not in inputs:
        return scores
    dtype = of.dtypes["bias"]
    return rounded(rounded(scores, dtype) + inputs["bias"], dtype)


def _masked(of: Signature, inputs: Arrays, scores: Array) -> Array:
    if "mask" not in inputs:
        return scores
    return np.where(inputs["mask"] == bool(of.integer("mask_keeps")), scores, of.number("mask_fill"))


def _causal(of: Signature, scores: Array) -> Array:
    kind = of.text("causal")
    if kind == "none":
        return scores
    queries, keys = scores.shape[-2:]
    first = keys - queries if kind == "bottom_right" else 0
    sees = np.arange(keys) <= np.arange(queries)[:, None] + first
    return np.where(sees, scores, -np.inf)


def _softmax(of: Signature, scores: Array) -> Array:
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
    return np.where(np.isnan(weights), 0.0, weights) if of.text("masked_rows") == "zero" else weights


def _unfold(memory: Array, factors: list[LayoutFactor]) -> Array:
    """An operand's memory as [batch, heads, positions, width]."""
    view = memory.reshape([f.size or 1 for f in factors])
    for axis, factor in reversed(list(enumerate(factors))):
        if factor.letter is None:
            view = view.take(factor.index, axis=axis)
        elif factor.taken is not None:
            view = view.take(range(factor.index, factor.index + factor.taken), axis=axis)
    letters = [f.letter for f in factors if f.letter is not None]
    order = [letters.index(letter) for letter in "BNSD" if letter in letters]
    missing = tuple(i for i, letter in enumerate("BNSD") if letter not in letters)
    return np.expand_dims(view.transpose(order), missing)


def _fold(values: Array, factors: list[LayoutFactor]) -> Array:
    """[batch, heads, positions, width] as an operand's memory; a result takes all of it."""
    letters = [f.letter for f in factors if f.letter is not None]
    kept = values.squeeze(axis=tuple(i for i, letter in enumerate("BNSD") if letter not in letters))
    present = [letter for letter in "BNSD" if letter in letters]
    moved: Array = kept.transpose([present.index(letter) for letter in letters])
    return moved.reshape(memory_shape(factors))


def _layer_norm_qkv(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    rows = inputs["x"]
    if of.text("norm") == "layer_norm":
        rows = rows - rows.mean(axis=-1, keepdims=True)
    rows = rows / np.sqrt((rows * rows).mean(axis=-1, keepdims=True) + of.number("epsilon"))
    rows = rounded(rows * inputs.get("gamma", np.array(1.0)) + inputs.get("beta", np.array(0.0)), of.dtypes["x"])
    results = {"normalized": rows} if of.has("normalized") else {}
    transposed = of.attributes["transposed"]
    assert isinstance(transposed, tuple)
    for index, flag in enumerate(transposed, 1):
        weight = inputs[f"w{index}"]
        results[f"y{index}"] = rows @ (weight.T if flag else weight) + inputs.get(f"b{index}", np.array(0.0))
    return results


def _elementwise(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    expression = parse_expression(of.text("expression"))
    made = evaluate_expression(expression, [inputs[f"x{i + 1}"] for i in range(len(expression.inputs))])
    return {f"y{i + 1}": values for i, values in enumerate(made)}


ORACLES: Mapping[str, Callable[[Signature, Arrays, int, int, int], dict[str, Array]]] = {
    "attention": _attention,
    "layer_norm_qkv": _layer_norm_qkv,
    "elementwise": _elementwise,
}
"""By kernel name."""
