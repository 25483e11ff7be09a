"""Operators that pick, join or place elements: Gather, Slice, Split, Concat, Pad, Scatter, TopK and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import TensorProto

from atcfuse.dims import (
    Dim,
    Poly,
    as_symbol,
    divide,
    floor_divide,
    is_nonnegative,
    last,
    maximum,
    minimum,
    proves_at_most,
)
from atcfuse.graph.constants import array_fact
from atcfuse.graph.facts import INTEGERS, Fact
from atcfuse.graph.infer.call import Call, Shape, normalized_axes, normalized_axis, replaced, static
from atcfuse.graph.infer.data import moved

INT64 = TensorProto.INT64
OPEN_END = 2**31 - 1
"""A slice bound of at least this much (or at most its negative) means "to the end": no extent is as large."""


def _concat(call: Call) -> Fact:
    known = [f for f in call.inputs if f.shape is not None]
    dtype = next((f.dtype for f in call.inputs if f.dtype), 0)
    if not known:
        return Fact(dtype)
    rank = len(known[0].shape or ())
    axis = normalized_axis(call.attribute("axis", 1), rank)
    if axis is None or any(len(f.shape or ()) != rank for f in known):
        return Fact(dtype)
    out: list[Dim] = list(_joint(known))
    if len(known) < len(call.inputs):
        out[axis] = call.fresh(axis)
        return Fact(dtype, tuple(out))
    out[axis] = sum((f.shape[axis] for f in known if f.shape is not None), 0)
    return moved(call.inputs, tuple(out), lambda *arrays: np.concatenate(arrays, axis))


def _joint(facts: Sequence[Fact]) -> Shape:
    """Extents that all have in common: off the axis they are equal in a valid model, so the simplest one is taken.

    A number beats a symbol, that beats what is computed, and this beats 0, because onnxruntime lets empty operands
    differ from the others.
    """
    columns = zip(*(f.shape for f in facts if f.shape is not None), strict=True)
    return tuple(min(column, key=_complexity) for column in columns)


def _complexity(dim: Dim) -> int:
    if isinstance(dim, Poly):
        atom = as_symbol(dim)
        return 1 if atom is not None and not atom.op else 2
    return 3 if dim == 0 else 0


def _gather(call: Call) -> Fact:
    source, indices = call.input(0), call.input(1)
    if source.shape is None or indices.shape is None:
        return Fact(source.dtype, splat=source.splat)
    axis = normalized_axis(call.attribute("axis", 0), len(source.shape))
    if axis is None:
        return Fact(source.dtype)
    shape = source.shape[:axis] + indices.shape + source.shape[axis + 1 :]
    if len(source.shape) == 1 and source.elements is not None and isinstance(indices.splat, int):
        index = indices.splat
        if indices.shape in ((), (1,)) and -len(source.elements) <= index < len(source.elements):
            return Fact(source.dtype, shape, (source.elements[index],))
    extent = source.shape[axis]
    known = isinstance(extent, int) and indices.dtype in INTEGERS and indices.is_constant
    picks = indices.array if known else None
    if picks is None or (picks.size and not (-extent <= picks.min() and picks.max() < extent)):
        return Fact(source.dtype, shape, splat=source.splat)
    return moved([source], shape, lambda a: np.take(a, picks, axis))


def _gather_elements(call: Call) -> Fact:
    return Fact(call.input(0).dtype, call.input(1).shape, splat=call.input(0).splat)


def _gather_nd(call: Call) -> Fact:
    source, indices = call.input(0), call.input(1)
    batch = call.attribute("batch_dims", 0)
    if source.shape is None or not indices.shape or not isinstance(indices.shape[-1], int):
        return Fact(source.dtype, splat=source.splat)
    tail = source.shape[batch + indices.shape[-1] :]
    return Fact(source.dtype, indices.shape[:-1] + tail, splat=source.splat)


def _same_as_first(call: Call) -> Fact:
    return Fact(call.input(0).dtype, call.input(0).shape)


def _slice(call: Call) -> Fact:
    source = call.input(0)
    if source.shape is None:
        return Fact(source.dtype, splat=source.splat)
    rank = len(source.shape)
    starts, ends = call.parameter("starts", 1), call.parameter("ends", 2)
    given = call.parameter("axes", 3) if call.has("axes", 3) else range(len(starts or ends or ()))
    steps = call.parameter("steps", 4) if call.has("steps", 4) else None
    axes = normalized_axes(given, rank)
    if axes is None or (not axes and starts is None):
        return Fact(source.dtype, call.fresh_shape(rank), splat=source.splat)
    known_steps = not call.has("steps", 4) or steps is not None
    shape = source.shape
    cuts = [slice(None)] * rank
    movable = True
    for i, axis in enumerate(axes):
        begin, end = _at(starts, i), _at(ends, i)
        step = 1 if steps is None else _at(steps, i)
        length = _cut(call, shape[axis], begin, end, step) if known_steps and step is not None else None
        shape = replaced(shape, axis, call.fresh(axis) if length is None else length)
        if isinstance(begin, int) and isinstance(end, int) and isinstance(step, int) and step and length is not None:
            cuts[axis] = slice(begin, end, step)
        else:
            movable = False
    if not movable:
        return Fact(source.dtype, shape, splat=source.splat)
    return moved([source], shape, lambda a: a[tuple(cuts)])


def _at(values: Sequence[Dim] | None, index: int) -> Dim | None:
    return values[index] if values is not None and index < len(values) else None


def _cut(call: Call, extent: Dim, begin: Dim | None, end: Dim | None, step: Dim) -> Dim | None:
    """The length of a slice of one axis, or None where it is not known."""
    if begin is None or end is None or isinstance(step, Poly) or step == 0:
        return None
    if isinstance(extent, int) and isinstance(begin, int) and isinstance(end, int):
        if step < 0 and (begin < -extent or end >= OPEN_END):
            return None  # ONNX starts at the first element where Python starts before it; runtimes differ on the end
        return len(range(extent)[begin:end:step])
    if step < 0:
        reverses = begin in (-1, extent - 1) or (isinstance(begin, int) and begin >= OPEN_END)
        whole = isinstance(end, int) and end <= -OPEN_END
        return _steps(extent, -step) if reverses and whole else None
    stop = clamped_bound(end, extent, call.is_extent)
    if stop == extent and (-OPEN_END < begin < 0 if isinstance(begin, int) else is_nonnegative(-begin)):
        return _steps(last(extent, -begin), step)
    start = clamped_bound(begin, extent, call.is_extent)
    if start is None or stop is None:
        return None
    span = stop - start
    return _steps(span if call.is_extent(span) or proves_at_most(start, stop) else maximum(span, 0), step)


def clamped_bound(bound: Dim, extent: Dim, is_count: Callable[[Dim], bool] = is_nonnegative) -> Dim | None:
    """A slice bound as a position in [0, extent] for a positive step, or None where its sign is not known.

    `is_count` tells what is certain to be at least 0.
    """
    if isinstance(bound, int):
        if bound >= OPEN_END:
            return extent
        if bound <= -OPEN_END:
            return 0
        if bound >= 0:
            return bound if is_count(extent - bound) else minimum(bound, extent)
        return extent + bound if is_count(extent + bound) else maximum(extent + bound, 0)
    if bound == extent:
        return extent
    if not is_count(bound):
        return None
    return bound if is_count(extent - bound) else minimum(bound, extent)


def _steps(span: Dim, step: int) -> Dim:
    if step == 1:
        return span
    exact = divide(span, step)
    return exact if exact is not None else floor_divide(span + (step - 1), step)


def _split(call: Call) -> list[Fact]:
    source = call.input(0)
    count = len(call.node.outputs)
    shape = source.shape
    axis = None if shape is None else normalized_axis(call.attribute("axis", 0), len(shape))
    if shape is None or axis is None:
        return [Fact(source.dtype, splat=source.splat)] * count
    sizes = _split_sizes(call, shape[axis], count)
    if sizes is None:
        return [
            Fact(source.dtype, replaced(shape, axis, call.fresh(axis, k)), splat=source.splat) for k in range(count)
        ]
    bounds = _cumulated(sizes)
    out = []
    for k, size in enumerate(sizes):
        part = replaced(shape, axis, size)
        if bounds is None:
            out.append(Fact(source.dtype, part, splat=source.splat))
            continue
        cut = (*[slice(None)] * axis, slice(bounds[k], bounds[k + 1]))
        out.append(moved([source], part, lambda a, cut=cut: a[cut]))
    return out


def _split_sizes(call: Call, extent: Dim, count: int) -> Sequence[Dim] | None:
    if call.has("split", 1):
        sizes = call.parameter("split", 1)
        return sizes if sizes is not None and len(sizes) == count and all(map(is_nonnegative, sizes)) else None
    if call.opset < 18 or divide(extent, count) is not None:
        return [floor_divide(extent, count)] * count  # before opset 18 a valid model splits evenly
    chunk = floor_divide(extent + (count - 1), count)
    return [chunk] * (count - 1) + [extent - chunk * (count - 1)]


def _cumulated(sizes: Sequence[Dim]) -> list[int] | None:
    numbers = static(sizes)
    if numbers is None:
        return None
    out = [0]
    for size in numbers:
        out.append(out[-1] + size)
    return out


def _pad(call: Call) -> Fact:
    source = call.input(0)
    shape = source.shape
    if shape is None:
        return Fact(source.dtype)
    given = call.parameter("axes", 3) if call.has_input(3) else range(len(shape))
    axes, pads = normalized_axes(given, len(shape)), call.parameter("pads", 1)
    if axes is None or pads is None or len(pads) != 2 * len(axes):
        return Fact(source.dtype, call.fresh_shape(len(shape)))
    for i, axis in enumerate(axes):
        shape = replaced(shape, axis, shape[axis] + pads[i] + pads[i + len(axes)])
    return Fact(source.dtype, shape)


def _non_zero(call: Call) -> Fact:
    source = call.input(0)
    rank: Dim = call.fresh(0) if not source.shape else len(source.shape)  # runtimes differ on scalars
    array = source.array if source.shape and source.is_constant else None
    if array is None:
        return Fact(INT64, (rank, call.fresh(1)))
    return array_fact(np.array(np.nonzero(array), np.int64), INT64)


def _top_k(call: Call) -> list[Fact]:
    source = call.input(0)
    shape = source.shape
    axis = None if shape is None else normalized_axis(call.attribute("axis", -1), len(shape))
    if shape is None or axis is None:
        return [Fact(source.dtype), Fact(INT64)]
    given = call.parameter("k", 1)
    count = given[0] if given and is_nonnegative(given[0]) else call.fresh(axis)
    shape = replaced(shape, axis, count)
    return [Fact(source.dtype, shape), Fact(INT64, shape)]


def _compress(call: Call) -> Fact:
    source = call.input(0)
    axis = call.attribute("axis")
    if axis is None:
        return Fact(source.dtype, (call.fresh(0),))
    place = None if source.shape is None else normalized_axis(axis, len(source.shape))
    if place is None or source.shape is None:
        return Fact(source.dtype)
    return Fact(source.dtype, replaced(source.shape, place, call.fresh(place)))


def _unique(call: Call) -> list[Fact]:
    values = _compress(call)
    rest = [Fact(INT64, (call.fresh(0, k),)) for k in range(1, len(call.node.outputs)) if call.node.outputs[k]]
    return [values, *(rest if len(rest) == len(call.node.outputs) - 1 else [])]


def _non_max_suppression(call: Call) -> Fact:
    return Fact(INT64, (call.fresh(0), 3))


def _trilu(call: Call) -> Fact:
    source, diagonal = call.input(0), call.input(1).integer if call.has_input(1) else 0
    shape = source.shape
    if shape is None or len(shape) < 2 or not isinstance(diagonal, int) or not source.is_constant:
        return Fact(source.dtype, shape)
    reach = int(max(source.array.shape)) if source.array is not None else 0
    at = max(-reach, min(diagonal, reach))
    triangle = np.triu if call.attribute("upper", 1) else np.tril
    return moved([Fact(source.dtype, shape, array=source.array)], shape, lambda a: triangle(a, at))


OPERATORS: dict[str, Callable[[Call], Fact | list[Fact]]] = {
    "Concat": _concat,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterND": _same_as_first,
    "ScatterElements": _same_as_first,
    "Scatter": _same_as_first,
    "TensorScatter": _same_as_first,
    "CumSum": _same_as_first,
    "ReverseSequence": _same_as_first,
    "Slice": _slice,
    "Split": _split,
    "Pad": _pad,
    "NonZero": _non_zero,
    "TopK": _top_k,
    "Compress": _compress,
    "Unique": _unique,
    "NonMaxSuppression": _non_max_suppression,
    "Trilu": _trilu,
}
