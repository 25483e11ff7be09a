"""Whether a set of nodes may become one node: always checked, never part of a rule.

Safe means: nothing outside reads a value that vanishes, no body of a control-flow node captures one, no path leaves the
set and comes back. A reader that only serves the set (the target of its own Reshape, a zero of its own type) dies with
it. Other readers of a value's shape are no obstacle when the shape is known or that of a surviving value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from atcfuse.graph.index import Node, Scope


@dataclass(frozen=True)
class Violation:
    """What is unsafe: the value (or node) and why."""

    code: str
    value: str
    reason: str


Extent = Union[int, tuple[str, int]]
"""One entry of a rewritten shape: a number, or (value, axis) of a surviving value."""

NOBODY_READS = 0
"""What stands for an extent in a rewritten shape that no reader picks."""

Shapes = Mapping[int, tuple[Extent, ...]]
"""For each `Shape` node that loses its operand: where every extent of that operand can be read instead."""


def check(
    scope: Scope, members: frozenset[int], outputs: Sequence[str], survivors: Sequence[str], needed: frozenset[str]
) -> tuple[Violation | None, Shapes]:
    """The first violation in node order, or None, and the `Shape` nodes to rewrite.

    `outputs` are the values that the fused node will make, `survivors` values that shapes may be read from instead,
    `needed` the values that the fused node will read.
    """
    shapes: dict[int, tuple[Extent, ...]] = {}
    dying = _Dying(scope, members, needed)
    for index in sorted(members):
        for value in scope.nodes[index].outputs:
            if not value or value in outputs:
                continue
            violation = _outside_use(scope, members, value, dying, (survivors, outputs), shapes)
            if violation is not None:
                return violation, {}
    return _returning_path(scope, members, outputs, needed), shapes


FLOAT32, FLOAT64 = 1, 11
_FLOATS = {FLOAT32: "float32", 10: "float16", FLOAT64: "double", 16: "bfloat16"}
_SHORT_FLOATS = frozenset({10, 16})
_NORM_OPERATORS = frozenset({"Cast", "Sub", "Pow", "Mul", "ReduceMean", "Add", "Sqrt", "Div", "Reciprocal"})


def precision_lost(scope: Scope, members: frozenset[int], types: frozenset[int]) -> Violation | None:
    """A value inside the set in a floating-point type that the fused node does not compute in, or None.

    Kernels compute in the element types of their inputs and in float32: a model that rounds to a narrower type in
    between, or computes in a wider one, would not be reproduced. Statistics of a norm of 16-bit rows may be float64:
    float32 keeps twice the digits that the result has. With what is converted there and back nothing is computed.
    """
    if types <= _SHORT_FLOATS and _are_statistics(scope, members):
        types |= {FLOAT64}
    for index in sorted(members):
        for value in scope.nodes[index].outputs:
            dtype = scope.fact(value).dtype
            if dtype in _FLOATS and dtype != FLOAT32 and dtype not in types and not _comes_back(scope, value):
                reason = f'"{value}" is {_FLOATS[dtype]}, which the kernel does not keep inside'
                return Violation("ATF305", value, reason)
    return None


def _comes_back(scope: Scope, value: str) -> bool:
    """Whether all that reads a value makes what another one already is, as a Cast back to a narrower type does."""
    readers = scope.readers(value)
    repeated = all(output in scope.alias for reader in readers for output in reader.outputs)
    return bool(readers) and repeated and not scope.escapes(value)


def _are_statistics(scope: Scope, members: frozenset[int]) -> bool:
    """Whether all that is computed in float64 is the arithmetic of a norm, its means included."""
    wide = {n.op for n in (scope.nodes[i] for i in members) if any(scope.fact(o).dtype == FLOAT64 for o in n.outputs)}
    return wide <= _NORM_OPERATORS and "ReduceMean" in wide


def _outside_use(
    scope: Scope,
    members: frozenset[int],
    value: str,
    dying: _Dying,
    sources: tuple[Sequence[str], Sequence[str]],
    shapes: dict[int, tuple[Extent, ...]],
) -> Violation | None:
    if scope.is_output(value):
        return Violation("ATF301", value, f'"{value}" is an output of the model')
    if value in dying.needed:
        return Violation("ATF301", value, f'"{value}" is also read by the fused node itself')
    if value in scope.captured:
        return Violation("ATF302", value, f'"{value}" is read inside the body of a control-flow node')
    for reader in scope.consumers.get(value, ()):
        if reader.index in members:
            continue
        if dying.dies(reader):
            continue
        if reader.op != "Shape":
            return Violation("ATF301", value, f'"{value}" is also read by {reader.op} "{reader.name}"')
        found = _shape_elsewhere(scope, members, reader, value, sources)
        if found is None:
            return Violation(
                "ATF301", value, f'the shape of "{value}" is read by "{reader.name}" and known nowhere else'
            )
        shapes[reader.index] = found
    return None


def _shape_elsewhere(
    scope: Scope, members: frozenset[int], reader: Node, value: str, sources: tuple[Sequence[str], Sequence[str]]
) -> tuple[Extent, ...] | None:
    """Where each extent can be read: in what the set reads, or in what it makes where that closes no loop."""
    shape = scope.fact(value).shape
    if shape is None:
        return None
    before, after = sources
    made = _made_from(scope, reader, before)
    readable = [*(v for v in before if v not in made), *(() if _feeds(scope, reader, members) else after)]
    read = _extents_read(scope, reader, len(shape))
    found: list[Extent] = []
    for axis, size in enumerate(shape):
        if isinstance(size, int) or axis not in read:
            found.append(size if isinstance(size, int) else NOBODY_READS)
            continue
        place = next(((v, i) for v in readable for i, d in enumerate(scope.fact(v).shape or ()) if d == size), None)
        if place is None:
            return None
        found.append(place)
    return tuple(found)


def _extents_read(scope: Scope, shape: Node, rank: int) -> frozenset[int]:
    """The axes whose extents are read of what a Shape node gives, by one Gather after the other."""
    axes = tuple(range(rank))[shape.attributes.get("start", 0) : shape.attributes.get("end")]
    found: set[int] = set()
    pending = [(shape.outputs[0], axes)]
    while pending:
        value, axes = pending.pop()
        if scope.escapes(value):
            found.update(axes)
        for reader in scope.consumers.get(value, ()):
            picked = _picked(scope, reader, value, axes)
            if picked is None or len(picked) < 2:
                found.update(axes if picked is None else picked)
            else:
                pending.append((reader.outputs[0], picked))
    return frozenset(found)


def _picked(scope: Scope, node: Node, value: str, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The extents that a Gather picks of these; None for other nodes, which read all."""
    indices = scope.fact(node.input(1)).elements if node.op == "Gather" and node.input(1) != value else None
    if indices is None:
        return None
    if not all(isinstance(i, int) and -len(axes) <= i < len(axes) for i in indices):
        return None
    return tuple(axes[i] for i in indices if isinstance(i, int))


def _made_from(scope: Scope, node: Node, values: Sequence[str]) -> set[str]:
    """Which of the values are computed from what the node makes."""
    makers = (scope.producers.get(v) for v in values)
    last = max((scope.positions[m.index] for m in makers if m is not None), default=-1)
    stack, seen, found = [node], {node.index}, set(node.outputs)
    while stack:
        for output in stack.pop().outputs:
            for reader in scope.readers(output):
                if reader.index not in seen and scope.positions[reader.index] <= last:
                    seen.add(reader.index)
                    stack.append(reader)
                    found.update(reader.outputs)
    return found


def _feeds(scope: Scope, node: Node, members: frozenset[int]) -> bool:
    """Whether anything that the node makes reaches the set."""
    last = max(scope.positions[i] for i in members)
    stack, seen = [node], {node.index}
    while stack:
        here = stack.pop()
        if here.index in members:
            return True
        if scope.positions[here.index] > last:
            continue
        for output in here.outputs:
            for reader in scope.readers(output):
                if reader.index not in seen:
                    seen.add(reader.index)
                    stack.append(reader)
    return False


class _Dying:
    """Which nodes outside a set only serve the set, so that they die with it."""

    LIMIT = 200

    def __init__(self, scope: Scope, members: frozenset[int], needed: frozenset[str]) -> None:
        self.scope, self.members, self.needed = scope, members, needed
        self._known: dict[int, bool] = {}

    def dies(self, node: Node) -> bool:
        """Whether everything that the node makes is read, directly or not, by the set alone."""
        stack, seen = [node], {node.index}
        while stack:
            here = stack.pop()
            if self._known.get(here.index) is False or len(seen) > self.LIMIT or self._escapes(here):
                self._known[node.index] = False
                return False
            for output in here.outputs:
                for reader in self.scope.consumers.get(output, ()):
                    if reader.index not in self.members and reader.index not in seen:
                        seen.add(reader.index)
                        stack.append(reader)
        return True

    def _escapes(self, node: Node) -> bool:
        scope = self.scope
        made = [o for o in node.outputs if o]
        if any(scope.escapes(o) or o in self.needed for o in made):
            return True
        # A node without readers was dead before: it stays, and so must what it reads.
        return not any(scope.consumers.get(o) for o in made)


def _returning_path(
    scope: Scope, members: frozenset[int], outputs: Sequence[str], needed: frozenset[str]
) -> Violation | None:
    """A path from an output of the set through other nodes to a value that the fused node reads, where there is one.

    A path to a member whose operand the fused node does not read (the target of a Reshape) ends with that member.
    """
    positions = scope.positions
    last = max(positions[i] for i in members)
    stack = [r for value in outputs for r in scope.readers(value) if r.index not in members]
    seen = {r.index for r in stack}
    while stack:
        node = stack.pop()
        if positions[node.index] > last:
            continue
        for output in node.outputs:
            if output in needed:
                reason = f'"{output}" is computed from what the subgraph makes and read by it'
                return Violation("ATF303", output, reason)
            for reader in scope.readers(output):
                if reader.index not in seen and reader.index not in members:
                    seen.add(reader.index)
                    stack.append(reader)
    return None
