"""Element-wise operators: shapes by broadcasting; values as dims where they are integers, as numpy arrays otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from atcfuse.dims import (
    Dim,
    maximum,
    minimum,
)
from atcfuse.graph.constants import NUMPY_TYPES, array_fact
from atcfuse.graph.facts import BOOL, INTEGERS, INTEGRAL, MAX_ELEMENTS, SMALL, Fact
from atcfuse.graph.infer.arithmetic import (
    BINARY,
    COMPARISONS,
    UNARY,
    VARIADIC,
    OnArrays,
    OnDims,
    choose,
    remainder,
    representable,
    truncated_remainder,
)
from atcfuse.graph.infer.call import Call, MalformedNodeError, Shape, broadcast_shapes
from atcfuse.graph.infer.data import filled, is_static


def elementwise(call: Call, dtype: int, on_dims: OnDims | None, on_arrays: OnArrays | None) -> Fact:
    """The result of an element-wise operator on all inputs, broadcast.

    `on_dims` maps one element of each input to the result's element, or to None where that cannot be said; `on_arrays`
    is the operator on numpy arrays, None where numpy would not give the same bits.
    """
    inputs = call.inputs
    shape = broadcast_shapes([f.shape for f in inputs])
    if on_dims and dtype in INTEGRAL:
        elements = _on_elements(call, inputs, shape, dtype, on_dims)
        if elements is not None:
            return Fact(dtype, shape, elements)
        number = _on_splats(inputs, dtype, on_dims)
        if number is not None:
            return filled(dtype, shape, number)
    if on_arrays is None or dtype not in NUMPY_TYPES or any(f.dtype not in NUMPY_TYPES for f in inputs):
        return Fact(dtype, shape)
    if all(f.is_constant for f in inputs) and is_static(shape) and math.prod(shape) <= SMALL:
        arrays = [f.array for f in inputs]
        return _folded(on_arrays, arrays, dtype, shape) or Fact(dtype, shape)
    if all(isinstance(f.splat, (int, float)) for f in inputs):
        numbers = [np.array(f.splat, NUMPY_TYPES[f.dtype]) for f in inputs]
        one = _folded(on_arrays, numbers, dtype, ())
        return Fact(dtype, shape, splat=one.splat if one else None)
    return Fact(dtype, shape)


def _folded(on_arrays: OnArrays, arrays: Sequence[np.ndarray | None], dtype: int, shape: Shape | None) -> Fact | None:
    if any(a is None for a in arrays):
        return None
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(on_arrays(*arrays)).astype(NUMPY_TYPES[dtype])
    except (ValueError, TypeError) as exception:  # shapes that do not broadcast, types without that operator
        raise MalformedNodeError from exception
    return array_fact(result, dtype) if result.shape == shape else None


def _on_elements(
    call: Call, inputs: Sequence[Fact], shape: Shape | None, dtype: int, on_dims: OnDims
) -> tuple[Dim, ...] | None:
    columns = []
    for fact in inputs:
        if fact.elements is None:
            return None
        columns.append(fact.elements)
    if not is_static(shape):
        return None
    size = math.prod(shape)
    if size > MAX_ELEMENTS:
        return None
    spread = [_spread(column, fact.shape, shape, size) for column, fact in zip(columns, inputs, strict=True)]
    out: list[Dim] = []
    for index, operands in enumerate(zip(*spread, strict=True)):
        result = representable(on_dims(*operands), dtype)
        if result is None:
            result = call.fresh_value(index, signed=dtype in (3, 5, 6, 7))
        out.append(result)
    return tuple(out)


def _on_splats(inputs: Sequence[Fact], dtype: int, on_dims: OnDims) -> Dim | None:
    numbers = [f.integer for f in inputs]
    return None if None in numbers else representable(on_dims(*numbers), dtype)


def _spread(column: tuple[Dim, ...], shape: Shape | None, target: tuple[int, ...], size: int) -> Sequence[Dim]:
    if len(column) == size:
        return column
    if len(column) == 1 or not is_static(shape):
        return column * size
    try:
        at = np.broadcast_to(np.arange(len(column)).reshape(shape), target)
    except ValueError as exception:
        raise MalformedNodeError from exception
    return [column[i] for i in at.ravel().tolist()]


def _binary(call: Call) -> Fact:
    call.expect(2)
    on_dims, on_arrays = BINARY[call.node.op]
    dtype = call.input(0).dtype or (call.input(1).dtype if call.node.op != "Pow" else 0)
    return elementwise(call, dtype, on_dims if call.input(1).dtype in INTEGRAL else None, on_arrays)


def _compare(call: Call) -> Fact:
    call.expect(2)
    on_dims, on_arrays = COMPARISONS[call.node.op]
    if call.node.op != "Equal":
        return elementwise(call, BOOL, on_dims, on_arrays)

    def equal(a: Dim, b: Dim) -> Dim | None:
        # floor(n / 10) - 1 may be -1 as a number, but not where it is the extent of something.
        apart = (_is_negative(b) and call.is_extent(a)) or (_is_negative(a) and call.is_extent(b))
        return 0 if apart else on_dims(a, b)

    return elementwise(call, BOOL, equal, on_arrays)


def _is_negative(number: Dim) -> bool:
    return isinstance(number, int) and number < 0


def _variadic(call: Call) -> Fact:
    on_dims, on_arrays = VARIADIC[call.node.op]
    dtype = next((f.dtype for f in call.inputs if f.dtype), 0)
    if len(call.inputs) < 2:
        return call.input(0)
    if len(call.inputs) > 2:
        on_arrays = None  # the order of summation is the runtime's own
    return elementwise(call, dtype, _chained(on_dims) if on_dims else None, on_arrays)


def _chained(on_dims: OnDims) -> OnDims:
    def chained(*operands: Dim) -> Dim | None:
        out: Dim | None = operands[0]
        for operand in operands[1:]:
            out = on_dims(out, operand)
        return out

    return chained


def _unary(call: Call) -> Fact:
    call.expect(1)
    on_dims, on_arrays = UNARY[call.node.op]
    return elementwise(call, call.input(0).dtype, on_dims, on_arrays)


def _not(call: Call) -> Fact:
    call.expect(1)
    return elementwise(call, BOOL, lambda a: 1 - a, np.logical_not)


def _is_nan(call: Call) -> Fact:
    call.expect(1)
    return elementwise(call, BOOL, None, np.isnan)


def _is_infinite(call: Call) -> Fact:
    call.expect(1)
    both = call.attribute("detect_positive", 1) and call.attribute("detect_negative", 1)
    return elementwise(call, BOOL, None, np.isinf if both else None)


def _modulo(call: Call) -> Fact:
    call.expect(2)
    dtype = call.input(0).dtype or call.input(1).dtype
    if not call.attribute("fmod", 0):
        return elementwise(call, dtype, remainder, None)
    return elementwise(call, dtype, truncated_remainder, np.fmod if dtype not in INTEGRAL else None)


def _where(call: Call) -> Fact:
    call.expect(3)
    dtype = call.input(1).dtype or call.input(2).dtype
    condition = call.input(0).splat
    chosen = call.input(1 if condition == 1 else 2) if isinstance(condition, int) else None
    result = elementwise(call, dtype, choose, np.where)
    if chosen is not None and result.splat is None and result.elements is None:
        result.splat = chosen.splat
    return result


def _clip(call: Call) -> Fact:
    source = call.input(0)
    names = [n for n in ("min", "max") if n in call.node.attributes]
    if names or not (call.has_input(1) or call.has_input(2)):
        return Fact(source.dtype, source.shape) if names else source
    bounded = _clip_elements(call, source)
    return Fact(source.dtype, source.shape, bounded)


def _clip_elements(call: Call, source: Fact) -> tuple[Dim, ...] | None:
    low, high = call.input(1).integer, call.input(2).integer
    if source.elements is None or source.dtype not in INTEGERS:
        return None
    if (call.has_input(1) and low is None) or (call.has_input(2) and high is None):
        return None
    out = []
    for element in source.elements:
        value = element if low is None else maximum(element, low)
        out.append(value if high is None else minimum(value, high))
    return tuple(out)


OPERATORS: dict[str, Callable[[Call], Fact]] = {
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(COMPARISONS, _compare),
    **dict.fromkeys(VARIADIC, _variadic),
    **dict.fromkeys(UNARY, _unary),
    "Not": _not,
    "IsNaN": _is_nan,
    "IsInf": _is_infinite,
    "Mod": _modulo,
    "Where": _where,
    "Clip": _clip,
}
