"""What the layer_norm_qkv kernel cannot be generated for."""

from __future__ import annotations

from atcfuse.codegen.signature import Signature
from atcfuse.tiling.layer_norm_qkv import MAX_PROJECTIONS


def refusal(signature: Signature) -> str | None:
    """Why no layer_norm_qkv kernel can be generated for this signature, or None."""
    if signature.family != "910B":
        return "it hands rows from vector cores to cube cores of 910B; other chips need another form"
    if signature.text("norm") not in ("layer_norm", "rms_norm"):
        return f"the norm is {signature.text('norm')!r}; layer_norm and rms_norm are possible"
    count = signature.integer("num_projections")
    if not 1 <= count <= MAX_PROJECTIONS:
        return f"it makes 1 to {MAX_PROJECTIONS} projections, not {count}"
    transposed = signature.attributes["transposed"]
    if not isinstance(transposed, tuple) or len(transposed) != count:
        return f"transposed must say for each of {count} weights whether it is [M, K]"
    return _operand_refusal(signature, count)


def _operand_refusal(signature: Signature, count: int) -> str | None:
    for index in range(1, MAX_PROJECTIONS + 1):
        used = index <= count
        for name in (f"w{index}", f"y{index}"):
            if signature.has(name) != used:
                return f"{name} is {'missing' if used else 'one too many'} for {count} projections"
        if signature.has(f"b{index}") and not used:
            return f"b{index} is one too many for {count} projections"
    element = signature.dtypes["x"]
    other = sorted(n for n, t in signature.dtypes.items() if t != element and n not in ("gamma", "beta"))
    return f"{other[0]} has another element type than x" if other else None
