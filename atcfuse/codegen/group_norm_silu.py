"""What the group_norm_silu kernel cannot be generated for, and what it will move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atcfuse.codegen.signature import BFLOAT16, Signature
from atcfuse.tiling import Platform
from atcfuse.tiling import group_norm_silu as tiling
from atcfuse.tiling.activations import ACTIVATIONS

ELEMENTS = {"910B": ("float16", "bfloat16", "float32"), "310P": ("float16", "float32")}


def refusal(signature: Signature) -> str | None:
    """Why no such kernel can be generated for this signature, or None."""
    groups, channels = signature.integer("num_groups"), signature.integer("num_channels")
    if groups < 1 or channels < 1 or channels % groups:
        return f"{channels} channels do not divide into {groups} groups"
    if signature.text("activation") not in ("none", *ACTIVATIONS):
        return f"the activation is {signature.text('activation')!r}; none, {', '.join(ACTIVATIONS)} are possible"
    if signature.dtypes["x"] != signature.dtypes["y"]:
        return "y has another element type than x"
    if signature.family == "310P" and BFLOAT16 in signature.dtypes.values():
        return "310P has no bfloat16"
    return None


def values(signature: Signature) -> Mapping[str, Any]:
    """Template variables."""
    return {"temporary_bytes": tiling.temporary_bytes(signature.text("activation"))}


def figures(signature: Signature, shapes: Mapping[str, tuple[int, ...]], platform: Platform) -> Mapping[str, int] | str:
    """Bytes of a launch, named as in the twin's report, or why the kernel does not take the shapes."""
    problem = tiling.problem_of(signature.attributes, signature.dtypes, shapes, signature.family)
    return tiling.refusal(problem, platform) or vars(tiling.predict(tiling.plan(problem, platform)))
