"""Moves that reach for the same nodes or values: each is carried out on what the others leave."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

import numpy as np
import onnx
import onnx.checker
import plain
import pytest

import atcfuse

UPDATE = """at = Unsqueeze(place, end) cf = Transpose<perm = [2, 0, 1, 3]>(c) nf = Transpose<perm = [2, 0, 1, 3]>(n)
  u = ScatterND(cf, at, nf) y = Transpose<perm = [1, 2, 0, 3]>(u)"""
SUMS = "a = Add({}, m) p = Softmax<axis = -1>(a)"
KEYS = "kt = Transpose<perm = [0, 1, 3, 2]>(y) s = MatMul(q, kt) sc = Cast<to = 1>(s)"
CONVERTED = "kc = Cast<to = 1>(c) kt = Transpose<perm = [0, 1, 3, 2]>(kc) qc = Cast<to = 1>(q) s = MatMul(qc, kt)"
ATTENTION = {
    "scores of keys that were written just before": (
        "float[1,2,5,8] o",
        f"{UPDATE} {KEYS} {SUMS.format('sc')} vc = Cast<to = 1>(v) o = MatMul(p, vc)",
        1,
    ),
    "values that were written just before": (
        "float[1,2,5,8] o",
        f"""{UPDATE} kt = Transpose<perm = [0, 1, 3, 2]>(v) s = MatMul(q, kt) sc = Cast<to = 1>(s)
        {SUMS.format("sc")} vc = Cast<to = 1>(y) o = MatMul(p, vc)""",
        1,
    ),
    "keys whose shape is read, of two attentions": (
        "float16[1,2,5,8] o, float16[1,2,5,8] w, int64[4] e",
        f"""{CONVERTED} e = Shape(kc) {SUMS.format("s")} pc = Cast<to = 10>(p) o = MatMul(pc, v)
        zc = Cast<to = 1>(q) z = MatMul(zc, kt) r = Softmax<axis = -1>(z) rc = Cast<to = 10>(r) w = MatMul(rc, v)""",
        2,
    ),
}
SQUARE = "(float[3,3,4] c, float[3,3,4] n, float[3,3,4] d, int64[3] place, int64[3] other) => ({out})"
FRONT = "Transpose<perm = [1, 0, 2]>"
FIRST = f"at = Unsqueeze(place, end) cf = {FRONT}(c) nf = {FRONT}(n) u = ScatterND(cf, at, nf) y = {FRONT}(u)"
CHAINS = {
    "what was written is the cache of the next": f"yf = {FRONT}(y) df = {FRONT}(d) w = ScatterND(yf, {{}}, df) z = {FRONT}(w)",
    "what was written is turned as the cache of the next": f"df = {FRONT}(d) w = ScatterND(y, {{}}, df) z = {FRONT}(w)",
    "what was written is new for the next": f"df = {FRONT}(d) w = ScatterND(df, {{}}, y) z = {FRONT}(w)",
    "the same rows are new for the next": f"df = {FRONT}(d) w = ScatterND(df, {{}}, nf) z = {FRONT}(w)",
}


def parsed(head: str, body: str) -> onnx.ModelProto:
    return plain.parsed(f"""<ir_version: 8, opset_import: ["" : 17]> g {head} <int64[1] end = {{-1}}> {{ {body} }}""")


def feed_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng, feed = np.random.default_rng(6), dict[str, np.ndarray]()
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [d.dim_value or 3 for d in kind.shape.dim]
        whole, dtype = kind.elem_type == onnx.TensorProto.INT64, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        feed[value.name] = rng.permutation(3) if whole else rng.normal(size=shape).astype(dtype)
    return feed


def judged(original: onnx.ModelProto, tolerance: float) -> atcfuse.Result:
    """The optimized model, equal to the original, correct, and such that a second run changes nothing."""
    result = atcfuse.optimize(deepcopy(original), dialect="portable", min_saving_us=0.0)
    onnx.checker.check_model(result.model, full_check=True)
    feed = feed_of(original)
    for got, wanted in zip(plain.run_plain(result.model, feed), plain.run_plain(original, feed), strict=True):
        np.testing.assert_allclose(np.float64(got), np.float64(wanted), rtol=tolerance, atol=tolerance)
    again = atcfuse.optimize(deepcopy(result.model), dialect="portable", min_saving_us=0.0)
    assert again.model == result.model
    return result


@pytest.mark.parametrize(("out", "body", "count"), ATTENTION.values(), ids=ATTENTION)
def test_attention_fuses_where_other_moves_reach_for_its_operands(out: str, body: str, count: int) -> None:
    head = f"""(float16[1,2,5,8] q, float16[1,2,9,8] c, float16[1,2,S,8] n, int64[S] place, float[5,9] m,
      float16[1,2,9,8] v) => ({out})"""
    result = judged(parsed(head, body), 2e-3)
    assert [f["op"] for f in result.report["fusions"]] == ["FusedAttention"] * count


@pytest.mark.parametrize("shown", ["float[3,3,4] z", "float[3,3,4] z, float[3,3,4] y"], ids=["the last", "both"])
@pytest.mark.parametrize("at", ["at", "bt"], ids=["same positions", "others"])
@pytest.mark.parametrize("body", CHAINS.values(), ids=CHAINS)
def test_updates_that_read_each_other(body: str, at: str, shown: str) -> None:
    original = parsed(SQUARE.format(out=shown), f"bt = Unsqueeze(other, end) {FIRST} {body.format(at)}")
    result = judged(original, 0.0)
    assert Counter(n.op_type for n in result.model.graph.node)["ScatterND"] == 2


def test_a_cache_of_which_only_the_shape_is_left_to_read_is_not_turned() -> None:
    head = "(float[2,3,9,4] c, float[2,3,S,4] n, int64[S] place) => (float[2,3,9,4] y, int64[4] e)"
    result = judged(parsed(head, f"{UPDATE} e = Shape(cf)"), 0.0)
    assert not [n for n in result.model.graph.node if n.op_type == "Transpose"]


def test_keys_of_which_fusions_leave_only_the_shape_to_read_are_not_turned() -> None:
    """Two attentions take the keys as they lie: a Transpose of them would be a launch for four numbers."""
    head = """(float[1,2,5,8] q, float[1,2,9,8] k, float[1,2,9,8] v, float[5,9] m) =>
      (float[1,2,5,8] o, float[1,2,5,8] w, int64[2] e)"""
    body = f"""kt = Transpose<perm = [0, 1, 3, 2]>(k) e = Shape<start = -2>(kt) s = MatMul(q, kt) {SUMS.format("s")}
      o = MatMul(p, v) z = MatMul(q, kt) r = Softmax<axis = -1>(z) w = MatMul(r, v)"""
    result = judged(parsed(head, body), 1e-5)
    assert [f["op"] for f in result.report["fusions"]] == ["FusedAttention"] * 2
    assert not [n for n in result.model.graph.node if n.op_type == "Transpose"]
    kept = atcfuse.optimize(parsed(head, body), min_saving_us=0.0, keep_nodes=("n0",))
    assert [n.op_type for n in kept.model.graph.node].count("Transpose") == 1


@pytest.mark.parametrize(("kept", "written"), [("n3", "z"), ("n6", "y")], ids=["of the first", "of the second"])
def test_a_node_that_the_user_keeps_keeps_its_own_update_alone(kept: str, written: str) -> None:
    head = (
        "(float[2,3,9,4] c, float[2,3,9,4] d, float[2,3,S,4] n, int64[S] place) => (float[2,3,9,4] y, float[2,3,9,4] z)"
    )
    other = """df = Transpose<perm = [2, 0, 1, 3]>(d) nd = Transpose<perm = [2, 0, 1, 3]>(n) w = ScatterND(df, at, nd)
      z = Transpose<perm = [1, 2, 0, 3]>(w)"""
    original = parsed(head, f"{UPDATE} {other}")
    result = atcfuse.optimize(deepcopy(original), dialect="portable", keep_nodes=(kept,), min_saving_us=0.0)
    assert {n.op_type for n in result.model.graph.node for o in n.output if o == written} == {"ScatterND"}
    assert [n.op_type for n in result.model.graph.node].count("Transpose") == 3
    feed = feed_of(original)
    for got, wanted in zip(plain.run_plain(result.model, feed), plain.run_plain(original, feed), strict=True):
        np.testing.assert_array_equal(got, wanted)
