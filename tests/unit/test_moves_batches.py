"""Attention over several batch axes is spelled with one, which changes no number, and fuses."""

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
from atcfuse.keep_nodes import NO_NODES

SIZES = {"B": 2, "W": 3, "S": 5}
PLAIN = """(float[B,3,4,6,8] q, float[B,3,4,7,8] k, float[B,3,4,7,8] v) => (float[B,3,4,6,8] y) {
    t = Transpose<perm = [0,1,2,4,3]>(k) a = MatMul(q, t) p = Softmax<axis = -1>(a) y = MatMul(p, v) }"""
"""Heads, queries and keys are numbers, and so is one of the batch axes."""
PATCHES = """(float[B,4,S,32] x) => (float[B,4,S,32] y) <int64[5] heads = {0,0,0,4,8}, int64[4] back = {0,0,0,32}> {
    h = Reshape(x, heads) q = Transpose<perm = [0,1,3,2,4]>(h) t = Transpose<perm = [0,1,3,4,2]>(h)
    a = MatMul(q, t) p = Softmax<axis = -1>(a) o = MatMul(p, q) u = Transpose<perm = [0,1,3,2,4]>(o) y = Reshape(u, back) }"""
MASKED = """(float[B,W,4,6,8] q, float[B,W,4,8,7] k, float[B,W,4,7,8] v, float[1,1,4,6,7] b, float[B,W,1,6,7] m, float[6,7] c)
  => (float[B,W,4,6,8] y) <float low = {-inf}, float zero = {0}> { g = Less(m, zero) i = Where(g, low, zero)
    a = MatMul(q, k) s = Add(a, b) z = Add(s, i) p = Softmax<axis = -1>(z) y = MatMul(p, v) }"""
FUSES = {"one open axis": PLAIN, "both open, masks": MASKED, "sizes all known": PLAIN.replace("B,", "2,")}


def parsed(text: str, opset: int = 17) -> onnx.ModelProto:
    return plain.parsed(f'<ir_version: 8, opset_import: ["" : {opset}]> g {text}')


def run(model: onnx.ModelProto) -> np.ndarray:
    rng = np.random.default_rng(3)
    feeds = {}
    for value in model.graph.input:
        shape = [d.dim_value or SIZES[d.dim_param] for d in value.type.tensor_type.shape.dim]
        feeds[value.name] = rng.normal(size=shape).astype(np.float32)
    return plain.run_plain(model, feeds)[0]


@pytest.mark.parametrize("text", FUSES.values(), ids=FUSES)
def test_one_batch_axis_changes_no_number_and_lets_attention_fuse(text: str) -> None:
    proto = parsed(text)
    original, model = deepcopy(proto), inferred(proto)
    begun = moves.find(model, NO_NODES)
    assert len(begun) == 2
    moves.carry_out(model, begun)
    onnx.checker.check_model(proto, full_check=True)
    np.testing.assert_allclose(run(proto), run(original), rtol=1e-5, atol=1e-6)
    result = atcfuse.optimize(original, dialect="portable", min_saving_us=0.0)
    assert [f["op"] for f in result.report["fusions"]].count("FusedAttention") == 1
    np.testing.assert_allclose(run(result.model), run(original), rtol=1e-5, atol=1e-6)


def test_views_around_the_products_are_read_through() -> None:
    """Positions are open beside an open batch axis, so only static ones are spelled anew; then nothing but views is left."""
    assert not moves.find(inferred(parsed(PATCHES)), NO_NODES)
    proto = parsed(PATCHES.replace("S,", "5,"))
    result = atcfuse.optimize(deepcopy(proto), dialect="portable", min_saving_us=0.0)
    assert {n.op_type for n in result.model.graph.node} == {"FusedAttention", "Reshape"}
    np.testing.assert_allclose(run(result.model), run(proto), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        (MASKED, 13),  # a 0 in a Reshape would copy
        (PLAIN.replace("float[B,3,4,7,8]", "float[B,1,4,7,8]"), 17),  # keys are repeated along a batch axis
        (PLAIN.replace("Softmax<axis = -1>", "Sigmoid"), 17),
        (PLAIN.replace(",3,4", ",12").replace("[0,1,2,4,3]", "[0,1,3,2]"), 17),  # one batch axis and the heads
    ],
)
def test_other_products_stay(text: str, opset: int) -> None:
    assert not moves.find(inferred(parsed(text, opset)), NO_NODES)


def test_products_that_no_attention_takes_up_go_back() -> None:
    proto = parsed(PLAIN.replace("y = MatMul(p, v)", "o = MatMul(p, v) r = ReduceSum(p) y = Mul(o, r)"))
    result = atcfuse.optimize(deepcopy(proto), dialect="portable", min_saving_us=0.0)
    assert [n.op_type for n in result.model.graph.node].count("Reshape") == 0
    assert [n.op_type for n in result.model.graph.node].count("MatMul") == 2
