"""A fused node of a model as its kernel sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atcfuse.codegen.render import output_names
from atcfuse.graph.index import Node
from atcfuse.kernel import KernelSpec

EXACT = "_hex"
"""Ending of the string attributes that carry a float exactly past ATC's parser; kernels never see them."""


@dataclass(frozen=True)
class FusedNode:
    """The kernel's attributes, and the node's values by the kernel's names of inputs and outputs that are present."""

    attributes: Mapping[str, Any]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    @property
    def values(self) -> dict[str, str]:
        """Inputs and outputs."""
        return {**self.inputs, **self.outputs}


def fused_node(node: Node, spec: KernelSpec) -> FusedNode:
    """What a node of the operator `spec` gives its kernel."""
    attributes = {name: value for name, value in node.attributes.items() if not name.endswith(EXACT)}
    inputs = {o.name: value for o, value in zip(spec.inputs, node.inputs, strict=False) if value}
    names = output_names(spec, attributes, len(node.outputs))
    return FusedNode(attributes, inputs, dict(zip(names, node.outputs, strict=False)))
