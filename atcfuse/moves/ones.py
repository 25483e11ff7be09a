"""Transposes that move nothing but axes of one element, spelled as views, which are no launches.

A decoder that takes one token at a time splits heads with such Transposes, and so does attention of one key head. Rules
see them first, and views of operands go with their fusions; this is for what is left.
"""

from __future__ import annotations

from collections.abc import Iterator

from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Model, Node, Scope
from atcfuse.keep_nodes import KeepNodes
from atcfuse.moves.respelling import respelled, with_axes


def respell(model: Model, keep: KeepNodes) -> bool:
    """Puts views in the place of Transposes that leave the elements where they are; False where there are none."""
    return respelled(model, lambda scope, names: _in_scope(scope, keep, names))


def _in_scope(scope: Scope, keep: KeepNodes, names: Names) -> Iterator[Replacement]:
    for node in scope.by_op.get("Transpose", ()):
        perm = None if keep.reason(node.name, node.op) else _perm(scope, node)
        if perm is not None:
            yield Replacement(scope, frozenset({node.index}), _views(scope, node, perm, names))


def _perm(scope: Scope, node: Node) -> tuple[int, ...] | None:
    """Where a Transpose takes its axes from, if axes of more than one element stay in their order."""
    shape = scope.fact(node.input(0)).shape
    if shape is None or node.outputs[0] in scope.alias:
        return None
    perm = node.attributes.get("perm") or tuple(range(len(shape)))[::-1]
    if not isinstance(perm, tuple) or sorted(perm) != list(range(len(shape))):
        return None
    moving = [axis for axis in perm if shape[axis] != 1]
    return perm if moving == sorted(moving) and len(moving) < len(perm) else None


def _views(scope: Scope, node: Node, perm: tuple[int, ...], names: Names) -> tuple[NewNode, ...]:
    """A Reshape where all extents are numbers, else a Squeeze of the axes that move and an Unsqueeze."""
    shape = scope.fact(node.inputs[0]).shape or ()
    extents = tuple(d for d in (shape[axis] for axis in perm) if isinstance(d, int))
    if len(extents) == len(perm) and 0 not in extents:
        return (NewNode("Reshape", node.proto.name, (node.inputs[0], extents), node.outputs, like=node.index),)
    between = names.fresh(f"{node.outputs[0]}/squeezed")
    ones = tuple(axis for axis, extent in enumerate(shape) if extent == 1)
    back = tuple(place for place, axis in enumerate(perm) if shape[axis] == 1)
    opset, name, result = scope.model.opset, names.fresh(f"{node.name}/Squeeze"), node.outputs[0]
    return (
        with_axes("Squeeze", opset, name, node.inputs[0], ones, between, node.index),
        with_axes("Unsqueeze", opset, node.proto.name, between, back, result, node.index),
    )
