"""Which numbers the symbolic extents of a model's inputs get when test inputs are made up.

A guess cannot always be right (a traced model may have its shape baked in), so every profile comes with several
assignments, the most telling first; the caller takes the first one that the original model runs on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product
from typing import Literal

from atcfuse.dims import Dim, as_symbol, evaluate, symbol, symbols
from atcfuse.graph.feeds import FLOATS, InputSpec, Interface

Class = Literal["batch", "sequence", "past", "total", "image"]
Sizes = dict[str, int]


@dataclass(frozen=True)
class Profile:
    """A named choice of extents: batch, first length, length of a key/value cache.

    `second` is every further length; 0 leaves them to the assignments.
    """

    name: str
    batch: int
    sequence: int
    past: int
    second: int = 0


STATIC = Profile("as declared", 1, 1, 1)
SMALL = Profile("small", 2, 4, 3)
ODD = Profile("odd", 3, 11, 7)
SINGLE = Profile("single", 1, 1, 5)
EMPTY_CACHE = Profile("empty cache", 2, 5, 0)
IMAGE_EXTENTS = (32, 48, 64, 224, 28, 336, 384, 512)
LONG_SEQUENCES = (400, 523, 1600, 2101, 16000)
USUAL_SEQUENCES = (8, 16, 32, 64, 128, 77, 256, 384, 512)
MAX_BAKED = 12


def is_dynamic(interface: Interface) -> bool:
    """Whether any required input has an extent that is not a number."""
    return bool(_classes(interface))


def has_cache(interface: Interface) -> bool:
    """Whether some extent is the length of a key/value cache."""
    return "past" in _classes(interface).values()


def assignments(interface: Interface, profile: Profile) -> Iterator[Sizes]:
    """Sizes for every symbol of the interface under a profile, in the order in which they should be tried.

    Lengths that the model names differently differ at first (it shows mixed-up lengths), then are all equal.
    """
    classes = _classes(interface)
    hints = _hinted(interface)
    several = _lengths(classes) > 1 and not profile.second
    cached = "total" in classes.values()
    images = IMAGE_EXTENTS if "image" in classes.values() else (0,)
    seen = []
    for image, free_total, equal in product(images, (False, True)[: 1 + cached], (False, True)[: 1 + several]):
        sizes, step = {}, 0
        for name, kind in classes.items():
            length = profile.sequence + (0 if equal else 2 * step)
            length = profile.second if profile.second and step else length
            step += kind == "sequence"
            total = profile.sequence + (0 if free_total else profile.past)
            value = {"batch": profile.batch, "sequence": length, "past": profile.past, "total": total, "image": image}
            sizes[name] = hints.get(name, value.get(kind, 1))
        if sizes not in seen:
            seen.append(sizes)
            yield sizes


def last_resorts(interface: Interface) -> Iterator[Profile]:
    """Profiles for models that ran on fewer than two of the usual sizes: long signals, shapes baked in by tracing."""
    signal = any(
        s.dtype in FLOATS and len(dims_of(s)) <= 3 and as_symbol(dims_of(s)[-1]) for s in _with_axes(interface)
    )
    for length in LONG_SEQUENCES if signal else ():  # never for tokens: attention is quadratic
        yield Profile(f"{length} long", 2, length, 3)
    for length in dict.fromkeys((*interface.baked[:MAX_BAKED], *USUAL_SEQUENCES)):
        for batch in (2, 1):
            yield Profile(f"batch {batch}, length {length}", batch, length, length)
    yield from _baked_pairs(interface)


def _baked_pairs(interface: Interface) -> Iterator[Profile]:
    if _lengths(_classes(interface)) < 2:
        return
    for first, second in permutations(sorted(interface.baked[:MAX_BAKED]), 2):
        yield Profile(f"batch 2, lengths {first} and {second}", 2, first, first, second)


def _lengths(classes: dict[str, Class]) -> int:
    return sum(c == "sequence" for c in classes.values())


def _with_axes(interface: Interface) -> list[InputSpec]:
    return [spec for spec in interface.inputs if dims_of(spec)]


def concrete_shape(spec: InputSpec, sizes: Sizes) -> tuple[int, ...] | None:
    """The shape of one input under sizes, or None where an extent would be negative."""
    shape = tuple(evaluate(d, sizes) for d in dims_of(spec))
    return None if any(n < 0 for n in shape) else shape


def dims_of(spec: InputSpec) -> tuple[Dim, ...]:
    """The dims of an input; where the model does not even declare a rank, (batch, length) and a known width."""
    if spec.dims is not None:
        return spec.dims
    width = dict(spec.hints).get(-1) if spec.dtype in FLOATS else None
    return (symbol("?batch"), symbol("?length")) + ((width,) if width else ())


def _classes(interface: Interface) -> dict[str, Class]:
    """What each plain symbol measures, in order of first appearance."""
    places: dict[str, list[tuple[InputSpec, int, bool]]] = {}
    for spec in interface.inputs:
        for axis, dim in enumerate(dims_of(spec)):
            for s in sorted(symbols(dim)):
                if not s.op:
                    places.setdefault(s.name, []).append((spec, axis, as_symbol(dim) is not None))
    classes = {name: _classify(name, where) for name, where in places.items()}
    if "past" in classes.values():
        for name, where in places.items():
            only_masks = all(spec.role in ("mask", "bias") and axis > 0 for spec, axis, _ in where)
            if classes[name] == "sequence" and only_masks:
                classes[name] = "total"
    return classes


def _classify(name: str, where: list[tuple[InputSpec, int, bool]]) -> Class:
    if re.search(r"past|cache", name):
        return "past"
    if re.search(r"batch", name):
        return "batch"
    alone = [(spec, axis) for spec, axis, plain in where if plain]
    if any(re.search(r"past|cache", spec.name) and spec.dtype in FLOATS and axis > 1 for spec, axis in alone):
        return "past"
    if any(_is_state(spec) and axis == 1 for spec, axis in alone):
        return "batch"
    if alone and all(axis == 0 and len(dims_of(spec)) > 1 for spec, axis in alone):
        return "batch"
    if alone and all(spec.dtype in FLOATS and len(dims_of(spec)) == 4 and axis > 1 for spec, axis in alone):
        return "image"
    return "sequence"


def _is_state(spec: InputSpec) -> bool:
    # A recurrent state is [layers, batch, width], the number of layers known.
    dims = dims_of(spec)
    named = re.search(r"state|hidden|^[hc]\d*$", spec.name) is not None
    return named and len(dims) == 3 and isinstance(dims[0], int)


def _hinted(interface: Interface) -> Sizes:
    found: Sizes = {}
    for spec in interface.inputs:
        dims = dims_of(spec)
        for axis, size in spec.hints:
            s = as_symbol(dims[axis]) if -len(dims) <= axis < len(dims) else None
            if s is not None:
                found[s.name] = size
    return found
