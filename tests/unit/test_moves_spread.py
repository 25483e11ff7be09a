"""Moves that take away what spreads or gathers a mask as it is: no number changes, and what is not proved stays."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

import numpy as np
import onnx
import onnx.parser
import plain
import pytest

import atcfuse
from atcfuse import moves
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.keep_nodes import NO_NODES

SIZES = {"B": (2, 1, 3, 0), "S": (5, 1, 2, 4), "L": (6, 7, 1, 3)}
DTYPES = {1: np.float32, 7: np.int64, 9: np.bool_}
HIDDEN = """ones = Sub(one, f) hidden = Cast<to = 9>(ones) bias = Where(hidden, low, ones)"""
NUMBERS = "float one = {1}, float low = {-3e38}, int64[1] i1 = {1}, int64[2] i12 = {1, 2}"
TARGET = "d = Shape(q) b = Slice(d, n0, n1) s = Slice(d, n2, n3) t = Concat<axis = 0>(b, n1, s, s)"
CUTS = "int64[1] n0 = {0}, int64[1] n1 = {1}, int64[1] n2 = {2}, int64[1] n3 = {3}, int64[1] n4 = {4}"
MASK = f"""(float[B,3,S,8] q, int64[B,1,1,S] m) => (float[B,3,S,S] y) <{NUMBERS}, {CUTS}> {{
    {TARGET} e = Expand(m, t) f = Cast<to = 1>(e) {HIDDEN}
    k = Transpose<perm = [0, 1, 3, 2]>(q) a = MatMul(q, k) c = Add(a, bias) y = Softmax<axis = -1>(c) }}"""
COUNTS = """z = Shape(m) rows = Gather(z, zero) all = Gather(z, unit)
    r = Range(zero, rows, unit) c = Range(zero, all, unit) r1 = Unsqueeze(r, i12) g1 = Unsqueeze(r1, i3)"""
GRID = f"""(bool[B,S] m, float[B,1,4,S] x) => (float[B,1,4,S] y)
    <int64 zero = {{0}}, int64 unit = {{1}}, int64[2] i12 = {{1, 2}}, int64[1] i3 = {{3}}, int64[2] i01 = {{0, 1}},
     int64[1] last = {{-1}}, float low = {{-5}}> {{
    {COUNTS} c1 = Unsqueeze(c, i01) g2 = Unsqueeze(c1, i0) most = Max(g1, g2) all4 = Shape(most)
    e1 = Expand(g1, all4) e2 = Expand(g2, all4) u1 = Unsqueeze(e1, last) u2 = Unsqueeze(e2, last)
    at = Concat<axis = -1>(u1, u2) picked = GatherND(m, at) no = Not(picked) y = Where(no, low, x) }}""".replace(
    "int64[2] i12", "int64[1] i0 = {0}, int64[2] i12"
)
TABLE = """(float[2,3] m, float[2,1,3] x) => (float[2,1,3] y)
    <int64[2,1,3,2] at = {0,0, 0,1, 0,2, 1,0, 1,1, 1,2}> { picked = GatherND(m, at) n = Neg(picked) y = Add(n, x) }"""

GOES = {
    "a mask spread over queries": (MASK, "Expand"),
    "a mask that two sums read": (
        MASK.replace("=> (float[B,3,S,S] y)", "=> (float[B,3,S,S] y, float[B,3,S,S] w)").replace(
            "c = Add(a, bias)", "c = Add(a, bias) h = Tanh(a) w = Add(bias, h)"
        ),
        "Expand",
    ),
    "a norm spread over the row that it divides": (
        """(float[B,S,8] x) => (float[B,S,8] y) <float low = {1e-12}> {
        n = ReduceL2<axes = [2]>(x) c = Clip(n, low) s = Shape(x) e = Expand(c, s) y = Div(x, e) }""",
        "Expand",
    ),
    "a number spread over a matrix that is added to one": (
        """(float[S,L] x, float[L] r, float[1] v) => (float[S,L] y) {
        s = Shape(x) e = Expand(v, s) h = Sqrt(e) w = Add(h, r) y = Mul(w, x) }""",
        "Expand",
    ),
    "a mask gathered at every place": (GRID, "GatherND"),
    "a mask gathered at constants": (TABLE, "GatherND"),
    "rows gathered one by one": (
        """(float[2,1,3] m) => (float[2,1,1,3] y) <int64[2,1,1,2] at = {0,0, 1,0}> {
        picked = GatherND(m, at) y = Relu(picked) }""",
        "GatherND",
    ),
}
STAYS = {
    "what is spread is an output": (
        MASK.replace("=> (float[B,3,S,S] y)", "=> (float[B,3,S,S] y, float[B,1,S,S] bias)"),
        "Expand",
    ),
    "what is spread is multiplied": (
        """(float[S,1] x, float[L,4] z, float[S,L] o) => (float[S,4] y) {
        s = Shape(o) e = Expand(x, s) r = Relu(e) y = MatMul(r, z) }""",
        "Expand",
    ),
    "the sum is as large because of it": (
        """(float[1,L] x, float[1,L] z, float[S,1] o) => (float[S,L] y) {
        s = Shape(o) e = Expand(x, s) y = Add(e, z) }""",
        "Expand",
    ),
    "the shape of what is spread is read": (
        MASK.replace("=> (float[B,3,S,S] y)", "=> (float[B,3,S,S] y, int64[4] w)").replace(
            "k = Trans", "w = Shape(bias) k = Trans"
        ),
        "Expand",
    ),
    "slopes are broadcast one way": (
        """(float[1,L] x, float[S,L] z) => (float[S,L] y) { s = Shape(z) e = Expand(x, s) y = PRelu(e, z) }""",
        "Expand",
    ),
    "places that count from one": (
        TABLE.replace("0,0, 0,1, 0,2, 1,0, 1,1, 1,2", "0,1, 0,2, 0,0, 1,1, 1,2, 1,0"),
        "GatherND",
    ),
    "two places the other way around": (
        TABLE.replace("float[2,3] m", "float[3,3] m").replace(
            "0,0, 0,1, 0,2, 1,0, 1,1, 1,2", "0,0, 1,0, 2,0, 0,1, 1,1, 2,1"
        ),
        "GatherND",
    ),
    "not all rows": (TABLE.replace("float[2,3] m", "float[3,3] m"), "GatherND"),
    "a mask of more rows than are counted": (
        GRID.replace("bool[B,S] m", "bool[B,S] m, bool[L,S] m2").replace("GatherND(m, at)", "GatherND(m2, at)"),
        "GatherND",
    ),
    "batches that go along": (
        """(float[2,3] m) => (float[2,3] y) <int64[2,3,1] at = {0,1,2,0,1,2}> { p = GatherND<batch_dims = 1>(m, at) y = Relu(p) }""",
        "GatherND",
    ),
}


def parsed(text: str) -> onnx.ModelProto:
    return plain.parsed(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')


def run(model: onnx.ModelProto, size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(size)
    fed = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        dims = [SIZES[d.dim_param][size] if d.dim_param else d.dim_value for d in kind.shape.dim]
        numbers = rng.normal(size=dims)
        fed[value.name] = np.asarray(
            numbers > 0 if value.name == "m" and kind.elem_type != 1 else numbers, DTYPES[kind.elem_type]
        )
    return plain.run_plain(model, fed)


def count(model: onnx.ModelProto, op: str) -> int:
    return Counter(n.op_type for n in model.graph.node)[op]


@pytest.mark.parametrize(("text", "op"), GOES.values(), ids=GOES)
def test_what_is_spread_or_gathered_in_vain_goes(text: str, op: str) -> None:
    proto = parsed(text)
    original, model = deepcopy(proto), Model(proto)
    infer(model)
    before = count(proto, op)
    begun = moves.find(model, NO_NODES)
    assert begun
    assert moves.stuck(model, moves.carry_out(model, begun)) == frozenset()
    onnx.checker.check_model(proto, full_check=True)
    assert count(proto, op) < before
    result = atcfuse.optimize(original, dialect="portable", min_saving_us=0.0)
    assert count(result.model, op) == count(proto, op)
    for size in range(4):
        for expected, moved, fused in zip(run(original, size), run(proto, size), run(result.model, size), strict=True):
            np.testing.assert_array_equal(moved, expected)
            np.testing.assert_allclose(fused, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("text", "op"), STAYS.values(), ids=STAYS)
def test_what_spreads_or_gathers_something_stays(text: str, op: str) -> None:
    proto = parsed(text)
    onnx.checker.check_model(proto, full_check=True)
    model = Model(deepcopy(proto))
    infer(model)
    assert not [b for b in moves.find(model, NO_NODES) if op in {b.move.scope.nodes[i].op for i in b.move.members}]
    assert count(atcfuse.optimize(proto, dialect="portable", min_saving_us=0.0).model, op) == count(proto, op)


CAST = (
    GRID.replace("bool[B,S] m", "int64[B,S] m")
    .replace("GatherND(m, at)", "GatherND(mask, at)")
    .replace("picked =", "mask = Cast<to = 9>(m) picked =")
)
LIFTS = {
    "gathered": CAST,
    "given more axes": """(int64[B,S] m, float[B,1,4,S] x, bool[4,S] c) => (float[B,1,4,S] y)
    <int64[1] one = {1}, float low = {-5}> {
        b = Cast<to = 9>(m) u = Unsqueeze(b, one) w = Unsqueeze(u, one) a = And(w, c) y = Where(a, low, x) }""",
    "of few elements": """(int64[2,3] m, float[2,4,3] x, bool[4,3] c) => (float[2,4,3] y)
    <int64[3] to = {2,1,3}, float low = {-5}> {
        b = Cast<to = 9>(m) w = Reshape(b, to) a = And(w, c) y = Where(a, low, x) }""",
}


@pytest.mark.parametrize("text", LIFTS.values(), ids=LIFTS)
def test_a_mask_is_cast_where_it_is_combined(text: str) -> None:
    proto = parsed(text)
    original, model = deepcopy(proto), Model(proto)
    infer(model)
    begun = moves.find(model, NO_NODES)
    assert "Lifted" in [type(b.move).__name__ for b in begun]
    moves.carry_out(model, begun)
    onnx.checker.check_model(proto, full_check=True)
    result = atcfuse.optimize(original, dialect="portable", min_saving_us=0.0, forced=frozenset({"elementwise"}))
    assert count(result.model, "Cast") == 0
    for size in range(4):
        for expected, moved, fused in zip(run(original, size), run(proto, size), run(result.model, size), strict=True):
            np.testing.assert_array_equal(moved, expected)
            np.testing.assert_array_equal(fused, expected)


@pytest.mark.parametrize(
    "change",
    [
        ("=> (float[B,1,4,S] y)", "=> (float[B,1,4,S] y, bool[B,S] b)"),
        ("a = And", "z = Shape(w) v = Cast<to = 1>(z) a = And"),
        ("int64[B,S] m", "float[B,S] m"),
    ],
    ids=["an output", "its shape is read", "made of numbers"],
)
def test_a_mask_that_others_read_stays(change: tuple[str, str]) -> None:
    model = Model(parsed(LIFTS["given more axes"].replace(*change)))
    infer(model)
    lifted = [b.move for b in moves.find(model, NO_NODES) if type(b.move).__name__ == "Lifted"]
    assert all("m" not in n.inputs for move in lifted for n in move.scope.nodes if n.index in move.members)


def test_a_cast_that_no_group_takes_in_stays_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GF_AUTOFUSION_DISABLE", "elementwise")
    for name in ("given more axes", "of few elements"):
        proto = parsed(LIFTS[name])
        result = atcfuse.optimize(proto, dialect="portable")
        assert [(n.op_type, list(n.input)) for n in result.model.graph.node] == [
            (n.op_type, list(n.input)) for n in proto.graph.node
        ]
