"""How operands are broadcast to a shape, for every way to split its axes into batches, rows and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from atcfuse.dims import Dim, as_symbol
from atcfuse.elementwise import FULL, VARIES, Kind

Shape = tuple[Dim, ...]


class Split(NamedTuple):
    """How many trailing axes of a shape are columns, and how many before these are rows: 0 for all that are left, of
    which there is one batch.
    """

    columns: int
    rows: int = 0


Splits = frozenset[Split]


def narrowed(shape: Shape, columns: int) -> Shape:
    """The shape of one value a row."""
    return (*shape[: len(shape) - columns], *(1,) * columns)


def preferred(splits: Splits) -> Split:
    """One batch where that may be, then the fewest columns, then the most rows."""
    return min(splits, key=lambda s: (s.rows > 0, s.columns, -s.rows))


Axes = tuple[bool | None, ...]
"""Whether an operand varies along each axis of a shape; None where the axis is 1."""
_KINDS = {varies: kind for kind, varies in VARIES.items()}


def axes_of(operand: Shape, shape: Shape) -> Axes | None:
    """Along which axes of a shape an operand varies, None where it is not broadcast to it for certain."""
    if operand == shape:
        return tuple(None if size == 1 else True for size in shape)
    if len(operand) > len(shape):
        return None
    padded = (1,) * (len(shape) - len(operand)) + tuple(operand)
    found: list[bool | None] = []
    for size, whole in zip(padded, shape, strict=True):
        if whole == 1:
            found.append(None)
        elif size == 1 or _is_whole(size, whole):
            found.append(size != 1)
        else:
            return None
    return tuple(found)


def _is_whole(size: Dim, whole: Dim) -> bool:
    """Whether an extent that is broadcast to another one is that one: the least of it and a number above 1 is, too."""
    if size == whole:
        return True
    least = as_symbol(size)
    if least is None or least.op != "min" or whole not in least.args:
        return False
    return all(arg == whole or (isinstance(arg, int) and arg > 1) for arg in least.args)


@lru_cache(maxsize=64)
def splits_of(rank: int) -> tuple[Split, ...]:
    """All splits of a shape of so many axes."""
    whole = [Split(columns) for columns in range(max(rank, 1))]
    return (*whole, *(Split(c, rows) for c in range(1, rank) for rows in range(1, rank - c)))


@lru_cache(maxsize=4096)
def _kinds_of(axes: Axes) -> Mapping[Split, Kind]:
    """The kind of an operand for every split that has one."""
    found = {split: _kind(axes, split) for split in splits_of(len(axes))}
    return {split: kind for split, kind in found.items() if kind is not None}


def _kind(axes: Axes, split: Split) -> Kind | None:
    before = len(axes) - split.columns if split.columns else 0
    first = before - split.rows if split.rows else 0
    groups = (axes[:first], axes[first:before], axes[before:])
    varies = [_together(group) for group in groups]
    if any(len(v) > 1 for v in varies):
        return None
    batch, row, column = (next(iter(v), None) for v in varies)
    # Where all axes of a group are 1 it is as its neighbour.
    known = [batch if batch is not None else row, row, column]
    if row is None:
        known[1] = column if column is not None else batch
    if known[0] is None:
        known[0] = known[1]
    if column is None:
        known[2] = known[1]
    if None in known:
        return FULL
    return _KINDS[bool(known[0]), bool(known[1]), bool(known[2])]


def _together(axes: Axes) -> set[bool]:
    return {axis for axis in axes if axis is not None}


def kind_of(operand: Shape, shape: Shape, split: Split) -> Kind | None:
    """How an operand is broadcast to a shape that is split so, None where it is in no way that a kernel knows."""
    axes = axes_of(operand, shape)
    return None if axes is None else _kinds_of(axes).get(split)


def common_splits(operands: Sequence[Shape], shape: Shape) -> Splits:
    """The splits of a shape for which every operand is broadcast in a way that a kernel knows."""
    found = []
    for operand in operands:
        axes = axes_of(operand, shape)
        if axes is None:
            return frozenset()
        found.append(axes)
    return _common(tuple(dict.fromkeys(found)))


@lru_cache(maxsize=4096)
def _common(operands: tuple[Axes, ...]) -> Splits:
    first, *others = (frozenset(_kinds_of(axes)) for axes in operands)
    return first.intersection(*others)
