"""Matches carried over between layers that are alike: a graph of many is searched in the first and last few of them.

What a match says of one layer is said of another by renaming: nodes and values to those as many layers behind. That the
layers are alike is proved (`graph.layers`), and that rules are told the same of what each of them reads of those in
front of it, however far back that is known from. So everything that was checked of the match holds of its copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any, TypeAlias

from atcfuse.dims import Poly
from atcfuse.graph.index import Scope
from atcfuse.graph.layers import Layers, NotAlike, known
from atcfuse.match.bands import Band
from atcfuse.match.chains import roots
from atcfuse.match.functions import Aligned
from atcfuse.match.indexed import Bands
from atcfuse.match.levels import absorbs, is_ordinary, is_whole
from atcfuse.match.search import Match
from atcfuse.match.values import Built, Value
from atcfuse.safety import Shapes

MARGIN = 3
"""Layers at each end that are searched themselves: patterns reach into the layers before and behind."""
MODEL = 1
"""The layer whose matches are copied: what a pattern reaches from here is alike in all that get copies."""

_PLAIN = (bool, int, float, Poly, NoneType)
"""What is the same in every layer."""

_Moving: TypeAlias = list[tuple[str, Any]]
"""Names and what is bound to them."""


class Copies:
    """Which nodes of a scope need no search, and the matches that they get instead.

    Fragments are not looked for at the nodes `unsearched`.
    """

    def __init__(self, scope: Scope, stretches: Sequence[Layers]) -> None:
        self._scope = scope
        self._of: dict[int, tuple[Layers, int, int]] = {}
        self._behind: dict[int, list[int]] = {}
        self._moving: dict[int, tuple[Match, _Moving | None]] = {}
        self.stretches: list[Layers] = []
        self.unsearched: set[int] = set()
        told = _Told(scope)
        for layers in stretches:
            if not all(told.same(layers, values) for values in layers.carried()):
                continue
            self.stretches.append(layers)
            models = list(layers.of_layer(MODEL))
            for layer in range(MARGIN, layers.count - MARGIN):
                for model, index in zip(models, layers.of_layer(layer), strict=True):
                    self._of[index] = layers, model, layer - MODEL
                    self._behind.setdefault(model, []).append(index)
                if layer > MARGIN:  # the first of them tells what of the layer before is a part of something larger
                    self.unsearched.update(layers.of_layer(layer))

    def __bool__(self) -> bool:
        return bool(self._of)

    def __contains__(self, index: object) -> bool:
        return index in self._of

    def model(self, index: int) -> int:
        """The node whose matches a node in a middle layer gets."""
        return self._of[index][1]

    def in_model(self, index: int, anchor: int) -> int:
        """A node of a match at an anchor in a middle layer, as it is in the match that this one was copied from."""
        layers, _, by = self._of[anchor]
        return layers.node(index, -by)

    def behind(self, index: int) -> Sequence[int]:
        """The nodes in middle layers that get what is found at a node."""
        return self._behind.get(index, ())

    def copy(self, match: Match, index: int) -> Match | None:
        """A match as it is at a node in a middle layer; None where it holds something that cannot be carried over."""
        layers, _, by = self._of[index]
        if id(match) not in self._moving:
            self._moving[id(match)] = match, _moving(layers, match)
        moving = self._moving[id(match)][1]
        if moving is None:
            return None
        scope = self._scope
        try:
            copied = Match(
                match.rule,
                scope,
                scope.nodes[index],
                frozenset(layers.nodes(match.members, by)),
                tuple([layers.value(v, by) for v in match.outputs]),
                {**match.env, **{name: _carried(layers, by, bound, name) for name, bound in moving}},
                match.labels,
                _shapes(layers, by, match.shapes),
            )
        except NotAlike:
            return None
        object.__setattr__(copied, "like", match)  # no argument of Match, so that `replace` drops it
        return copied


class _Told:
    """What rules may be told of values from far behind, of which layers that are alike say nothing."""

    def __init__(self, scope: Scope) -> None:
        self._scope, self._bands = scope, Bands(scope)
        self._ordinary: dict[str, bool] = {}

    def same(self, layers: Layers, values: Sequence[str]) -> bool:
        """Whether rules are told the same of the values that one operand has in the layers.

        A mask that every layer weakens is another one in each of them. A value that every layer only rearranges or
        scales is so in another way in each, which is not followed up.
        """
        if any(self._comes_along(layers, value) for value in values):
            return False
        first = self._of(values[0])
        return all(self._of(value) == first for value in values[1:])

    def _of(self, value: str) -> object:
        scope, band = self._scope, self._bands.of(value)
        numbers = [(n.dtype.str, n.tobytes()) for n in (band.inside, band.outside)] if isinstance(band, Band) else []
        line = (type(band), band.shape, band.slopes, band.start, numbers) if band else None
        ordinary = is_ordinary(scope, value, self._ordinary)
        return known(scope.fact(value)), line, absorbs(scope, value), is_whole(scope, value), ordinary

    def _comes_along(self, layers: Layers, value: str) -> bool:
        """Whether a value is a view, scaled or not, of one that is a layer or more in front of it."""
        below = (str(link.value) for link in roots(self._scope, value, scaling=True)[1:])
        return any(not layers.is_shared(v) and layers.distance(value, v) >= layers.period for v in below)


def _moving(layers: Layers, match: Match) -> _Moving | None:
    """What is bound to another thing in every copy of a match; None for a match that reaches too far to be copied."""
    if any(not 0 <= layers.layer(i) <= MODEL + MARGIN - 1 for i in match.members):
        return None
    return [(name, bound) for name, bound in match.env.items() if not isinstance(bound, _PLAIN)]


def _shapes(layers: Layers, by: int, shapes: Shapes) -> Shapes:
    return {
        layers.node(i, by): tuple(e if isinstance(e, int) else (layers.value(e[0], by), e[1]) for e in extents)
        for i, extents in shapes.items()
    }


def _carried(layers: Layers, by: int, bound: Any, name: str = "") -> Any:
    """What a name is bound to, so many layers behind. Raises NotAlike for what might be a value and does not say so."""
    kind = type(bound)
    if kind is Value:
        return Value(layers.value(bound, by))
    if isinstance(bound, _PLAIN):
        return bound
    if isinstance(bound, str):
        if name.startswith("chosen ") or not layers.scope.defines(bound):
            return bound
        raise NotAlike
    if kind is tuple or kind is list:
        return kind([_carried(layers, by, item) for item in bound])
    carry = _CARRIERS.get(kind)
    if carry is None:
        raise NotAlike
    return carry(layers, by, bound)


def _aligned(layers: Layers, by: int, bound: Aligned) -> Aligned:
    return replace(bound, value=layers.value(bound.value, by))


def _built(layers: Layers, by: int, bound: Built) -> Built:
    return replace(bound, inputs=tuple(_carried(layers, by, item) for item in bound.inputs))


_CARRIERS: Mapping[type, Callable[[Layers, int, Any], Any]] = {Aligned: _aligned, Built: _built}
