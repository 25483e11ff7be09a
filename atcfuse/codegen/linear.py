"""What the linear and layer_norm_linear kernels cannot be generated for, their template values, what they move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atcfuse.codegen.signature import Signature
from atcfuse.tiling import Platform
from atcfuse.tiling import linear as tiling
from atcfuse.tiling.activations import ACTIVATIONS
from atcfuse.tiling.linear_problem import Problem, features, problem_of

ELEMENTS = {"910B": ("float16", "bfloat16", "float32")}


def refusal(signature: Signature) -> str | None:
    """Why no kernel can be generated for this signature, or None."""
    if signature.family != "910B":
        return "its product goes from cube to vector cores of 910B through memory; other chips need another form"
    for name in ("prologue", "activation"):
        kind = signature.attributes.get(name, "none")
        if kind != "none" and kind not in ACTIVATIONS:
            return f"the {name} is {kind!r}; none, {', '.join(ACTIVATIONS)} are possible"
    if "norm" in signature.attributes and signature.text("norm") not in ("layer_norm", "rms_norm"):
        return f"the norm is {signature.text('norm')!r}; layer_norm and rms_norm are possible"
    if signature.integer("folded") and not signature.has("residual"):
        return "folded rows need a residual, whose shape the result has"
    if signature.has("residual2") and not signature.has("residual"):
        return "a second residual needs a first one"
    element = signature.dtypes["x"]
    other = sorted(n for n, t in signature.dtypes.items() if t != element and n not in ("gamma", "beta"))
    return f"{other[0]} has another element type than x" if other else None


def figures(signature: Signature, shapes: Mapping[str, tuple[int, ...]], platform: Platform) -> Mapping[str, int] | str:
    """Bytes of a launch, named as in the twin's report, or why the kernel does not take the shapes."""
    problem = problem_of(signature.attributes, signature.dtypes, shapes)
    return tiling.refusal(problem, platform) or vars(tiling.predict(tiling.plan(problem, platform)))


def values(signature: Signature) -> Mapping[str, Any]:
    """Template variables: what the kernel does beside its product, and what the chip must hold for it."""
    spec = signature.spec
    problem = Problem(1, 1, 1, **features(signature.attributes, signature.dtypes))
    inputs = [o.name for o in spec.inputs]
    outputs = [o.name for o in spec.outputs if signature.has(o.name)]
    return {
        "inputs": inputs,
        "parameters": [*inputs, *outputs],
        "norm": problem.norm,
        "residuals": [name for name in ("residual", "residual2") if signature.has(name)],
        "prologue": "" if problem.prologue == "none" else problem.prologue,
        **{
            name: getattr(problem, name)
            for name in ("prepares", "finishes", "tiled", "scaled", "cube_bias", "vectors", "scratch", "temporary")
        },
        **{name: getattr(problem, name) for name in ("tile_bytes", "row_instructions", "tile_instructions")},
    }
