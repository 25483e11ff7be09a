"""Values that pass through pure data movement: one numpy function applied to whatever is known of the elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeGuard

import numpy as np

from atcfuse.dims import Dim, Poly
from atcfuse.graph.constants import NUMPY_TYPES, array_fact
from atcfuse.graph.facts import INTEGRAL, MAX_ELEMENTS, SMALL, Fact
from atcfuse.graph.infer.call import MalformedNodeError, Shape

Mover = Callable[..., np.ndarray]


def same_elements(source: Fact, shape: Shape | None) -> Fact:
    """The elements of `source`, in the same order, in another shape."""
    elements = source.elements
    if elements is not None and (not is_static(shape) or math.prod(shape) == len(elements)):
        return Fact(source.dtype, shape, elements, splat=source.splat)
    if source.array is not None and is_static(shape) and math.prod(shape) == source.array.size:
        return Fact(source.dtype, shape, array=source.array.reshape(shape), splat=source.splat)
    return Fact(source.dtype, shape, splat=source.splat)


def moved(sources: Sequence[Fact], shape: Shape | None, mover: Mover) -> Fact:
    """A tensor whose elements are those that the numpy function `mover` picks from the sources, in its order.

    `mover` gets one array a source, either of numbers or of dims (objects).
    """
    dtype = next((s.dtype for s in sources if s.dtype), 0)
    if any(s.dtype != dtype for s in sources if s.dtype):
        raise MalformedNodeError("operands of different types")
    splat = sources[0].splat
    if any(s.splat is None or s.splat != splat or type(s.splat) is not type(splat) for s in sources):
        splat = None
    if not is_static(shape) or math.prod(shape) > SMALL:
        return Fact(dtype, shape, splat=splat)
    if all(s.is_constant for s in sources):
        arrays = [s.array for s in sources]
        if all(a is not None for a in arrays):
            return _checked(_run(mover, arrays), dtype, shape, splat)
        return Fact(dtype, shape, splat=splat)
    if math.prod(shape) <= MAX_ELEMENTS and all(s.elements is not None and is_static(s.shape) for s in sources):
        picked = _run(mover, [objects(s) for s in sources])
        if picked.shape == shape:
            return Fact(dtype, shape, tuple(picked.ravel().tolist()), splat=splat)
    return Fact(dtype, shape, splat=splat)


def _run(mover: Mover, arrays: Sequence[np.ndarray | None]) -> np.ndarray:
    try:
        return mover(*arrays)
    except (ValueError, IndexError) as exception:
        raise MalformedNodeError from exception


def _checked(array: np.ndarray, dtype: int, shape: Shape | None, splat: Dim | float | None) -> Fact:
    if array.shape != shape:
        return Fact(dtype, shape, splat=splat)
    if array.size == 1:
        return array_fact(array, dtype)
    return Fact(dtype, shape, array=array, splat=splat)


def filled(dtype: int, shape: Shape | None, number: Dim | float | None) -> Fact:
    """A tensor of equal numbers."""
    if number is not None and is_static(shape):
        size = math.prod(shape)
        if dtype in INTEGRAL and size <= MAX_ELEMENTS and not isinstance(number, float):
            return Fact(dtype, shape, (number,) * size, splat=number)
        if dtype in NUMPY_TYPES and size <= SMALL and isinstance(number, (int, float)):
            return Fact(dtype, shape, array=np.full(shape, number, NUMPY_TYPES[dtype]), splat=number)
    return Fact(dtype, shape, splat=number)


def objects(fact: Fact) -> np.ndarray:
    """The known elements of a fact as an array of dims."""
    elements = fact.elements or ()
    out = np.empty(len(elements), dtype=object)
    out[:] = elements
    return out.reshape(fact.shape)


def is_static(shape: Shape | None) -> TypeGuard[tuple[int, ...]]:
    """Whether every extent is a number."""
    return shape is not None and not any(isinstance(d, Poly) for d in shape)
