"""What the kernels of projections, of a norm or not, cannot be generated for, what they need, what they will move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atcfuse.codegen.signature import AttributeValue, Signature
from atcfuse.kernel import KEPT, KernelSpec
from atcfuse.rule.types import ELEMENT_TYPES
from atcfuse.tiling import Platform
from atcfuse.tiling import layer_norm_qkv as tiling
from atcfuse.tiling.layer_norm_qkv import MAX_PROJECTIONS
from atcfuse.tiling.row_norm import SUMMANDS

ELEMENTS = {"910B": ("float16", "bfloat16", "float32")}


def refusal(signature: Signature) -> str | None:
    """Why no such kernel can be generated for this signature, or None."""
    if signature.family != "910B":
        return "it hands rows from vector cores to cube cores of 910B; other chips need another form"
    has_norm = "norm" in signature.attributes
    if has_norm and signature.text("norm") not in ("layer_norm", "rms_norm"):
        return f"the norm is {signature.text('norm')!r}; layer_norm and rms_norm are possible"
    count, least = signature.integer("num_projections"), 1 if has_norm else 2
    if not least <= count <= MAX_PROJECTIONS:
        return f"it makes {least} to {MAX_PROJECTIONS} projections, not {count}"
    transposed = signature.attributes["transposed"]
    if not isinstance(transposed, tuple) or len(transposed) != count:
        return f"transposed must say for each of {count} weights whether it is [M, K]"
    return _operand_refusal(signature, count)


def values(signature: Signature) -> Mapping[str, Any]:
    """Summands, whether they are normalised, and whether vector cores hand biases to the cube as float where not."""
    norm = "norm" in signature.attributes
    summands = [name for name in SUMMANDS if signature.has(name)]
    brain = signature.dtypes[summands[0]] == ELEMENT_TYPES["bfloat16"]
    any_bias = any(signature.has(f"b{index}") for index in range(1, MAX_PROJECTIONS + 1))
    return {"norm": norm, "widens": not norm and brain and any_bias, "summands": summands}


def figures(signature: Signature, shapes: Mapping[str, tuple[int, ...]], platform: Platform) -> Mapping[str, int] | str:
    """Bytes of a launch, named as in the twin's report, or why the kernel does not take the shapes."""
    problem = tiling.problem_of(signature.attributes, signature.dtypes, shapes)
    return tiling.refusal(problem) or vars(tiling.predict(tiling.plan(problem, platform)))


def output_names(spec: KernelSpec, attributes: Mapping[str, AttributeValue], count: int) -> tuple[str, ...]:
    """The projections in order, then the normalised rows where the node gives one output more, or what it says."""
    projections, kept = attributes.get("num_projections"), attributes.get(KEPT)
    projections = projections if isinstance(projections, int) else count
    names = tuple(o.name for o in spec.outputs[: min(projections, count)])
    if isinstance(kept, tuple):
        return (*names, *(o.name for o, given in zip(spec.outputs[-len(kept) :], kept, strict=True) if given))
    return (*names, *(o.name for o in spec.outputs[-1:])) if count > projections else names


def _operand_refusal(signature: Signature, count: int) -> str | None:
    for index in range(1, MAX_PROJECTIONS + 1):
        used = index <= count
        for name in (f"w{index}", f"y{index}"):
            if signature.has(name) != used:
                return f"{name} is {'missing' if used else 'one too many'} for {count} projections"
        if signature.has(f"b{index}") and not used:
            return f"b{index} is one too many for {count} projections"
    element = next(signature.dtypes[name] for name in SUMMANDS if signature.has(name))
    other = sorted(n for n, t in signature.dtypes.items() if t != element and n not in ("gamma", "beta"))
    return f"{other[0]} has another element type than x" if other else None
