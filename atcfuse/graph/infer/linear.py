"""Products of matrices: MatMul, Gemm, Einsum, their quantized forms, and the attention operators."""

from __future__ import annotations

import re
from collections.abc import Callable

from onnx import TensorProto

from atcfuse.dims import Dim, broadcast, divide, floor_divide
from atcfuse.graph.facts import Fact
from atcfuse.graph.infer.call import Call, Shape, broadcast_shapes, replaced


def _matmul(call: Call) -> Fact:
    return Fact(call.input(0).dtype or call.input(1).dtype, matmul_shape(call.input(0).shape, call.input(1).shape))


def matmul_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of a matrix product with numpy's rules for vectors and batches, or None."""
    if not a or not b:
        return None
    left: Shape = a if len(a) > 1 else (1, *a)
    right: Shape = b if len(b) > 1 else (*b, 1)
    batch = broadcast_shapes([left[:-2], right[:-2]])
    if batch is None:
        return None
    return batch + (left[-2:-1] if len(a) > 1 else ()) + (right[-1:] if len(b) > 1 else ())


def _matmul_integer(call: Call) -> Fact:
    return Fact(TensorProto.INT32, matmul_shape(call.input(0).shape, call.input(1).shape))


def _qlinear_matmul(call: Call) -> Fact:
    return Fact(call.input(7).dtype, matmul_shape(call.input(0).shape, call.input(3).shape))


def _fused_matmul(call: Call) -> Fact:
    a, b = call.input(0).shape, call.input(1).shape
    if call.attribute("transBatchA", 0) or call.attribute("transBatchB", 0):
        return Fact(call.input(0).dtype, None if a is None else call.fresh_shape(len(a)))
    if call.attribute("transA", 0) and a is not None:
        a = _swapped(a)
    if call.attribute("transB", 0) and b is not None:
        b = _swapped(b)
    return Fact(call.input(0).dtype, matmul_shape(a, b))


def _swapped(shape: Shape) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if len(shape) > 1 else shape


def _matmul_nbits(call: Call) -> Fact:
    shape, columns = call.input(0).shape, call.attribute("N")
    if not shape or columns is None:
        return Fact(call.input(0).dtype)
    return Fact(call.input(0).dtype, (*shape[:-1], columns))


def _gemm(call: Call) -> Fact:
    a, b = call.input(0).shape, call.input(1).shape
    rows = call.fresh(0) if a is None or len(a) != 2 else a[1 if call.attribute("transA", 0) else 0]
    columns = call.fresh(1) if b is None or len(b) != 2 else b[0 if call.attribute("transB", 0) else 1]
    return Fact(call.input(0).dtype or call.input(1).dtype, (rows, columns))


def _einsum(call: Call) -> Fact:
    dtype = next((f.dtype for f in call.inputs if f.dtype), 0)
    left, arrow, right = call.attribute("equation", "").replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(call.inputs) or any(f.shape is None for f in call.inputs):
        return Fact(dtype)
    extents: dict[str, Dim] = {}
    ellipses: list[Shape] = []
    for term, fact in zip(terms, call.inputs, strict=True):
        if not _bind(term, fact.shape or (), extents, ellipses):
            return Fact(dtype)
    if not arrow:
        letters = re.sub(r"[^A-Za-z]", "", left)
        right = ("..." if "..." in left else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    before, dots, after = right.partition("...")
    if any(c not in extents for c in before + after):
        return Fact(dtype)
    middle = broadcast_shapes(ellipses) if dots and ellipses else ()
    return Fact(dtype, (*(extents[c] for c in before), *(middle or ()), *(extents[c] for c in after)))


def _bind(term: str, shape: Shape, extents: dict[str, Dim], ellipses: list[Shape]) -> bool:
    before, dots, after = term.partition("...")
    if len(before) + len(after) > len(shape) or (not dots and len(before) != len(shape)):
        return False
    if dots:
        ellipses.append(shape[len(before) : len(shape) - len(after)])
    tail = shape[len(shape) - len(after) :] if after else ()
    for letter, dim in (*zip(before, shape, strict=False), *zip(after, tail, strict=True)):
        extents[letter] = broadcast(extents[letter], dim) if letter in extents else dim
    return True


def _attention(call: Call) -> list[Fact]:
    """ONNX Attention: Y, present key, present value, scores; 3-D operands pack the heads in the last dim."""
    query, key, value = (_heads(call, i) for i in range(3))
    dtype = call.input(0).dtype
    if query is None or key is None or value is None:
        rank = call.input(0).rank
        return [Fact(dtype, None if rank is None else call.fresh_shape(rank))]
    batch, heads, length, _ = query
    if call.input(0).rank == 3:
        out: Shape = (batch, length, heads * value[3])
    else:
        out = (batch, heads, length, value[3])
    total: Dim | None = key[2]
    if call.has_input(4):
        past = call.input(4).shape
        total = key[2] + past[2] if past is not None and len(past) == 4 else None
    if total is None:
        return [Fact(dtype, out)]
    present = [Fact(f.dtype, replaced(s, 2, total)) for f, s in ((call.input(1), key), (call.input(2), value))]
    return [Fact(dtype, out), *present, Fact(dtype, (batch, heads, length, total))]


def _heads(call: Call, position: int) -> Shape | None:
    shape = call.input(position).shape
    if shape is None or len(shape) == 4:
        return shape
    heads = call.attribute("q_num_heads" if position == 0 else "kv_num_heads")
    if len(shape) != 3 or not heads:
        return None
    return (shape[0], heads, shape[1], floor_divide(shape[2], heads))  # exact in a valid model


def _contrib_attention(call: Call) -> Fact:
    """com.microsoft Attention: input [B,S,I], weights [I,3H] unless the hidden sizes are given."""
    shape, weights = call.input(0).shape, call.input(1).shape
    if shape is None or len(shape) != 3 or call.attribute("qkv_hidden_sizes") or not weights:
        return Fact(call.input(0).dtype)
    hidden = divide(weights[-1], 3)
    return Fact(call.input(0).dtype, (*shape[:2], call.fresh(2) if hidden is None else hidden))


OPERATORS: dict[str, Callable[[Call], Fact | list[Fact]]] = {
    "MatMul": _matmul,
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Attention": _attention,
    "com.microsoft::FusedMatMul": _fused_matmul,
    "com.microsoft::MatMulNBits": _matmul_nbits,
    "com.microsoft::Attention": _contrib_attention,
}
