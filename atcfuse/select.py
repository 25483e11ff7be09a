"""Which of the fusions that overlap are carried out: the set with the largest total gain.

Each group of overlapping fusions is solved exactly up to `EXACT` members. A larger one (layers overlap in a chain where
a residual sum may go to the norm behind it or to the product before it) begins with the better of two greedy orders and
is then solved exactly in windows of neighbours while that gains something: never worse than taking fusions in
topological order, and optimal wherever a better choice needs no more than a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from atcfuse.match.values import Built
from atcfuse.rewrite import Fusion

EXACT = 20
WINDOW, PASSES = 20, 4
_LEAST_GAIN = 1e-9
_LEVELS = {"constant": 0, "operator": 0, "elementwise": 1, "pattern": 2, "graph": 3}

Gain = Callable[[Fusion], float]


@dataclass(frozen=True)
class Selection:
    """The fusions chosen, in node order, and for every other one the chosen fusion that it overlaps."""

    chosen: tuple[Fusion, ...]
    losers: tuple[tuple[Fusion, Fusion], ...]


def select(fusions: Sequence[Fusion], gain: Gain) -> Selection:
    """Chooses fusions that share no node; ties go to the higher level, then to the earlier anchor."""
    overlaps = _overlaps(fusions)
    chosen: set[int] = set()
    solved: dict[object, tuple[int, ...]] = {}  # layers that are alike overlap alike
    for group in _groups(overlaps):
        chosen.update(_best(group, overlaps, fusions, gain, solved))
    chosen = _acyclic(chosen, fusions)
    losers = tuple(
        (fusions[i], fusions[min(hit)])
        for i in range(len(fusions))
        if i not in chosen and (hit := overlaps[i] & chosen)
    )
    return Selection(tuple(fusions[i] for i in sorted(chosen)), losers)


def _overlaps(fusions: Sequence[Fusion]) -> list[set[int]]:
    owners: dict[int, dict[int, list[int]]] = {}
    for i, fusion in enumerate(fusions):
        own = owners.setdefault(id(fusion.match.scope), {})
        for member in fusion.match.members:
            own.setdefault(member, []).append(i)
    overlaps: list[set[int]] = [set() for _ in fusions]
    for sharing in (shared for own in owners.values() for shared in own.values() if len(shared) > 1):
        for i in sharing:
            overlaps[i].update(sharing)
    for i, found in enumerate(overlaps):
        found.discard(i)
    return overlaps


def _groups(overlaps: Sequence[set[int]]) -> list[list[int]]:
    seen: set[int] = set()
    groups: list[list[int]] = []
    for start in range(len(overlaps)):
        if start in seen:
            continue
        stack, group = [start], []
        seen.add(start)
        while stack:
            here = stack.pop()
            group.append(here)
            fresh = overlaps[here] - seen
            seen |= fresh
            stack.extend(sorted(fresh))
        groups.append(sorted(group))
    return groups


def _best(
    group: list[int],
    overlaps: Sequence[set[int]],
    fusions: Sequence[Fusion],
    gain: Gain,
    solved: dict[object, tuple[int, ...]],
) -> set[int]:
    """The best choice in a group; `solved` are the choices in groups so far, by places in the group."""
    if len(group) == 1:
        return set(group)
    # A higher level only breaks ties: it weighs less than the least difference in gain.
    worth = {i: gain(fusions[i]) + 1e-6 * _LEVELS[fusions[i].match.rule.level] for i in group}
    if len(group) <= EXACT:
        place = {i: k for k, i in enumerate(group)}
        key = tuple([(worth[i], tuple(sorted([place[j] for j in overlaps[i]]))) for i in group])
        if key not in solved:
            solved[key] = tuple(place[i] for i in _exact(group, overlaps, worth))
        return {group[k] for k in solved[key]}
    orders = (sorted(group, key=lambda i: (-worth[i], i)), group)
    start = max((_greedy(order, overlaps) for order in orders), key=lambda s: sum(worth[i] for i in s))
    return _improved(group, overlaps, worth, start)


def _improved(group: Sequence[int], overlaps: Sequence[set[int]], worth: dict[int, float], taken: set[int]) -> set[int]:
    """A choice with every window of `WINDOW` fusions in node order as good as it can be, the rest given."""
    taken = set(taken)
    for _ in range(PASSES):
        gained = False
        for first in range(0, len(group), WINDOW // 2):
            window = group[first : first + WINDOW]
            outside = taken.difference(window)
            free = [i for i in window if not overlaps[i] & outside]
            better = _exact(free, overlaps, worth)
            now = sum(worth[i] for i in taken.intersection(window))
            if sum(worth[i] for i in better) > now + _LEAST_GAIN:
                taken, gained = outside | better, True
        if not gained:
            break
    return taken


def _greedy(order: Sequence[int], overlaps: Sequence[set[int]]) -> set[int]:
    taken: set[int] = set()
    for i in order:
        if not overlaps[i] & taken:
            taken.add(i)
    return taken


def _exact(group: list[int], overlaps: Sequence[set[int]], worth: dict[int, float]) -> set[int]:
    """Branch and bound: the likeliest first, cut where even taking everything left cannot beat the best."""
    order = sorted(group, key=lambda i: (-worth[i], i))
    best: tuple[float, set[int]] = (-1.0, set())
    stack: list[tuple[int, float, frozenset[int]]] = [(0, 0.0, frozenset())]
    rest = [sum(worth[i] for i in order[k:]) for k in range(len(order) + 1)]
    while stack:
        at, total, taken = stack.pop()
        if total > best[0]:
            best = (total, set(taken))
        if at == len(order) or total + rest[at] <= best[0]:
            continue
        i = order[at]
        stack.append((at + 1, total, taken))
        if not overlaps[i] & taken:
            stack.append((at + 1, total + worth[i], taken | {i}))
    return best[1]


def _acyclic(chosen: set[int], fusions: Sequence[Fusion]) -> set[int]:
    """Drops fusions until contracting all of them at once closes no cycle (each alone never does)."""
    kept = set(chosen)
    while True:
        guilty = _on_cycle(sorted(kept), fusions)
        if guilty is None:
            return kept
        kept.discard(guilty)


def close_a_cycle(fusions: Sequence[Fusion]) -> bool:
    """Whether contracting the fusions closes a cycle between their nodes and others."""
    scopes = {id(f.match.scope) for f in fusions}
    return any(_stuck([f for f in fusions if id(f.match.scope) == scope]) for scope in scopes)


def _on_cycle(chosen: Sequence[int], fusions: Sequence[Fusion]) -> int | None:
    """The last fusion on a cycle of the graph in which every chosen fusion is one node, or None."""
    several = [i for i in chosen if len(fusions[i].match.outputs) > 1 or fusions[i].match.shapes]
    for scope_id in {id(fusions[i].match.scope) for i in several}:
        mine = [i for i in chosen if id(fusions[i].match.scope) == scope_id]
        stuck = _stuck([fusions[i] for i in mine])
        if stuck:
            return max(mine[k] for k in stuck)
    return None


def _stuck(fusions: Sequence[Fusion]) -> set[int]:
    """Positions of the fusions that lie on a cycle of the contracted graph, or between two."""
    matches = [fusion.match for fusion in fusions]
    scope = matches[0].scope
    owner = {member: -1 - k for k, match in enumerate(matches) for member in match.members}
    outputs = {value for match in matches for value in match.outputs}
    edges: dict[int, set[int]] = {}
    for node in scope.nodes:
        here = owner.get(node.index, node.index)
        targets = edges.setdefault(here, set())
        for value in node.outputs:
            # Who reads a value that vanishes dies with it or reads a shape from elsewhere.
            if here >= 0 or value in outputs:
                targets.update(r.index for r in scope.readers(value) if r.index not in owner)
    for k, fusion in enumerate(fusions):
        for value in _leaves(fusion.inputs):
            source = scope.producers.get(value)
            if source is not None:
                edges[owner.get(source.index, source.index)].add(-1 - k)
    for match in matches:
        for index, extents in match.shapes.items():
            for value in (e[0] for e in extents if not isinstance(e, int)):
                source = scope.producers.get(value)
                if source is not None:
                    edges[owner.get(source.index, source.index)].add(index)
    left = _unsorted(edges)
    backward: dict[int, set[int]] = {here: set() for here in left}
    for here in left:
        for there in edges.get(here, ()):
            if there in left:
                backward[there].add(here)
    return {-1 - i for i in _unsorted(backward) if i < 0}


def _leaves(inputs: Iterable[Any]) -> Iterator[str]:
    """The values of the model that a fused node reads, directly or through standard nodes made beside it."""
    for item in inputs:
        if isinstance(item, Built):
            yield from _leaves(item.inputs)
        elif item is not None:
            yield str(item)


def _unsorted(edges: dict[int, set[int]]) -> set[int]:
    """The vertices that a topological sort never reaches."""
    waiting = dict.fromkeys(edges, 0)
    for targets in edges.values():
        for target in targets:
            waiting[target] = waiting.get(target, 0) + 1
    ready = [v for v, count in waiting.items() if not count]
    while ready:
        here = ready.pop()
        del waiting[here]
        for target in edges.get(here, ()):
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return set(waiting)
