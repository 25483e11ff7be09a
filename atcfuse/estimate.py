"""What a generated kernel moves and holds: computed from its own tiling, equal to what the twin counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atcfuse.codegen import Signature
from atcfuse.codegen import attention as attention_code
from atcfuse.kernel import KernelSpec
from atcfuse.tiling import Platform, attention, attention_310p, family_of, layer_norm_qkv, platform_of

Shapes = Mapping[str, tuple[int, ...]]

TWIN_ONLY = "checked in the twin only"
"""The status of kernels that could not be held against the real headers: float32 on the cube, and 310P's cube."""


@dataclass(frozen=True)
class Estimate:
    """Bytes of one launch: tensors and workspace through global memory, distinct workspace bytes, on-chip peaks."""

    form: str
    blocks: int
    parameters: Mapping[str, int]
    tensor_bytes: int
    workspace_bytes: int
    workspace_footprint: int
    on_chip: Mapping[str, int]
    status: str

    def as_dict(self) -> dict[str, Any]:
        """The estimate as the report has it."""
        return {
            "tiling": {"form": self.form, "blocks": self.blocks, **dict(self.parameters)},
            "kernel_bytes": {
                "tensor": self.tensor_bytes,
                "workspace": self.workspace_bytes,
                "workspace_footprint": self.workspace_footprint,
            },
            "on_chip": {memory.upper(): size for memory, size in self.on_chip.items()},
            "chip_status": self.status,
        }


def estimate(
    spec: KernelSpec, attributes: Mapping[str, Any], dtypes: Mapping[str, int], soc: str, shapes: Shapes
) -> Estimate | str:
    """The estimate for operands of the given numeric shapes, or why the kernel cannot take them."""
    family = family_of(soc)
    maker = _MAKERS.get(spec.name)
    if family is None or maker is None:
        return f"there is no kernel of {spec.op} for {soc}"
    return maker(Signature.of(spec, attributes, dtypes, family), shapes, platform_of(family))


def _status(signature: Signature) -> str:
    wide = 1 in (signature.dtypes.get("q"), signature.dtypes.get("x"))
    return TWIN_ONLY if wide or signature.family == "310P" else "twin"


def _attention(signature: Signature, shapes: Shapes, platform: Platform) -> Estimate | str:
    problem = attention_code.problem(signature, shapes)
    predict = attention_310p.predict if signature.family == "310P" else attention.predict
    found = predict(problem, platform)
    if isinstance(found, str):
        return found
    return Estimate(
        form=found.form,
        blocks=found.blocks,
        parameters=found.parameters,
        tensor_bytes=found.tensor_bytes,
        workspace_bytes=found.workspace_read + found.workspace_written,
        workspace_footprint=found.workspace_footprint,
        on_chip=found.peak,
        status=_status(signature),
    )


def _norm(signature: Signature, shapes: Shapes, platform: Platform) -> Estimate | str:
    problem = layer_norm_qkv.problem_of(signature.attributes, signature.dtypes, shapes)
    refused = layer_norm_qkv.refusal(problem)
    if refused is not None:
        return refused
    plan = layer_norm_qkv.plan(problem, platform)
    found = layer_norm_qkv.predict(plan)
    return Estimate(
        form="two_read" if not plan.row_fits else "one_read",
        blocks=plan.blocks,
        parameters={"rows_per_task": plan.rows_per_task, "groups": plan.groups, "unit_columns": plan.unit_columns},
        tensor_bytes=found.tensor_bytes_read + found.tensor_bytes_written,
        workspace_bytes=found.workspace_bytes_read + found.workspace_bytes_written,
        workspace_footprint=found.workspace_footprint,
        on_chip={"ub": found.ub, "l1": found.l1, "l0a": found.l0a, "l0b": found.l0b, "l0c": found.l0c},
        status=_status(signature),
    )


_MAKERS: Mapping[str, Callable[[Signature, Shapes, Platform], Estimate | str]] = {
    "attention": _attention,
    "layer_norm_qkv": _norm,
}
