"""What each kernel's own module adds to its templates, what it refuses, and what it predicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atcfuse.codegen import attention, elementwise, layer_norm_qkv
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
    `elements` lists by chip family the element types that the first operand may have.
    """

    figures: Callable[[Signature, Shapes, Platform], Figures | str]
    elements: Mapping[str, tuple[str, ...]]
    values: Callable[[Signature], Mapping[str, Any]] = _nothing
    refusal: Callable[[Signature], str | None] = _never
    outputs: Callable[[KernelSpec, Mapping[str, AttributeValue], int], tuple[str, ...]] = _first


GENERATORS: Mapping[str, Generator] = {
    "attention": Generator(attention.figures, attention.ELEMENTS, attention.values, attention.refusal),
    "layer_norm_qkv": Generator(
        layer_norm_qkv.figures,
        layer_norm_qkv.ELEMENTS,
        refusal=layer_norm_qkv.refusal,
        outputs=layer_norm_qkv.output_names,
    ),
    "elementwise": Generator(elementwise.figures, elementwise.ELEMENTS, elementwise.values, elementwise.refusal),
}
"""By kernel name."""
