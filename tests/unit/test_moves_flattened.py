"""Rows that are flattened for projections and split into heads at once have their own shape between: norms fuse."""

from __future__ import annotations

from copy import deepcopy

import onnx
import plain
import pytest
from infer_oracle import inferred
from projected_rows import assert_moved_and_fused

import atcfuse
from atcfuse import moves
from atcfuse.keep_nodes import NO_NODES
from atcfuse.moves import flattened

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g'
VALUES = "int64[4] heads = {2, 5, 2, 3}, int64[2] flat = {-1, 8}, int64[3] own = {2, 5, 6}, int64[3] zeros = {0, 2, 3}"
BIASES = "float[6] bq = {1, 2, 3, 4, 5, 6}, float[6] bk = {-1, 0.5, 3, 2, 7, 6}, float[6] bv = {9, 2, -3, 4, 5, 6}"
WEIGHTS = "float[8,6] wq, float[8,6] wk, float[8,6] wv"
NORM = f"(float[2,5,8] x, float[8] g, float[8] b, {WEIGHTS}) => (float[2,5,2,3] q, float[2,5,2,3] k, float[2,5,2,3] v, float[2,5,8] r)"
NORMED = f"""{NORM} <{VALUES}, {BIASES}> {{ n = LayerNormalization(x, g, b) r = Relu(n) f = Reshape(n, flat)"""
FUSES = {
    "Gemm, as a simplifier writes it": NORMED
    + """ pq = Gemm(f, wq, bq) q = Reshape(pq, heads) pk = Gemm(f, wk, bk) k = Reshape(pk, heads)
      pv = Gemm(f, wv, bv) v = Reshape(pv, heads) }""",
    "a sum with the bias": NORMED
    + """ mq = MatMul(f, wq) pq = Add(mq, bq) q = Reshape(pq, heads) mk = MatMul(f, wk) pk = Add(bk, mk)
      k = Reshape(pk, heads) mv = MatMul(f, wv) pv = Add(mv, bv) v = Reshape(pv, heads) }""",
    "no bias": NORMED
    + """ pq = MatMul(f, wq) q = Reshape(pq, heads) pk = MatMul(f, wk) k = Reshape(pk, heads)
      pv = MatMul(f, wv) v = Reshape(pv, heads) }""",
    "a batch of any size": NORMED.replace("[2,5,", "[B,5,").replace("heads = {2", "heads = {-1")
    + """ pq = Gemm(f, wq, bq) q = Reshape(pq, heads) pk = Gemm(f, wk, bk) k = Reshape(pk, heads)
      pv = Gemm(f, wv, bv) v = Reshape(pv, heads) }""",
    "nothing else reads the norm": NORMED.replace("r = Relu(n)", "r = Relu(x)")
    + """ pq = Gemm(f, wq, bq) q = Reshape(pq, heads) pk = Gemm(f, wk, bk) k = Reshape(pk, heads)
      pv = Gemm(f, wv, bv) v = Reshape(pv, heads) }""",
}
ONE = f"(float[2,5,8] x, float[8,6] w) => (float[2,5,2,3] y) <{VALUES}, {BIASES}, float[6,6] e> {{ n = Relu(x) f = Reshape(n, flat)"
STAYS = {
    "the rows have their shape again": f"{ONE} p = Gemm(f, w, bq) u = Reshape(p, own) y = Reshape(u, heads) }}",
    "what is projected is no row of three axes": f"{ONE.replace('[2,5,8] x', '[10,8] x')} p = Gemm(f, w, bq) y = Reshape(p, heads) }}",
    "more than views read it": f"{ONE.replace('y)', 'y, float[10,6] z)')} p = Gemm(f, w, bq) z = Relu(p) y = Reshape(p, heads) }}",
    "it is an output": f"{ONE.replace('y)', 'y, float[10,6] p)')} p = Gemm(f, w, bq) y = Reshape(p, heads) }}",
    "rows are columns": f"{ONE.replace('[8,6] w', '[10,6] w')} p = Gemm<transA = 1>(f, w, bq) y = Reshape(p, heads) }}".replace(
        "float[2,5,2,3] y", "float[8,2,3] y"
    ).replace("Reshape(p, heads)", "Reshape(p, zeros)"),
    "two unknown axes": f"{ONE.replace('[2,5,8] x', '[B,S,8] x').replace('[2,5,2,3] y', '[B,2,3] y')} p = Gemm(f, w, bq) y = Reshape(p, zeros) }}",
}


def parsed(body: str) -> onnx.ModelProto:
    return plain.parsed(HEAD + body)


@pytest.mark.parametrize("body", FUSES.values(), ids=FUSES)
def test_rows_with_their_own_shape_are_the_same_numbers_and_fuse_with_the_norm(body: str) -> None:
    assert_moved_and_fused(parsed(body))


@pytest.mark.parametrize("body", STAYS.values(), ids=STAYS)
def test_other_products_stay(body: str) -> None:
    scope = inferred(parsed(body)).main
    assert not any(flattened.find(scope, node) for node in scope.nodes)


def test_rows_that_nothing_takes_up_stay_flattened() -> None:
    proto = parsed(f"{ONE} p = Gemm(f, w, bq) y = Reshape(p, heads) }}".replace("Relu", "Softmax"))
    assert len(moves.find(inferred(deepcopy(proto)), NO_NODES)) == 1
    result = atcfuse.optimize(proto, dialect="portable")
    assert [node.op_type for node in result.model.graph.node] == ["Softmax", "Reshape", "Gemm", "Reshape"]
