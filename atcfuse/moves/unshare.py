"""A Transpose of a packed projection that queries, keys and values share, made once for each of them.

Where queries and keys are rotated before attention, two fused operators read the three parts: each takes its views
along, but neither can take a node that the other needs too. As with the other moves, one after which a
Transpose is still there is undone.
"""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.graph.constants import scalar
from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.views import is_view
from atcfuse.moves.respelling import Several

_FAR = 3
"""Views between a part of the projection and what rotates it."""


@dataclass(frozen=True)
class Parting(Several):
    """A Transpose and the views that read it, each of which gets one of its own; a Split becomes Slices."""

    scope: Scope
    transpose: Node
    readers: tuple[Node, ...]

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that the move replaces."""
        return (self.transpose, *self.readers)


def find(scope: Scope, node: Node) -> Parting | None:
    """The parting of a Transpose, if parts of it are rotated."""
    if node.op != "Transpose" or scope.escapes(node.outputs[0]):
        return None
    value = node.outputs[0]
    readers = tuple(scope.value_readers(value))
    parts = [o for n in readers for o in n.outputs if o]
    if len(parts) < 2 or len({n.index for n in readers}) != len(readers):
        return None
    if any(n.input(0) != value or not is_view(n) or (n.op == "Split" and _bounds(scope, n) is None) for n in readers):
        return None
    return Parting(scope, node, readers) if any(is_rotated(scope, p) for p in parts) else None


def carry_out(move: Parting, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What the Transposes make while nothing takes them in, their operator, and what takes the place of the nodes."""
    scope, transpose = move.scope, move.transpose
    turned: list[str] = []
    made: list[NewNode] = []

    def another() -> str:
        # The first keeps the name of the value, which Shape nodes may read.
        value = names.fresh(f"{transpose.outputs[0]}/own") if turned else transpose.outputs[0]
        name = names.fresh(transpose.name) if turned else transpose.proto.name
        attributes = tuple(transpose.attributes.items())
        made.append(NewNode("Transpose", name, transpose.inputs, (value,), attributes, like=transpose.index))
        turned.append(value)
        return value

    for reader in move.readers:
        bounds = _bounds(scope, reader) if reader.op == "Split" else None
        if bounds is None:
            inputs = (another(), *reader.inputs[1:])
            attributes = tuple(reader.attributes.items())
            made.append(NewNode(reader.op, reader.proto.name, inputs, reader.outputs, attributes, like=reader.index))
            continue
        axis = reader.attributes.get("axis", 0)
        for output, (start, end) in zip(reader.outputs, bounds, strict=True):
            if output:
                made.append(_slice(scope, names.fresh(f"{reader.name}/Slice"), another(), output, (start, end, axis)))
    return tuple(turned), "Transpose", Replacement(scope, move.members, tuple(made))


def _slice(scope: Scope, name: str, value: str, output: str, cut: tuple[int, int, int]) -> NewNode:
    start, end, axis = ((n,) for n in cut)
    if scope.model.opset < 10:
        attributes = (("starts", start), ("ends", end), ("axes", axis))
        return NewNode("Slice", name, (value,), (output,), attributes)
    return NewNode("Slice", name, (value, start, end, axis), (output,))


def _bounds(scope: Scope, split: Node) -> list[tuple[int, int]] | None:
    """Where each part of a Split begins and ends, where that is known."""
    axis, found, start = split.attributes.get("axis", 0), [], 0
    for output in split.outputs:
        shape = scope.fact(output).shape
        size = shape[axis] if shape else None
        if not isinstance(size, int):
            return None
        found.append((start, start + size))
        start += size
    return found


def is_rotated(scope: Scope, value: str) -> bool:
    """Whether a part is cut, negated or multiplied with more than a number, after views at most."""
    for _ in range(_FAR):
        readers = scope.value_readers(value)
        if len(readers) != 1 or not is_view(readers[0]) or readers[0].op in ("Slice", "Split"):
            break
        value = readers[0].outputs[0]
    return any(
        n.op in ("Slice", "Split", "Neg") or (n.op == "Mul" and all(scalar(scope, v) is None for v in n.inputs))
        for n in scope.consumers.get(value, ())
    )
