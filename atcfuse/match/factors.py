"""Factors of dims: common refinement of how several operands split one index space, and layouts as text.

A layout is written like the left side of an einops pattern over the root's own shape: `B S (3 N D)` is a packed
projection, `S B (N D)` the sequence-first one. Numbers are factors that the operand does not run over (the offset tells
where in them it lies), `N:73` is a part of an axis factor of 73. `atcfuse.layout` reads them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from atcfuse.dims import Dim, divide, product
from atcfuse.graph.views import Axis, Factor

RUNTIME = ("B", "S")
"""The letters whose extents kernels read from a shape at run time, even where this model fixes them."""


def chain(cuts: Iterable[Dim]) -> tuple[Dim, ...] | None:
    """The cuts ordered so that each is a multiple of the next, largest first; None where two do not divide."""
    ordered: list[Dim] = []
    for cut in cuts:
        if cut in ordered:
            continue
        at = 0
        while at < len(ordered) and divide(ordered[at], cut) is not None:
            at += 1
        if at < len(ordered) and divide(cut, ordered[at]) is None:
            return None
        ordered.insert(at, cut)
    return tuple(ordered)


def suffix_cuts(sizes: Sequence[Dim]) -> list[Dim]:
    """The products of all trailing runs of sizes, 1 included."""
    cuts: list[Dim] = [1]
    for size in reversed(sizes):
        cuts.append(cuts[-1] * size)
    return cuts


def split_at(factors: Axis, cuts: Sequence[Dim]) -> tuple[Factor, ...] | None:
    """The factors split so that there is one (size, stride) for every step of the chain of cuts."""
    out: list[Factor] = []
    position = 0
    for size, stride in factors:
        inner: Dim = 1
        while inner != size:
            if position + 1 >= len(cuts):
                return None
            part = divide(cuts[position], cuts[position + 1])
            rest = None if part is None else divide(size, inner * part)
            if part is None or rest is None:
                return None
            out.append((part, stride * rest))
            inner = inner * part
            position += 1
    return tuple(out) if position == len(cuts) - 1 else None


def merged(factors: Sequence[Factor]) -> Factor | None:
    """All factors as one: (1, 0) for none, (n, 0) where nothing moves, None where they do not run as one stride."""
    size, stride = product(f for f, _ in factors), None  # type: Dim, Dim | None
    moving = [f for f in factors if f[0] != 1]
    if not moving or all(s == 0 for _, s in moving):
        return size, 0
    for inner, outer in zip(reversed(moving), list(reversed(moving))[1:], strict=False):
        if outer[1] != inner[0] * inner[1]:
            return None
    stride = moving[-1][1]
    return size, stride


def grouped(factors: Sequence[Factor]) -> tuple[Factor, Dim] | None:
    """Heads that repeat in groups: the factor of the distinct heads and how often each is read; None for others."""
    moving = [f for f in factors if f[0] != 1]
    repeats: Dim = 1
    while moving and moving[-1][1] == 0:
        repeats = repeats * moving.pop()[0]
    head = merged(moving)
    if head is None or (moving and head[1] == 0):
        return None
    return head, repeats


def layout_text(shape: Sequence[Dim], letters: Mapping[str, Factor]) -> tuple[str, frozenset[str]] | None:
    """The layout of a root of the given shape in which the letters lie, and the letters readable from the shape.

    Letters of size 1 or stride 0 must be left out. None where the letters do not fit into the axes.
    """
    left = dict(letters)
    words: list[str] = []
    readable: set[str] = set()
    stride: Dim = product(shape)
    for size in shape:
        below = divide(stride, size) if size != 0 else None
        if below is None:
            return None
        found = _axis_words(stride, below, left)
        if found is None:
            return None
        axis, taken = found
        for letter in taken:
            del left[letter]
        open_letters = [t for t in taken if t in RUNTIME]
        exact = all(":" not in word for word in axis)
        readable.update(taken if exact and len(open_letters) <= 1 else [t for t in taken if t not in open_letters])
        words.append(axis[0] if len(axis) == 1 else f"({' '.join(axis)})" if axis else "1")
        stride = below
    return None if left else (" ".join(words), frozenset(readable))


def _axis_words(span: Dim, floor: Dim, letters: Mapping[str, Factor]) -> tuple[list[str], list[str]] | None:
    """The factors between two strides of a root, major first, and the letters among them."""
    if span == floor:
        return [], []
    for letter, (size, stride) in letters.items():
        extent = divide(span, stride)
        if extent is None or divide(stride, floor) is None or extent == 1:
            continue
        head = _head_words(letter, size, extent)
        if head is None:
            continue
        rest = _axis_words(stride, floor, {k: v for k, v in letters.items() if k != letter})
        if rest is not None:
            return head + rest[0], [letter, *rest[1]]
    constant = divide(span, floor)
    return ([str(constant)], []) if isinstance(constant, int) else None


def _head_words(letter: str, size: Dim, extent: Dim) -> list[str] | None:
    around = divide(extent, size)
    if around == 1:
        return [letter]
    if isinstance(around, int):
        return [str(around), letter]
    # A part of an axis factor is taken by its known size: what is read from shapes must fill its factor.
    known = isinstance(extent, int) and isinstance(size, int) and letter not in RUNTIME
    return [f"{letter}:{extent}"] if known and size < extent else None  # type: ignore[operator]


def merged_text(axes: Sequence[Axis], letters: Mapping[str, Factor]) -> str | None:
    """The layout of a value whose axes are factors of a memory in which the letters lie; None where one is cut."""
    words = []
    for axis in axes:
        names: list[str] = []
        for factor in axis:
            found = _letters_of(factor, letters)
            if found is None:
                return None
            names += found
        words.append(names[0] if len(names) == 1 else f"({' '.join(names)})" if names else "1")
    used = [n for w in words for n in w.strip("()").split() if n != "1"]
    return " ".join(words) if sorted(used) == sorted(letters) else None


def _letters_of(factor: Factor, letters: Mapping[str, Factor]) -> list[str] | None:
    size, stride = factor
    names: list[str] = []
    while size != 1:
        name = next((n for n, (_, at) in letters.items() if at == stride and n not in names), None)
        rest = None if name is None else divide(size, letters[name][0])
        if name is None or rest is None:
            return None
        names.insert(0, name)
        stride, size = stride * letters[name][0], rest
    return names
