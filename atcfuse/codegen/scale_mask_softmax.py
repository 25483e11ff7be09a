"""What the scale_mask_softmax kernel cannot be generated for, what its templates need, and what it will move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from atcfuse.codegen.attention import score_steps
from atcfuse.codegen.signature import BFLOAT16, ELEMENT_BYTES, FLOAT16, Signature
from atcfuse.tiling import Platform
from atcfuse.tiling import scale_mask_softmax as tiling

ELEMENTS = {"910B": ("float16", "bfloat16", "float32"), "310P": ("float16", "float32")}


def refusal(signature: Signature) -> str | None:
    """Why no scale_mask_softmax kernel can be generated for this signature, or None."""
    if signature.family == "310P" and BFLOAT16 in signature.dtypes.values():
        return "Ascend310P has no bfloat16"
    if signature.text("masked_rows") not in ("softmax", "zero"):
        return f"masked_rows is {signature.text('masked_rows')!r}; softmax and zero are known"
    numbers = {name: signature.number(name) for name in ("scale", "softcap", "mask_fill", "floor")}
    wrong = [n for n, v in numbers.items() if math.isnan(v) or v == math.inf or (n in ("scale", "softcap") and v < 0)]
    return f"{wrong[0]} is {numbers[wrong[0]]}" if wrong else None


def signature_of(signature: Signature) -> tiling.Signature:
    """What the tiling needs to know of a signature."""
    return tiling.Signature(
        x_bytes=ELEMENT_BYTES[signature.dtypes["x"]],
        out_bytes=ELEMENT_BYTES[signature.dtypes["probs"]],
        bias_bytes=ELEMENT_BYTES[signature.dtypes["bias"]] if signature.has("bias") else 0,
        has_mask=signature.has("mask"),
        rounds_half=signature.has("bias") and signature.dtypes["bias"] == FLOAT16,
        whole_blocks=signature.family == "310P",
    )


def values(signature: Signature) -> Mapping[str, Any]:
    """The way from scores to exponentials, and element sizes, for the templates."""
    of = signature_of(signature)
    steps = [*(["AddBias"] if signature.has("bias") else []), *(["ApplyMask"] if signature.has("mask") else [])]
    return {
        "scores": score_steps(signature),
        "steps": steps[::-1] if signature.integer("mask_first") else steps,
        "rounds_half": of.rounds_half,
        "small_bytes": tiling.SMALL_BYTES,
        "bytes_per_element": of.bytes_per_element,
        "x_bytes": of.x_bytes,
        "out_bytes": of.out_bytes,
        "bias_bytes": of.bias_bytes,
    }


def problem(signature: Signature, shapes: Mapping[str, tuple[int, ...]]) -> tiling.Problem:
    """The problem that a signature and its inputs' shapes make."""
    return tiling.problem_of(signature_of(signature), shapes["x"], shapes.get("bias", ()), shapes.get("mask", ()))


def figures(signature: Signature, shapes: Mapping[str, tuple[int, ...]], platform: Platform) -> Mapping[str, int] | str:
    """Bytes of a launch, named as in the twin's report, or why the kernel does not take the shapes."""
    asked = problem(signature, shapes)
    reason = tiling.refusal(asked, platform)
    if reason is not None:
        return reason
    return tiling.predict(tiling.plan(asked, platform)).figures()
