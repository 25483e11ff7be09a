"""Element-wise operators: shapes by broadcasting; values as dims where they are integers, as numpy arrays otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from atcfuse.graph.constants import NUMPY_TYPES, array_fact
from atcfuse.graph.dims import (
    Dim,
    Poly,
    divide,
    floor_divide,
    is_nonnegative,
    is_positive,
    maximum,
    minimum,
    modulo,
    product,
)
from atcfuse.graph.facts import BOOL, INTEGERS, INTEGRAL, MAX_ELEMENTS, SMALL, Fact
from atcfuse.graph.infer.call import Call, Shape, broadcast_shapes
from atcfuse.graph.infer.data import is_static

OnDims = Callable[..., "Dim | None"]
OnArrays = Callable[..., np.ndarray]

RANGES = {
    2: (0, 2**8 - 1),
    3: (-(2**7), 2**7 - 1),
    4: (0, 2**16 - 1),
    5: (-(2**15), 2**15 - 1),
    6: (-(2**31), 2**31 - 1),
    7: (-(2**63), 2**63 - 1),
    9: (0, 1),
    12: (0, 2**32 - 1),
    13: (0, 2**64 - 1),
}
"""The numbers that each integer element type (and bool) can hold."""

SYMBOLIC = frozenset({6, 7, 9, 12, 13})
"""Element types wide enough that an expression of extents does not overflow them."""


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
    with np.errstate(all="ignore"):
        result = np.asarray(on_arrays(*arrays)).astype(NUMPY_TYPES[dtype])
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


def _spread(column: tuple[Dim, ...], shape: Shape | None, target: tuple[int, ...], size: int) -> Sequence[Dim]:
    if len(column) == size:
        return column
    if len(column) == 1 or not is_static(shape):
        return column * size
    at = np.broadcast_to(np.arange(len(column)).reshape(shape), target)
    return [column[i] for i in at.ravel().tolist()]


def representable(value: Dim | None, dtype: int) -> Dim | None:
    """The value where the element type holds it for certain, None where it may wrap around."""
    if isinstance(value, Poly):
        return value if dtype in SYMBOLIC and (dtype not in (12, 13) or is_nonnegative(value)) else None
    if value is None:
        return None
    low, high = RANGES[dtype]
    return value if low <= value <= high else None


def _quotient(a: Dim, b: Dim) -> Dim | None:
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            return None
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    exact = divide(a, b)
    if exact is not None:
        return exact
    return floor_divide(a, b) if is_nonnegative(a) and is_nonnegative(b) else None


def _power(a: Dim, b: Dim) -> Dim | None:
    if isinstance(b, Poly) or not 0 <= b <= 8:
        return None
    return product([a] * b)


def _absolute(a: Dim) -> Dim | None:
    if isinstance(a, int):
        return abs(a)
    return a if is_nonnegative(a) else -a if is_nonnegative(-a) else None


def _equal(a: Dim, b: Dim) -> Dim | None:
    difference = a - b
    if isinstance(difference, int):
        return int(difference == 0)
    return 0 if is_positive(difference) or is_positive(-difference) else None


def _less(a: Dim, b: Dim) -> Dim | None:
    return 1 if is_positive(b - a) else 0 if is_nonnegative(a - b) else None


def _less_or_equal(a: Dim, b: Dim) -> Dim | None:
    return 1 if is_nonnegative(b - a) else 0 if is_positive(a - b) else None


def _and(a: Dim, b: Dim) -> Dim | None:
    if a == 0 or b == 0:
        return 0
    return b if a == 1 else a if b in (1, a) else None


def _or(a: Dim, b: Dim) -> Dim | None:
    if a == 1 or b == 1:
        return 1
    return b if a == 0 else a if b in (0, a) else None


def _xor(a: Dim, b: Dim) -> Dim | None:
    if a == b:
        return 0
    return b if a == 0 else a if b == 0 else 1 - b if a == 1 else 1 - a if b == 1 else None


def _sign(a: Dim) -> Dim | None:
    if isinstance(a, int):
        return (a > 0) - (a < 0)
    return 1 if is_positive(a) else -1 if is_positive(-a) else None


def _divide_arrays(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        ratio: np.ndarray = np.divide(a, b)
        return ratio
    quotient: np.ndarray = np.floor_divide(np.abs(a), np.abs(b))
    return np.where((a < 0) == (b < 0), quotient, -quotient)


def _power_arrays(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # numpy refuses negative integer exponents of integers.
    powers: np.ndarray = np.power(a.astype(np.float64) if a.dtype.kind in "iu" else a, b)
    return powers


def _erf(a: np.ndarray) -> np.ndarray:
    return np.array([math.erf(x) for x in a.ravel().tolist()]).reshape(a.shape)


BINARY: dict[str, tuple[OnDims, OnArrays | None]] = {
    "Add": (lambda a, b: a + b, np.add),
    "Sub": (lambda a, b: a - b, np.subtract),
    "Mul": (lambda a, b: a * b, np.multiply),
    "Div": (_quotient, _divide_arrays),
    "Pow": (_power, _power_arrays),
    "BitwiseAnd": (lambda a, b: None, np.bitwise_and),
    "BitwiseOr": (lambda a, b: None, np.bitwise_or),
    "BitwiseXor": (lambda a, b: None, np.bitwise_xor),
    "BitShift": (lambda a, b: None, None),
}

COMPARISONS: dict[str, tuple[OnDims, OnArrays]] = {
    "Equal": (_equal, np.equal),
    "Less": (_less, np.less),
    "Greater": (lambda a, b: _less(b, a), np.greater),
    "LessOrEqual": (_less_or_equal, np.less_equal),
    "GreaterOrEqual": (lambda a, b: _less_or_equal(b, a), np.greater_equal),
    "And": (_and, np.logical_and),
    "Or": (_or, np.logical_or),
    "Xor": (_xor, np.logical_xor),
}

VARIADIC: dict[str, tuple[OnDims | None, OnArrays | None]] = {
    "Min": (minimum, np.minimum),
    "Max": (maximum, np.maximum),
    "Sum": (lambda a, b: a + b, np.add),
    "Mean": (None, None),
}

UNARY: dict[str, tuple[OnDims | None, OnArrays | None]] = {
    "Neg": (lambda a: -a, np.negative),
    "Abs": (_absolute, np.abs),
    "Sign": (_sign, np.sign),
    "Sqrt": (None, np.sqrt),
    "Reciprocal": (None, np.reciprocal),
    "Exp": (None, np.exp),
    "Log": (None, np.log),
    "Floor": (None, np.floor),
    "Ceil": (None, np.ceil),
    "Round": (None, np.rint),
    "Erf": (None, _erf),
    "Tanh": (None, np.tanh),
    "Sin": (None, np.sin),
    "Cos": (None, np.cos),
    "Relu": (lambda a: maximum(a, 0), lambda a: np.maximum(a, 0)),
    "BitwiseNot": (lambda a: None, np.invert),
}


def _binary(call: Call) -> Fact:
    on_dims, on_arrays = BINARY[call.node.op]
    dtype = call.input(0).dtype or (call.input(1).dtype if call.node.op != "Pow" else 0)
    return elementwise(call, dtype, on_dims if call.input(1).dtype in INTEGRAL else None, on_arrays)


def _compare(call: Call) -> Fact:
    on_dims, on_arrays = COMPARISONS[call.node.op]
    return elementwise(call, BOOL, on_dims, on_arrays)


def _variadic(call: Call) -> Fact:
    on_dims, on_arrays = VARIADIC[call.node.op]
    dtype = next((f.dtype for f in call.inputs if f.dtype), 0)
    if len(call.inputs) == 1:
        return call.inputs[0]
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
    on_dims, on_arrays = UNARY[call.node.op]
    return elementwise(call, call.input(0).dtype, on_dims, on_arrays)


def _not(call: Call) -> Fact:
    return elementwise(call, BOOL, lambda a: 1 - a, np.logical_not)


def _is_nan(call: Call) -> Fact:
    return elementwise(call, BOOL, None, np.isnan)


def _is_infinite(call: Call) -> Fact:
    both = call.attribute("detect_positive", 1) and call.attribute("detect_negative", 1)
    return elementwise(call, BOOL, None, np.isinf if both else None)


def _modulo(call: Call) -> Fact:
    dtype = call.input(0).dtype or call.input(1).dtype
    if not call.attribute("fmod", 0):
        return elementwise(call, dtype, _remainder, None)
    return elementwise(call, dtype, _truncated_remainder, np.fmod if dtype not in INTEGRAL else None)


def _remainder(a: Dim, b: Dim) -> Dim | None:
    return None if b == 0 else modulo(a, b)


def _truncated_remainder(a: Dim, b: Dim) -> Dim | None:
    return modulo(a, b) if b != 0 and is_nonnegative(a) and is_nonnegative(b) else None


def _where(call: Call) -> Fact:
    dtype = call.input(1).dtype or call.input(2).dtype
    condition = call.input(0).splat
    chosen = call.input(1 if condition == 1 else 2) if isinstance(condition, int) else None
    result = elementwise(call, dtype, _choose, np.where)
    if chosen is not None and result.splat is None and result.elements is None:
        result.splat = chosen.splat
    return result


def _choose(condition: Dim, a: Dim, b: Dim) -> Dim | None:
    if isinstance(condition, int):
        return a if condition else b
    return a if a == b else None


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
            wrap = _to_bool if dtype == BOOL else lambda e: representable(e, dtype)
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


def _to_bool(element: Dim) -> Dim | None:
    if isinstance(element, int):
        return int(element != 0)
    return 1 if is_positive(element) or is_positive(-element) else None


def _or_fresh(call: Call, index: int, value: Dim | None, dtype: int) -> Dim:
    return call.fresh_value(index, signed=dtype in (3, 5, 6, 7)) if value is None else value


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
    "Cast": _cast,
    "CastLike": _cast_like,
}
