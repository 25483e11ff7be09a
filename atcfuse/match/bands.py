"""Tensors as exact functions of their index: integer ramps, and two numbers on either side of a straight line.

A `Ramp` is an integer tensor `start + slopes·index`; a `Band` holds one number where `start + slopes·index >= 0` and
another one elsewhere. Numbers are computed with numpy in the element type of the model, so infinities, NaN and overflow
come out as they do there. What is not proved is unknown (None).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from atcfuse.dims import Dim, Poly, is_nonnegative, is_positive, proves_at_most
from atcfuse.graph.constants import NUMPY_TYPES
from atcfuse.graph.facts import INTEGRAL
from atcfuse.graph.infer.arithmetic import LARGE, representable
from atcfuse.graph.validity import cut_off

Shape = tuple[Dim, ...]
Slopes = tuple[int, ...]

INT32, INT64 = 6, 7


@dataclass(frozen=True)
class Ramp:
    """An integer tensor whose element at an index is `start + slopes·index`."""

    shape: Shape
    slopes: Slopes
    start: Dim


@dataclass(frozen=True)
class Band:
    """A tensor that is `inside` where `start + slopes·index >= 0` and `outside` elsewhere (0-d arrays)."""

    shape: Shape
    slopes: Slopes
    start: Dim
    inside: np.ndarray
    outside: np.ndarray

    @property
    def is_uniform(self) -> bool:
        """Whether all elements are provably the same number."""
        return not any(self.slopes)


Known = Ramp | Band


def stretches_not(size: Dim, against: Dim) -> bool:
    """Whether an extent that broadcasts against another one is that one, in a valid model."""
    return size == against or cut_off(size, against) is not None


def uniform(shape: Shape, number: Dim | float, dtype: int) -> Known | None:
    """A tensor of equal numbers of an ONNX element type."""
    if isinstance(number, Poly):
        return Ramp(shape, (0,) * len(shape), number) if dtype in INTEGRAL else None
    if dtype not in NUMPY_TYPES:
        return None
    value = np.array(number, NUMPY_TYPES[dtype])
    return Band(shape, (0,) * len(shape), 0, value, value)


def spread(known: Known, shape: Shape) -> Known | None:
    """The tensor broadcast to a shape; an axis that it varies along must not be stretched."""
    lead = len(shape) - len(known.shape)
    if lead < 0:
        return None
    for slope, size, against in zip(known.slopes, known.shape, shape[lead:], strict=True):
        if slope and not stretches_not(size, against):
            return None
    return replace(known, shape=shape, slopes=(0,) * lead + known.slopes)


def settled(known: Known) -> Known | None:
    """The canonical form: no slope along axes of one element, a Band's line decided where it misses the tensor.

    The first slope of a Band that is left is positive. None where only the run decides on which side a tensor lies.
    """
    slopes = tuple(0 if size == 1 else slope for slope, size in zip(known.slopes, known.shape, strict=True))
    if isinstance(known, Ramp):
        return replace(known, slopes=slopes)
    lies = side(known.start, slopes, known.shape)
    if lies is not None:
        number = known.inside if lies else known.outside
        return Band(known.shape, (0,) * len(slopes), 0, number, number)
    first = next((slope for slope in slopes if slope), 0)
    if first == 0:
        return None
    if first > 0:
        return replace(known, slopes=slopes)
    flipped = tuple(-slope for slope in slopes)
    return Band(known.shape, flipped, -known.start - 1, known.outside, known.inside)


def side(start: Dim, slopes: Slopes, shape: Shape) -> bool | None:
    """Whether `start + slopes·index >= 0` all over the shape (True) or nowhere (False); None where neither is sure."""
    low = high = start
    for slope, size in zip(slopes, shape, strict=True):
        if slope < 0:
            low = low + (size - 1) * slope
        elif slope > 0:
            high = high + (size - 1) * slope
    if is_nonnegative(low):
        return True
    return False if is_positive(-high) else None


def as_ramp(known: Known) -> Ramp | None:
    """An integer tensor as a ramp; a Band is one where it is uniform."""
    if isinstance(known, Ramp):
        return known
    integral = known.is_uniform and known.inside.dtype.kind in "iu"
    return Ramp(known.shape, known.slopes, int(known.inside)) if integral else None


def combined(operands: Sequence[Band], function: Callable[..., Any], shape: Shape) -> Band | None:
    """The function of tensors whose lines are parallel, one inside the other, if its results meet along one line."""
    lines = [o for o in operands if not o.is_uniform]
    starts = _ordered([line.start for line in lines])
    if starts is None or any(line.slopes != lines[0].slopes for line in lines):
        return None
    # From the innermost region outwards; in region i the lines from starts[i] on are crossed to the inside.
    with np.errstate(all="ignore"):
        numbers = [
            np.asarray(function(*(o.inside if o.is_uniform or o.start in starts[i:] else o.outside for o in operands)))
            for i in range(len(starts) + 1)
        ]
    changes = [i for i, (a, b) in enumerate(pairwise(numbers)) if a != b]
    if not changes:
        return Band(shape, (0,) * len(shape), 0, numbers[0], numbers[0])
    if len(changes) > 1:
        return None
    at = changes[0]
    return Band(shape, lines[0].slopes, starts[at], numbers[at], numbers[at + 1])


def _ordered(starts: Sequence[Dim]) -> list[Dim] | None:
    """Distinct starts, ascending: the smaller the start, the smaller the inside. None where the order is not proved."""
    out: list[Dim] = []
    for start in starts:
        if start in out:
            continue
        at = sum(1 for other in out if proves_at_most(other, start))
        if not all(proves_at_most(start, other) for other in out[at:]):
            return None
        out.insert(at, start)
    return out


def on_ramps(op: str, operands: Sequence[Known], shape: Shape, dtype: int) -> Known | None:
    """Arithmetic or a comparison of integer tensors of one shape; `dtype` is the result's ONNX element type."""
    ramps = [r for r in map(as_ramp, operands) if r is not None]
    if len(ramps) != len(operands):
        return None
    a, b = ramps[0], ramps[-1]
    if op == "Neg":
        return _ramp(shape, a, b, -1, 0, dtype)
    if op in ("Add", "Sub"):
        return _ramp(shape, a, b, 1, 1 if op == "Add" else -1, dtype)
    if op == "Mul":
        return _product(shape, a, b, dtype)
    if op not in _AT_LEAST:
        return None
    of_a, of_b, less = _AT_LEAST[op]
    slopes = tuple(of_a * x + of_b * y for x, y in zip(a.slopes, b.slopes, strict=True))
    return Band(shape, slopes, of_a * a.start + of_b * b.start - less, np.array(True), np.array(False))


_AT_LEAST = {"Less": (-1, 1, 1), "LessOrEqual": (-1, 1, 0), "Greater": (1, -1, 1), "GreaterOrEqual": (1, -1, 0)}
"""Comparisons of integers as `of_a * a + of_b * b - less >= 0`."""


def _ramp(shape: Shape, a: Ramp, b: Ramp, of_a: int, of_b: int, dtype: int) -> Ramp | None:
    start = representable(of_a * a.start + of_b * b.start, dtype) if dtype in (INT32, INT64) else None
    slopes = tuple(of_a * x + of_b * y for x, y in zip(a.slopes, b.slopes, strict=True))
    return None if start is None else Ramp(shape, slopes, start)


def _product(shape: Shape, a: Ramp, b: Ramp, dtype: int) -> Ramp | None:
    factor, other = (a, b) if not any(a.slopes) else (b, a)
    if any(factor.slopes) or not isinstance(factor.start, int):
        return None
    return _ramp(shape, other, other, factor.start, 0, dtype)


def from_table(table: np.ndarray) -> Known | None:
    """A constant, if it is uniform, a ramp, or of two numbers that meet along a diagonal."""
    if not table.size or table.dtype.kind not in "biuf":
        return None
    first = table.flat[0]
    if (table == first).all():
        number = np.array(first)
        return Band(table.shape, (0,) * table.ndim, 0, number, number)
    ramp = _table_ramp(table) if table.dtype.kind in "iu" and (np.abs(table.astype(float)) < LARGE).all() else None
    return ramp or _table_band(table)


def _table_ramp(table: np.ndarray) -> Ramp | None:
    start = int(table.flat[0])
    grid = np.full(table.shape, start, np.int64)
    slopes = []
    for axis, size in enumerate(table.shape):
        second = int(table[tuple(int(a == axis) for a in range(table.ndim))]) if size > 1 else start
        slopes.append(second - start)
        steps = np.arange(size).reshape([-1 if a == axis else 1 for a in range(table.ndim)])
        grid = grid + steps * slopes[-1]
    return Ramp(table.shape, tuple(slopes), start) if (grid == table).all() else None


def _table_band(table: np.ndarray) -> Band | None:
    """A constant of two numbers that meet along a diagonal of its last two axes."""
    if table.ndim < 2 or not (table == table[(0,) * (table.ndim - 2)]).all():
        return None
    square = table[(0,) * (table.ndim - 2)]
    rows, columns = square.shape
    lower, upper = square[-1, 0], square[0, -1]
    is_lower = square == lower
    if not is_lower.any():
        return None
    distance = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    reach = int(distance[is_lower].max())
    if not (is_lower == (distance <= reach)).all() or not (square[~is_lower] == upper).all():
        return None
    slopes = (0,) * (table.ndim - 2) + (-1, 1)
    return lower_band(table.shape, slopes, reach, np.array(lower), np.array(upper))


def lower_band(shape: Shape, slopes: Slopes, reach: Dim, lower: np.ndarray, upper: np.ndarray) -> Band:
    """`lower` where column - row <= reach, given the slopes of column - row."""
    return Band(shape, tuple(-slope for slope in slopes), reach, lower, upper)
