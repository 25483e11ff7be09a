"""Template values of the attention kernel, the signatures it does not take, and what it will move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from atcfuse.codegen.layouts import Layout, Reading, parse_layout, read_sizes
from atcfuse.codegen.literals import c_float
from atcfuse.codegen.signature import BFLOAT16, CPP_TYPES, ELEMENT_BYTES, FLOAT16, Signature
from atcfuse.tiling import Platform
from atcfuse.tiling.attention import predict
from atcfuse.tiling.attention_problem import Problem

ELEMENTS = {"910B": ("float16", "bfloat16", "float32"), "310P": ("float16",)}
MAX_HEAD_DIM = 256
LEAST_FLOAT = -3.4028234663852886e38
"""The lowest float32, which stands for -inf inside the kernel: reductions and differences stay finite."""
_DEEP = LEAST_FLOAT / 2
"""Finite scores may only reach this low while -inf is spelled LEAST_FLOAT; deeper ones make the kernel halve them."""
_CAUSAL = ("none", "top_left", "bottom_right")
_LETTERS = {
    "q": {"B": "sizes.batch", "S": "sizes.queries", "N": "kHeads", "D": "kHeadDim"},
    "k": {"B": "sizes.batch", "S": "sizes.keys", "N": "kKvHeads", "D": "kHeadDim"},
    "v": {"B": "sizes.batch", "S": "sizes.keys", "N": "kKvHeads", "D": "kValueDim"},
    "out": {"B": "sizes.batch", "S": "sizes.queries", "N": "kHeads", "D": "kValueDim"},
}


def refusal(signature: Signature) -> str | None:
    """Why no attention kernel can be generated for this signature, or None."""
    return _chip_refusal(signature) or _number_refusal(signature) or _layout_refusal(signature)


def values(signature: Signature) -> Mapping[str, Any]:
    """What the attention templates need beyond the common variables."""
    layouts = _layouts(signature)
    readings = _readings(layouts)
    assert not isinstance(readings, str)
    transposed = layouts["k"].innermost() == "S"
    return {
        "scores": score_steps(signature),
        "element_bytes": ELEMENT_BYTES[signature.dtypes["q"]],
        "bias_bytes": ELEMENT_BYTES[signature.dtypes["bias"]] if signature.has("bias") else 0,
        "bias_type": CPP_TYPES[signature.dtypes["bias"]] if signature.has("bias") else "",
        "keys_transposed": transposed,
        "cycles": {name: bool(signature.attributes.get(f"{name}_cycles", 0)) for name in ("bias", "mask")},
        "readings": [_statement(reading) for reading in readings],
        "operands": {
            name: _operand(layout, _LETTERS[name], "D" if name == "k" and transposed else "S")
            for name, layout in layouts.items()
        },
    }


def score_steps(signature: Signature) -> dict[str, Any]:
    """The compile-time choices of the way from Q·Kᵀ to exponentials.

    `halved` tells that scores are halved (exactly) so that the lowest float can stand for -inf beside finite scores of
    nearly that size; `empty_rows` that rows of nothing but -inf can occur; `skips` that tiles behind the causal
    diagonal may be left out, which is exact only while they are -inf; `minus_infinity` that -inf is left at the end.
    """
    has_bias, has_mask = signature.has("bias"), signature.has("mask")
    fill, floor = signature.number("mask_fill"), signature.number("floor")
    causal = str(signature.attributes.get("causal", "none"))
    wide_bias = has_bias and signature.dtypes["bias"] != FLOAT16
    deep = [value for value in (fill if has_mask else 0.0, floor) if math.isfinite(value) and value < _DEEP]
    unbounded = floor == -math.inf
    minus_infinity = has_bias or causal != "none" or (has_mask and fill == -math.inf)
    return {
        "scale": signature.number("scale"),
        "softcap": signature.number("softcap"),
        "fill": fill,
        "fill_text": "kMinusInfinity" if fill == -math.inf else c_float(fill),
        "floor": floor,
        "has_floor": not unbounded,
        "keeps": signature.integer("mask_keeps"),
        "mask_first": bool(signature.integer("mask_first")) and has_mask,
        "mask_last": has_mask and not signature.integer("mask_first"),
        "causal": causal,
        "skips": causal != "none" and unbounded,
        "halved": wide_bias or bool(deep),
        "uses_infinity": minus_infinity,
        "minus_infinity": minus_infinity and unbounded,
        "empty_rows": unbounded and (has_bias or causal == "bottom_right" or (has_mask and fill == -math.inf)),
        "empty_is_zero": signature.text("masked_rows") == "zero",
    }


def problem(signature: Signature, shapes: Mapping[str, tuple[int, ...]]) -> Problem:
    """The attention that a signature and its inputs' shapes make, for `atcfuse.tiling.attention`."""
    layouts = _layouts(signature)
    readings = _readings(layouts)
    assert not isinstance(readings, str)
    names = {"kHeads": "num_heads", "kKvHeads": "num_kv_heads", "kHeadDim": "head_dim", "kValueDim": "v_head_dim"}
    known = {name: signature.integer(attribute) for name, attribute in names.items()}
    for reading in readings:
        factors = [known[f] if f in known else int(f) for f in reading.divisor.split(" * ")]
        known[reading.name] = shapes["qkv"[reading.operand]][reading.axis] // math.prod(factors)
    steps = score_steps(signature)
    return Problem(
        heads=known["kHeads"],
        kv_heads=known["kKvHeads"],
        head_dim=known["kHeadDim"],
        value_dim=known["kValueDim"],
        element_bytes=ELEMENT_BYTES[signature.dtypes["q"]],
        bias_bytes=ELEMENT_BYTES[signature.dtypes["bias"]] if signature.has("bias") else 0,
        has_mask=signature.has("mask"),
        has_softcap=steps["softcap"] != 0,
        keys_transposed=layouts["k"].innermost() == "S",
        shared_core=signature.family == "310P",
        skips=steps["skips"],
        bottom_right=steps["causal"] == "bottom_right",
        batch=known.get("sizes.batch", 1),
        queries=known.get("sizes.queries", 1),
        keys=known.get("sizes.keys", 1),
        bias_shape=shapes.get("bias", ()),
        mask_shape=shapes.get("mask", ()),
    )


def figures(signature: Signature, shapes: Mapping[str, tuple[int, ...]], platform: Platform) -> Mapping[str, int] | str:
    """Bytes of a launch, named as in the twin's report, or why the kernel does not take the shapes."""
    predicted = predict(problem(signature, shapes), platform)
    return predicted if isinstance(predicted, str) else predicted.figures()


def _chip_refusal(signature: Signature) -> str | None:
    kinds = {signature.dtypes[name] for name in ("q", "k", "v", "out")}
    if len(kinds) != 1:
        return "queries, keys, values and result must have one element type"
    return None if signature.family == "910B" else _shared_core_refusal(signature)


def _shared_core_refusal(signature: Signature) -> str | None:
    """What Ascend310P's cube cannot take: it knows halves in blocks of 16 only."""
    if signature.dtypes["q"] != FLOAT16:
        return "Ascend310P multiplies float16 only; ATC's precision mode can convert the model"
    if signature.has("bias") and signature.dtypes["bias"] != FLOAT16:
        return "on Ascend310P the bias must be float16"
    for name in ("head_dim", "v_head_dim", "q_offset", "k_offset", "v_offset"):
        if signature.integer(name) % 16 != 0:
            return f"on Ascend310P {name} must be a multiple of 16, it is {signature.integer(name)}"
    layout = parse_layout(signature.text("k_layout"))
    if layout is not None and layout.innermost() == "S":
        return "on Ascend310P keys must not be transposed in memory"
    return None


def _number_refusal(signature: Signature) -> str | None:
    heads, shared = signature.integer("num_heads"), signature.integer("num_kv_heads")
    dims = (signature.integer("head_dim"), signature.integer("v_head_dim"))
    if min(dims) < 1 or max(dims) > MAX_HEAD_DIM:
        return f"head dims {dims[0]} and {dims[1]}: 1 to {MAX_HEAD_DIM} are possible"
    if heads < 1 or shared < 1 or heads % shared != 0:
        return f"{heads} query heads cannot share {shared} key heads evenly"
    if signature.text("causal") not in _CAUSAL:
        return f"causal is {signature.text('causal')!r}; {', '.join(_CAUSAL)} are known"
    if signature.text("masked_rows") not in ("softmax", "zero"):
        return f"masked_rows is {signature.text('masked_rows')!r}; softmax and zero are known"
    numbers = {name: signature.number(name) for name in ("scale", "softcap", "mask_fill", "floor")}
    wrong = [n for n, v in numbers.items() if math.isnan(v) or v == math.inf or (n in ("scale", "softcap") and v < 0)]
    if wrong:
        return f"{wrong[0]} is {numbers[wrong[0]]}"
    if signature.has("bias") and signature.dtypes["bias"] == BFLOAT16 and signature.dtypes["q"] == FLOAT16:
        return "a bfloat16 bias is added to float16 scores"
    return None


def _layout_refusal(signature: Signature) -> str | None:
    for name in _LETTERS:
        text = signature.text(f"{name}_layout")
        layout = parse_layout(text)
        if layout is None:
            return f"the layout {text!r} of {name} cannot be read"
        width = signature.integer("v_head_dim" if name in ("v", "out") else "head_dim")
        if width > 1 and layout.innermost() not in (("D", "S") if name == "k" else ("D",)):
            return f"the head dim of {name} is not contiguous in the layout {text}"
    missing = _readings(_layouts(signature))
    if isinstance(missing, str):
        what = {"sizes.batch": "batch size", "sizes.queries": "number of queries", "sizes.keys": "number of keys"}
        return f"the {what[missing]} cannot be read from the shapes of q, k and v"
    return None


def _layouts(signature: Signature) -> dict[str, Layout]:
    parsed = {name: parse_layout(signature.text(f"{name}_layout")) for name in _LETTERS}
    return {name: layout for name, layout in parsed.items() if layout is not None}


def _readings(layouts: Mapping[str, Layout]) -> list[Reading] | str:
    operands = [(layouts[name], _LETTERS[name]) for name in ("q", "k", "v")]
    return read_sizes(operands, ("sizes.batch", "sizes.queries", "sizes.keys"))


def _statement(reading: Reading) -> str:
    size = f"inputs[{reading.operand}].dims[{reading.axis}]"
    return f"{reading.name} = {size}" + (f" / ({reading.divisor})" if reading.divisor != "1" else "")


def _operand(layout: Layout, letters: Mapping[str, str], row: str) -> dict[str, Any]:
    return {
        "layout": layout.text,
        "shape": layout.shape(letters),
        "batch": layout.stride("B", letters),
        "head": layout.stride("N", letters),
        "row": layout.stride(row, letters),
    }
