"""Transposes of which nothing but the shape is read: that is known without them.

Those of a model are moves like others; what fusions leave so, because they read its operand themselves, is respelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atcfuse.graph.edit import Names, Replacement
from atcfuse.graph.index import Model, Node, Scope
from atcfuse.keep_nodes import KeepNodes
from atcfuse.moves.respelling import Respelling, respelled
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


def respell(model: Model, keep: KeepNodes) -> bool:
    """Reads shapes of what such Transposes take, all that there are; False where there are none."""
    return respelled(model, lambda scope, names: _in_scope(scope, keep, names))


def _in_scope(scope: Scope, keep: KeepNodes, names: Names) -> Iterator[Replacement]:
    for node in scope.by_op.get("Transpose", ()):
        move = None if keep.reason(node.name, node.op) else find(scope, node)
        if move is not None:
            yield carry_out(move, names)[2]
