"""Moves that put norms, rotations and masks where fused operators take them: no number changes, and what fails stays."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

import numpy as np
import onnx
import onnx.parser
import plain
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

import atcfuse
from atcfuse import moves
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.keep_nodes import NO_NODES

SIZES = {"B": (2, 1, 3), "S": (5, 7, 2), "R": (32, 16, 48)}
TABLES = "float[4,8] c, float[4,8] s"
CUT = """first = Slice(q, i0, i1, i2) rest = Slice(q, i1, far, i2)"""
NUMBERS = "int64[1] i0 = {0}, int64[1] i1 = {1}, int64[1] i2 = {2}, int64[1] i3 = {3}, int64[1] i4 = {4}, int64[1] far = {999}"
TURN = """straight = Mul(rest, c) low = Slice(rest, i0, i4, i3) high = Slice(rest, i4, far, i3) minus = Neg(high)
    turned = Concat<axis = -1>(minus, low) across = Mul(turned, s) sum = Add(straight, across)"""
ATTEND = "t = Transpose<perm = [0, 1, 3, 2]>(k) a = MatMul(whole, t) p = Softmax<axis = -1>(a) y = MatMul(p, k)"
RMS = """squares{n} = Mul(x{n}, x{n}) mean{n} = ReduceMean<axes = [-1]>(squares{n}) more{n} = Add(mean{n}, e)
    root{n} = Sqrt(more{n}) unit{n} = Div(x{n}, root{n}) norm{n} = Mul(unit{n}, g)"""

WINDOWS = f"""(float[B,16,8] x, float[8] g, float[8] b, float[8,8] wq, float[8,8] wk, float[8,8] wv) => (float[W,4,8] y)
    <int64[4] grid = {{0, 4, 4, 8}}, int64[6] six = {{-1, 2, 2, 2, 2, 8}}, int64[3] rows = {{-1, 4, 8}}, {NUMBERS}> {{
    n = LayerNormalization<axis = 2>(x, g, b) map = Reshape(n, grid)
    up = Slice(map, i2, far, i1) down = Slice(map, i0, i2, i1) rolled = Concat<axis = 1>(up, down)
    cut = Reshape(rolled, six) turned = Transpose<perm = [0, 1, 3, 2, 4, 5]>(cut) w = Reshape(turned, rows)
    q = MatMul(w, wq) k = MatMul(w, wk) v = MatMul(w, wv)
    t = Transpose<perm = [0, 2, 1]>(k) a = MatMul(q, t) p = Softmax<axis = -1>(a) y = MatMul(p, v) }}"""

PICKED = """(float[B,16,8] x, float[8] g, float[8] b, float[6,8] w, float[6] c) => (float[B,6] y) <int64 first = {0}> {
    n = LayerNormalization<axis = 2>(x, g, b) t = Gather<axis = 1>(n, first) y = Gemm<transB = 1>(t, w, c) }"""

FUSES = {
    "a norm of which one token is projected": (
        PICKED,
        {"FusedLayerNormLinear": 1, "LayerNormalization": 0, "Gather": 1},
    ),
    "a norm of which some rows are projected": (
        (
            "(float[B,16,8] x, float[8] g, float[8] b, float[8,6] w) => (float[3,6] y) <int64[3] some = {9, 2, -1}> {"
            " n = LayerNormalization(x, g, b) f = Flatten<axis = 2>(n) t = Gather(f, some) y = MatMul(t, w) }"
        ),
        {"FusedLayerNormLinear": 1, "LayerNormalization": 0, "Gather": 1},
    ),
    "norm before windows": (WINDOWS, {"FusedLayerNormQKV": 1, "FusedAttention": 1, "LayerNormalization": 0}),
    "tokens behind one that is not rotated": (
        (
            f"(float[B,3,5,8] q, float[B,3,5,8] k, {TABLES}) => (float[B,3,5,8] y) <{NUMBERS}> {{ {CUT} {TURN}"
            f" whole = Concat<axis = 2>(first, sum) {ATTEND} }}"
        ),
        {"FusedRotaryEmbedding": 1, "FusedAttention": 1, "Neg": 0, "Slice": 0},
    ),
    "tokens of which the shape is read": (
        (
            f"(float[B,3,5,8] q, float[B,3,5,8] k, {TABLES}) => (float[B,3,5,8] y, int64[4] z) <{NUMBERS}> {{ {CUT} {TURN}"
            f" z = Shape(rest) whole = Concat<axis = -2>(first, sum) {ATTEND} }}"
        ),
        {"FusedRotaryEmbedding": 1, "FusedAttention": 1, "Neg": 0},
    ),
    "queries and keys with a norm": (
        (
            "(float[B,S,24] q, float[B,S,24] k, float[8] g) => (float[B,3,S,8] y) "
            f"<int64[4] heads = {{0, 0, 3, 8}}, float e = {{1e-6}}> {{ fq = Reshape(q, heads) fk = Reshape(k, heads)"
            f" x1 = Transpose<perm = [0, 2, 1, 3]>(fq) x2 = Transpose<perm = [0, 2, 1, 3]>(fk) {RMS.format(n=1)} {RMS.format(n=2)}"
            " t = Transpose<perm = [0, 1, 3, 2]>(norm2) a = MatMul(norm1, t) p = Softmax<axis = -1>(a) y = MatMul(p, norm2) }"
        ),
        {"FusedRMSNorm": 2, "FusedAttention": 1, "Transpose": 0},
    ),
    "two streams put together": (
        (
            "(float[B,S,24] q, float[B,4,24] k, float[8] g) => (float[B,3,L,8] y) "
            f"<int64[4] heads = {{0, 0, 3, 8}}, float e = {{1e-6}}> {{ fq = Reshape(q, heads) fk = Reshape(k, heads)"
            f" x1 = Transpose<perm = [0, 2, 1, 3]>(fq) x2 = Transpose<perm = [0, 2, 1, 3]>(fk) {RMS.format(n=1)} {RMS.format(n=2)}"
            " j = Concat<axis = 2>(norm1, norm2)"
            " t = Transpose<perm = [0, 1, 3, 2]>(j) a = MatMul(j, t) p = Softmax<axis = -1>(a) y = MatMul(p, j) }"
        ),
        {"FusedRMSNorm": 2, "FusedAttention": 1, "Transpose": 0},
    ),
    "two streams put together along an axis counted from the end": (
        (
            "(float[B,S,24] q, float[B,4,24] k, float[8] g) => (float[B,3,L,8] y) "
            f"<int64[4] heads = {{0, 0, 3, 8}}, float e = {{1e-6}}> {{ fq = Reshape(q, heads) fk = Reshape(k, heads)"
            f" x1 = Transpose<perm = [0, 2, 1, 3]>(fq) x2 = Transpose<perm = [0, 2, 1, 3]>(fk) {RMS.format(n=1)} {RMS.format(n=2)}"
            " j = Concat<axis = -2>(norm1, norm2)"
            " t = Transpose<perm = [0, 1, 3, 2]>(j) a = MatMul(j, t) p = Softmax<axis = -1>(a) y = MatMul(p, j) }"
        ),
        {"FusedRMSNorm": 2, "FusedAttention": 1, "Transpose": 0},
    ),
    "a mask taken away": (
        (
            "(float[B,3,S,8] q, float[B,3,S,8] k, float[B,1,1,S] m) => (float[B,3,S,8] y) <float big = {1e30}> {"
            " t = Transpose<perm = [0, 1, 3, 2]>(k) a = MatMul(q, t) h = Mul(m, big) r = Sub(a, h)"
            " p = Softmax<axis = -1>(r) y = MatMul(p, k) }"
        ),
        {"FusedAttention": 1, "Sub": 0},
    ),
    "products, positions and a mask as XLNet writes them": (
        (
            "(float[S,B,3,8] q, float[S,B,3,8] k, float[S,B,3,S] r, float[S,S,B,1] o) => (float[S,B,3,8] y)"
            " <float big = {1e30}, float c = {0.3}, float h = {0.5}> {"
            ' a = Einsum<equation = "ibnd,jbnd->bnij">(q, k) e = Einsum<equation = "ibnd,jbnd->bnij">(k, q)'
            " b = Add(a, e) d = Mul(b, c) on = Greater(o, h) f = Cast<to = 1>(on)"
            ' g = Einsum<equation = "ijbn->bnij">(f) l = Mul(big, g) z = Sub(d, l) p = Softmax<axis = 3>(z)'
            ' y = Einsum<equation = "bnij,jbnd->ibnd">(p, k) }'
        ),
        {"FusedAttention": 1, "Sub": 0, "Softmax": 0},
    ),
    "positions taken away": (
        (
            "(float[B,3,S,8] q, float[B,3,S,8] k, float[3,S,S] m) => (float[B,3,S,8] y) {"
            " t = Transpose<perm = [0, 1, 3, 2]>(k) a = MatMul(q, t) r = Sub(a, m)"
            " p = Softmax<axis = -1>(r) y = MatMul(p, k) }"
        ),
        {"FusedAttention": 1, "Sub": 0},
    ),
    "keys turned for their shape alone": (
        (
            "(float[B,S,24] q, float[B,S,24] k) => (float[B,3,S,8] y, int64 n)"
            " <int64[4] heads = {0, 0, 3, 8}, int64 two = {2}> { fq = Reshape(q, heads) fk = Reshape(k, heads)"
            " x = Transpose<perm = [0, 2, 1, 3]>(fq) u = Transpose<perm = [0, 2, 1, 3]>(fk) z = Shape(u) n = Gather(z, two)"
            " v = Transpose<perm = [0, 2, 1, 3]>(fk) t = Transpose<perm = [0, 2, 3, 1]>(fk) a = MatMul(x, t)"
            " p = Softmax<axis = -1>(a) y = MatMul(p, v) }"
        ),
        {"FusedAttention": 1, "Transpose": 0},
    ),
    "a packed projection of which two parts are rotated": (
        f"(float[B,4,72] x, {TABLES}) => (float[B,3,4,8] y)"
        f" <int64[5] heads = {{0, 0, 3, 3, 8}}, int64[1] second = {{2}}, {NUMBERS}> {{ five = Reshape(x, heads)"
        " turned5 = Transpose<perm = [0, 3, 2, 1, 4]>(five) pq, pk, pv = Split<axis = 2>(turned5)"
        " q = Squeeze(pq, second) k = Squeeze(pk, second) v = Squeeze(pv, second)"
        + "".join(
            f" l{n} = Slice({n}, i0, i4, i3) h{n} = Slice({n}, i4, far, i3) m{n} = Neg(h{n})"
            f" t{n} = Concat<axis = -1>(m{n}, l{n}) c{n} = Mul({n}, c) s{n} = Mul(t{n}, s) r{n} = Add(c{n}, s{n})"
            for n in "qk"
        )
        + " t = Transpose<perm = [0, 1, 3, 2]>(rk) a = MatMul(rq, t) p = Softmax<axis = -1>(a) y = MatMul(p, v) }",
        {"FusedRotaryEmbedding": 1, "FusedAttention": 1, "Transpose": 0, "Split": 0},
    ),
}

BACK = {
    "windows of a norm that is also read as it is": (
        WINDOWS.replace("=> (float[W,4,8] y)", "=> (float[W,4,8] y, float[B,16,8] n)"),
        {"LayerNormalization": 1},
    ),
    "rows of a norm that are a matrix others are multiplied with": (
        (
            "(float[1,8,8] x, float[8] g, float[8] b, float[2,2,8] z) => (float[4,8] y)"
            " <int64[4] grid = {1, 4, 2, 8}, int64[2] matrix = {8, 8}, int64[2] flat = {4, 8}> {"
            " n = LayerNormalization<axis = 2>(x, g, b) map = Reshape(n, grid) r = Reshape(map, matrix)"
            " f = Reshape(z, flat) y = MatMul(f, r) }"
        ),
        {"LayerNormalization": 1, "MatMul": 1},
    ),
    "rows of a norm that an input is multiplied with": (
        (
            "(float[B,16,8] x, float[8] g, float[8] b, float[4,R] z) => (float[4,8] y)"
            " <int64[4] grid = {0, 4, 4, 8}, int64[2] matrix = {-1, 8}> {"
            " n = LayerNormalization<axis = 2>(x, g, b) map = Reshape(n, grid) r = Reshape(map, matrix) y = MatMul(z, r) }"
        ),
        {"LayerNormalization": 1, "MatMul": 1},
    ),
    "one token of a norm that is also read as it is": (
        PICKED.replace("=> (float[B,6] y)", "=> (float[B,6] y, float[B,16,8] n)"),
        {"LayerNormalization": 1, "Gemm": 1},
    ),
    "elements picked of the rows of a norm": (
        (
            "(float[B,16,8] x, float[8] g, float[8] b, float[8,6] w) => (float[B,16,6] y)"
            " <int64[8] some = {7, 6, 5, 4, 3, 2, 1, 1}> {"
            " n = LayerNormalization(x, g, b) t = Gather<axis = -1>(n, some) y = MatMul(t, w) }"
        ),
        {"LayerNormalization": 1, "MatMul": 1},
    ),
    "columns of a norm that are projected": (
        (
            "(float[1,8,8] x, float[8] g, float[8] b, float[6,8] w) => (float[8,6] y) <int64 first = {0}> {"
            " n = LayerNormalization(x, g, b) t = Gather(n, first) y = Gemm<transA = 1, transB = 1>(t, w) }"
        ),
        {"LayerNormalization": 1, "Gemm": 1},
    ),
    "windows of a norm that scales each row by its own": (
        WINDOWS.replace("float[8] g", "float[16,8] g"),
        {"LayerNormalization": 1},
    ),
    "windows with rows of zeros": (
        WINDOWS.replace("rolled = Concat<axis = 1>(up, down)", "wide = Pad(map, pads) rolled = Slice(wide, i1, i5, i1)")
        .replace(NUMBERS, NUMBERS + ", int64[8] pads = {0, 1, 0, 0, 0, 0, 0, 0}, int64[1] i5 = {5}")
        .replace("Slice(wide, i1, i5, i1)", "Slice(wide, i0, i4, i1)"),
        {"LayerNormalization": 1, "Pad": 1},
    ),
    "windows that mix elements": (
        WINDOWS.replace("<axis = 1>(up, down)", "<axis = 3>(up, down)")
        .replace("far, i1)", "far, i3)")
        .replace("i2, i1)", "i2, i3)"),
        {"LayerNormalization": 1},
    ),
    "first tokens put back behind": (
        (
            f"(float[B,3,5,8] q, float[B,3,5,8] k, {TABLES}) => (float[B,3,5,8] y) <{NUMBERS}> {{ {CUT} {TURN}"
            f" whole = Concat<axis = 2>(sum, first) {ATTEND} }}"
        ),
        {"Slice": 0, "Split": 1},
    ),
    "one token left out": (
        (
            f"(float[B,3,6,8] q, float[B,3,5,8] k, {TABLES}) => (float[B,3,5,8] y) <{NUMBERS}> {{"
            f" first = Slice(q, i0, i1, i2) rest = Slice(q, i2, far, i2) {TURN} whole = Concat<axis = 2>(first, sum) {ATTEND} }}"
        ),
        {"Slice": 2},
    ),
    "other tokens in front": (
        (
            f"(float[B,3,5,8] q, float[B,3,5,8] k, {TABLES}) => (float[B,3,5,8] y) <{NUMBERS}> {{"
            f" first = Slice(k, i0, i1, i2) rest = Slice(q, i1, far, i2) {TURN} whole = Concat<axis = 2>(first, sum) {ATTEND} }}"
        ),
        {"Slice": 2},
    ),
    "cosines where sines belong": (
        f"(float[B,3,5,8] q, float[B,3,5,8] k, {TABLES}) => (float[B,3,5,8] y) <{NUMBERS}> {{ {CUT}"
        f" {TURN.replace('Mul(rest, c)', 'Mul(minus, minus)').replace('straight', 'other')}"
        f" straight = Mul(rest, rest) whole = Concat<axis = 2>(first, sum) {ATTEND} }}".replace(
            "Add(other", "Add(straight"
        ),
        {"Slice": 0, "Split": 2, "FusedRotaryEmbedding": 0},
    ),
    "norms over the positions": (
        (
            "(float[B,4,24] q, float[B,4,24] k, float[4,1] g) => (float[B,3,4,8] y) "
            f"<int64[4] heads = {{0, 0, 3, 8}}, float e = {{1e-6}}> {{ fq = Reshape(q, heads) fk = Reshape(k, heads)"
            f" x1 = Transpose<perm = [0, 2, 1, 3]>(fq) x2 = Transpose<perm = [0, 2, 1, 3]>(fk)"
            f" {RMS.format(n=1).replace('[-1]', '[2]')} {RMS.format(n=2).replace('[-1]', '[2]')}"
            " t = Transpose<perm = [0, 1, 3, 2]>(norm2) a = MatMul(norm1, t) p = Softmax<axis = -1>(a) y = MatMul(p, norm2) }"
        ),
        {"Transpose": 2},
    ),
}


def parsed(text: str, opset: int = 17) -> onnx.ModelProto:
    return plain.parsed(f'<ir_version: 8, opset_import: ["" : {opset}]> g {text}')


def feeds(model: onnx.ModelProto, size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(size)
    found = {}
    for value in model.graph.input:
        dims = [d.dim_value or SIZES[d.dim_param][size] for d in value.type.tensor_type.shape.dim]
        found[value.name] = (rng.normal(size=dims) * (0.3 if value.name[0] == "w" else 1)).astype(np.float32)
        if value.name == "m" and dims[1:3] == [1, 1]:
            found[value.name] = (rng.random(dims) < 0.4).astype(np.float32)
    return found


def run(model: onnx.ModelProto, size: int) -> list[np.ndarray]:
    return plain.run_plain(model, feeds(model, size))


def compare(model: onnx.ModelProto, original: onnx.ModelProto) -> None:
    for size in range(3):
        for found, expected in zip(run(model, size), run(original, size), strict=True):
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("text", "ops"), FUSES.values(), ids=FUSES)
def test_a_move_changes_no_number_and_lets_operators_fuse(text: str, ops: dict[str, int]) -> None:
    proto = parsed(text)
    original, model = deepcopy(proto), Model(proto)
    infer(model)
    begun = moves.find(model, NO_NODES)
    assert begun
    moves.carry_out(model, begun)
    onnx.checker.check_model(proto, full_check=True)
    compare(proto, original)
    result = atcfuse.optimize(original, dialect="portable", min_saving_us=0.0)
    count = Counter(n.op_type for n in result.model.graph.node)
    assert {op: count[op] for op in ops} == ops
    compare(result.model, original)


@pytest.mark.parametrize(("text", "ops"), BACK.values(), ids=BACK)
def test_what_may_not_move_stays(text: str, ops: dict[str, int]) -> None:
    proto = parsed(text)
    off = frozenset({"layer_norm_operator"})
    result = atcfuse.optimize(proto, dialect="portable", min_saving_us=0.0, disabled=off)
    count = Counter(n.op_type for n in result.model.graph.node)
    assert {op: count[op] for op in ops} == ops
    try:
        run(proto, 0)
    except InvalidArgument:
        pytest.skip("this onnxruntime does not scale rows of one LayerNormalization by different numbers")
    compare(result.model, proto)


def test_a_move_that_nothing_takes_up_is_undone() -> None:
    text, _ = FUSES["two streams put together"]
    proto = parsed(text.replace("=> (float[B,3,L,8] y)", "=> (float[B,3,L,8] y, float[B,3,L,L] p)"))
    result = atcfuse.optimize(proto, dialect="portable", min_saving_us=0.0)
    assert Counter(n.op_type for n in result.model.graph.node)["Transpose"] >= 2
    compare(result.model, proto)


def test_shapes_of_which_one_extent_is_read_do_not_hold_keys_back() -> None:
    proto = parsed(
        """(float[5,B,24] q, float[5,B,24] k) => (float[H,5,8] y, int64 n)
        <int64[3] heads = {5, -1, 8}, int64 one = {1}> { fq = Reshape(q, heads) fk = Reshape(k, heads)
        x = Transpose<perm = [1, 0, 2]>(fq) v = Transpose<perm = [1, 0, 2]>(fk) z = Shape(v) n = Gather(z, one)
        t = Transpose<perm = [0, 2, 1]>(v) a = MatMul(x, t) p = Softmax<axis = -1>(a) y = MatMul(p, v) }"""
    )
    result = atcfuse.optimize(proto, dialect="portable", min_saving_us=0.0)
    count = Counter(n.op_type for n in result.model.graph.node)
    assert (count["FusedAttention"], count["Transpose"]) == (1, 0)
    compare(result.model, proto)
