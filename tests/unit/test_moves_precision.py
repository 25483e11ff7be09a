"""Attention that changes its element type between its products becomes products of one type, and fuses."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
import onnx.checker
import plain
import pytest
from infer_oracle import inferred

import atcfuse
from atcfuse import moves
from atcfuse.keep_nodes import NO_NODES

HEAD = """<ir_version: 8, opset_import: ["" : 17]> g
  (float16[B,S,4,8] q, float16[B,2,L,8] k, float16[B,2,L,8] v, float[S,L] m, bool[S,L] keep) => ({out}) <
  int64[1] two = {{2}}, int64[5] twice = {{1,1,2,1,1}}, int64[4] heads = {{0,4,-1,8}}, float cw = {{0.25}},
  float nw = {{8}}, float lowest = {{-inf}}, float nought = {{0.0}}>"""
QUERIES = "qt = Transpose<perm = [0, 2, 1, 3]>(q)"
REPEATED = """ku = Unsqueeze(k, two) ke = Expand(ku, twice) kr = Reshape(ke, heads)
  vu = Unsqueeze(v, two) ve = Expand(vu, twice) vr = Reshape(ve, heads)"""
WIDE_SUMS = """sc = Cast<to = 1>(s) a = Add(sc, m) p = Softmax<axis = -1>(a) vc = Cast<to = 1>(vr) y = MatMul(p, vc)"""
NARROW_SUMS = "d = Mul(s, cw) a = Add(d, m) p = Softmax<axis = -1>(a) pc = Cast<to = 10>(p) y = MatMul(pc, vr)"
WIDE, NARROW = "float[B,4,S,8] y", "float16[B,4,S,8] y"
WIDENED = {
    "a mask of float32": (
        WIDE,
        f"{QUERIES} {REPEATED} kt = Transpose<perm = [0, 1, 3, 2]>(kr) s = MatMul(qt, kt) {WIDE_SUMS}",
    ),
    "factors on both operands, rows without keys": (
        WIDE,
        f"""{QUERIES} {REPEATED} kt = Transpose<perm = [0, 1, 3, 2]>(kr) c = Cast<to = 10>(cw) n = Cast<to = 10>(nw)
        qs = Mul(qt, c) ks = Div(kt, n) s = MatMul(qs, ks)
        sc = Cast<to = 1>(s) b = Where(keep, nought, lowest) a = Add(sc, b) r = Softmax<axis = -1>(a) i = IsNaN(r)
        p = Where(i, nought, r) vc = Cast<to = 1>(vr) y = MatMul(p, vc)""",
    ),
}
NARROWED = {
    "keys converted before they are transposed": (
        NARROW,
        f"""{QUERIES} {REPEATED} qc = Cast<to = 1>(qt) kc = Cast<to = 1>(kr) kt = Transpose<perm = [0, 1, 3, 2]>(kc)
        s = MatMul(qc, kt) {NARROW_SUMS}""",
    ),
    "the shape of what was converted is read": (
        "float16[B,4,S,8] y, int64[4] e",
        f"""{QUERIES} {REPEATED} qc = Cast<to = 1>(qt) kc = Cast<to = 1>(kr) kt = Transpose<perm = [0, 1, 3, 2]>(kc)
        e = Shape(kc) s = MatMul(qc, kt) {NARROW_SUMS}""",
    ),
    "both converted first": (
        NARROW,
        f"""qc = Cast<to = 1>(q) qt = Transpose<perm = [0, 2, 1, 3]>(qc) {REPEATED} kc = Cast<to = 1>(kr)
        kt = Transpose<perm = [0, 1, 3, 2]>(kc) s = MatMul(qt, kt) {NARROW_SUMS}""",
    ),
}
STAYS = {
    "the product is read elsewhere": (
        "float[B,4,S,8] y, float16[B,4,S,L] s",
        f"{QUERIES} {REPEATED} kt = Transpose<perm = [0, 1, 3, 2]>(kr) s = MatMul(qt, kt) {WIDE_SUMS}",
    ),
    "sums of float16 behind scores of float16": (
        NARROW,
        f"""{QUERIES} {REPEATED} kt = Transpose<perm = [0, 1, 3, 2]>(kr) s = MatMul(qt, kt) sc = Cast<to = 1>(s)
        a = Add(sc, m) p = Softmax<axis = -1>(a) pc = Cast<to = 10>(p) y = MatMul(pc, vr)""",
    ),
    "no softmax behind": (
        "float[B,4,S,8] y",
        f"""{QUERIES} {REPEATED} kt = Transpose<perm = [0, 1, 3, 2]>(kr) s = MatMul(qt, kt) sc = Cast<to = 1>(s)
        p = Relu(sc) vc = Cast<to = 1>(v) vs = Concat<axis = 1>(vc, vc) y = MatMul(p, vs)""",
    ),
    "queries that nothing converted": (
        NARROW,
        f"""{QUERIES} {REPEATED} qc = Cast<to = 1>(qt) qr = Exp(qc) kc = Cast<to = 1>(kr)
        kt = Transpose<perm = [0, 1, 3, 2]>(kc) s = MatMul(qr, kt) {NARROW_SUMS}""",
    ),
}


def parsed(out: str, body: str) -> onnx.ModelProto:
    return plain.parsed(f"{HEAD.format(out=out)} {{ {body} }}")


def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    sizes = {"q": (2, 5, 4, 8), "k": (2, 2, 6, 8), "v": (2, 2, 6, 8)}
    given: dict[str, np.ndarray] = {n: rng.normal(size=s).astype(np.float16) for n, s in sizes.items()}
    keep = rng.random((5, 6)) < 0.6
    keep[3] = False
    return {**given, "m": rng.normal(size=(5, 6)).astype(np.float32), "keep": keep}


def run(model: onnx.ModelProto) -> list[np.ndarray]:
    return [np.asarray(o, np.float64) for o in plain.run_plain(model, feeds())]


def agree(got: list[np.ndarray], wanted: list[np.ndarray], tolerance: float) -> None:
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("out", "body"), [*WIDENED.values(), *NARROWED.values()], ids=[*WIDENED, *NARROWED])
def test_attention_of_two_element_types_fuses(out: str, body: str) -> None:
    proto = parsed(out, body)
    original, model = deepcopy(proto), inferred(proto)
    begun = moves.find(model, NO_NODES)
    assert begun
    moves.carry_out(model, begun)
    onnx.checker.check_model(proto, full_check=True)
    agree(run(proto), run(original), 2e-3)
    result = atcfuse.optimize(original, dialect="portable", min_saving_us=0.0)
    assert [f["op"] for f in result.report["fusions"]].count("FusedAttention") == 1
    left = {n.op_type for n in result.model.graph.node}
    assert not left & {"Softmax", "Transpose", "MatMul", "Expand", "Mul", "Where"} - (
        {"Where"} if "keep" in body else set()
    )
    agree(run(result.model), run(original), 2e-3)


@pytest.mark.parametrize(("out", "body"), NARROWED.values(), ids=NARROWED)
def test_operands_that_were_converted_for_the_product_alone_are_read_as_they_are(out: str, body: str) -> None:
    result = atcfuse.optimize(parsed(out, body), dialect="portable", min_saving_us=0.0)
    assert not [n.name for n in result.model.graph.node if n.op_type == "Cast"]


@pytest.mark.parametrize(("out", "body"), WIDENED.values(), ids=WIDENED)
def test_scores_are_not_cut_to_16_bits(out: str, body: str) -> None:
    """Beside attention in float64 the fused one is no worse than the model."""
    original = parsed(out, body)
    result = atcfuse.optimize(original, dialect="portable", min_saving_us=0.0)
    wide = deepcopy(original)
    for value in wide.graph.input:
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for attribute in (a for node in wide.graph.node if node.op_type == "Cast" for a in node.attribute):
        attribute.i = onnx.TensorProto.FLOAT
    given = {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in feeds().items()}
    exact = np.asarray(plain.run_plain(wide, given)[0], np.float64)
    np.testing.assert_allclose(run(result.model)[0], exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("out", "body"), STAYS.values(), ids=STAYS)
def test_others_stay(out: str, body: str) -> None:
    model = inferred(parsed(out, body))
    begun = moves.find(model, NO_NODES)
    assert not [i for b in begun for i in b.move.members if model.main.nodes[i].op == "MatMul"]
