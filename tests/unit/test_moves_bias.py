"""A bias behind views of a projection's rows is added to the rows, which changes no number, and projections fuse."""

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

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g'
HEADS = "int64[4] heads = {0, 0, 2, 3}, int64[2] flat = {-1, 8}, int64[1] two = {2}"
NORMED = f"""(float[B,S,8] x, float[8] g, float[8] b, float[8,6] wq, float[8,6] wk, float[8,6] wv)
    => (float[B,S,2,3] q, float[B,S,2,3] k, float[B,S,2,3] v) <{HEADS}, float[2,3] bq = {{1, 2, 3, 4, 5, 6}},
    float[1,2,3] bk = {{-1, 0.5, 3, 2, 7, 6}}, float[1,1,2,3] bv = {{9, 2, -3, 4, 5, 6}}> {{
    n = LayerNormalization(x, g, b)"""
FUSES = {
    "MatMul": NORMED
    + """ pq = MatMul(n, wq) hq = Reshape(pq, heads) q = Add(hq, bq) pk = MatMul(n, wk) hk = Reshape(pk, heads)
      k = Add(bk, hk) pv = MatMul(n, wv) hv = Reshape(pv, heads) v = Add(hv, bv) }""",
    "Gemm of flattened rows without bias, whose factor is 0": NORMED
    + """ fq = Reshape(n, flat) pq = Gemm<beta = 0.0>(fq, wq) s = Shape<start = 0, end = 2>(n) t = Constant<value = int64[2] {2, 3}>()
      back = Concat<axis = 0>(s, t) hq = Reshape(pq, back) q = Add(hq, bq) fk = Reshape(n, flat) pk = Gemm<beta = 0.0>(fk, wk)
      hk = Reshape(pk, back) uk = Unsqueeze(hk, two) sk = Squeeze(uk, two) k = Add(sk, bk) fv = Reshape(n, flat)
      pv = Gemm<beta = 0.5>(fv, wv) hv = Reshape(pv, back) v = Add(hv, bv) }""",
}
ONE = f"(float[B,S,8] x, float[8,6] w) => (float[B,S,2,3] y) <{HEADS}, float[2,3] b = {{1, 2, 3, 4, 5, 6}}, float[3] c = {{1, 2, 3}}, float[2,1] d = {{1, 2}}, float[2,3,2,3] e> {{"
STAYS = {
    "a number for each element of a head": f"{ONE} p = MatMul(x, w) h = Reshape(p, heads) y = Add(h, c) }}",
    "a number for each head": f"{ONE} p = MatMul(x, w) h = Reshape(p, heads) y = Add(h, d) }}",
    "no constant": f"{ONE.replace('w)', 'w, float[2,3] a)')} p = MatMul(x, w) h = Reshape(p, heads) y = Add(h, a) }}",
    "heads are transposed": f"{ONE} p = MatMul(x, w) h = Reshape(p, heads) t = Transpose<perm = [1, 0, 2, 3]>(h) y = Add(t, b) }}",
    "no product": f"{ONE} p = Softmax(x) m = MatMul(p, w) n = Relu(m) h = Reshape(n, heads) y = Add(h, b) }}",
    "a bias already": f"{ONE.replace('w)', 'w, float[6] a)')} f = Reshape(x, flat) p = Gemm(f, w, a) h = Reshape(p, heads) y = Add(h, b) }}",
    "the view is read elsewhere": f"{ONE.replace('y)', 'y, float[B,S,2,3] h)')} p = MatMul(x, w) h = Reshape(p, heads) y = Add(h, b) }}",
}


def parsed(body: str) -> onnx.ModelProto:
    return plain.parsed(HEAD + body)


@pytest.mark.parametrize("body", FUSES.values(), ids=FUSES)
def test_a_bias_of_heads_changes_no_number_and_projections_fuse_with_their_norm(body: str) -> None:
    assert_moved_and_fused(parsed(body))


@pytest.mark.parametrize("body", STAYS.values(), ids=STAYS)
def test_what_is_no_bias_of_whole_rows_stays(body: str) -> None:
    assert not moves.find(inferred(parsed(body)), NO_NODES)


def test_a_bias_that_nothing_takes_along_stays_where_it_was() -> None:
    proto = parsed(f"{ONE} p = MatMul(x, w) h = Reshape(p, heads) y = Add(h, b) }}")
    assert len(moves.find(inferred(deepcopy(proto)), NO_NODES)) == 1
    result = atcfuse.optimize(proto, dialect="portable")
    assert [node.op_type for node in result.model.graph.node] == ["MatMul", "Reshape", "Add"]
