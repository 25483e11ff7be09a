"""Operators that make values from nothing or from shapes: Constant, Shape, Size, ConstantOfShape, Range and others."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import SparseTensorProto, TensorProto

from atcfuse.dims import Dim, divide, floor_divide, is_nonnegative, maximum
from atcfuse.graph.constants import NUMPY_TYPES, array_fact, tensor_fact
from atcfuse.graph.facts import INTEGERS, SMALL, UNKNOWN, Fact
from atcfuse.graph.infer.arithmetic import representable
from atcfuse.graph.infer.call import Call, Shape
from atcfuse.graph.infer.data import filled

INT64, FLOAT, STRING = TensorProto.INT64, TensorProto.FLOAT, TensorProto.STRING


NUMBERS = (
    ("value_int", INT64, int),
    ("value_ints", INT64, tuple),
    ("value_float", FLOAT, float),
    ("value_floats", FLOAT, tuple),
)


def _constant(call: Call) -> Fact:
    values = call.node.attributes
    value = values.get("value")
    if isinstance(value, TensorProto):
        return tensor_fact(value, call.scope.model)
    sparse = values.get("sparse_value")
    if isinstance(sparse, SparseTensorProto):
        return Fact(sparse.values.data_type, tuple(sparse.dims))
    for name, dtype, kind in NUMBERS:
        if isinstance(values.get(name), kind):
            return array_fact(np.array(values[name], NUMPY_TYPES[dtype]), dtype)
    if "value_string" in values:
        return Fact(STRING, ())
    return Fact(STRING, (len(values["value_strings"]),)) if "value_strings" in values else UNKNOWN


def _shape(call: Call) -> Fact:
    shape = call.input(0).shape
    if shape is None:
        return Fact(INT64, (call.fresh(0),))
    part = shape[slice(call.attribute("start", 0), call.attribute("end"))]
    return Fact(INT64, (len(part),), part)


def _size(call: Call) -> Fact:
    size = representable(call.input(0).size, INT64)
    return Fact(INT64, (), None if size is None else (size,))


def extents(call: Call, elements: tuple[Dim, ...] | None, fact: Fact) -> Shape | None:
    """The shape that a tensor of extents describes; an extent that might be negative becomes a fresh symbol."""
    if elements is not None:
        return tuple(e if call.is_extent(e) else call.fresh(i) for i, e in enumerate(elements))
    length = fact.shape[0] if fact.shape is not None and len(fact.shape) == 1 else None
    return call.fresh_shape(length) if isinstance(length, int) else None


def _constant_of_shape(call: Call) -> Fact:
    shape = extents(call, call.input(0).elements, call.input(0))
    value = call.node.attributes.get("value")
    if not isinstance(value, TensorProto):
        return filled(FLOAT, shape, 0.0)
    one = tensor_fact(value, call.scope.model)
    return filled(one.dtype, shape, one.splat)


def _range(call: Call) -> Fact:
    start, limit, delta = call.input(0), call.input(1), call.input(2)
    dtype = start.dtype or limit.dtype or delta.dtype
    if start.is_constant and limit.is_constant and delta.is_constant:
        fact = _constant_range(start, limit, delta, dtype)
        if fact is not None:
            return fact
    first, last, step = start.integer, limit.integer, delta.integer
    if first is None or last is None or not isinstance(step, int) or step == 0:
        return Fact(dtype, (call.fresh(0),))
    length = _range_length(first, last, step)
    return Fact(dtype, (length if call.is_extent(length) else maximum(length, 0),))


def _range_length(first: Dim, last: Dim, step: int) -> Dim:
    """How many numbers a Range has; none where this is negative."""
    span = last - first if step > 0 else first - last
    exact = divide(span, abs(step))
    return exact if exact is not None else floor_divide(span + abs(step) - 1, abs(step))


def _constant_range(start: Fact, limit: Fact, delta: Fact, dtype: int) -> Fact | None:
    numbers = [f.array.item() for f in (start, limit, delta) if f.array is not None and f.array.size == 1]
    if dtype not in NUMPY_TYPES or len(numbers) < 3:
        return None
    first, last, step = numbers
    if step == 0 or not all(map(math.isfinite, (first, last, step))):
        return None
    length = max(math.ceil((last - first) / step), 0)
    if dtype not in INTEGERS or length > SMALL:
        return Fact(dtype, (length,))
    return array_fact(np.array([first + i * step for i in range(length)], NUMPY_TYPES[dtype]), dtype)


def _eye_like(call: Call) -> Fact:
    return Fact(call.attribute("dtype", call.input(0).dtype), call.input(0).shape)


MAX_HOT = 64
"""Elements of a one-hot tensor that are worked out: it is one repeat for each axis."""


def _one_hot(call: Call) -> Fact:
    indices, depth = call.input(0), call.input(1).integer
    shape = indices.shape
    if shape is None:
        return Fact(call.input(2).dtype)
    axis = call.attribute("axis", -1)
    axis += len(shape) + 1 if axis < 0 else 0
    extent = depth if depth is not None and is_nonnegative(depth) else call.fresh(axis)
    elements = _hot_elements(indices.elements, depth, call.input(2).elements) if axis == len(shape) else None
    return Fact(call.input(2).dtype, (*shape[:axis], extent, *shape[axis:]), elements)


def _hot_elements(indices: Shape | None, depth: Dim | None, values: Shape | None) -> Shape | None:
    """The elements of a small one-hot tensor along the last axis, whose values may be symbolic (repeats of a Tile)."""
    if indices is None or values is None or len(values) != 2 or not isinstance(depth, int):
        return None
    if depth < 0 or not all(isinstance(i, int) for i in indices) or depth * len(indices) > MAX_HOT:
        return None
    off, on = values
    return tuple(on if j in (i, i + depth) else off for i in indices for j in range(depth))


def _random(call: Call) -> Fact:
    return Fact(call.attribute("dtype", FLOAT), tuple(call.attribute("shape", ())))


def _random_like(call: Call) -> Fact:
    return Fact(call.attribute("dtype", call.input(0).dtype), call.input(0).shape)


def _multinomial(call: Call) -> Fact:
    shape = call.input(0).shape
    batch = shape[0] if shape is not None and len(shape) == 2 else call.fresh(0)
    return Fact(call.attribute("dtype", TensorProto.INT32), (batch, call.attribute("sample_size", 1)))


def _window(call: Call) -> Fact:
    size = call.input(0).integer
    known = size is not None and is_nonnegative(size)
    return Fact(call.attribute("output_datatype", FLOAT), (size if size is not None and known else call.fresh(0),))


OPERATORS: dict[str, Callable[[Call], Fact]] = {
    "Constant": _constant,
    "Shape": _shape,
    "Size": _size,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "EyeLike": _eye_like,
    "OneHot": _one_hot,
    "RandomNormal": _random,
    "RandomUniform": _random,
    "RandomNormalLike": _random_like,
    "RandomUniformLike": _random_like,
    "Bernoulli": _random_like,
    "Multinomial": _multinomial,
    "HannWindow": _window,
    "HammingWindow": _window,
    "BlackmanWindow": _window,
}
