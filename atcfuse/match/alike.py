"""Layers that are alike also in what rules are told of values from far in front of them.

That layers are alike is proved by what each of them reads and makes (`graph.layers`); rules ask more of some values,
such as a mask, and that may depend on how often layers in front have changed them.
"""

from __future__ import annotations

from collections.abc import Sequence

from atcfuse.graph.index import Scope
from atcfuse.graph.layers import Layers, known
from atcfuse.graph.reroll import SIDE
from atcfuse.match.bands import Band
from atcfuse.match.chains import roots
from atcfuse.match.indexed import Bands
from atcfuse.match.levels import absorbs, is_ordinary, is_whole


def rules_are_told_alike(scope: Scope, layers: Layers) -> bool:
    """Whether rules are told the same of what each layer reads; `scope` is short for the graph of the layers.

    The layers in front of the cut are looked at, of which those behind read what they read of each other.
    """
    told = _Told(scope)
    return all(told.same(layers, values) for values in layers.carried(SIDE - 1))


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
