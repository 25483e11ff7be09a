"""Our own fused operators: their shapes follow from inputs and attributes, so optimized models evaluate too."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from atcfuse.diagnostics import AtcfuseError
from atcfuse.dims import Dim, broadcast, divide, product
from atcfuse.elementwise import COLUMN, parse_expression
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
    return [*_projections(call, 3), Fact(x.dtype, x.shape)]


def add_layer_norm_qkv(call: Call) -> list[Fact]:
    """FusedAddLayerNormQKV: every projection has the rows of the sum, the other outputs have its shape."""
    total = _sum_of(call)
    return [*_projections(call, 5, total), total, total]


def qkv(call: Call) -> list[Fact]:
    """FusedQKV: every projection has the rows of x."""
    return _projections(call, 1)


def _projections(call: Call, first_weight: int, rows: Fact | None = None) -> list[Fact]:
    x = rows or call.input(0)
    count, transposed = (call.node.attributes.get(n) for n in ("num_projections", "transposed"))
    if not isinstance(count, int) or not isinstance(transposed, tuple) or len(transposed) < count:
        raise MalformedNodeError(call.node.op)
    outputs: list[Fact] = []
    for i in range(count):
        weight = call.input(first_weight + i).shape
        if x.shape is None or weight is None or len(weight) != 2:
            outputs.append(Fact(x.dtype))
        else:
            outputs.append(Fact(x.dtype, (*x.shape[:-1], weight[0 if transposed[i] else 1])))
    return outputs


def group_norm_silu(call: Call) -> list[Fact]:
    """FusedGroupNormSilu: the shape of x."""
    x = call.input(0)
    return [Fact(x.dtype, x.shape)]


def row_norm(call: Call) -> list[Fact]:
    """FusedLayerNorm, FusedRMSNorm: the shape of x."""
    x = call.input(0)
    return [Fact(x.dtype, x.shape)]


def add_norm(call: Call) -> list[Fact]:
    """FusedAddLayerNorm, FusedAddRMSNorm, FusedModulatedLayerNorm: the shape that the summands broadcast to."""
    total = _sum_of(call)
    return [total, total]


def _sum_of(call: Call) -> Fact:
    first = call.input(0)
    shapes = [call.input(i).shape for i in range(3) if i < 1 or call.node.input(i)]
    if any(shape is None for shape in shapes):
        return Fact(first.dtype)
    rank = max(len(shape or ()) for shape in shapes)
    padded = [(1,) * (rank - len(shape or ())) + (shape or ()) for shape in shapes]
    dims = tuple(reduce(broadcast, sizes) for sizes in zip(*padded, strict=True))
    return Fact(first.dtype, dims)


def ffn(call: Call) -> list[Fact]:
    """FusedFFN: the rows of x with the columns of the down weight."""
    return [_down(call, 3)]


def layer_norm_ffn(call: Call) -> list[Fact]:
    """FusedLayerNormFFN: the rows of x with the columns of the down weight, and the normalised rows, shaped like x."""
    x = call.input(0)
    return [_down(call, 5), Fact(x.dtype, x.shape)]


def _down(call: Call, position: int) -> Fact:
    x, weight, transposed = call.input(0), call.input(position).shape, call.node.attributes.get("transposed")
    if not isinstance(transposed, tuple) or len(transposed) != 3:
        raise MalformedNodeError(call.node.op)
    if x.shape is None or weight is None or len(weight) != 2:
        return Fact(x.dtype)
    return Fact(x.dtype, (*x.shape[:-1], weight[0 if transposed[2] else 1]))


def rotary_embedding(call: Call) -> list[Fact]:
    """FusedRotaryEmbedding: the shape of each operand, or [batch, heads, positions, dim] of one that lies otherwise."""
    width, facts = call.node.attributes.get("head_dim"), []
    if not isinstance(width, int):
        raise MalformedNodeError("FusedRotaryEmbedding")
    for index, name in enumerate("qk"[: len(call.node.outputs)]):
        x, layout, heads = call.input(index), *(call.node.attributes.get(f"{name}_{n}") for n in ("layout", "heads"))
        shape = x.shape
        if layout == "BSH" and shape is not None and isinstance(heads, int):
            shape = (shape[0], heads, shape[1], width) if len(shape) == 3 else None
        elif layout == "BSND" and shape is not None:
            shape = (shape[0], shape[2], shape[1], width) if len(shape) == 4 else None
        facts.append(Fact(x.dtype, shape))
    return facts


def scale_mask_softmax(call: Call) -> Fact:
    """FusedScaleMaskSoftmax: the shape of the scores in the element type asked for."""
    dtype = call.node.attributes.get("out_type")
    if not isinstance(dtype, int):
        raise MalformedNodeError("FusedScaleMaskSoftmax")
    return Fact(dtype, call.input(0).shape)


def linear(call: Call) -> Fact:
    """FusedLinear: the rows of x, the columns of the weight, which is the second input; residual is the fifth."""
    return _projection(call, 1, 4)


def layer_norm_linear(call: Call) -> list[Fact]:
    """FusedLayerNormLinear: the same with weight and residual as fourth and seventh input, and the normalised rows."""
    x = call.input(0)
    return [_projection(call, 3, 6), Fact(x.dtype, x.shape)]


def _projection(call: Call, weight_at: int, residual_at: int) -> Fact:
    x, weight = call.input(0), call.input(weight_at).shape
    transposed, folded = (call.node.attributes.get(name) for name in ("transposed", "folded"))
    if not isinstance(transposed, int) or not isinstance(folded, int):
        raise MalformedNodeError(call.node.op)
    if folded:
        return Fact(x.dtype, call.input(residual_at).shape)
    if x.shape is None or weight is None or len(weight) != 2:
        return Fact(x.dtype)
    return Fact(x.dtype, (*x.shape[:-1], weight[0 if transposed else 1]))


def elementwise(call: Call) -> list[Fact]:
    """FusedElementwise: results have the shape to which all operands broadcast, those of rows with columns of 1."""
    try:
        expression = parse_expression(str(call.node.attributes.get("expression")))
    except ValueError:
        raise MalformedNodeError("expression") from None
    call.expect(len(expression.inputs))
    shape = broadcast_shapes([f.shape for f in call.inputs])
    narrow = None if shape is None else (*shape[: len(shape) - expression.columns], *(1,) * expression.columns)
    made = zip(expression.output_types, expression.output_kinds, strict=True)
    return [Fact(dtype, narrow if kind == COLUMN else shape) for dtype, kind in made]


OPERATORS: dict[str, Callable[[Call], Fact | list[Fact]]] = {
    "atcfuse::FusedAttention": attention,
    "atcfuse::FusedLayerNormLinear": layer_norm_linear,
    "atcfuse::FusedGroupNormSilu": group_norm_silu,
    "atcfuse::FusedLayerNormQKV": layer_norm_qkv,
    "atcfuse::FusedAddLayerNormQKV": add_layer_norm_qkv,
    "atcfuse::FusedQKV": qkv,
    "atcfuse::FusedLayerNorm": row_norm,
    "atcfuse::FusedRMSNorm": row_norm,
    "atcfuse::FusedAddLayerNorm": add_norm,
    "atcfuse::FusedAddRMSNorm": add_norm,
    "atcfuse::FusedModulatedLayerNorm": add_norm,
    "atcfuse::FusedFFN": ffn,
    "atcfuse::FusedLayerNormFFN": layer_norm_ffn,
    "atcfuse::FusedRotaryEmbedding": rotary_embedding,
    "atcfuse::FusedScaleMaskSoftmax": scale_mask_softmax,
    "atcfuse::FusedLinear": linear,
}

SUFFIXED: dict[str, Callable[[Call], Fact | list[Fact]]] = {"atcfuse::FusedElementwise": elementwise}
"""Operators whose names go on with ten letters a to p."""


def operator_of(op: str) -> Callable[[Call], Fact | list[Fact]] | None:
    """The evaluation function of one of our operators, None for any other."""
    known = OPERATORS.get(op) or SUFFIXED.get(op[:-10])
    return known if op in OPERATORS or is_suffixed(op, op[:-10]) else None
