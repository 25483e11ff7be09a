"""Reductions: ReduceSum and its kin, ArgMax, ArgMin."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from atcfuse.dims import Dim, maximum, minimum, product
from atcfuse.graph.facts import INTEGRAL, Fact
from atcfuse.graph.infer.arithmetic import MAX_EXACT, representable
from atcfuse.graph.infer.call import Call, Shape, normalized_axes, static
from atcfuse.graph.infer.data import is_static, objects

AXES_INPUT_SINCE = {"ReduceSum": 13}
"""The opset in which `axes` became an input; 18 for the others."""

FOLDED: dict[str, Callable[..., Dim]] = {
    "ReduceSum": lambda dims: sum(dims),
    "ReduceProd": product,
    "ReduceMax": lambda dims: _chain(maximum, dims),
    "ReduceMin": lambda dims: _chain(minimum, dims),
}


def _chain(function: Callable[[Dim, Dim], Dim], dims: list[Dim]) -> Dim:
    out = dims[0]
    for dim in dims[1:]:
        out = function(out, dim)
    return out


def _reduce(call: Call) -> Fact:
    source = call.input(0)
    if source.shape is None:
        return Fact(source.dtype)
    rank = len(source.shape)
    axes: tuple[int, ...] | None
    if call.has("axes", 1):
        given = call.parameter("axes", 1)
        axes = normalized_axes(given, rank)
        empty = given is not None and not given
    else:
        axes, empty = (), True
    if empty:
        if call.attribute("noop_with_empty_axes", 0):
            return Fact(source.dtype, source.shape)
        axes = tuple(range(rank))
    keep = call.attribute("keepdims", 1)
    if axes is None:
        return Fact(source.dtype, call.fresh_shape(rank) if keep else _unknown_rank(call, rank))
    shape = reduced(source.shape, axes, keep)
    return Fact(source.dtype, shape, _elements(call, source, axes, shape))


def _unknown_rank(call: Call, rank: int) -> Shape | None:
    count = call.input(1).shape
    return call.fresh_shape(rank - count[0]) if count and isinstance(count[0], int) and 0 < count[0] <= rank else None


def reduced(shape: Shape, axes: tuple[int, ...], keepdims: int) -> Shape:
    """The shape with some axes reduced to 1 or dropped."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _elements(call: Call, source: Fact, axes: tuple[int, ...], shape: Shape) -> tuple[Dim, ...] | None:
    function = FOLDED.get(call.node.op)
    if function is None or source.dtype not in INTEGRAL or not source.elements or not is_static(source.shape):
        return None
    kept = [i for i in range(len(source.shape or ())) if i not in axes]
    rows = np.transpose(objects(source), (*kept, *axes))
    count = product(static(shape) or ())
    if not isinstance(count, int) or not count:
        return None
    out = [representable(function(row), source.dtype) for row in rows.reshape(count, -1).tolist()]
    return tuple(call.fresh_value(i, True) if e is None or _is_large(e) else e for i, e in enumerate(out))


def _is_large(element: Dim) -> bool:
    return isinstance(element, int) and abs(element) > MAX_EXACT


def _arg(call: Call) -> Fact:
    shape = call.input(0).shape
    if shape is None:
        return Fact(TensorProto.INT64)
    axes = normalized_axes((call.attribute("axis", 0),), len(shape))
    return Fact(TensorProto.INT64, None if axes is None else reduced(shape, axes, call.attribute("keepdims", 1)))


REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

OPERATORS: dict[str, Callable[[Call], Fact]] = {
    **{f"Reduce{name}": _reduce for name in REDUCTIONS},
    "ArgMax": _arg,
    "ArgMin": _arg,
}
