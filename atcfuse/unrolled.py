"""What a report says of a short model, said of the long one: every entry of a layer once for each layer like it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from atcfuse.graph.reroll import FIRST, SIDE
from atcfuse.graph.unroll import COPIED, NEAR, Unrolling

_T = TypeVar("_T")
_Entry = dict[str, Any]
_WORDS = re.compile(r"""(?<=')[^']+(?=')|(?<=")[^"]+(?=")|[^\s'"]+""")
"""What may be a name in a reason: quoted text and words."""


def fusions(entries: Sequence[_Entry], stretches: Sequence[Unrolling]) -> list[_Entry]:
    """Entries of fusions."""
    return _all(entries, stretches, _layer_of_fusion, _fusion)


def kept(entries: Sequence[_Entry], stretches: Sequence[Unrolling]) -> list[_Entry]:
    """Entries of anchors that stay as they were."""
    return _all(entries, stretches, lambda entry, names: names.layer_of(entry["anchor"]), _kept)


def count(anchors: Sequence[str], stretches: Sequence[Unrolling]) -> int:
    """How many anchors there are."""
    return len(_all(anchors, stretches, lambda anchor, names: names.layer_of(anchor), lambda anchor, _, __: anchor))


def is_told_alike(reasons: Iterable[tuple[str, Any]], stretches: Sequence[Unrolling]) -> bool:
    """Whether the same was told in each of the layers that were compared: of anchors, what is told but for names."""
    told = list(reasons)
    for names in stretches:
        layers = range(FIRST, 2 * SIDE - FIRST, names.stride)
        found: dict[int, list[Any]] = {layer: [] for layer in layers}
        for anchor, what in told:
            layer = names.layer_of(anchor)
            if layer is not None and FIRST <= layer < 2 * SIDE - FIRST:
                found[layer - (layer - FIRST) % names.stride].append(what)
        if any(sorted(found[layer]) != sorted(found[FIRST]) for layer in layers):
            return False
    return True


def _all(
    entries: Sequence[_T],
    stretches: Sequence[Unrolling],
    layer_of: Callable[[_T, Unrolling], int | None],
    moved: Callable[[_T, Unrolling, int], _T],
) -> list[_T]:
    found = list(entries)
    for names in stretches:
        layers = [layer_of(entry, names) for entry in found]
        found = list(_unrolled(found, layers, names, moved))
    return found


def _unrolled(
    entries: Sequence[_T], layers: Sequence[int | None], names: Unrolling, moved: Callable[[_T, Unrolling, int], _T]
) -> Iterator[_T]:
    """The entries, those of the layers whose like were cut out again and again."""
    cut, stride = names.stretch.cut, names.stride
    last = COPIED + stride - 1
    for repeated, group in groupby(
        zip(layers, entries, strict=True), key=lambda pair: pair[0] is not None and COPIED <= pair[0] <= last
    ):
        here = list(group)
        if not repeated:
            yield from (e if layer is None else moved(e, names, cut if layer > last else 0) for layer, e in here)
            continue
        for by in range(0, cut + 1, stride):
            yield from (moved(entry, names, by) for _, entry in here)


def _layer_of_fusion(entry: _Entry, names: Unrolling) -> int | None:
    layers = [names.layer_of(name) for name in (entry["name"], *entry["nodes"])]
    return max((layer for layer in layers if layer is not None), default=None)


def _fusion(entry: _Entry, names: Unrolling, by: int) -> _Entry:
    told: Mapping[str, Any] = {
        "name": names.told(entry["name"], by),
        "nodes": [names.told(name, by) for name in entry["nodes"]],
        "shapes_rewritten": [names.told(name, by) for name in entry["shapes_rewritten"]],
    }
    return {**entry, **told}


def _kept(entry: _Entry, names: Unrolling, by: int) -> _Entry:
    layer = names.layer_of(entry["anchor"])

    def moved(found: re.Match[str]) -> str:
        """A word of a reason; one that is the name of something in another part of the model means no name."""
        word = found[0].rstrip(".,;:)")
        its = names.layer_of(word)
        is_near = its is not None and layer is not None and abs(its - layer) <= NEAR
        return names.told(word, by) + found[0][len(word) :] if is_near else found[0]

    told = {key: names.told(entry[key], by) for key in ("anchor", "value") if entry[key]}
    return {**entry, **told, "reason": _WORDS.sub(moved, entry["reason"])}
