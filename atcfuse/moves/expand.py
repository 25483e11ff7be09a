"""An Expand before element-wise operators that broadcast what they read by themselves.

Exporters spread a mask over all queries before they turn it into numbers, or a norm over the row that it divides.
Where an operator's result is as large without it, everything up to there is computed on what was spread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from heapq import heappop, heappush

from atcfuse.dims import Dim, broadcast
from atcfuse.elementwise import OPERATORS
from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.respelling import Several

Shape = tuple[Dim, ...]
_ELEMENTWISE = frozenset(op for op, of in OPERATORS.items() if not of.rows) - {"PRelu"} | {"Mod", "IsNaN", "IsInf"}
"""Operators whose operands are broadcast to each other."""
_FAR = 32
"""At most so many nodes are computed on what was spread."""


@dataclass(frozen=True)
class Spread(Several):
    """An Expand that goes: nodes behind it that become `small`, in order, and those that `broadcast` by themselves."""

    scope: Scope
    node: Node
    small: tuple[Node, ...]
    broadcast: tuple[Node, ...]

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that the move replaces."""
        return (self.node, *self.small, *self.broadcast)


@dataclass
class _Walk:
    """The values that are computed on what was spread, with their new shapes, and who reads them, as positions."""

    scope: Scope
    shapes: dict[str, Shape] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    met: set[int] = field(default_factory=set)

    def note(self, value: str, shape: Shape) -> None:
        """Notes a value, whose readers wait."""
        self.shapes[value] = shape
        for reader in self.scope.consumers.get(value, ()):
            if reader.index not in self.met:
                self.met.add(reader.index)
                heappush(self.waiting, self.scope.positions[reader.index])

    def readers(self) -> Iterator[Node]:
        """Who waits, in topological order: what a reader reads of the new values is known by then."""
        while self.waiting:
            yield self.scope.nodes[self.scope.order[heappop(self.waiting)]]

    def shape(self, node: Node) -> Shape | None:
        """The shape of a node's result where it reads the new values."""
        shapes = [self.shapes.get(i, self.scope.fact(i).shape) for i in node.inputs if i]
        known = [s for s in shapes if s is not None]
        if node.op not in _ELEMENTWISE or len(node.outputs) != 1 or len(known) != len(shapes):
            return None
        rank = max(map(len, known))
        padded = [(1,) * (rank - len(s)) + tuple(s) for s in known]
        return tuple(reduce(broadcast, dims) for dims in zip(*padded, strict=True))


def find(scope: Scope, node: Node) -> Spread | None:
    """The Expand that a node is, if all that is computed of it is spread by other operands as well."""
    if node.op != "Expand" or len(node.inputs) != 2 or not scope.readers(node.outputs[0]):
        return None
    shape, made = scope.fact(node.inputs[0]).shape, scope.fact(node.outputs[0])
    if shape is None or made.shape is None or made.is_constant or made.splat is not None:
        return None
    walk = _Walk(scope)
    walk.note(node.outputs[0], shape)
    small: list[Node] = []
    broadcast_by: list[Node] = []
    for reader in walk.readers():
        shape = walk.shape(reader)
        if shape is None or len(small) > _FAR:
            return None
        if shape == scope.fact(reader.outputs[0]).shape:
            broadcast_by.append(reader)
        else:
            small.append(reader)
            walk.note(reader.outputs[0], shape)
    found = Spread(scope, node, tuple(small), tuple(broadcast_by))
    return found if not any(map(scope.escapes, walk.shapes)) and _pays(scope, found) else None


def _pays(scope: Scope, move: Spread) -> bool:
    """Whether the Expand is no view to begin with, and something reads what is spread."""
    return bool(move.broadcast) and move.node.outputs[0] not in scope.alias


def carry_out(move: Spread, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """Nothing that would have to be taken up, and what takes the place of the nodes."""
    new: dict[str, str] = {move.node.outputs[0]: move.node.inputs[0]}
    for node in move.small:
        new[node.outputs[0]] = names.fresh(f"{node.outputs[0]}/small")
    made = [_on(node, new, new[node.outputs[0]]) for node in move.small]
    made += [_on(node, new, node.outputs[0]) for node in move.broadcast]
    return (), "", Replacement(move.scope, move.members, tuple(made))


def _on(node: Node, new: Mapping[str, str], output: str) -> NewNode:
    """A node on other operands."""
    inputs = tuple(new.get(value, value) for value in node.inputs)
    return NewNode(node.op, node.proto.name, inputs, (output,), tuple(node.attributes.items()), like=node.index)
