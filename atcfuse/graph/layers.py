"""Layers that are alike: stretches of a graph where every node does what the node one period before it does.

A transformer of 80 layers is one layer 80 times, and what is found in one of them holds in the others. Alike means
proved, node by node: operator, attributes, what is known of the results, how many nodes before an operand was made, who
reads the results, the numbers in small constants. Weights may differ; that is what layers are for.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import eq
from typing import TYPE_CHECKING, NamedTuple

from atcfuse.graph.constants import MAX_EXTERNAL_BYTES, read_tensor
from atcfuse.graph.facts import Fact
from atcfuse.graph.index import Node, Scope

if TYPE_CHECKING:
    import numpy as np

MIN_LAYERS = 8
"""Fewer layers than these are not worth telling apart."""
GRAM = 8
"""So many nodes in a row tell where in a layer they are."""
PERIODS = 4
"""Stretches with so many different periods are looked for, such as an encoder's and a decoder's."""
SAMPLE = 16
"""So many elements of a constant show whether it is a trained parameter."""
ORDINARY = 1e3
"""Parameters have numbers below this."""


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

    def carried(self) -> Iterator[tuple[str, ...]]:
        """What layers read of those in front of them: for each such operand the values, one a layer."""
        nodes, order, first = self.scope.nodes, self.scope.order, self.start + self.period
        for position in range(first, first + self.period):
            for slot, name in enumerate(nodes[order[position]].inputs):
                if not name or self._place(name) is None or self._wiring.places[name].position >= first:
                    continue
                yield tuple(
                    [nodes[order[at]].inputs[slot] for at in range(position - self.period, self.stop, self.period)]
                )

    def distance(self, name: str, below: str) -> float:
        """How many nodes earlier than a value another one is made or read first; infinite for one that none knows."""
        places = self._wiring.places
        return places[name].position - places[below].position if below in places else math.inf

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
        slot = place.slot
        return [node.outputs[slot] for node in there] if place.made else [node.inputs[slot] for node in there]

    def position(self, name: str) -> int | None:
        """The node that makes a value or reads it first, by position; None for a value that all layers share."""
        place = self._place(name)
        return None if place is None else place.position

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


class _Place(NamedTuple):
    """Where a value is met first: what the node at a position has `made`, or reads."""

    position: int
    slot: int
    made: bool


class _Spans(dict[str, float]):
    """Between how many nodes a value lies; without end for one of an enclosing graph."""

    def __missing__(self, name: str) -> float:
        return math.inf


class Wiring:
    """Where the values of a scope are made and read, by position; `spans` is how far that is apart at most."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        places, readers = self.places, self.readers = dict[str, _Place](), defaultdict[str, list[int]](list)
        for position, index in enumerate(scope.order):
            node = scope.nodes[index]
            for slot, name in enumerate(node.inputs):
                if name:
                    if name not in places:
                        places[name] = _Place(position, slot, False)
                    readers[name].append(position)
            for slot, name in enumerate(node.outputs):
                if name:
                    places[name] = _Place(position, slot, True)
        self.spans = _Spans(
            (name, readers[name][-1] - place.position if name in readers else 0)
            for name, place in places.items()
            if place.made or scope.defines(name)
        )

    def is_shared(self, name: str, window: int) -> bool:
        """Whether a value is read from farther than `window` nodes apart, or comes from an enclosing graph."""
        return self.spans[name] > window


def alike_layers(scope: Scope) -> tuple[Layers, ...]:
    """The longest stretches of layers that are alike, those with more nodes first; none overlap."""
    if len(scope.order) < MIN_LAYERS * GRAM or scope.bodies:
        return ()
    kinds = _kinds(scope)
    periods = _periods(kinds)
    if not periods:
        return ()
    wiring, found = Wiring(scope), list[Layers]()
    for period in periods:
        found += _stretches(wiring, kinds, period, found)
    return tuple(found)


def _kinds(scope: Scope) -> list[int]:
    """By position: a number for what a node is, wherever it stands."""
    numbers: dict[object, int] = {}
    told: dict[Fact, int] = {}
    kinds = []
    for index in scope.order:
        node = scope.nodes[index]
        facts = [scope.fact(o) for o in node.outputs]
        for fact in facts:
            if fact not in told:
                told[fact] = numbers.setdefault(known(fact), len(numbers))
        key = node.op, len(node.inputs), node.written, len(node.proto.metadata_props), *[told[fact] for fact in facts]
        kinds.append(numbers.setdefault(key, len(numbers)))
    return kinds


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
    uses = _Uses(wiring, period)
    found = []
    for start, stop in _same_kinds(kinds, period):
        if stop - start < (MIN_LAYERS - 1) * period or any(t.start < stop and start - period < t.stop for t in taken):
            continue
        for first, last in _streaks(uses.alike(start, stop), start):
            if last - first >= (MIN_LAYERS - 1) * period:
                found.append(Layers(wiring, first - period, last, period))
    return found


def _same_kinds(kinds: Sequence[int], period: int) -> Iterator[tuple[int, int]]:
    return _streaks(map(eq, kinds[period:], kinds), period)


def _streaks(flags: Iterable[bool], first: int) -> Iterator[tuple[int, int]]:
    """Where flags are set without a gap, as start and stop; the first flag is at `first`."""
    position = first
    for is_set, group in groupby(flags):
        length = len(list(group))
        if is_set:
            yield position, position + length
        position += length


class _Uses:
    """Whether nodes one period apart hang in the graph alike, told from where each stands."""

    def __init__(self, wiring: Wiring, period: int) -> None:
        self._scope, self._wiring, self._period = wiring.scope, wiring, period
        self._constants: dict[str, object] = {}

    def alike(self, start: int, stop: int) -> Iterator[bool]:
        """Whether each node, of the same kind as the one a period before, reads and is read as that one."""
        nodes, order, period = self._scope.nodes, self._scope.order, self._period
        for position in range(start, stop):
            yield self._is_alike(nodes[order[position]], nodes[order[position - period]])

    def _is_alike(self, node: Node, model: Node) -> bool:
        for name, other in zip(node.inputs, model.inputs, strict=True):
            if not self._operands(name, other):
                return False
        return all(map(self._results, node.outputs, model.outputs))

    def _operands(self, name: str, model: str) -> bool:
        """Whether a node's operand is to it what the `model` is to the one a period before."""
        spans, window = self._wiring.spans, 2 * self._period
        if spans[name] > window or spans[model] > window:  # one of them is shared
            return name == model
        here, there = self._wiring.places[name], self._wiring.places[model]
        if here.position - there.position != self._period or here.slot != there.slot or here.made != there.made:
            return False
        return here.made or self._constant(name) == self._constant(model)

    def _results(self, name: str, model: str) -> bool:
        """Whether a result is read and repeats something as the `model` does."""
        wiring, scope, period = self._wiring, self._scope, self._period
        if wiring.spans[name] > 2 * period or wiring.spans[model] > 2 * period:
            return name == model  # no two nodes make it: neither has this output
        if [reader - period for reader in wiring.readers[name]] != wiring.readers[model]:
            return False
        if (name in scope.outputs) != (model in scope.outputs):
            return False
        if name not in scope.alias or model not in scope.alias:
            return name not in scope.alias and model not in scope.alias
        return self._operands(scope.alias[name], scope.alias[model])

    def _constant(self, name: str) -> object:
        """What rules may ask of a value that no node makes."""
        if name not in self._constants:
            self._constants[name] = self._asked(name)
        return self._constants[name]

    def _asked(self, name: str) -> object:
        scope = self._scope
        fact, tensor = scope.fact(name), scope.initializers.get(name)
        if tensor is None:
            return fact.dtype, fact.shape
        if tensor.data_location == tensor.EXTERNAL and tensor.dims and math.prod(tensor.dims) > MAX_EXTERNAL_BYTES:
            return fact.dtype, fact.shape, "on disk"
        array = read_tensor(tensor, scope.model)
        return fact.dtype, fact.shape, tensor.data_location, None if array is None else _content(array)


def _content(array: np.ndarray) -> object:
    """What rules can learn of a constant: of parameters, along which axes they repeat; of others everything."""
    if _is_learned(array):
        return tuple(_repeats_along(array, axis) for axis in range(array.ndim))
    return hashlib.blake2b(array.tobytes(), digest_size=16).digest()


def _is_learned(array: np.ndarray) -> bool:
    """Whether there are three different numbers, one of them broken, and none that might mask: no mask, no table, no
    range has that.
    """
    if array.dtype.kind != "f" or not array.size:
        return False
    some = set(array.ravel()[:SAMPLE].tolist())
    if len(some) < 3 or not any(abs(x) < ORDINARY and x != int(x) for x in some):
        return False
    return bool(-ORDINARY < array.min() <= array.max() < ORDINARY)


def _repeats_along(array: np.ndarray, axis: int) -> bool:
    if array.shape[axis] < 2:
        return True
    if array.item(0) != array.item(math.prod(array.shape[axis + 1 :])):  # most parameters differ there already
        return False
    first = array.take([0], axis=axis)
    return bool((first == array.take([1], axis=axis)).all()) and bool((first == array).all())
