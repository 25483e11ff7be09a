"""Who plans which kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from atcfuse.codegen import Signature, elementwise, rotary_embedding, scale_mask_softmax
from atcfuse.codegen import attention as attention_code
from atcfuse.codegen.signature import ELEMENT_NAMES
from atcfuse.device import Device
from atcfuse.match.values import Refusal
from atcfuse.planner.attention import plan_attention
from atcfuse.planner.elementwise import plan_elementwise
from atcfuse.planner.ffn import plan_ffn
from atcfuse.planner.group_norm_silu import plan_group_norm_silu
from atcfuse.planner.linear import plan_linear
from atcfuse.planner.norm import plan_norm
from atcfuse.planner.rotary import plan_rotary
from atcfuse.planner.row_norm import plan_row_norm
from atcfuse.planner.softmax import plan_softmax
from atcfuse.planner.work import KernelWork
from atcfuse.tiling import ffn_problem, group_norm_silu, layer_norm_qkv, linear_problem, row_norm

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of a launch's inputs by operand name."""
Planner = Callable[[Signature, Shapes, Device, float], KernelWork | Refusal]
"""From a signature, shapes, chip and occupancy to the work of a launch, or why there is none."""


def _attention(signature: Signature, shapes: Shapes, device: Device, occupancy: float) -> KernelWork | Refusal:
    return plan_attention(attention_code.problem(signature, shapes), device, occupancy)


def _norm(signature: Signature, shapes: Shapes, device: Device, occupancy: float) -> KernelWork | Refusal:
    return plan_norm(layer_norm_qkv.problem_of(signature.attributes, signature.dtypes, shapes), device, occupancy)


def _row_norm(signature: Signature, shapes: Shapes, device: Device, occupancy: float) -> KernelWork | Refusal:
    modulated = signature.spec.name == "modulated_layer_norm"
    problem = row_norm.problem_of(signature.dtypes, shapes, signature.family, modulated)
    return plan_row_norm(signature.spec.name, problem, device, occupancy)


def _ffn(signature: Signature, shapes: Shapes, device: Device, occupancy: float) -> KernelWork | Refusal:
    return plan_ffn(ffn_problem.problem_of(signature.attributes, signature.dtypes, shapes), device, occupancy)


def _elementwise(signature: Signature, shapes: Shapes, device: Device, occupancy: float) -> KernelWork | Refusal:
    problem, dtype = elementwise.problem_of(signature, shapes), ELEMENT_NAMES[signature.dtypes["x1"]]
    return plan_elementwise(problem, elementwise.program_of(signature), dtype, device, occupancy)


def _group_norm(signature: Signature, shapes: Shapes, device: Device, occupancy: float) -> KernelWork | Refusal:
    problem = group_norm_silu.problem_of(signature.attributes, signature.dtypes, shapes, signature.family)
    return plan_group_norm_silu(problem, device, occupancy)


def _linear(signature: Signature, shapes: Shapes, device: Device, occupancy: float) -> KernelWork | Refusal:
    return plan_linear(linear_problem.problem_of(signature.attributes, signature.dtypes, shapes), device, occupancy)


def _rotary(signature: Signature, shapes: Shapes, device: Device, occupancy: float) -> KernelWork | Refusal:
    return plan_rotary(rotary_embedding.problem(signature, shapes), device, occupancy)


def _softmax(signature: Signature, shapes: Shapes, device: Device, occupancy: float) -> KernelWork | Refusal:
    return plan_softmax(scale_mask_softmax.problem(signature, shapes), device, occupancy)


PLANNERS: Mapping[str, Planner] = {
    "attention": _attention,
    **dict.fromkeys(("layer_norm_qkv", "add_layer_norm_qkv", "qkv"), _norm),
    **dict.fromkeys(("add_layer_norm", "add_rms_norm", "layer_norm", "modulated_layer_norm", "rms_norm"), _row_norm),
    **dict.fromkeys(("ffn", "layer_norm_ffn"), _ffn),
    "elementwise": _elementwise,
    "group_norm_silu": _group_norm,
    **dict.fromkeys(("linear", "layer_norm_linear"), _linear),
    "rotary_embedding": _rotary,
    "scale_mask_softmax": _softmax,
}
"""By kernel name."""
