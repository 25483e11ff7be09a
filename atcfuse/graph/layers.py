"""Layers that are alike: stretches of a graph where every node does what the node one period before it does.

A transformer of 80 layers is one layer 80 times, and what is found in one of them holds in the others. Alike means
proved, node by node: operator, attributes, how many nodes before an operand was made, who reads the results, types and
small numbers of constants. Weights may differ; that is what layers are for. Nothing need be inferred for that:
`graph.spread` adds that the same is known of all layers.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import eq
from typing import TypeAlias

from atcfuse.graph.constants import MAX_EXTERNAL_BYTES, read_tensor
from atcfuse.graph.facts import Fact
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.parameters import content, plain_parameters

MIN_LAYERS = 8
"""Fewer layers than these are not worth telling apart."""
GRAM = 8
"""So many nodes in a row tell where in a layer they are."""
PERIODS = 4
"""Stretches with so many different periods are looked for, such as an encoder's and a decoder's."""


class NotAlike(Exception):
    """What is looked for lies outside the layers."""


class Layers:
    """The nodes at positions `start` to `stop` of a scope's order; `period` of them are a layer."""

    def __init__(self, wiring: Wiring, start: int, stop: int, period: int) -> None:
        self.scope, self._wiring = wiring.scope, wiring
        self._own: dict[str, _Place | None] = {}
        self.start, self.stop, self.period = start, stop, period

    @property
    def count(self) -> int:
        """The number of whole layers."""
        return (self.stop - self.start) // self.period

    def carried(self, count: int) -> Iterator[tuple[str, ...]]:
        """What layers read of those in front of them: for each such operand the values of the first `count` readers."""
        nodes, order, first = self.scope.nodes, self.scope.order, self.start + self.period
        for position in range(first, first + self.period):
            for slot, name in enumerate(nodes[order[position]].inputs):
                if not name or self._place(name) is None or self._wiring.places[name][0] >= first:
                    continue
                there = range(position, position + count * self.period, self.period)
                yield tuple([nodes[order[at]].inputs[slot] for at in there])

    def distance(self, name: str, below: str) -> float:
        """How many nodes earlier than a value another one is made or read first; infinite for one that none knows."""
        places = self._wiring.places
        return places[name][0] - places[below][0] if below in places else math.inf

    def is_shared(self, name: str) -> bool:
        """Whether all layers have the value in common."""
        return self._place(name) is None

    def node(self, index: int, by: int) -> int:
        """The node that is so many layers behind. Raises NotAlike where one of the two is none of these nodes."""
        return self._at(self.scope.positions[index], by)

    def value(self, name: str, by: int) -> str:
        """The value that is so many layers behind; one that all layers share is the same. Raises NotAlike."""
        place = self._own[name] if name in self._own else self._place(name)
        if place is None:
            return name
        position, slot, made = place
        node = self.scope.nodes[self._at(position, by)]
        return node.outputs[slot] if made else node.inputs[slot]

    def values(self, name: str, there: Iterable[Node]) -> list[str]:
        """What a value is at nodes that do in other layers what the one does that makes it, or reads it first."""
        place = self._place(name)
        assert place is not None  # it is one that a layer has for itself
        _, slot, made = place
        return [node.outputs[slot] for node in there] if made else [node.inputs[slot] for node in there]

    def position(self, name: str) -> int | None:
        """The node that makes a value or reads it first, by position; None for a value that all layers share."""
        place = self._place(name)
        return None if place is None else place[0]

    def _place(self, name: str) -> _Place | None:
        """Where a value is met first, None for one that all layers share."""
        if name not in self._own:
            shared = self._wiring.is_shared(name, 2 * self.period)
            self._own[name] = None if shared else self._wiring.places[name]
        return self._own[name]

    def _at(self, position: int, by: int) -> int:
        there = position + by * self.period
        if not (self.start <= position < self.stop and self.start <= there < self.stop):
            raise NotAlike
        return self.scope.order[there]


_Place: TypeAlias = tuple[int, int, bool]
"""Where a value is met first: position and slot, and whether the node there makes it or reads it."""


class _Spans(dict[str, float]):
    """Between how many nodes a value lies; without end for one of an enclosing graph."""

    def __missing__(self, name: str) -> float:
        return math.inf


class Wiring:
    """Where the values of a scope are made and read, by position; `spans` is how far that is apart at most, `constants`
    what has been asked of values that no node makes.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.constants: dict[str, object] = {}
        places, readers = self.places, self.readers = dict[str, _Place](), defaultdict[str, list[int]](list)
        for position, index in enumerate(scope.order):
            node = scope.nodes[index]
            for slot, name in enumerate(node.inputs):
                if name:
                    if name not in places:
                        places[name] = position, slot, False
                    readers[name].append(position)
            for slot, name in enumerate(node.outputs):
                if name:
                    places[name] = position, slot, True
        self.spans = _Spans(
            (name, readers[name][-1] - position if name in readers else 0)
            for name, (position, _, made) in places.items()
            if made or scope.defines(name)
        )

    def read_parameters(self, window: int) -> None:
        """Fills `constants` for plain parameters that are read within `window` nodes, many at once."""
        initializers = self.scope.initializers
        near = [name for name, (_, _, made) in self.places.items() if not made and self.spans[name] <= window]
        wanted = [initializers[name] for name in near if name in initializers and name not in self.constants]
        self.constants.update(plain_parameters(wanted))

    def is_shared(self, name: str, window: int) -> bool:
        """Whether a value is read from farther than `window` nodes apart, or comes from an enclosing graph."""
        return self.spans[name] > window


def alike_layers(scope: Scope, enough: Callable[[int], int] = lambda _: MIN_LAYERS) -> tuple[Layers, ...]:
    """The longest stretches of layers that are alike, those with more nodes first; none overlap.

    `enough` is how many layers of so many nodes are worth telling apart, at least MIN_LAYERS: of fewer, constants are
    not read.
    """
    if len(scope.order) < MIN_LAYERS * GRAM or scope.bodies:
        return ()
    kinds = _kinds(scope)
    periods = _periods(kinds)
    if not periods:
        return ()
    wiring, found = Wiring(scope), list[Layers]()
    for period in periods:
        if _longest(kinds, period) >= (enough(period) - 1) * period:
            found += _stretches(wiring, kinds, period, found)
    return tuple(found)


def _longest(kinds: Sequence[int], period: int) -> int:
    """The most nodes in a row of which each is of the kind that the one a period before is."""
    return max((last - first for first, last in _streaks(map(eq, kinds[period:], kinds), period)), default=0)


def _kinds(scope: Scope) -> list[int]:
    """By position: a number for what a node is, wherever it stands."""
    numbers: dict[object, int] = {}
    nodes = [scope.nodes[index] for index in scope.order]
    keys = [(n.op, len(n.inputs), len(n.outputs), n.written, len(n.proto.metadata_props)) for n in nodes]
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def known(fact: Fact) -> object:
    """All that is known of a value, to be compared."""
    array = fact.array if fact.is_constant else None
    content = None if array is None else (array.dtype.str, array.tobytes())
    return fact.dtype, fact.shape, fact.elements, fact.splat, content


def _periods(kinds: Sequence[int]) -> list[int]:
    """The distances at which most nodes and those before them come again."""
    latest: dict[tuple[int, ...], int] = {}
    distances: Counter[int] = Counter()
    for position in range(GRAM, len(kinds) + 1):
        gram = tuple(kinds[position - GRAM : position])
        if gram in latest:
            distances[position - latest[gram]] += 1
        latest[gram] = position
    return [d for d, count in distances.most_common(PERIODS) if count >= (MIN_LAYERS - 2) * d]


def _stretches(wiring: Wiring, kinds: Sequence[int], period: int, taken: Sequence[Layers]) -> list[Layers]:
    """Where each node is alike the one a period before; nodes that are alike with another period are left out."""
    found = []
    uses = _Uses(wiring, kinds, period).numbers()
    for first, last in _streaks(map(eq, uses[period:], uses), period):
        if last - first < (MIN_LAYERS - 1) * period or any(t.start < last and first - period < t.stop for t in taken):
            continue
        found.append(Layers(wiring, first - period, last, period))
    return found


def _streaks(flags: Iterable[bool], first: int) -> Iterator[tuple[int, int]]:
    """Where flags are set without a gap, as start and stop; the first flag is at `first`."""
    position = first
    for is_set, group in groupby(flags):
        length = len(list(group))
        if is_set:
            yield position, position + length
        position += length


class _Uses:
    """How nodes hang in the graph, seen from where each stands: those one period apart are alike that look the same."""

    def __init__(self, wiring: Wiring, kinds: Sequence[int], period: int) -> None:
        self._scope, self._wiring, self._kinds, self._window = wiring.scope, wiring, kinds, 2 * period

    def numbers(self) -> list[int]:
        """By position: a number for what a node is, what it reads and who reads what it makes."""
        seen: dict[object, int] = {}
        self._wiring.read_parameters(self._window)
        nodes, operand, result = self._scope.nodes, self._operand, self._result
        found = []
        for position, index in enumerate(self._scope.order):
            node = nodes[index]
            key = [self._kinds[position], *[operand(name, position) for name in node.inputs]]
            key += [result(name, position) for name in node.outputs]
            found.append(seen.setdefault(tuple(key), len(seen)))
        return found

    def _operand(self, name: str, position: int) -> object:
        """What an operand is to a node: itself where all layers share it."""
        wiring = self._wiring
        if wiring.spans[name] > self._window:
            return name
        at, slot, made = wiring.places[name]
        return (position - at, slot) if made else (position - at, slot, self._constant(name))

    def _result(self, name: str, position: int) -> object:
        """Who reads a result; itself where it is read from far away, or absent."""
        wiring = self._wiring
        if wiring.spans[name] > self._window:
            return name
        readers = wiring.readers[name]
        if len(readers) == 1 and name not in self._scope.outputs:
            return readers[0] - position
        return name in self._scope.outputs, *[reader - position for reader in readers]

    def _constant(self, name: str) -> object:
        """What rules may ask of a value that no node makes."""
        known = self._wiring.constants
        if name not in known:
            known[name] = self._asked(name)
        return known[name]

    def _asked(self, name: str) -> object:
        scope = self._scope
        tensor = scope.initializers.get(name)
        if tensor is None:  # no two sparse tensors are taken for alike
            return scope.inputs[name].type.SerializeToString() if name in scope.inputs else name
        dims = tuple(tensor.dims)
        if tensor.data_location == tensor.EXTERNAL and dims and math.prod(dims) > MAX_EXTERNAL_BYTES:
            return tensor.data_type, dims, "on disk"
        array = read_tensor(tensor, scope.model)
        return tensor.data_type, dims, tensor.data_location, None if array is None else content(array)
