"""Transposes of which nothing but the shape is read: that is known without them."""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.graph.edit import Names, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.respelling import Respelling
from atcfuse.moves.transposes import shape_of


@dataclass(frozen=True)
class Unread(Respelling):
    """A Transpose of which nothing but the shape is read."""


def find(scope: Scope, node: Node) -> Unread | None:
    """The Transpose that a node is, if only Shapes read it."""
    value = node.outputs[0] if node.op == "Transpose" else ""
    readers = scope.consumers.get(value, ())
    if not readers or scope.escapes(value) or any(n.op != "Shape" for n in readers):
        return None
    perm = node.attributes.get("perm")
    known = isinstance(perm, tuple) and sorted(perm) == list(range(scope.fact(node.input(0)).rank or 0))
    return Unread(scope, node) if known else None


def carry_out(move: Unread, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """Nothing that would have to be taken up, and what takes the place of the nodes."""
    readers = move.scope.consumers[move.node.outputs[0]]
    shapes = {n.index: shape_of(move.node, n, names) for n in readers}
    return (), "", Replacement(move.scope, move.members, (), shapes)
