"""Norms of queries and keys without a rotation get one by no angle: no number changes, and one kernel takes both."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

import numpy as np
import onnx
import plain
import pytest
from infer_oracle import inferred

import atcfuse
from atcfuse import moves
from atcfuse.keep_nodes import NO_NODES
from atcfuse.moves import unrotated

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g'
VALUES = """int64[5] cut = {2, 6, 3, 2, 4}, int64[3] three = {1, 1, 1}, int64[1] zero = {0}, int64[4] heads = {2, 6, 2, 4},
    int64[3] rows = {2, 6, 8}, float scale = {0.5}, float e = {1e-6}, float two = {2.0},
    float[4] gq = {1, 0.5, -1, 2}, float[4] bq = {0.1, 0, 1, -1}, float[4] gk = {2, 1, 0.5, -1}, float[4] bk = {0, 1, 0.2, 1}"""
ATTEND = """s = Mul(q, scale) kt = Transpose<perm = [0, 1, 3, 2]>(k) a = MatMul(s, kt) p = Softmax<axis = -1>(a) o = MatMul(p, v)
    ot = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(ot, rows) }"""
PACKED = f"""(float[2,6,24] x) => (float[2,6,8] y) <{VALUES}> {{ c = Reshape(x, cut) t = Transpose<perm = [2, 0, 3, 1, 4]>(c)
    q5, k5, v5 = Split<axis = 0>(t, three) q4 = Squeeze(q5, zero) k4 = Squeeze(k5, zero) v = Squeeze(v5, zero)"""
APART = f"""(float[2,6,8] xq, float[2,6,8] xk, float[2,6,8] xv) => (float[2,6,8] y) <{VALUES}> {{
    q0 = Reshape(xq, heads) k0 = Reshape(xk, heads) v0 = Reshape(xv, heads) v = Transpose<perm = [0, 2, 1, 3]>(v0)"""


def rms(name: str, x: str, gamma: str) -> str:
    return f"""{name}q = Pow({x}, two) {name}m = ReduceMean<axes = [-1]>({name}q) {name}e = Add({name}m, e)
        {name}s = Sqrt({name}e) {name}u = Div({x}, {name}s) {name} = Mul({name}u, {gamma}) """


STREAMS = f"""(float[2,6,8] xq, float[2,6,8] xk, float[2,6,8] xv, float[2,3,8] zq, float[2,3,8] zk, float[2,3,8] zv)
    => (float[2,9,8] y) <{VALUES.replace("{2, 6, 8}", "{2, 9, 8}")}, int64[4] other = {{2, 3, 2, 4}}> {{
    q0 = Reshape(xq, heads) k0 = Reshape(xk, heads) v0 = Reshape(xv, heads) q1 = Reshape(zq, other) k1 = Reshape(zk, other)
    v1 = Reshape(zv, other) vc = Concat<axis = 1>(v0, v1) v = Transpose<perm = [0, 2, 1, 3]>(vc)
    q2 = Transpose<perm = [0, 2, 1, 3]>(q0) k2 = Transpose<perm = [0, 2, 1, 3]>(k0) q3 = Transpose<perm = [0, 2, 1, 3]>(q1)
    k3 = Transpose<perm = [0, 2, 1, 3]>(k1)"""
JOINED = "q = Concat<axis = 2>(q4, q5) k = Concat<axis = 2>(k4, k5) "
NORMS = "q = LayerNormalization(q4, gq, bq) k = LayerNormalization(k4, gk, bk) "
FUSES = {
    "LayerNorm of heads cut out of packed rows": PACKED + NORMS + ATTEND,
    "RMSNorm, spelled out": PACKED + rms("q", "q4", "gq") + rms("k", "k4", "gk") + ATTEND,
    "norms before heads are transposed": APART
    + "qn = LayerNormalization(q0, gq, bq) q = Transpose<perm = [0, 2, 1, 3]>(qn) kn = LayerNormalization(k0, gk, bk) "
    + "k = Transpose<perm = [0, 2, 1, 3]>(kn) "
    + ATTEND,
    "RMSNorm before heads are transposed": APART
    + rms("qn", "q0", "gq")
    + rms("kn", "k0", "gk")
    + "q = Transpose<perm = [0, 2, 1, 3]>(qn) k = Transpose<perm = [0, 2, 1, 3]>(kn) "
    + ATTEND,
}
TWO_STREAMS = {
    "RMSNorm": rms("q4", "q2", "gq") + rms("k4", "k2", "gk") + rms("q5", "q3", "bk") + rms("k5", "k3", "bq"),
    "LayerNorm": "".join(
        f"{n}4 = LayerNormalization({n}2, g{n}, b{n}) {n}5 = LayerNormalization({n}3, b{n}, g{n}) " for n in "qk"
    ),
}
STAYS = {
    "queries alone are normalised": PACKED + "q = LayerNormalization(q4, gq, bq) k = Relu(k4) " + ATTEND,
    "normalised keys are an output": PACKED.replace("float[2,6,8] y", "float[2,6,8] y, float[2,2,6,4] k") + NORMS + ATTEND,
    "queries are rotated": PACKED
    + NORMS.replace("q =", "qn =").replace("k =", "kn =")
    + "qr = Neg(qn) qa = Mul(qn, qn) q = Add(qa, qr) k = Relu(kn)"
    + ATTEND,
    "a pair has no partner": (PACKED + NORMS + ATTEND)
    .replace("24]", "18]").replace("2, 4}", "2, 3}").replace("6, 8}", "6, 6}").replace("[2,6,8] y", "[2,6,6] y")
    .replace("float[4]", "float[3]").replace("2, 3}, int64[3] rows", "2, 3}, int64[3] rows")
    .replace(", 2}, float[3] bq", "}, float[3] bq").replace(", -1}, float[3] gk", "}, float[3] gk")
    .replace(", -1}, float[3] bk", "}, float[3] bk").replace("0.2, 1}", "0.2}"),
}  # fmt: skip


def parsed(body: str) -> onnx.ModelProto:
    return plain.parsed(HEAD + body)


def run(model: onnx.ModelProto) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return plain.run_plain(model, {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()})


@pytest.mark.parametrize("body", FUSES.values(), ids=FUSES)
def test_a_rotation_by_no_angle_changes_no_number_and_both_norms_are_one_kernel(body: str) -> None:
    proto = parsed(body)
    original, model = deepcopy(proto), inferred(proto)
    begun = [b for b in moves.find(model, NO_NODES) if isinstance(b.move, unrotated.Unrotated)]
    assert len(begun) == 1
    moves.carry_out(model, begun)
    onnx.checker.check_model(proto, full_check=True)
    for got, expected in zip(run(proto), run(original), strict=True):
        np.testing.assert_array_equal(got, expected)
    result = atcfuse.optimize(original, dialect="portable", min_saving_us=0.0)
    assert Counter(f["op"] for f in result.report["fusions"]) == {"FusedRotaryEmbedding": 1, "FusedAttention": 1}
    assert {n.op_type for n in result.model.graph.node} <= {
        "FusedRotaryEmbedding",
        "FusedAttention",
        "Constant",
        "Reshape",
    }
    for got, expected in zip(run(result.model), run(original), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_nothing_is_claimed_for_the_rotation() -> None:
    """Two norms become one launch; the Transpose and the Split go because nothing reads them any more."""
    report = atcfuse.optimize(parsed(FUSES["LayerNorm of heads cut out of packed rows"]), dialect="portable").report
    (fusion,) = [f for f in report["fusions"] if f["op"] == "FusedRotaryEmbedding"]
    assert fusion["launches_saved"] == fusion["launches_saved_after_atc"] == 1
    summary = report["summary"]
    assert summary["launches_after"] == 2
    claimed = sum(f["launches_saved"] for f in report["fusions"]) + summary["launches_elsewhere"]
    assert claimed == summary["launches_before"] - summary["launches_after"]
    assert not [name for name in fusion["nodes"] if "/" in name]


def test_queries_and_keys_of_other_lengths_are_one_launch_too() -> None:
    text = FUSES["norms before heads are transposed"].replace(
        "float[2,6,8] xk, float[2,6,8] xv", "float[2,3,8] xk, float[2,3,8] xv"
    )
    text = text.replace("scale = {0.5}", "scale = {0.5}, int64[4] few = {2, 3, 2, 4}")
    text = text.replace("Reshape(xk, heads)", "Reshape(xk, few)").replace("Reshape(xv, heads)", "Reshape(xv, few)")
    proto = parsed(text)
    result = atcfuse.optimize(deepcopy(proto), dialect="portable")
    count = Counter(n.op_type for n in result.model.graph.node)
    assert (count["FusedRotaryEmbedding"], count["FusedLayerNorm"], count["Neg"]) == (1, 0, 0)
    for got, expected in zip(run(result.model), run(proto), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norms", TWO_STREAMS.values(), ids=TWO_STREAMS)
def test_streams_of_a_joint_attention_are_one_launch_each(norms: str) -> None:
    proto = parsed(STREAMS + norms + JOINED + ATTEND)
    result = atcfuse.optimize(deepcopy(proto), dialect="portable", min_saving_us=0.0)
    assert Counter(f["op"] for f in result.report["fusions"]) == {"FusedRotaryEmbedding": 2, "FusedAttention": 1}
    assert Counter(n.op_type for n in result.model.graph.node)["Transpose"] == 0
    for got, expected in zip(run(result.model), run(proto), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("body", STAYS.values(), ids=STAYS)
def test_other_operands_of_attention_stay(body: str) -> None:
    scope = inferred(parsed(body)).main
    assert not any(unrotated.find(scope, node) for node in scope.nodes)


def test_without_the_kernel_of_rotations_the_norms_stay_as_they_were() -> None:
    proto = parsed(FUSES["LayerNorm of heads cut out of packed rows"])
    kinds = ("rotary_embedding", "layer_norm_rotary_embedding", "rms_norm_rotary_embedding")
    off = frozenset(kind + pair for kind in kinds for pair in ("", "_pair"))
    result = atcfuse.optimize(proto, dialect="portable", disabled=off)
    assert not [n for n in result.model.graph.node if n.op_type in ("Neg", "Concat", "FusedRotaryEmbedding")]
