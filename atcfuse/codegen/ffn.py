"""What ffn and layer_norm_ffn kernels cannot be generated for, what their templates need, and what they will move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atcfuse.codegen.signature import Signature
from atcfuse.tiling import Platform, ffn_problem
from atcfuse.tiling import ffn as tiling
from atcfuse.tiling.activations import ACTIVATIONS, activation
from atcfuse.tiling.ffn_problem import GATINGS

ELEMENTS = {"910B": ("float16", "bfloat16", "float32")}


def refusal(signature: Signature) -> str | None:
    """Why no kernel can be generated for this signature, or None."""
    if signature.family != "910B":
        return "it hands rows between vector and cube cores of 910B; other chips need another form"
    if "norm" in signature.attributes and signature.text("norm") not in ("layer_norm", "rms_norm"):
        return f"the norm is {signature.text('norm')!r}; layer_norm and rms_norm are possible"
    if signature.text("activation") not in ACTIVATIONS:
        return f"the activation is {signature.text('activation')!r}; possible are {', '.join(ACTIVATIONS)}"
    if signature.text("gating") not in GATINGS:
        return f"the gating is {signature.text('gating')!r}; possible are {', '.join(GATINGS)}"
    transposed = signature.attributes["transposed"]
    if not isinstance(transposed, tuple) or len(transposed) != 3:
        return "transposed must say for the up, gate and down weight whether it is [out, in]"
    return _operand_refusal(signature)


def _operand_refusal(signature: Signature) -> str | None:
    separate = signature.text("gating") == "separate"
    if signature.has("w_gate") != separate:
        return f"w_gate is {'missing' if separate else 'one too many'} for this gating"
    if signature.has("b_gate") and not separate:
        return "b_gate is one too many for this gating"
    if signature.has("residual") and signature.attributes.get("add_normalized"):
        return "it adds one value to the result: the residual or the normalised rows"
    if signature.has("residual2") and not signature.has("residual"):
        return "a second residual needs a first one"
    element = signature.dtypes["x"]
    other = sorted(n for n, t in signature.dtypes.items() if t != element and n not in ("gamma", "beta"))
    return f"{other[0]} has another element type than x" if other else None


def values(signature: Signature) -> Mapping[str, Any]:
    """What the activation needs on chip."""
    return {"needs": activation(signature.text("activation"))}


def figures(signature: Signature, shapes: Mapping[str, tuple[int, ...]], platform: Platform) -> Mapping[str, int] | str:
    """Bytes of a launch, named as in the twin's report, or why the kernel does not take the shapes."""
    problem = ffn_problem.problem_of(signature.attributes, signature.dtypes, shapes)
    return ffn_problem.refusal(problem) or vars(tiling.predict(tiling.plan(problem, platform)))
