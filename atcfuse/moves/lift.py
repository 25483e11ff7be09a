"""Views of what a Cast makes, taken of what it reads instead: then the Cast stands beside the operator that reads it.

A mask that is cast in [batch, positions], given more axes and combined with one of queries and keys is cast within the
kernel of that combination. The number of launches is the same in any case.
"""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.facts import INTEGRAL
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.traffic import VIEWS
from atcfuse.moves import grid
from atcfuse.moves.grid import Grid
from atcfuse.moves.respelling import Several

_MASKS = frozenset({"And", "Or", "Xor", "Not", "Where", "Sub", "Mul"})
"""What masks are combined by."""


@dataclass(frozen=True)
class Lifted(Several):
    """A Cast and the views of its result, each of the one before; a GatherND of every element is one, too."""

    scope: Scope
    cast: Node
    views: tuple[Node | Grid, ...]

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that the move replaces."""
        return (self.cast, *map(_node, self.views))


def _node(view: Node | Grid) -> Node:
    return view.node if isinstance(view, Grid) else view


def find(scope: Scope, node: Node) -> Lifted | None:
    """The Cast of integers or a mask that a node is, if masks are made of it, through views that nothing else reads."""
    if node.op != "Cast" or scope.fact(node.input(0)).dtype not in INTEGRAL or node.outputs[0] in scope.alias:
        return None
    views: list[Node | Grid] = []
    value = node.outputs[0]
    while not scope.escapes(value):
        readers = scope.consumers.get(value, ())
        view = _view(scope, readers[0], value) if len(readers) == 1 else None
        if view is None:
            break
        views.append(view)
        value = _node(view).outputs[0]
    readers = scope.consumers.get(value, ())
    if not views or scope.escapes(value) or not readers or any(reader.op not in _MASKS for reader in readers):
        return None
    return Lifted(scope, node, tuple(views))


def _view(scope: Scope, node: Node, value: str) -> Node | Grid | None:
    """The node as a view of a value, None where it is none."""
    if node.input(0) != value or value in node.inputs[1:]:
        return None
    return node if node.op in VIEWS else grid.find(scope, node)


def carry_out(move: Lifted, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """The mask, which a Cast makes while no group takes that in, and what takes the place of the nodes."""
    value, made = move.cast.inputs[0], []  # type: str, list[NewNode]
    for view in move.views:
        viewed = names.fresh(f"{_node(view).outputs[0]}/uncast")
        made.append(_of(view, value, viewed))
        value = viewed
    cast, result = move.cast, _node(move.views[-1]).outputs
    made.append(NewNode("Cast", cast.proto.name, (value,), result, tuple(cast.attributes.items()), like=cast.index))
    return tuple(result), "Cast", Replacement(move.scope, move.members, tuple(made))


def _of(view: Node | Grid, value: str, result: str) -> NewNode:
    """A view of another value."""
    if isinstance(view, Grid):
        return grid.view_of(view, value, result)
    inputs, attributes = (value, *view.inputs[1:]), tuple(view.attributes.items())
    return NewNode(view.op, view.proto.name, inputs, (result,), attributes, like=view.index)
