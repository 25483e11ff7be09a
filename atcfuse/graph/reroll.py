"""Rerolling: of many layers that are alike the middle ones are cut out, so that a short model stands for a long one.

Each end keeps `SIDE` layers. What is done to the short model in layers that have alike ones on both sides is done in
the same way in those that were cut out; `graph.unroll` does it there by renaming. A layer of the short model stands for
one of the long model; the layers behind the cut read what the last one before it makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, TypeAlias

from atcfuse.graph.index import Model, Node, Scope
from atcfuse.graph.layers import Layers, NotAlike, alike_layers

SIDE = 4
"""Layers that are left at each end, or one more: patterns reach a layer or two, and what comes out must come again."""
FIRST = 1
"""The layer from which on layers of the short model are compared: the one before it has no neighbour in front."""
MANY = 1000
"""A graph of fewer nodes is fused sooner than its layers are proved alike."""
LEAST_NODES = 400
"""A cut that takes fewer nodes out is not worth it."""


def _even(count: int) -> int:
    """So that layers which come out in pairs do not lack a half."""
    return count - count % 2


Told: TypeAlias = tuple[tuple[Any, ...], frozenset[int]]
"""A set of nodes, and what is told of it."""


class Stretch:
    """Layers of a long model of which the middle ones, `cut` of them, are left out of the short one.

    Layers are counted as in the short model. A name `by` so many layers behind is one of the long model: 0 is the layer
    itself where it stands before the cut, and `cut` where it stands behind.
    """

    def __init__(self, layers: Layers) -> None:
        self.layers, self.cut = layers, _even(layers.count - 2 * SIDE)
        self._columns: dict[str, Sequence[str] | None] = {}

    @property
    def scope(self) -> Scope:
        """The graph of the long model."""
        return self.layers.scope

    @property
    def gap(self) -> tuple[int, int]:
        """The positions between which nodes are left out."""
        first = self.layers.start + SIDE * self.layers.period
        return first, first + self.cut * self.layers.period

    def layer_of(self, name: str) -> int | None:
        """The layer that a value or a named node is in; None for what all layers share, and for names that the long
        model does not have.
        """
        position = self._position(name)
        return None if position is None else self._short(self._layer(position))

    def has(self, index: int) -> bool:
        """Whether a node of the long model is in one of the layers."""
        return self.layers.start <= self.scope.positions[index] < self.layers.stop

    def layer_at(self, index: int) -> int:
        """The layer that a node of the long model is in."""
        return self._short(self._layer(self.scope.positions[index]))

    def placed(self, name: str, by: int) -> str:
        """What a name of the short model is so many layers behind in the long one. Raises NotAlike."""
        if name not in self._columns:
            self._columns[name] = self._column(name)
        column = self._columns[name]
        if column:
            return column[by]
        if column is not None and by not in (0, self.cut):
            raise NotAlike
        return name

    def _column(self, name: str) -> Sequence[str] | None:
        """What a name of the short model is 0 to `cut` layers behind; empty where it is of no layer, None where it is
        the same in every layer.
        """
        position = self._position(name)
        if position is None:
            return None
        layer = self._layer(position)
        if layer < 0 or layer >= self.layers.count:
            return ()
        nodes, layers = self.scope.nodes, self.layers
        first = self.place(position)
        there = [nodes[i] for i in self.scope.order[first : first + self.cut * layers.period + 1 : layers.period]]
        if name in self._named:
            return [node.name for node in there]
        return layers.values(name, there)

    def ahead(self, name: str, by: int = 1) -> str:
        """What a name of the short model is so many of its layers further on. Raises NotAlike."""
        position = self._position(name)
        if position is None:
            return name
        step = self._step(self._layer(position), by)
        if name in self._named:
            return self.scope.nodes[self.layers.node(self._named[name], step)].name
        return self.layers.value(name, step)

    def _step(self, layer: int, by: int) -> int:
        """How many layers of the long model further on is what is so many of the short one further on."""
        wanted = self._short(layer) + by
        return wanted + (self.cut if wanted >= SIDE else 0) - layer

    def place(self, index: int) -> int:
        """Where a node of the short model would stand in the long one, were nothing cut out before its layer."""
        layer = self._layer(index)
        return index + (self._short(layer) - layer) * self.layers.period

    def spread(self, sets: Iterable[Told]) -> Iterator[Told]:
        """Sets of nodes of the short model as they are in the long one. Raises NotAlike where layers have others."""
        by_layer: dict[int, list[Told]] = {}
        for told, members in sets:
            inside = [self._short(self._layer(i)) for i in members if self.layers.start <= i < self.layers.stop]
            if not inside:
                yield told, members
                continue
            by_layer.setdefault(max(inside), []).append((told, members))
        if len({self._relative(by_layer.get(layer, ()), layer) for layer in range(1, 2 * SIDE - 1)}) != 1:
            raise NotAlike
        gap = self.cut * self.layers.period
        for layer, found in by_layer.items():
            for told, members in found:
                if layer >= SIDE:
                    yield told, frozenset([i + gap if 0 <= self._layer(i) < SIDE else i for i in members])
                    continue
                for by in range(self.cut + 1 if layer == SIDE - 1 else 1):
                    yield told, frozenset([i + by * self.layers.period for i in members])

    def _relative(self, sets: Iterable[Told], layer: int) -> frozenset[tuple[object, tuple[int, ...]]]:
        """Sets of nodes by where these are in a layer. Raises NotAlike for nodes outside of all layers."""
        found = set()
        for told, members in sets:
            if any(not self.layers.start <= i < self.layers.stop for i in members):
                raise NotAlike
            found.add((told, tuple(sorted([self.place(i) - layer * self.layers.period for i in members]))))
        return frozenset(found)

    def _position(self, name: str) -> int | None:
        if name in self._named:
            return self.scope.positions[self._named[name]]
        return self.layers.position(name)

    def _layer(self, position: int) -> int:
        return (position - self.layers.start) // self.layers.period

    def _short(self, layer: int) -> int:
        return layer if layer < SIDE else layer - self.cut

    @cached_property
    def _named(self) -> dict[str, int]:
        """The nodes of the layers that are kept, by name, but those that have none of their own."""
        return {node.name: node.index for node in self.kept() if node.name not in node.outputs}

    def is_clear(self) -> bool:
        """Whether a name tells what is meant: no two nodes have the same one, none that of a value."""
        own = [node.name for node in self.scope.nodes if node.name not in node.outputs]
        return len(set(own)) == len(own) and not any(self.scope.defines(name) for name in own)

    def rejoined(self, reader: str, name: str) -> str:
        """What a value is in the long model that stands in the short one for what the node that makes `reader` reads
        there.
        """
        start, (first, last) = self.layers.start, self.gap
        at, position = self._made_at(reader), self.layers.position(name)
        is_across = last <= at < self.layers.stop and position is not None and start <= position < first
        return self.layers.value(name, self.cut) if is_across else name

    def _made_at(self, name: str) -> int:
        return self.scope.positions[self.scope.producers[name].index]

    def kept(self) -> Iterator[Node]:
        """The nodes of the layers that the short model keeps."""
        before, behind = self.gap
        order, layers = self.scope.order, self.layers
        for index in chain(order[layers.start : before], order[behind : layers.stop]):
            yield self.scope.nodes[index]


@dataclass(frozen=True)
class Short:
    """How a long model was made short: what was cut out of it, and the nodes that were `kept`, in order."""

    stretches: tuple[Stretch, ...]
    kept: tuple[int, ...]

    @property
    def scope(self) -> Scope:
        """The graph of the long model."""
        return self.stretches[0].scope

    @cached_property
    def likes(self) -> list[int]:
        """By node of the long model, the node of the short one that it is alike: itself, or that of the layer before
        the cut.
        """
        found = [-1] * len(self.scope.nodes)
        for at, i in enumerate(self.kept):
            found[i] = at
        for stretch in self.stretches:
            (first, last), period = stretch.gap, stretch.layers.period
            found[first:last] = found[first - period : first] * stretch.cut
        return found

    def spread(self, sets: Iterable[Told]) -> list[Told]:
        """Sets of nodes of the short model as they are in the long one. Raises NotAlike where layers have others."""
        found = [(told, frozenset([self.kept[i] for i in members])) for told, members in sets]
        for stretch in self.stretches:
            found = list(stretch.spread(found))
        return found


def layers_of(scope: Scope) -> tuple[Layers, ...]:
    """Stretches of layers that are alike; none in a small graph."""
    return alike_layers(scope, _enough) if len(scope.nodes) >= MANY else ()


def _enough(period: int) -> int:
    """So many layers of so many nodes are worth a cut."""
    cut = -(-LEAST_NODES // period)
    return 2 * SIDE + cut + cut % 2


def shorten(model: Model, layers: Sequence[Layers]) -> Short | None:
    """Cuts the middle layers out of a model's main graph, in place; None, with nothing cut, where it is not worth it.

    Nothing but nodes goes: initializers and outputs of the layers that were cut out stay without a node.
    """
    found = [stretch for one in layers if (stretch := Stretch(one)).cut * one.period >= LEAST_NODES]
    scope = model.main
    if not found or scope.order != list(range(len(scope.order))) or not found[0].is_clear():
        return None
    gaps = [stretch.gap for stretch in found]
    kept = [i for i in scope.order if not any(first <= i < last for first, last in gaps)]
    graph = model.proto.graph
    del graph.node[:]
    graph.node.extend([scope.nodes[i].proto for i in kept])
    for stretch in found:
        _join(stretch, {i: at for at, i in enumerate(kept)})
    return Short(tuple(found), tuple(kept))


def _join(stretch: Stretch, at: dict[int, int]) -> None:
    """Makes the nodes behind the cut read what the layers before it make."""
    scope, (_, last) = stretch.scope, stretch.gap
    for index in scope.order[last : stretch.layers.stop]:
        node = scope.nodes[index]
        for slot, name in enumerate(node.inputs):
            position = stretch.layers.position(name)
            if position is not None and stretch.layers.start <= position < last:
                scope.graph.node[at[index]].input[slot] = stretch.layers.value(name, -stretch.cut)
