"""Which values merely repeat another one: same numbers, same shape, same element type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx import TensorProto

from atcfuse.graph.facts import Fact
from atcfuse.graph.infer.call import Call
from atcfuse.graph.infer.control import decided_branch
from atcfuse.graph.schema import RESHAPES

_FROM_8_BITS = {TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE}
WIDER: dict[int, frozenset[int]] = {
    TensorProto.BOOL: frozenset(range(1, 14)) - {TensorProto.STRING},
    TensorProto.INT8: frozenset({TensorProto.INT16, *_FROM_8_BITS}),
    TensorProto.UINT8: frozenset({TensorProto.INT16, TensorProto.UINT16, *_FROM_8_BITS}),
    TensorProto.INT32: frozenset({TensorProto.INT64, TensorProto.DOUBLE}),
    TensorProto.FLOAT16: frozenset({TensorProto.FLOAT, TensorProto.DOUBLE}),
    TensorProto.BFLOAT16: frozenset({TensorProto.FLOAT, TensorProto.DOUBLE}),
    TensorProto.FLOAT: frozenset({TensorProto.DOUBLE}),
}
"""Element types that hold every number of another one, so that a cast there and back changes nothing."""


def _always(call: Call, result: Fact) -> str | None:
    return call.node.input(0)


def _only_input(call: Call, result: Fact) -> str | None:
    return call.node.input(0) if len(call.inputs) == 1 else None


def _if_same_shape(call: Call, result: Fact) -> str | None:
    """Data movements that keep the order of elements and can only repeat or drop some: same shape, same tensor."""
    shape = call.input(0).shape
    return call.node.input(0) if shape is not None and shape == result.shape else None


_BACK = 4
"""At most so many reshapes one after the other are looked at."""


def _reshape(call: Call, result: Fact) -> str | None:
    """What a value of the shape was before it was reshaped, to this one or another in between."""
    name = call.node.input(0)
    for _ in range(_BACK):
        shape = call.scope.fact(name).shape
        if shape is not None and shape == result.shape:
            return name
        maker = call.scope.producers.get(call.scope.alias.get(name, name))
        if maker is None or maker.op not in RESHAPES:
            return None
        name = maker.input(0)
    return None


def _slice(call: Call, result: Fact) -> str | None:
    steps = call.parameter("steps", 4) if call.has("steps", 4) else ()
    if steps is None or any(step != 1 for step in steps):
        return None
    return _if_same_shape(call, result)


def _pad(call: Call, result: Fact) -> str | None:
    """Pads may be negative, so that one on the other side keeps the shape: all must be known to be 0."""
    pads = call.static_parameter("pads", 1)
    return call.node.input(0) if pads and not any(pads) else None


def _transpose(call: Call, result: Fact) -> str | None:
    rank = call.input(0).rank
    perm = call.attribute("perm")
    if perm is None:
        return call.node.input(0) if rank is not None and rank <= 1 else None
    return call.node.input(0) if tuple(perm) == tuple(range(len(perm))) else None


def _dropout(call: Call, result: Fact) -> str | None:
    if call.has_input(2) and call.input(2).splat != 0:
        return None
    mask = call.node.outputs[1] if len(call.node.outputs) > 1 else ""
    scope = call.scope
    return (
        None
        if mask and (mask in scope.consumers or mask in scope.outputs or mask in scope.captured)
        else (call.node.input(0))
    )


def _cast(call: Call, result: Fact) -> str | None:
    source = call.input(0)
    if result.dtype and result.dtype == source.dtype:
        return call.node.input(0)
    name = call.node.input(0)
    inner = call.scope.producers.get(call.scope.alias.get(name, name))
    if inner is None or inner.op not in ("Cast", "CastLike"):
        return None
    origin = call.scope.fact(inner.input(0)).dtype
    return inner.input(0) if origin == result.dtype and source.dtype in WIDER.get(origin, ()) else None


def _where(call: Call, result: Fact) -> str | None:
    condition = call.input(0).splat
    if not isinstance(condition, int):
        return None
    return _operand(call, 1 if condition else 2, result)


def _neutral(number: int, either_side: bool) -> Callable[[Call, Fact], str | None]:
    """x op c is x where c is `number`; so is c op x for operators that do not mind the order."""

    def alias(call: Call, result: Fact) -> str | None:
        if _is_neutral(call, 1, number):
            return _operand(call, 0, result)
        return _operand(call, 1, result) if either_side and _is_neutral(call, 0, number) else None

    return alias


def _is_neutral(call: Call, position: int, number: int) -> bool:
    splat = call.input(position).splat
    return isinstance(splat, (int, float)) and splat == number


def _operand(call: Call, position: int, result: Fact) -> str | None:
    fact = call.input(position)
    same = fact.shape is not None and fact.shape == result.shape and fact.dtype and fact.dtype == result.dtype
    return call.node.input(position) if same else None


FIRST_OUTPUT: dict[str, Callable[[Call, Fact], str | None]] = {
    "Identity": _always,
    "Dropout": _dropout,
    "Cast": _cast,
    "CastLike": _cast,
    "Where": _where,
    "Add": _neutral(0, either_side=True),
    "Sub": _neutral(0, either_side=False),
    "Mul": _neutral(1, either_side=True),
    "Div": _neutral(1, either_side=False),
    "And": _neutral(1, either_side=True),
    "Or": _neutral(0, either_side=True),
    "Transpose": _transpose,
    "Slice": _slice,
    "Pad": _pad,
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(("Expand", "Tile", "Split"), _if_same_shape),
    **dict.fromkeys(("Concat", "Sum", "Min", "Max", "Mean"), _only_input),
}


BY_SURROUNDINGS = frozenset({"Cast", "CastLike", "Dropout", "If", *RESHAPES})
"""Operators of which attributes and facts alone do not tell whether they are no-ops: it matters what is around them."""


def _first(call: Call, results: Sequence[Fact]) -> Sequence[str | None]:
    return (FIRST_OUTPUT[call.node.op](call, results[0]),)


def _if(call: Call, results: Sequence[Fact]) -> Sequence[str | None]:
    """What a decided branch hands on from outside: its outputs that repeat values of enclosing scopes."""
    body = decided_branch(call)
    if body is None:
        return ()
    roots = (body.alias.get(o.name, o.name) for o in body.graph.output)
    return [None if body.defines(root) else root for root in roots]


ALIASES: dict[str, Callable[[Call, Sequence[Fact]], Sequence[str | None]]] = {
    **dict.fromkeys(FIRST_OUTPUT, _first),
    "If": _if,
}
"""For each operator that can be a no-op: the values that its outputs then repeat, None where they do not."""
