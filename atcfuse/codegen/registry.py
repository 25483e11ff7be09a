"""What each kernel's own module adds to its templates, what it refuses, and what it predicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atcfuse.codegen import (
    attention,
    elementwise,
    ffn,
    group_norm_silu,
    layer_norm_qkv,
    linear,
    rotary_embedding,
    row_norm,
    scale_mask_softmax,
)
from atcfuse.codegen.signature import AttributeValue, Signature
from atcfuse.kernel import KernelSpec
from atcfuse.tiling import Platform

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of a launch's inputs by operand name."""
Figures = Mapping[str, int]
"""Bytes that a launch moves and holds, named as in the twin's report, on-chip memories by their own names."""


def _nothing(signature: Signature) -> Mapping[str, Any]:
    return {}


def _never(signature: Signature) -> str | None:
    return None


def _first(spec: KernelSpec, attributes: Mapping[str, AttributeValue], count: int) -> tuple[str, ...]:
    return tuple(o.name for o in spec.outputs[:count])


@dataclass(frozen=True)
class Generator:
    """What a kernel's module provides.

    `figures` predicts a launch (or tells why its shapes are refused), `values` are further template variables,
    `refusal` is why no kernel can be made for a signature, or None, and `outputs` names a node's so many outputs.
    `elements` lists by chip family the element types that the first operand may have. With `infinities` what reaches
    a maximum may be infinite, as it is in the model.
    """

    figures: Callable[[Signature, Shapes, Platform], Figures | str]
    elements: Mapping[str, tuple[str, ...]]
    values: Callable[[Signature], Mapping[str, Any]] = _nothing
    refusal: Callable[[Signature], str | None] = _never
    outputs: Callable[[KernelSpec, Mapping[str, AttributeValue], int], tuple[str, ...]] = _first
    infinities: bool = False


_FFN = Generator(ffn.figures, ffn.ELEMENTS, ffn.values, ffn.refusal)
GENERATORS: Mapping[str, Generator] = {
    "ffn": _FFN,
    "layer_norm_ffn": _FFN,
    "attention": Generator(attention.figures, attention.ELEMENTS, attention.values, attention.refusal),
    "group_norm_silu": Generator(
        group_norm_silu.figures, group_norm_silu.ELEMENTS, group_norm_silu.values, group_norm_silu.refusal
    ),
    **dict.fromkeys(
        ("layer_norm_qkv", "add_layer_norm_qkv"),
        Generator(
            layer_norm_qkv.figures,
            layer_norm_qkv.ELEMENTS,
            layer_norm_qkv.values,
            layer_norm_qkv.refusal,
            layer_norm_qkv.output_names,
        ),
    ),
    "qkv": Generator(layer_norm_qkv.figures, layer_norm_qkv.ELEMENTS, layer_norm_qkv.values, layer_norm_qkv.refusal),
    "layer_norm_linear": Generator(linear.figures, linear.ELEMENTS, linear.values, linear.refusal),
    "linear": Generator(linear.figures, linear.ELEMENTS, linear.values, linear.refusal),
    **dict.fromkeys(
        ("add_layer_norm", "add_rms_norm", "layer_norm", "modulated_layer_norm", "rms_norm"),
        Generator(row_norm.figures, row_norm.ELEMENTS, row_norm.values, row_norm.refusal),
    ),
    "rotary_embedding": Generator(
        rotary_embedding.figures, rotary_embedding.ELEMENTS, rotary_embedding.values, rotary_embedding.refusal
    ),
    "scale_mask_softmax": Generator(
        scale_mask_softmax.figures, scale_mask_softmax.ELEMENTS, scale_mask_softmax.values, scale_mask_softmax.refusal
    ),
    "elementwise": Generator(
        elementwise.figures, elementwise.ELEMENTS, elementwise.values, elementwise.refusal, infinities=True
    ),
}
"""By kernel name."""
