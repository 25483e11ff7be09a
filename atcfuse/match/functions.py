"""The functions that rule expressions may call: pure questions about values of one scope."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atcfuse.dims import Dim
from atcfuse.expr import Undefined, proved
from atcfuse.graph import views
from atcfuse.graph.constants import constant, constant_tensor, read_tensor, scalar
from atcfuse.graph.facts import INTEGRAL
from atcfuse.graph.index import Scope
from atcfuse.match.causal import alignment
from atcfuse.match.chains import roots
from atcfuse.match.indexed import Bands
from atcfuse.match.levels import is_ordinary
from atcfuse.match.projections import ends_projection
from atcfuse.match.typing import is_known
from atcfuse.match.values import Built, Value

MOST_INDICES = 4096
"""Indices that a Gather of ours may have written out."""
QUANTIZERS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})


@dataclass(frozen=True)
class Aligned:
    """A value that broadcasts against scores of the given shape; `extent` is its shape before Expand was taken off."""

    value: str
    shape: tuple[Dim, ...]
    extent: tuple[Dim, ...]


def functions_for(scope: Scope) -> Mapping[str, Callable[..., Any]]:
    """The function table for expressions about values of a scope, made once."""
    if scope.functions is None:
        scope.functions = _functions(scope)
    return scope.functions


def _functions(scope: Scope) -> Mapping[str, Callable[..., Any]]:
    def number(value: Any) -> float:
        found = scalar(scope, _value(value))
        if found is None:
            raise Undefined
        return found

    def shape(value: Any) -> list[Dim]:
        found = scope.fact(_value(value)).shape
        if found is None:
            raise Undefined
        return list(found)

    def aligned(value: Any, scores: Any) -> Aligned:
        return Aligned(_unexpanded(scope, _value(value)), tuple(shape(scores)), tuple(shape(value)))

    def same_shape(a: Any, b: Any) -> bool | None:
        return True if shape(a) == shape(b) else None

    bands = Bands(scope)

    def causal(operand: Any, scores: Any, alone: Any, fill: float = -math.inf, keeps: int = 1) -> str:
        return alignment(bands, operand, _value(scores), proved(alone), fill, keeps)

    def is_number(value: Any) -> bool:
        return value is not None and scalar(scope, _value(value)) is not None

    return {
        "scalar": number,
        "is_number": is_number,
        "is_known": lambda value: is_known(scope, _value(value), scope.fact(_value(value))),
        "shape": shape,
        "rank": lambda value: len(shape(value)),
        "dim": lambda value, axis: shape(value)[axis],
        "size": lambda value: math.prod(shape(value)),
        "dtype": lambda value: _dtype(scope, value),
        "aligned": aligned,
        "same_shape": same_shape,
        "repeats_in": lambda value, whole: _repeats_in(shape(value), shape(whole)),
        "rows_of_batches": lambda value, whole: _rows_of_batches(shape(value), shape(whole)),
        "opset": lambda: scope.model.opset,
        "rounded": lambda value, like: _rounded(value, _dtype(scope, like)),
        "stored": lambda value, exact, like: _close(value, exact, _STORAGE.get(_dtype(scope, like), 1e-6)),
        "leading": lambda value: shape(value)[:-1],
        "made_by": lambda value: _made_by(scope, value),
        "ends_projection": lambda value: ends_projection(scope, _value(value)),
        "quantized": lambda value: _quantized(scope, _value(value)),
        "single_output": lambda value: _single_output(scope, value),
        "read_outside": lambda value: scope.is_output(_value(value)),
        "causal": causal,
        "unmasked": lambda operand: _unmasked(scope, operand),
        "inside": lambda value: _is_inside(scope, _value(value)),
        "repeats": lambda value, other: _repeats_value(scope, _value(value), _value(other)),
        "operand": lambda value: _operand(scope, value),
        "filled": lambda value, wanted: _filled(scope, value, wanted),
        "zero_sign": lambda value: _zero_sign(scope, value),
        "is_uniform_along": lambda value, axis: _uniform_along(scope, value, axis),
        **_PURE,
    }


def _value(value: Any) -> str:
    if not isinstance(value, str):
        raise Undefined
    return value


def _unexpanded(scope: Scope, value: str) -> str:
    """The value before it was expanded: the fused operator broadcasts masks itself."""
    value = scope.source(value)
    while True:
        below = _expanded_from(scope, value)
        if below is None:
            return value
        value = below


def _expanded_from(scope: Scope, value: str) -> str | None:
    """What a value is a broadcast of: by Expand, by views around one, or by adding zeros of a larger shape."""
    node, after = scope.producers.get(value), scope.fact(value).shape
    if node is None or after is None:
        return None
    if node.op == "Expand":
        before = scope.fact(node.inputs[0])
        return scope.source(node.inputs[0]) if before.shape is not None and len(before.shape) <= len(after) else None
    if node.op == "Add":
        for zeros, other in (node.inputs, node.inputs[::-1]):
            before = scope.fact(other)
            if scope.fact(zeros).splat == 0 and before.shape is not None and before.dtype == scope.fact(value).dtype:
                return scope.source(other)
    for link in reversed(roots(scope, value, scaling=False)[1:]):
        if _is_broadcast(link.view, link.shape):
            return str(link.value)
    return None


def _is_broadcast(view: views.View, shape: Sequence[Dim]) -> bool:
    """Whether a view repeats a value of a shape along axes of extent 1 or in front, and does nothing else."""
    more = len(view.axes) - len(shape)
    if more < 0 or view.offset != 0 or not any(stride == 0 for axis in view.axes for _, stride in axis):
        return False
    whole = ((),) * more + views.identity(view.root, shape).axes
    return all(axis == own or (not own and _repeats(axis)) for axis, own in zip(view.axes, whole, strict=True))


def _repeats(axis: views.Axis) -> bool:
    return all(stride == 0 for _, stride in axis)


def _repeats_in(part: list[Dim], whole: list[Dim]) -> bool | None:
    """Whether rows of `part`, over and over in order, broadcast to `whole`: its last axes, only ones before them.

    The first axis after the ones may be of unknown extent: in a valid model it is the whole's or 1.
    """
    if len(part) > len(whole) or not part or part[-1] != whole[-1]:
        return None
    same = 0
    while same < len(part) and part[-1 - same] == whole[-1 - same]:
        same += 1
    return True if all(size == 1 for size in part[: max(0, len(part) - same - 1)]) else None


def _rows_of_batches(part: list[Dim], whole: list[Dim]) -> bool | None:
    """Whether each row of `part` belongs to as many rows of `whole`, in order: its first axes, then ones, its last."""
    if len(part) > len(whole) or not part or part[-1] != whole[-1]:
        return None
    ones = len(whole) - len(part)
    kept = max((ones + at + 1 for at, size in enumerate(part[:-1]) if size != 1), default=0)
    padded: list[Dim] = [*(1 for _ in range(ones)), *part]
    return True if padded[:kept] == whole[:kept] else None


def _made_by(scope: Scope, value: Any) -> str:
    node = scope.producer(_value(value))
    return node.op if node else ""


def _quantized(scope: Scope, value: str) -> bool:
    """Whether the value is quantized next, directly or behind views and no-ops: a last bit may be a whole step then."""
    pending, seen = [value], {value}
    while pending:
        for node in scope.readers(pending.pop()):
            if node.op in QUANTIZERS:
                return True
            if views.is_view(node) or any(o in scope.alias for o in node.outputs):
                pending += [o for o in node.outputs if o and o not in seen]
                seen.update(node.outputs)
    return False


def _single_output(scope: Scope, value: Any) -> bool:
    """Whether the node that makes the value makes nothing else."""
    node = scope.producer(_value(value))
    return node is not None and not any(node.outputs[1:])


def _dtype(scope: Scope, value: Any) -> int:
    found = scope.fact(_value(value)).dtype
    if not found:
        raise Undefined
    return found


def _repeats_value(scope: Scope, value: str, other: str) -> bool:
    """Whether a value is proved to repeat another one: same numbers, same shape, same element type."""
    return value in scope.repeated and _root(scope, value) == _root(scope, other)


def _root(scope: Scope, value: str) -> str:
    """The value that another one repeats, through enclosing scopes too."""
    here: Scope | None = scope
    while here is not None:
        value, here = here.repeated.get(value, value), here.parent
    return value


def _operand(scope: Scope, value: Any) -> Value:
    """The first input of the node that makes a value."""
    node = scope.producer(_value(value))
    if node is None or not node.input(0):
        raise Undefined
    return Value(node.input(0))


def _filled(scope: Scope, value: Any, wanted: float) -> bool:
    """Whether every element of a constant is the number; 0 and -0 are one number."""
    found = scalar(scope, _value(value))
    if found is None:
        raise Undefined
    return found == wanted


def _zero_sign(scope: Scope, value: Any) -> int:
    """1 for zeros, -1 for negative zeros, 0 for those of integers: `x + 0.0` makes 0.0 of -0.0, `x - 0.0` does not."""
    import numpy as np

    if _dtype(scope, value) in INTEGRAL:
        return 0
    # What was worked out of constants may have forgotten the sign: only a tensor as it is written tells.
    tensor = constant_tensor(scope, _value(value))
    array = None if tensor is None else read_tensor(tensor, scope.model)
    if array is None or not array.size or array.any():
        raise Undefined
    negative = np.signbit(array)
    if negative.any() != negative.all():
        raise Undefined
    return -1 if negative.any() else 1


def _uniform_along(scope: Scope, value: Any, axis: int) -> bool:
    array = constant(scope, _value(value))
    if array is None or not array.size:
        raise Undefined
    return bool((array == array.take([0], axis=axis)).all())


def _is_inside(scope: Scope, value: str) -> bool:
    """Whether a constant is part of the model file, not of a file beside it."""
    tensor = constant_tensor(scope, value)
    return tensor is not None and tensor.data_location != tensor.EXTERNAL


def _unmasked(scope: Scope, operand: Any) -> bool:
    """Whether an operand of scores is no mask in any part, as far as products of the model are ordinary numbers."""
    if isinstance(operand, Built):
        return all(_unmasked(scope, part) for part in operand.inputs)
    return operand is None or (isinstance(operand, str) and is_ordinary(scope, operand))


def _only(value: Any, combined: Any) -> bool:
    """Whether an operand is that value and nothing else, up to views."""
    value = value.value if isinstance(value, Aligned) else value
    while isinstance(combined, Built) and len(combined.inputs) == 1:
        combined = combined.inputs[0]
    return isinstance(combined, str) and combined == value


_ROUNDING = {1: "<f4", 10: "<f2", 11: "<f8"}


def _rounded(value: Any, dtype: int) -> float:
    """A number as an element type keeps it: rounded, or infinite where it is too large."""
    if not isinstance(value, (int, float)) or dtype not in _ROUNDING:
        raise Undefined
    import numpy as np

    with np.errstate(over="ignore"):
        return float(np.asarray(value, dtype=np.float64).astype(_ROUNDING[dtype]))


_STORAGE = {10: 2.0**-11, 16: 2.0**-8}
"""How far a number may be off, as a share of it, once it is stored in an element type."""


def _append(items: Any, item: Any) -> list[Any]:
    return [*(items or []), item]


def _each_of_pairs(value: Any, width: int, interleaved: int) -> Built:
    """One number a pair as one for each of its elements: halves or neighbours of `width` elements make the pairs.

    It is gathered once a model, before the fused nodes that read it. The width must be known, and one that is worth
    writing out index by index.
    """
    if not isinstance(width, int) or width > MOST_INDICES:
        raise Undefined
    indices = tuple(i // 2 if interleaved else i % (width // 2) for i in range(width))
    return Built("Gather", (Value(value),), (("axis", -1), ("indices", indices)))


def _real(function: Callable[[float], float]) -> Callable[[Any], float]:
    def apply(x: Any) -> float:
        if not isinstance(x, (int, float)):
            raise Undefined
        try:
            return function(x)
        except (ValueError, OverflowError):
            raise Undefined from None

    return apply


def _close(a: Any, b: Any, rtol: float = 1e-6) -> bool:
    if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
        raise Undefined
    return math.isclose(a, b, rel_tol=rtol)


_PURE: dict[str, Callable[..., Any]] = {
    "absent": lambda value: value is None or value == [],
    "present": lambda value: value is not None and value != [],
    "rooted_in": lambda roots, value: value in roots if roots else False,
    "only": _only,
    "append": _append,
    "length": lambda items: len(items or []),
    "close": _close,
    "each_of_pairs": _each_of_pairs,
    "sqrt": _real(math.sqrt),
    "abs": _real(abs),
    "exp": _real(math.exp),
    "log": _real(math.log),
}
