"""Transposes of leading axes move past a projection where that changes nothing, and back where nothing takes them along."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
import onnx.parser
import plain
import pytest
from infer_oracle import inferred

import atcfuse
from atcfuse import moves
from atcfuse.graph.snapshot import Snapshot
from atcfuse.keep_nodes import NO_NODES, parse_keep_nodes
from atcfuse.options import Options

HEAD = '<ir_version: 8, opset_import: ["" : {opset}]> g '
DOWN = "(float[B,S,8] x, float[8,6] w, float[6] b) => (float[S,B,2,3] y) <int64[4] heads = {0, 0, 2, 3}>"
UP = "(float[S,B,2,4] a, float[8,8] w, float[8] b) => (float[B,S,8] y)"
MOVES = {
    "a projection with bias": DOWN
    + "{ t = Transpose<perm = [1, 0, 2]>(x) m = MatMul(t, w) p = Add(b, m) y = Reshape(p, heads) }",
    "a projection without bias": DOWN + "{ t = Transpose<perm = [1, 0, 2]>(x) m = MatMul(t, w) y = Reshape(m, heads) }",
    "two projections": """(float[B,S,8] x, float[8,6] w, float[6] b) => (float[S,B,2,3] y, float[S,B,2,3] z)
      <int64[4] heads = {0, 0, 2, 3}> {
        t = Transpose<perm = [1, 0, 2]>(x) m = MatMul(t, w) y = Reshape(m, heads)
        n = MatMul(t, w) o = Add(n, b) z = Reshape(o, heads) }""",
    "shapes of the transposed value": """(float[B,S,8] x, float[8,6] w) => (float[S,B,2,3] y, int64[3] s, int64[2] r, int64[1] q)
      <int64[4] heads = {0, 0, 2, 3}> {
        t = Transpose<perm = [1, 0, 2]>(x) s = Shape(t) m = MatMul(t, w) y = Reshape(m, heads)
        r = Shape<start = 1>(t) q = Shape<start = 0, end = -2>(t) }""",
    "four axes": """(float[B,2,S,8] x, float[8,6] w, float[1,1,1,6] b) => (float[S,B,2,6] y) <int64[4] s = {0, 0, 2, 6}> {
        t = Transpose<perm = [2, 0, 1, 3]>(x) m = MatMul(t, w) p = Add(m, b) y = Reshape(p, s) }""",
    "back, over a matrix of rows": UP
    + """ <int64[2] flat = {-1, 8}, int64[1] width = {8}> {
        m = Reshape(a, flat) g = Gemm<transB = 1>(m, w, b) s = Shape<start = 0, end = 2>(a)
        c = Concat<axis = 0>(s, width) u = Reshape(g, c) y = Transpose<perm = [1, 0, 2]>(u) }""",
    "back, a bias added to the matrix": UP
    + """ <int64[2] flat = {-1, 8}, int64[1] width = {8}> {
        m = Reshape(a, flat) h = Gemm(m, w) g = Add(h, b) s = Shape<start = 0, end = 2>(a)
        c = Concat<axis = 0>(s, width) u = Reshape(g, c) y = Transpose<perm = [1, 0, 2]>(u) }""",
    "back, three axes": UP
    + """ <int64[3] merged = {0, 0, 8}> {
        m = Reshape(a, merged) h = MatMul(m, w) g = Add(h, b) y = Transpose<perm = [1, 0, 2]>(g) }""",
}
STAYS = {
    "the last axis moves": DOWN.replace("S,B,2,3", "B,6,S")
    + "{ t = Transpose<perm = [0, 2, 1]>(x) m = MatMul(t, w) y = Identity(m) }",
    "nothing moves": DOWN.replace("S,B,2,3", "B,S,2,3")
    + "{ t = Transpose<perm = [0, 1, 2]>(x) m = MatMul(t, w) y = Reshape(m, heads) }",
    "the transposed value is an output": """(float[B,S,8] x, float[8,6] w) => (float[S,B,2,3] y, float[S,B,8] t)
      <int64[4] heads = {0, 0, 2, 3}> { t = Transpose<perm = [1, 0, 2]>(x) m = MatMul(t, w) y = Reshape(m, heads) }""",
    "the transposed value is read as it is": """(float[B,S,8] x, float[8,6] w) => (float[S,B,2,3] y, float[S,B,8] z)
      <int64[4] heads = {0, 0, 2, 3}> {
        t = Transpose<perm = [1, 0, 2]>(x) m = MatMul(t, w) y = Reshape(m, heads) z = Relu(t) }""",
    "the projection is an output": "(float[B,S,8] x, float[8,6] w) => (float[S,B,6] y)"
    "{ t = Transpose<perm = [1, 0, 2]>(x) y = MatMul(t, w) }",
    "each batch has a weight": """(float[B,S,8] x, float[S,8,6] w) => (float[S,B,2,3] y) <int64[4] heads = {0, 0, 2, 3}> {
        t = Transpose<perm = [1, 0, 2]>(x) m = MatMul(t, w) y = Reshape(m, heads) }""",
    "each row has a bias": """(float[B,S,8] x, float[8,6] w, float[S,1,6] b) => (float[S,B,2,3] y)
      <int64[4] heads = {0, 0, 2, 3}> {
        t = Transpose<perm = [1, 0, 2]>(x) m = MatMul(t, w) p = Add(m, b) y = Reshape(p, heads) }""",
    "back, each row has a bias": UP.replace("float[8] b", "float[S,1,8] b")
    + """ <int64[3] merged = {0, 0, 8}> {
        m = Reshape(a, merged) h = MatMul(m, w) g = Add(h, b) y = Transpose<perm = [1, 0, 2]>(g) }""",
    "back, each row of the matrix has a bias": UP.replace("float[8] b", "float[R,8] b")
    + """ <int64[2] flat = {-1, 8}, int64[1] width = {8}> {
        m = Reshape(a, flat) g = Gemm<transB = 1>(m, w, b) s = Shape<start = 0, end = 2>(a)
        c = Concat<axis = 0>(s, width) u = Reshape(g, c) y = Transpose<perm = [1, 0, 2]>(u) }""",
    "back, columns become rows": UP.replace("B,S,8] y", "B,S,4] y")
    + """ <int64[2] flat = {-1, 8}, int64[1] width = {4}, int64[1] rest = {-1}> {
        m = Reshape(a, flat) g = Gemm<transB = 1>(m, w, b) s = Shape<start = 0, end = 1>(a)
        c = Concat<axis = 0>(s, rest, width) u = Reshape(g, c) y = Transpose<perm = [1, 0, 2]>(u) }""",
    "back, other readers of the projection": """(float[S,B,2,4] a, float[8,8] w) => (float[B,S,8] y, float[S,B,8] z)
      <int64[3] merged = {0, 0, 8}> {
        m = Reshape(a, merged) h = MatMul(m, w) y = Transpose<perm = [1, 0, 2]>(h) z = Relu(h) }""",
    "back, the projection is of no view": """(float[S,B,8] a, float[8,8] w) => (float[B,S,8] y) {
        m = Relu(a) h = MatMul(m, w) y = Transpose<perm = [1, 0, 2]>(h) }""",
}


def parsed(text: str, opset: int = 17) -> onnx.ModelProto:
    return plain.parsed(HEAD.replace("{opset}", str(opset)) + text)


def run(model: onnx.ModelProto, batch: int, length: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    sizes = {"B": batch, "S": length, "R": batch * length}
    session = plain.plain_session(model)
    shapes = {i.name: [sizes.get(d, d) for d in i.shape] for i in session.get_inputs()}
    return list(session.run(None, {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}))


@pytest.mark.parametrize("text", MOVES.values(), ids=MOVES)
def test_a_moved_transpose_changes_no_number(text: str) -> None:
    proto = parsed(text)
    original, model = deepcopy(proto), inferred(proto)
    begun = moves.find(model, NO_NODES)
    assert len(begun) == 1
    moved = moves.carry_out(model, begun)
    onnx.checker.check_model(proto, full_check=True)
    for batch, length in ((2, 5), (1, 1), (3, 0)):
        for want, have in zip(run(original, batch, length), run(proto, batch, length), strict=True):
            assert want.shape == have.shape
            np.testing.assert_allclose(have, want, rtol=1e-6, atol=1e-6)
    assert moves.stuck(inferred(proto), moved) == {moved[0].name}, "no fusion took it"


@pytest.mark.parametrize("text", STAYS.values(), ids=STAYS)
def test_what_is_not_proved_to_commute_stays(text: str) -> None:
    assert moves.find(inferred(parsed(text)), NO_NODES) == []


def test_before_opset_14_rows_are_dealt_out_only_where_no_extent_can_be_zero() -> None:
    text = MOVES["back, over a matrix of rows"].replace(
        "s = Shape<start = 0, end = 2>(a)", "l = Shape(a) s = Slice(l, i, k)"
    )
    text = text.replace("<int64[2] flat", "<int64[1] i = {0}, int64[1] k = {2}, int64[2] flat")
    assert len(moves.find(inferred(parsed(text, 14)), NO_NODES)) == 1
    assert moves.find(inferred(parsed(text, 13)), NO_NODES) == []
    static = text.replace("float[S,B,2,4]", "float[3,2,2,4]").replace("float[B,S,8]", "float[2,3,8]")
    assert len(moves.find(inferred(parsed(static, 13)), NO_NODES)) == 1


def test_nodes_that_the_user_keeps_do_not_move() -> None:
    model = inferred(parsed(MOVES["a projection with bias"]))
    assert moves.find(model, parse_keep_nodes(["n1"])) == []


def test_a_snapshot_brings_every_byte_back() -> None:
    proto = parsed(MOVES["back, over a matrix of rows"])
    before = proto.SerializeToString(deterministic=True)
    model = inferred(proto)
    snapshot = Snapshot.of(model)
    moves.carry_out(model, moves.find(model, NO_NODES))
    assert proto.SerializeToString(deterministic=True) != before
    snapshot.restore(proto)
    assert proto.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("text", MOVES.values(), ids=MOVES)
def test_where_no_attention_takes_it_along_the_model_stays_as_it_was(text: str) -> None:
    proto = parsed(text)
    result = atcfuse.optimize(deepcopy(proto), Options(dialect="portable"))
    assert result.model.graph.SerializeToString(deterministic=True) == proto.graph.SerializeToString(deterministic=True)


SELF_ATTENTION = """(float[B,S,8] x, float[8] g, float[8] c, float[8,24] w, float[24] b, float[8,8] o, float[8] d)
  => (float[B,S,8] y) <int64[5] split = {0, 0, 3, 2, 4}, int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}, float s = {0.5},
  int64[2] flat = {-1, 8}, int64[1] width = {8}> {
    n = LayerNormalization(x, g, c)
    t = Transpose<perm = [1, 0, 2]>(n)
    m = MatMul(t, w)
    p = Add(m, b)
    h = Reshape(p, split)
    q0 = Gather<axis = 2>(h, i0) k0 = Gather<axis = 2>(h, i1) v0 = Gather<axis = 2>(h, i2)
    q = Transpose<perm = [1, 2, 0, 3]>(q0) k = Transpose<perm = [1, 2, 3, 0]>(k0) v = Transpose<perm = [1, 2, 0, 3]>(v0)
    a = MatMul(q, k) e = Mul(a, s) r = Softmax<axis = -1>(e) z = MatMul(r, v)
    back = Transpose<perm = [2, 0, 1, 3]>(z)
    rows = Reshape(back, flat)
    u = Gemm<transB = 1>(rows, o, d)
    lead = Shape<start = 0, end = 2>(t)
    full = Concat<axis = 0>(lead, width)
    l = Reshape(u, full)
    f = Transpose<perm = [1, 0, 2]>(l)
    y = Add(x, f)
  }"""


@pytest.mark.parametrize("attention", [True, False])
def test_a_block_of_multihead_attention_is_three_kernels_or_as_it_was(attention: bool) -> None:
    original = parsed(SELF_ATTENTION)
    rules = frozenset({"layer_norm_packed_qkv", "attention", "linear_epilogue"})
    disabled = frozenset() if attention else frozenset({"attention"})
    options = Options(dialect="portable", forced=rules, min_saving_us=0.0, disabled=disabled)
    result = atcfuse.optimize(deepcopy(original), options)
    launches = [
        n.op_type for n in result.model.graph.node if n.op_type not in ("Constant", "Shape", "Gather", "Concat")
    ]
    if attention:
        assert launches == ["FusedLayerNormQKV", "FusedAttention", "FusedLinear"]
        taken = {name for fusion in result.report["fusions"] for name in fusion["nodes"]}
        assert {n.name for n in original.graph.node if n.op_type == "Transpose"} <= taken
    else:
        transposes = [n for n in result.model.graph.node if n.op_type == "Transpose"]
        assert transposes == [n for n in original.graph.node if n.op_type == "Transpose"]
    for batch, length in ((2, 5), (1, 1)):
        want, have = run(original, batch, length)[0], run(result.model, batch, length)[0]
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)
