"""Casts between element types."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atcfuse.dims import Dim
from atcfuse.graph.constants import NUMPY_TYPES, array_fact
from atcfuse.graph.facts import BOOL, INTEGERS, INTEGRAL, Fact
from atcfuse.graph.infer.arithmetic import RANGES, representable, to_bool
from atcfuse.graph.infer.call import Call


def _cast(call: Call) -> Fact:
    return cast(call, int(call.attribute("to", 0)))


def _cast_like(call: Call) -> Fact:
    return cast(call, call.input(1).dtype)


def cast(call: Call, dtype: int) -> Fact:
    """The first input in another element type."""
    source = call.input(0)
    if dtype == source.dtype and dtype:
        return source
    shape = source.shape
    if dtype in INTEGRAL and source.dtype in INTEGRAL:
        elements = source.elements
        if elements is not None:
            wrap = to_bool if dtype == BOOL else lambda e: representable(e, dtype)
            return Fact(dtype, shape, tuple(_or_fresh(call, i, wrap(e), dtype) for i, e in enumerate(elements)))
    if dtype not in NUMPY_TYPES:
        return Fact(dtype, shape)
    if source.is_constant and source.array is not None:
        array = cast_array(source.array, dtype)
        return Fact(dtype, shape) if array is None else array_fact(array, dtype)
    if isinstance(source.splat, (int, float)) and source.dtype in NUMPY_TYPES:
        one = cast_array(np.array(source.splat, NUMPY_TYPES[source.dtype]), dtype)
        return Fact(dtype, shape, splat=None if one is None else one.item() if one.dtype.kind == "f" else int(one))
    return Fact(dtype, shape)


def cast_array(array: np.ndarray, dtype: int) -> np.ndarray | None:
    """The array in another element type, or None where the result is not defined (out of range, NaN to integer)."""
    if dtype in INTEGERS:
        low, high = RANGES[dtype]
        if array.dtype.kind == "f":
            array = np.trunc(array.astype(np.float64))
            if not np.isfinite(array).all() or (array < low).any() or (array >= float(high)).any():
                return None
        elif (array < low).any() or (array > high).any():
            return None
    with np.errstate(all="ignore"):
        return array.astype(NUMPY_TYPES[dtype])


def _or_fresh(call: Call, index: int, value: Dim | None, dtype: int) -> Dim:
    return call.fresh_value(index, signed=dtype in (3, 5, 6, 7)) if value is None else value


OPERATORS: dict[str, Callable[[Call], Fact]] = {"Cast": _cast, "CastLike": _cast_like}
