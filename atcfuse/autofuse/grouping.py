"""Which nodes may become one: greedy, in topological order, in time linear in nodes and edges.

Every node gets a *stage*. Along an edge the stage never falls, and it rises where the edge leaves a group. Nodes of one
group have one stage, so no path leaves a group and comes back, and no two groups wait for each other: whatever is on
such a path has a later stage than the group. A group is grown freely and then cut into pieces that a kernel can hold;
the pieces are intervals of the topological order, so the same holds for them.

All members of a group work on one *space*, the rows and columns of a shape. A member may also be one value a row, in
the shape with ones for the columns: what a reduction leaves, and what is computed from that until a whole row reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from atcfuse.autofuse.broadcasts import Shape, Splits, kind_of, narrowed


@dataclass(frozen=True)
class Space:
    """What members work on: a shape, which of its axes may be columns and rows, and whether it may be one value a row
    of a wider shape, because all operands are whole or one element. Where every member is cheap and `lone`, read by one
    other member only, it may be broadcast to the wider shape in any way.
    """

    shape: Shape
    splits: Splits
    liftable: bool = False
    lone: bool = False


def together(a: Space, b: Space) -> Space | None:
    """The space of both, None where they have none in common."""
    if a.shape == b.shape:
        splits = a.splits & b.splits
        return Space(a.shape, splits, a.liftable and b.liftable, a.lone and b.lone) if splits else None
    for low, high in ((a, b), (b, a)):
        splits = _lifted(low, high) if low.liftable else frozenset()
        if splits:
            return Space(high.shape, splits, lone=low.lone and high.lone)
    return None


def _lifted(low: Space, high: Space) -> Splits:
    """The splits of the wider space for which the other one is one value a row, or is broadcast in a way of its own."""
    if low.lone:
        return frozenset(s for s in high.splits if kind_of(low.shape, high.shape, s) is not None)
    return frozenset(s for s in high.splits if s.columns and narrowed(high.shape, s.columns) == low.shape)


def space_of(spaces: Iterable[Space]) -> Space | None:
    """The space of all, None where they have none in common."""
    widest = sorted(dict.fromkeys(spaces), key=lambda s: -sum(size != 1 for size in s.shape))
    found: Space | None = widest[0]
    for space in widest[1:]:
        found = found and together(found, space)
    return found


@dataclass(frozen=True)
class Vertex:
    """A node of the graph: the positions of the nodes that it reads.

    `space` is None for a node that takes part in no group. `fusible` are those of `reads` that may be in its group:
    results read element by element or row by row.
    """

    reads: tuple[int, ...]
    space: Space | None = None
    fusible: frozenset[int] = frozenset()


def grow(vertices: Sequence[Vertex]) -> list[list[int]]:
    """The groups, each in the given order, which must be topological."""
    stages = [0] * len(vertices)
    groups = _Groups(len(vertices))
    readers: dict[int, int] = {}
    for here, vertex in enumerate(vertices):
        stage = 0
        for source in vertex.reads:
            leaves = vertices[source].space is not None and source not in vertex.fusible
            stage = max(stage, stages[source] + leaves)
        if vertex.space is None:
            stages[here] = stage
            continue
        joined = [s for s in vertex.fusible if stages[s] == stage]
        if not joined:  # one that reads the same value is no worse a place to begin
            beside = (readers[s] for s in vertex.reads if s in readers)
            groups.join(here, vertex.space, [r for r in beside if stages[r] == stage][:1])
        elif not groups.join(here, vertex.space, joined):
            stage += 1
        stages[here] = stage
        readers.update(dict.fromkeys(vertex.reads, here))
    return groups.members(i for i, v in enumerate(vertices) if v.space is not None)


class _Groups:
    """Disjoint sets with the space that all members share."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))
        self._spaces: dict[int, Space] = {}

    def _root(self, node: int) -> int:
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def join(self, node: int, space: Space, others: Sequence[int]) -> bool:
        """Puts a new node into one group with all of `others`, or into one of its own where that cannot be (False)."""
        roots = sorted({self._root(other) for other in others})
        common: Space | None = space
        for root in roots:
            common = common and together(common, self._spaces[root])
        if common is None:
            self._spaces[node] = space
            return False
        self._spaces[node] = common
        for root in roots:
            self._parent[root] = node
        return True

    def members(self, nodes: Iterable[int]) -> list[list[int]]:
        """The groups in the order of their first members."""
        found: dict[int, list[int]] = {}
        for node in nodes:
            found.setdefault(self._root(node), []).append(node)
        return list(found.values())


@dataclass(frozen=True)
class Load:
    """What a member adds to a kernel: operands from outside its group by name, and calls in its code.

    `inside` are the members of its group that it reads, `outside` how many readers its result has elsewhere (an output
    of the graph counts as one).
    """

    operands: tuple[str, ...]
    inside: tuple[int, ...]
    outside: int
    calls: int


@dataclass(frozen=True)
class Bounds:
    """What a piece may have at most. `live` bounds results that are waited for at any moment."""

    inputs: int
    outputs: int
    calls: int
    live: int


def cut(group: Sequence[int], load: Mapping[int, Load], bounds: Bounds) -> Iterator[list[int]]:
    """The group in as few pieces as a greedy walk makes; each keeps within the bounds.

    A piece ends before the member that would exceed one, at the last place where its outputs were few enough.
    """
    start = 0
    readers = dict.fromkeys(group, 0)
    for member in group:
        for source in load[member].inside:
            readers[source] += 1
    while start < len(group):
        end = _longest(group, start, load, readers, bounds)
        yield list(group[start:end])
        start = end


def _longest(
    group: Sequence[int], start: int, load: Mapping[int, Load], readers: Mapping[int, int], bounds: Bounds
) -> int:
    """The end of the piece that begins at `start`; a single member is a piece whatever it needs."""
    waiting: dict[int, int] = {}
    inputs: set[object] = set()
    calls, good, outputs, live = 0, start + 1, 0, 0
    for at in range(start, len(group)):
        member, own = group[at], load[group[at]]
        inputs.update(own.operands)
        inputs.update(source for source in own.inside if source not in waiting)
        calls += own.calls
        for source in own.inside:
            if source in waiting:
                waiting[source] -= 1
                if not waiting[source]:
                    live -= 1
                    outputs -= not load[source].outside
        waiting[member] = readers[member]
        live += readers[member] > 0
        outputs += 1
        if len(inputs) > bounds.inputs or calls > bounds.calls or live > bounds.live:
            return good
        if outputs <= bounds.outputs:
            good = at + 1
    return good
