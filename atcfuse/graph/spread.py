"""What is known of a short model's values, said of those of the long one.

What is known of a value follows from the node that makes it and from what is known of its operands, which are made at
most two layers before. So where a few layers one behind the other know the same, all layers that come behind them and
are alike do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import onnx

from atcfuse.graph.fixed import fixed
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.layers import NotAlike, known
from atcfuse.graph.reroll import FIRST, SIDE, Short, Stretch
from atcfuse.graph.traffic import VIEWS

_BY_SHAPE = frozenset({"Shape", "Size"})
_MOVES = frozenset({*VIEWS, "Transpose", "Cast"})
"""What these make of a weight has the numbers that it has, and rules learn as little of them."""


def spread(short: Short, told: Scope) -> None:
    """Fills the facts of the long model's graph; `told` is the short one's. Raises NotAlike, with nothing filled, where
    not the same is known of the layers.
    """
    scope = short.scope
    for stretch in short.stretches:
        _compare(stretch, told)
    scope.facts.update(told.facts)
    scope.extents.update(told.extents)
    scope.model.pins = told.model.pins
    for name, root in told.alias.items():
        for stretch in short.stretches:
            root = stretch.rejoined(name, root)
        scope.alias[name] = root
    for stretch in short.stretches:
        _fill(stretch, told)


def _compare(stretch: Stretch, told: Scope) -> None:
    """Raises NotAlike unless the same is known of the values of layers beside the cut, and of given ones of all."""
    nodes, period = list(stretch.kept()), stretch.layers.period
    hints = _hints(told.graph) if told.hinted else {}
    for at in range(FIRST * period, (2 * SIDE - 2) * period):
        for name, behind in zip(nodes[at].outputs, nodes[at + period].outputs, strict=True):
            if known(told.fact(name)) != known(told.fact(behind)):
                raise NotAlike
            if (name in told.alias) != (behind in told.alias):
                raise NotAlike
            if name in told.alias and stretch.ahead(told.alias[name]) != told.alias[behind]:
                raise NotAlike
    for at in range((SIDE - 1) * period, SIDE * period):
        for name in _not_told(nodes[at], told):
            _compare_all(stretch, name, lambda value: _content(told, value))
        if not told.hinted.isdisjoint(nodes[at].outputs):
            for name in filter(None, nodes[at].outputs):
                _compare_all(stretch, name, hints.get)


def _not_told(node: Node, told: Scope) -> Iterator[str]:
    """Operands of which it does not follow from layers being alike what is known: inputs of the model, and weights
    that a constant is computed from.
    """
    is_constant = node.op not in _BY_SHAPE and _is_computed(node, told)
    for name in node.inputs:
        if is_constant if name in told.initializers else name in told.inputs:
            yield name


def _is_computed(node: Node, told: Scope) -> bool:
    """Whether numbers that rules may read are computed by a node when the model is built."""
    made = [name for name in node.outputs if name]
    if any(told.fact(name).is_constant or told.fact(name).splat is not None for name in made):
        return True
    return node.op not in _MOVES and not fixed(told).isdisjoint(made)


def _content(told: Scope, name: str) -> object:
    """All that is known of a value; a weight that is too large to be compared is like no other."""
    fact = told.fact(name)
    return known(fact) if fact.is_constant or name not in told.initializers else name


def _compare_all(stretch: Stretch, name: str, what: Callable[[str], object]) -> None:
    """Raises NotAlike unless the same is to be said of a value of the layer before the cut in all that were cut out."""
    if len({what(stretch.placed(name, by)) for by in range(stretch.cut + 1)}) > 1:
        raise NotAlike


def _hints(graph: onnx.GraphProto) -> Mapping[str, bytes]:
    return {i.name: i.type.SerializeToString() for i in (*graph.value_info, *graph.output)}


def _fill(stretch: Stretch, told: Scope) -> None:
    """Fills what is known of the layers that were cut out: that of the layer before them."""
    scope, period = stretch.scope, stretch.layers.period
    first, last = stretch.gap
    for at in range(first - period, first):
        there = [scope.nodes[index] for index in scope.order[at + period : last : period]]
        for slot, name in enumerate(scope.nodes[scope.order[at]].outputs):
            if not name:
                continue
            fact, names = told.fact(name), [node.outputs[slot] for node in there]
            scope.facts.update(dict.fromkeys(names, fact))
            if name in told.alias:
                scope.alias.update({o: stretch.placed(told.alias[name], by) for by, o in enumerate(names, 1)})
