"""What the rotary_embedding kernel cannot be generated for, what its templates need, and what it will move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atcfuse.codegen.signature import BFLOAT16, ELEMENT_BYTES, Signature
from atcfuse.tiling import Platform
from atcfuse.tiling import rotary_embedding as tiling

ELEMENTS = {"910B": ("float16", "bfloat16", "float32"), "310P": ("float16", "float32")}
_LAYOUTS = {"as_is": "Layout::kAsIs", "BSND": "Layout::kBSND", "BSH": "Layout::kBSH"}


def refusal(signature: Signature) -> str | None:
    """Why no rotary_embedding kernel can be generated for this signature, or None."""
    dim, width = signature.integer("head_dim"), signature.integer("rotary_dim")
    if width < 2 or width % 2 or width > dim:
        return f"{width} of {dim} elements cannot be rotated in pairs"
    if signature.has("k") != signature.has("k_rotated"):
        return "k and its result come together"
    for name in ("q", "k"):
        if signature.text(f"{name}_layout") not in _LAYOUTS:
            return f"the layout of {name} is {signature.text(f'{name}_layout')!r}; {', '.join(_LAYOUTS)} are known"
        if signature.text(f"{name}_layout") == "BSH" and signature.integer(f"{name}_heads") < 1:
            return f"{name} in layout BSH needs its number of heads"
        wrong = _packing_refusal(signature, name, dim)
        if wrong is not None:
            return wrong
    for name in ("k", "q_rotated", "k_rotated"):
        if signature.has(name) and signature.dtypes[name] != signature.dtypes["q"]:
            return f"{name} has another element type than q"
    if signature.dtypes["cos"] != signature.dtypes["sin"]:
        return "cos and sin differ in element type"
    of = signature_of(signature)
    if of.normed:
        wrong = _norm_refusal(signature, of)
        if wrong is not None:
            return wrong
    elif signature.integer("norm_last"):
        return "a norm behind the rotation needs scales"
    if of.pitch > tiling.MAX_PITCH:
        return f"{width} rotated elements: at most {tiling.MAX_PITCH * of.planes} are possible"
    return _whole_blocks_refusal(signature, of) if of.whole_blocks else None


def _packing_refusal(signature: Signature, name: str, dim: int) -> str | None:
    """What is wrong with the place of an operand's heads in longer rows, or None."""
    offset, step = signature.integer(f"{name}_offset"), signature.integer(f"{name}_step")
    if not offset and not step:
        return None
    if signature.text(f"{name}_layout") != "BSH" or offset < 0 or step < dim or (step > dim and offset + dim > step):
        return f"the heads of {name} have no place in longer rows: offset {offset}, step {step}"
    return None


def _norm_refusal(signature: Signature, of: tiling.Signature) -> str | None:
    """What is wrong with a norm in front of the rotation, or None."""
    if signature.has("k") != signature.has("k_gamma") or not signature.has("q_gamma"):
        return "every operand is normalised, or none"
    scales = [f"{name}_{kind}" for name in "qk"[: of.normed] for kind in ("gamma", "beta")]
    if len({signature.dtypes[name] for name in scales if signature.has(name)}) > 1:
        return "the scales of q and k differ in element type"
    if signature.has("q_beta") + signature.has("k_beta") != of.normed * of.shifts:
        return "every scale has a shift, or none"
    if signature.integer("norm_last") and (of.interleaved or of.rotary_dim < of.head_dim):
        return "rotated vectors of which halves make no pairs, or of which a part is rotated, are not normalised"
    if of.rest_pitch > tiling.MAX_PITCH:
        return f"{of.head_dim - of.rotary_dim} elements that are not rotated: {tiling.MAX_PITCH} are possible"
    return None


def _whole_blocks_refusal(signature: Signature, of: tiling.Signature) -> str | None:
    """What Ascend310P's copies, which move blocks of 32 bytes, cannot take."""
    if BFLOAT16 in signature.dtypes.values():
        return "Ascend310P has no bfloat16"
    if of.interleaved:
        return "on Ascend310P neighbours cannot be exchanged: copies start at whole blocks of 32 bytes"
    rest = of.head_dim - of.rotary_dim
    places = [signature.integer(f"{name}_{what}") for name in "qk" for what in ("offset", "step")]
    if any(place * of.element_bytes % 32 for place in places):
        return "on Ascend310P the heads of a packed operand must begin at blocks of 32 bytes"
    if any(of.width * size % 32 for size in (of.element_bytes, of.angle_bytes, of.gamma_bytes)):
        return f"on Ascend310P half a rotation must fill blocks of 32 bytes, {of.width} elements do not"
    if rest * of.element_bytes % 32:
        return f"on Ascend310P what is not rotated must fill blocks of 32 bytes, {rest} elements do not"
    return None


def signature_of(signature: Signature) -> tiling.Signature:
    """What the tiling needs to know of a signature."""
    return tiling.Signature(
        head_dim=signature.integer("head_dim"),
        rotary_dim=signature.integer("rotary_dim"),
        interleaved=bool(signature.integer("interleaved")),
        element_bytes=ELEMENT_BYTES[signature.dtypes["q"]],
        angle_bytes=ELEMENT_BYTES[signature.dtypes["cos"]],
        whole_blocks=signature.family == "310P",
        normed=signature.has("q_gamma") + signature.has("k_gamma"),
        gamma_bytes=ELEMENT_BYTES[signature.dtypes["q_gamma"]] if signature.has("q_gamma") else 0,
        shifts=signature.has("q_beta") or signature.has("k_beta"),
        by_head=bool(signature.integer("by_head")),
        centred=bool(signature.integer("centred")),
    )


def values(signature: Signature) -> Mapping[str, Any]:
    """Sizes of planes and names of layouts, for the templates."""
    of = signature_of(signature)
    sizes = ("width", "pitch", "planes", "loaded", "rest_pitch", "bytes_per_row", "bytes_per_angles")
    norm = ("normed", "bytes_of_norm", "centred", "vectors", "float_planes")
    names = (*sizes, *norm)
    layouts = {key: _LAYOUTS[signature.text(key)] for key in ("q_layout", "k_layout")}
    return {**{name: getattr(of, name) for name in names}, "names": layouts, "scale_planes": of.loaded}


def problem(signature: Signature, shapes: Mapping[str, tuple[int, ...]]) -> tiling.Problem:
    """The problem that a signature and its inputs' shapes make."""
    operands = [name for name in ("q", "k") if signature.has(name)]
    return tiling.problem_of(
        signature_of(signature),
        [signature.text(f"{name}_layout") for name in operands],
        [signature.integer(f"{name}_heads") for name in operands],
        [signature.integer(f"{name}_step") for name in operands],
        [shapes[name] for name in (*operands, "cos")],
    )


def figures(signature: Signature, shapes: Mapping[str, tuple[int, ...]], platform: Platform) -> Mapping[str, int] | str:
    """Bytes of a launch, named as in the twin's report, or why the kernel does not take the shapes."""
    asked = problem(signature, shapes)
    reason = tiling.refusal(asked, platform)
    if reason is not None:
        return reason
    return tiling.predict(tiling.plan(asked, platform)).figures()
