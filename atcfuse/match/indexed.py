"""What values of a model are as functions of their index, read backwards through the nodes that make them.

This covers masks of every spelling: comparisons of ranges, Trilu, constant triangles and their slices, boolean or
already turned into numbers to be added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from atcfuse.dims import product, proves_at_most
from atcfuse.graph.constants import NUMPY_TYPES, constant
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.infer.arithmetic import BINARY, COMPARISONS, UNARY, VARIADIC, representable
from atcfuse.graph.infer.casts import cast_array
from atcfuse.graph.infer.indexing import clamped_bound
from atcfuse.graph.schema import RESHAPES, parameter
from atcfuse.match.bands import (
    INT32,
    INT64,
    Band,
    Known,
    Ramp,
    Shape,
    as_ramp,
    combined,
    from_table,
    lower_band,
    on_ramps,
    settled,
    side,
    spread,
    uniform,
)

MAX_DEPTH = 100
"""Nodes that a value is followed back through."""

MAX_TABLE = 2**22
"""Elements of the largest constant that is searched for a triangle."""


class Bands:
    """What is known of the values of one scope as functions of their index; each value is analysed once."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._outer = Bands(scope.parent) if scope.parent is not None else None
        self._known: dict[str, Known | None] = {}

    def of(self, name: str, depth: int = MAX_DEPTH) -> Known | None:
        """The value as a function of its index, or None where that is not proved."""
        name = self.scope.source(name)
        if not self.scope.defines(name):
            return None if self._outer is None else self._outer.of(name, depth)
        if name not in self._known and depth > 0:
            self._known[name] = self._analysed(name, depth - 1)
        return self._known.get(name)

    def _analysed(self, name: str, depth: int) -> Known | None:
        fact = self.scope.fact(name)
        if fact.shape is None:
            return None
        if fact.splat is not None:
            return uniform(fact.shape, fact.splat, fact.dtype)
        node = self.scope.producers.get(name)
        if node is None or node.op == "Constant":
            readable = fact.dtype in NUMPY_TYPES and proves_at_most(product(fact.shape), MAX_TABLE)
            table = constant(self.scope, name) if readable else None
            return None if table is None else from_table(table)
        rule = _OPERATORS.get(node.op)
        if rule is None or node.outputs[0] != name:
            return None
        found = rule(self, node, fact.shape, depth)
        return None if found is None else settled(found)

    def operands(self, node: Node, shape: Shape, depth: int) -> list[Known] | None:
        """All inputs, broadcast to `shape`."""
        out: list[Known] = []
        for name in node.inputs:
            known = self.of(name, depth)
            operand = None if known is None else spread(known, shape)
            if operand is None:
                return None
            out.append(operand)
        return out


# Element-wise operators


def _elementwise(bands: Bands, node: Node, shape: Shape, depth: int) -> Known | None:
    operands = bands.operands(node, shape, depth)
    if operands is None or (node.op in ("Min", "Max") and len(operands) != 2):
        return None
    if any(isinstance(operand, Ramp) for operand in operands):
        return on_ramps(node.op, operands, shape, bands.scope.fact(node.outputs[0]).dtype)
    if node.op == "Div" and any(not number for number in _numbers(operands[1])):
        return None  # the sign of a zero is not tracked
    return combined([o for o in operands if isinstance(o, Band)], _FUNCTIONS[node.op], shape)


def _numbers(known: Known) -> tuple[np.ndarray, ...]:
    return (known.inside, known.outside) if isinstance(known, Band) else ()


def _cast(bands: Bands, node: Node, shape: Shape, depth: int) -> Known | None:
    source, dtype = bands.of(node.inputs[0], depth), bands.scope.fact(node.outputs[0]).dtype
    if isinstance(source, Ramp):
        return source if dtype in (INT32, INT64) and representable(source.start, dtype) is not None else None
    if source is None or dtype not in NUMPY_TYPES:
        return None
    inside, outside = cast_array(source.inside, dtype), cast_array(source.outside, dtype)
    if inside is None or outside is None:
        return None
    return replace(source, inside=np.asarray(inside), outside=np.asarray(outside))


# Sources


def _range(bands: Bands, node: Node, shape: Shape, depth: int) -> Known | None:
    if len(node.inputs) != 3:
        return None
    start, _, step = (bands.scope.fact(name).integer for name in node.inputs)
    return Ramp(shape, (step,), start) if start is not None and isinstance(step, int) else None


def _cumulated(bands: Bands, node: Node, shape: Shape, depth: int) -> Known | None:
    """CumSum of equal integers, which is how Keras counts rows and columns."""
    source, axis = bands.of(node.inputs[0], depth), bands.scope.fact(node.input(1)).integer
    ramp = None if source is None else as_ramp(source)
    if ramp is None or any(ramp.slopes) or not isinstance(ramp.start, int) or not isinstance(axis, int):
        return None
    if node.attributes.get("reverse", 0) or bands.scope.fact(node.outputs[0]).dtype not in (INT32, INT64):
        return None
    slopes = tuple(ramp.start if at == axis % len(shape) else 0 for at in range(len(shape)))
    return Ramp(shape, slopes, 0 if node.attributes.get("exclusive", 0) else ramp.start)


def _trilu(bands: Bands, node: Node, shape: Shape, depth: int) -> Known | None:
    source = bands.of(node.inputs[0], depth)
    diagonal = bands.scope.fact(node.input(1)).integer if node.input(1) else 0
    if not isinstance(source, Band) or diagonal is None or len(shape) < 2:
        return None
    slopes = (0,) * (len(shape) - 2) + (-1, 1)
    yes, no = np.array(True), np.array(False)
    if node.attributes.get("upper", 1):
        kept = Band(shape, slopes, -diagonal, yes, no)
    else:
        kept = lower_band(shape, slopes, diagonal, yes, no)
    triangle = settled(kept)
    zero = np.zeros((), source.inside.dtype)
    if not isinstance(triangle, Band):
        return None
    return combined([triangle, source], lambda inside, x: np.where(inside, x, zero), shape)


# Views and selections


def _rearranged(bands: Bands, node: Node, shape: Shape, depth: int) -> Known | None:
    """Reshape, Squeeze, Unsqueeze, Flatten: axes of one element come and go, the others stay in order."""
    source = bands.of(node.inputs[0], depth)
    if source is None:
        return None
    if not any(source.slopes):
        return replace(source, shape=shape, slopes=(0,) * len(shape))
    kept = [(size, slope) for size, slope in zip(source.shape, source.slopes, strict=True) if size != 1]
    if [size for size, _ in kept] != [size for size in shape if size != 1]:
        return None
    slopes = iter([slope for _, slope in kept])
    return replace(source, shape=shape, slopes=tuple(0 if size == 1 else next(slopes) for size in shape))


def _transposed(bands: Bands, node: Node, shape: Shape, depth: int) -> Known | None:
    source = bands.of(node.inputs[0], depth)
    if source is None:
        return None
    perm = node.attributes.get("perm", tuple(reversed(range(len(shape)))))
    return replace(source, shape=shape, slopes=tuple(source.slopes[axis] for axis in perm))


def _expanded(bands: Bands, node: Node, shape: Shape, depth: int) -> Known | None:
    source = bands.of(node.inputs[0], depth)
    return None if source is None else spread(source, shape)


def _sliced(bands: Bands, node: Node, shape: Shape, depth: int) -> Known | None:
    source = bands.of(node.inputs[0], depth)
    starts = parameter(bands.scope, node, "starts")
    axes = parameter(bands.scope, node, "axes")
    steps = parameter(bands.scope, node, "steps")
    if source is None or starts is None or (steps is None and node.input(4)) or (axes is None and node.input(3)):
        return None
    start, slopes = source.start, list(source.slopes)
    for i, begin in enumerate(starts):
        axis = axes[i] if axes else i
        step = steps[i] if steps else 1
        if not isinstance(axis, int) or not isinstance(step, int):
            return None
        if not slopes[axis]:
            continue
        at = clamped_bound(begin, source.shape[axis]) if step > 0 else None
        if at is None:
            return None
        start, slopes[axis] = start + slopes[axis] * at, slopes[axis] * step
    return replace(source, shape=shape, slopes=tuple(slopes), start=start)


def _gathered(bands: Bands, node: Node, shape: Shape, depth: int) -> Known | None:
    """Elements at indices that are a ramp themselves and provably count from the front."""
    source, indices = bands.of(node.inputs[0], depth), bands.of(node.inputs[1], depth)
    ramp = None if indices is None else as_ramp(indices)
    if source is None or ramp is None or side(ramp.start, ramp.slopes, ramp.shape) is not True:
        return None
    axis = node.attributes.get("axis", 0) % len(source.shape)
    slope = source.slopes[axis]
    slopes = (*source.slopes[:axis], *(slope * s for s in ramp.slopes), *source.slopes[axis + 1 :])
    return replace(source, shape=shape, slopes=slopes, start=source.start + slope * ramp.start)


_ARRAYS = {op: function for table in (BINARY, COMPARISONS, VARIADIC, UNARY) for op, (_, function) in table.items()}
_EXACT = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Neg", "Abs", *COMPARISONS)

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{op: function for op in _EXACT if (function := _ARRAYS[op]) is not None},
    "Not": np.logical_not,
    "IsNaN": np.isnan,
    "Where": np.where,
}

Rule = Callable[[Bands, Node, Shape, int], "Known | None"]

_OPERATORS: dict[str, Rule] = {
    **dict.fromkeys(_FUNCTIONS, _elementwise),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    **dict.fromkeys(RESHAPES, _rearranged),
    "Range": _range,
    "CumSum": _cumulated,
    "Trilu": _trilu,
    "Transpose": _transposed,
    "Expand": _expanded,
    "Slice": _sliced,
    "Gather": _gathered,
}
