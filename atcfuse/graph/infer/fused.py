"""Our own fused operators: their shapes follow from inputs and attributes, so optimized models evaluate too."""

from __future__ import annotations

from collections.abc import Callable

from atcfuse.diagnostics import AtcfuseError
from atcfuse.dims import Dim, divide, product
from atcfuse.elementwise import parse_expression
from atcfuse.graph.facts import Fact
from atcfuse.graph.infer.call import Call, MalformedNodeError, Shape, broadcast_shapes
from atcfuse.kernel import is_suffixed
from atcfuse.layout import LayoutFactor, parse_layout


def attention(call: Call) -> Fact:
    """FusedAttention: batch and queries read from the shape of q, dealt out as the output's layout says."""
    q, attributes = call.input(0), call.node.attributes
    heads, width, value_width = (attributes.get(n) for n in ("num_heads", "head_dim", "v_head_dim"))
    if not isinstance(heads, int) or not isinstance(width, int) or not isinstance(value_width, int):
        raise MalformedNodeError("FusedAttention")
    out = {"N": heads, "D": value_width}
    try:
        factors = parse_layout(str(attributes.get("q_layout")), 0, {"N": heads, "D": width})
        result = parse_layout(str(attributes.get("out_layout")), 0, out)
    except AtcfuseError:
        raise MalformedNodeError("layout") from None
    extents = _read(factors, q.shape)
    if extents is None:
        return Fact(q.dtype)
    dims: dict[str, Dim] = {"B": 1, "S": 1, **extents, **out}
    axes = max((f.axis for f in result), default=-1) + 1
    shape = tuple(product(dims[f.letter] for f in result if f.axis == a and f.letter) for a in range(axes))
    return Fact(q.dtype, shape)


def _read(factors: list[LayoutFactor], shape: Shape | None) -> dict[str, Dim] | None:
    """Batch and positions from the axes that hold them."""
    if shape is None or len(shape) != max((f.axis for f in factors), default=-1) + 1:
        return None
    extents: dict[str, Dim] = {}
    for factor in factors:
        if factor.letter not in ("B", "S"):
            continue
        others = product(f.size or 1 for f in factors if f.axis == factor.axis and f is not factor)
        extent = divide(shape[factor.axis], others)
        if extent is None:
            return None
        extents[factor.letter] = extent
    return extents


def layer_norm_qkv(call: Call) -> list[Fact]:
    """FusedLayerNormQKV: every projection has the rows of x, the normalised rows the shape of x."""
    x = call.input(0)
    count, transposed = (call.node.attributes.get(n) for n in ("num_projections", "transposed"))
    if not isinstance(count, int) or not isinstance(transposed, tuple) or len(transposed) < count:
        raise MalformedNodeError("FusedLayerNormQKV")
    outputs: list[Fact] = []
    for i in range(count):
        weight = call.input(3 + i).shape
        if x.shape is None or weight is None or len(weight) != 2:
            outputs.append(Fact(x.dtype))
        else:
            outputs.append(Fact(x.dtype, (*x.shape[:-1], weight[0 if transposed[i] else 1])))
    return [*outputs, Fact(x.dtype, x.shape)]


def elementwise(call: Call) -> list[Fact]:
    """FusedElementwise: every result has the shape to which all operands broadcast."""
    try:
        expression = parse_expression(str(call.node.attributes.get("expression")))
    except ValueError:
        raise MalformedNodeError("expression") from None
    call.expect(len(expression.inputs))
    shape = broadcast_shapes([f.shape for f in call.inputs])
    return [Fact(dtype, shape) for dtype in expression.output_types]


OPERATORS: dict[str, Callable[[Call], Fact | list[Fact]]] = {
    "atcfuse::FusedAttention": attention,
    "atcfuse::FusedLayerNormQKV": layer_norm_qkv,
}

SUFFIXED: dict[str, Callable[[Call], Fact | list[Fact]]] = {"atcfuse::FusedElementwise": elementwise}
"""Operators whose names go on with ten letters a to p."""


def operator_of(op: str) -> Callable[[Call], Fact | list[Fact]] | None:
    """The evaluation function of one of our operators, None for any other."""
    known = OPERATORS.get(op) or SUFFIXED.get(op[:-10])
    return known if op in OPERATORS or is_suffixed(op, op[:-10]) else None
