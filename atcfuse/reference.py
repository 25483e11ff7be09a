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
    return rounded(rounded(scores, dtype) + _repeated(of, inputs, "bias", scores), dtype)


def _repeated(of: Signature, inputs: Arrays, name: str, scores: Array) -> Array:
    """A bias or mask, its batches repeated where they cycle."""
    found = inputs[name]
    if not of.attributes.get(f"{name}_cycles", 0) or found.ndim < 4:
        return found
    return np.tile(found, (scores.shape[0] // found.shape[0], 1, 1, 1))


def _masked(of: Signature, inputs: Arrays, scores: Array) -> Array:
    if "mask" not in inputs:
        return scores
    mask = _repeated(of, inputs, "mask", scores)
    return np.where(mask == bool(of.integer("mask_keeps")), scores, of.number("mask_fill"))


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


def _normalized(of: Signature, inputs: Arrays) -> Array:
    return _normalized_rows(of, inputs, inputs["x"], of.dtypes["x"])


def _normalized_rows(of: Signature, inputs: Arrays, rows: Array, dtype: int) -> Array:
    if of.text("norm") == "layer_norm":
        rows = rows - rows.mean(axis=-1, keepdims=True)
    rows = rows / np.sqrt((rows * rows).mean(axis=-1, keepdims=True) + of.number("epsilon"))
    return rounded(rows * inputs.get("gamma", np.array(1.0)) + inputs.get("beta", np.array(0.0)), dtype)


def _layer_norm_qkv(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    rows = _normalized(of, inputs)
    return {**_projections(of, inputs, rows), **({"normalized": rows} if of.has("normalized") else {})}


def _add_layer_norm_qkv(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    total, dtype = inputs["x1"], of.dtypes["x1"]
    for name in ("x2", "x3"):
        total = rounded(total + inputs[name], dtype) if name in inputs else total
    rows = _normalized_rows(of, inputs, total, dtype)
    kept = {name: values for name, values in (("normalized", rows), ("sum", total)) if of.has(name)}
    return {**_projections(of, inputs, rows), **kept}


def _qkv(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    return _projections(of, inputs, inputs["x"])


def _projections(of: Signature, inputs: Arrays, rows: Array) -> dict[str, Array]:
    results, transposed = {}, of.attributes["transposed"]
    assert isinstance(transposed, tuple)
    for index, flag in enumerate(transposed, 1):
        weight = inputs[f"w{index}"]
        results[f"y{index}"] = rows @ (weight.T if flag else weight) + inputs.get(f"b{index}", np.array(0.0))
    return results


def _row_norm(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    first, *more = (name for name in ("x", "x1", "x2", "x3") if name in inputs)
    rows, dtype = inputs[first], of.dtypes[first]
    for name in more:
        gated = name == "x2" and "gate" in inputs
        rows = rounded(rows + (rounded(inputs[name] * inputs["gate"], dtype) if gated else inputs[name]), dtype)
    results = {"sum": rows} if of.has("sum") else {}
    if "rms" not in of.spec.name:
        rows = rows - rows.mean(axis=-1, keepdims=True)
    rows = rows / np.sqrt((rows * rows).mean(axis=-1, keepdims=True) + of.number("epsilon"))
    plus = of.number("plus") if "plus" in of.attributes else 0.0
    rows = rows * (inputs.get("gamma", np.array(1.0)) + plus) + inputs.get("beta", np.array(0.0))
    return {"y": rows + inputs.get("residual", np.array(0.0)), **results}


_SIGMOIDS = {"gelu_tanh": (1.5957691216057308, 0.044715), "gelu_quick": (1.702, 0.0), "silu": (1.0, 0.0)}
"""Activations x * sigmoid(a * (x + b * x³)) by name: a and b."""


def activated(kind: str, x: Array) -> Array:
    """An activation in float64, "none" for none."""
    if kind == "gelu_erf":
        tail: Array = np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2))
        return 0.5 * x * tail
    if kind in _SIGMOIDS:
        factor, cubic = _SIGMOIDS[kind]
        return x * activated("sigmoid", factor * (x + cubic * x**3))
    if kind == "sigmoid":
        return 0.5 + 0.5 * np.tanh(x / 2)
    if kind == "tanh":
        return np.tanh(x)
    if kind == "relu_squared":
        return np.maximum(x, 0.0) ** 2
    return np.maximum(x, 0.0) if kind == "relu" else x


def _ffn(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    return {"y": _finished(inputs, _fed_forward(of, inputs, inputs["x"]), _residuals(inputs))}


def _layer_norm_ffn(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    rows = _normalized(of, inputs)
    added = rows if of.integer("add_normalized") else _residuals(inputs)
    y = _finished(inputs, _fed_forward(of, inputs, rows), added)
    return {"y": y, **({"normalized": rows} if of.has("normalized") else {})}


def _fed_forward(of: Signature, inputs: Arrays, rows: Array) -> Array:
    """down(activation(up(rows))), gated or not; what a float16 kernel keeps between its products is rounded."""
    flags = of.attributes["transposed"]
    assert isinstance(flags, tuple)

    def project(values: Array, name: str, turned: int | float) -> Array:
        weight = inputs[f"w_{name}"]
        return values @ (weight.T if turned else weight) + inputs.get(f"b_{name}", np.array(0.0))

    up = rounded(project(rows, "up", flags[0]), of.dtypes["x"])
    gating, kind = of.text("gating"), of.text("activation")
    if gating == "none":
        hidden = activated(kind, up)
    else:
        own = gating == "separate"
        first, second = (project(rows, "gate", flags[1]), up) if own else np.split(up, 2, axis=-1)
        gate, other = (second, first) if gating == "up_gate" else (first, second)
        hidden = activated(kind, rounded(gate, of.dtypes["x"])) * other
    return of.number("scale") * project(rounded(hidden, of.dtypes["x"]), "down", flags[2])


def _rotary_embedding(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    found = {}
    for name in ("q", "k"):
        if not of.has(name):
            continue
        x = inputs[name]
        step, offset, width = of.integer(f"{name}_step"), of.integer(f"{name}_offset"), of.integer("head_dim")
        if step:
            first = [offset + head * step for head in range(of.integer(f"{name}_heads"))]
            x = np.stack([x[..., at : at + width] for at in first], axis=1)
        elif of.text(f"{name}_layout") != "as_is":
            x = x.reshape(*x.shape[:2], -1, of.integer("head_dim")).swapaxes(1, 2)
        last = of.integer("norm_last")
        if of.has(f"{name}_gamma") and not last:
            x = _normed_vectors(of, x, inputs, name)
        x = _rotated(of, x, inputs["cos"], inputs["sin"])
        found[f"{name}_rotated"] = _normed_vectors(of, x, inputs, name) if last else x
    return found


def _normed_vectors(of: Signature, x: Array, inputs: Arrays, name: str) -> Array:
    scale, shift = inputs[f"{name}_gamma"], inputs.get(f"{name}_beta", np.array(0.0))
    if of.integer("by_head"):
        scale, shift = scale[:, None], shift[:, None] if shift.ndim else shift
    if of.integer("centred"):
        x = x - x.mean(-1, keepdims=True)
    scaled: Array = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + of.number("epsilon")) * scale + shift
    return scaled


def _rotated(of: Signature, x: Array, cos: Array, sin: Array) -> Array:
    width = of.integer("rotary_dim")
    out: Array = x.copy()
    first, second = slice(0, width // 2), slice(width // 2, width)
    if of.integer("interleaved"):
        first, second = slice(0, width, 2), slice(1, width, 2)
    a, b = x[..., first], x[..., second]
    out[..., first] = a * cos[..., first] - b * sin[..., first]
    out[..., second] = b * cos[..., second] + a * sin[..., second]
    return out


def _scale_mask_softmax(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    scores, cap = inputs["x"] * of.number("scale"), of.number("softcap")
    scores = cap * np.tanh(scores / cap) if cap else scores
    for step in [_biased, _masked] if not of.integer("mask_first") else [_masked, _biased]:
        scores = step(of, inputs, scores)
    return {"probs": _softmax(of, np.maximum(scores, of.number("floor")))}


def _linear(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    rows = rounded(activated(of.text("prologue"), inputs["x"]), of.dtypes["x"])
    return {"y": _projected(of, inputs, rows)}


def _layer_norm_linear(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    rows = _normalized(of, inputs)
    return {"y": _projected(of, inputs, rows), **({"normalized": rows} if of.has("normalized") else {})}


def _projected(of: Signature, inputs: Arrays, rows: Array) -> Array:
    weight = inputs["w"].T if of.integer("transposed") else inputs["w"]
    product = rows @ weight + inputs.get("bias", np.array(0.0))
    if of.integer("folded"):
        product = product.reshape(inputs["residual"].shape)
    result = activated(of.text("activation"), of.number("scale") * product)
    return _finished(inputs, result, _residuals(inputs))


def _finished(inputs: Arrays, result: Array, added: Array) -> Array:
    """What vectors of the columns make of a result before and behind what is added to it."""
    one, none = np.array(1.0), np.array(0.0)
    total = result * inputs.get("gain", one) + added
    return total * inputs.get("gain2", one) + inputs.get("shift", none)


def _residuals(inputs: Arrays) -> Array:
    """What is added to a projection last, one value or two."""
    return sum((inputs[name] for name in ("residual", "residual2") if name in inputs), np.array(0.0))


def _group_norm_silu(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    x = inputs["x"]
    count = of.integer("num_groups")
    groups = x.reshape(x.shape[0], count, math.prod(x.shape[1:]) // count)
    centred = groups - groups.mean(axis=-1, keepdims=True)
    unit = centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + of.number("epsilon"))
    each = (1, x.shape[1], *(1,) * (x.ndim - 2))
    y = unit.reshape(x.shape) * inputs.get("gamma", np.ones(x.shape[1])).reshape(each)
    y = y + inputs.get("beta", np.zeros(x.shape[1])).reshape(each)
    return {"y": activated(of.text("activation"), y)}


def _elementwise(of: Signature, inputs: Arrays, queries: int, keys: int, batch: int) -> dict[str, Array]:
    expression = parse_expression(of.text("expression"))
    made = evaluate_expression(expression, [inputs[f"x{i + 1}"] for i in range(len(expression.inputs))])
    return {f"y{i + 1}": values for i, values in enumerate(made)}


ORACLES: Mapping[str, Callable[[Signature, Arrays, int, int, int], dict[str, Array]]] = {
    "attention": _attention,
    "ffn": _ffn,
    "layer_norm_ffn": _layer_norm_ffn,
    "group_norm_silu": _group_norm_silu,
    "layer_norm_qkv": _layer_norm_qkv,
    "add_layer_norm_qkv": _add_layer_norm_qkv,
    "qkv": _qkv,
    **dict.fromkeys(("add_layer_norm", "add_rms_norm", "layer_norm", "modulated_layer_norm", "rms_norm"), _row_norm),
    "rotary_embedding": _rotary_embedding,
    "scale_mask_softmax": _scale_mask_softmax,
    "layer_norm_linear": _layer_norm_linear,
    "linear": _linear,
    "elementwise": _elementwise,
}
"""By kernel name."""
