"""What the kernels that normalise rows on vector cores need in their templates, and what they will move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atcfuse.codegen.signature import Signature
from atcfuse.tiling import Platform
from atcfuse.tiling import row_norm as tiling

ELEMENTS = {"910B": ("float16", "bfloat16", "float32"), "310P": ("float16", "float32")}
_RMS = ("rms_norm", "add_rms_norm")


def values(signature: Signature) -> Mapping[str, Any]:
    """Template variables: summands and where they stand among the inputs, all parameters, the kind of norm."""
    inputs = [o.name for o in signature.spec.inputs]
    outputs = [o.name for o in signature.spec.outputs]
    summands = [name for name in tiling.SUMMANDS if signature.has(name)]
    return {
        "summands": summands,
        "summand_inputs": [inputs.index(name) for name in summands],
        "gamma_input": inputs.index("gamma"),
        "beta_input": inputs.index("beta") if "beta" in inputs else -1,
        "operands": [*inputs, *(name for name in outputs if signature.has(name))],
        "modulated": signature.spec.name == "modulated_layer_norm",
        "plus": signature.attributes.get("plus", 0.0),
        "subtracts_mean": signature.spec.name not in _RMS,
        "has_beta": signature.has("beta"),
        "residual_input": inputs.index("residual") if "residual" in inputs else -1,
        "has_residual": signature.has("residual"),
        "gate_input": inputs.index("gate") if "gate" in inputs else -1,
        "has_gate": signature.has("gate"),
        "has_sum": "sum" in outputs,
        "keeps_sum": signature.has("sum"),
    }


def refusal(signature: Signature) -> str | None:
    """Why no such kernel can be generated for this signature, or None."""
    narrow = {name: t for name, t in signature.dtypes.items() if name not in ("gamma", "beta")}
    first = next(narrow[name] for name in tiling.SUMMANDS if name in narrow)
    other = sorted(name for name, dtype in narrow.items() if dtype != first)
    if other:
        return f"{other[0]} has another element type than the first operand"
    if "bfloat16" not in ELEMENTS[signature.family] and tiling.BFLOAT16 in signature.dtypes.values():
        return "310P has no bfloat16"
    return None


def figures(signature: Signature, shapes: Mapping[str, tuple[int, ...]], platform: Platform) -> Mapping[str, int] | str:
    """Bytes of a launch, named as in the twin's report, or why the kernel does not take the shapes."""
    modulated = signature.spec.name == "modulated_layer_norm"
    problem = tiling.problem_of(signature.dtypes, shapes, signature.family, modulated)
    return tiling.refusal(problem, platform) or vars(tiling.predict(tiling.plan(problem, platform)))
