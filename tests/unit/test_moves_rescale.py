"""Factors on scores move where that changes no number beyond rounding, and back where no attention takes them up."""

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

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[B,3,S,4] q, float[B,3,4,S] k, float[B,3,S,4] v) => (float[B,3,S,4] y)'
END = "p = Softmax<axis = -1>(z) y = MatMul(p, v) }"
HEADS = "<float[1,3,1,1] c = {0.5, 2, 30}>"
MOVES = {
    "a factor for each head": HEADS + "{ a = MatMul(q, k) z = Mul(a, c)" + END,
    "a factor for each head, on the left": HEADS + "{ a = MatMul(q, k) z = Mul(c, a)" + END,
    "a number on a sum": "<float c = {0.3}> { a = MatMul(q, k) b = MatMul(v, k) s = Add(a, b) z = Mul(c, s)" + END,
    "a sum divided": "<float[1] c = {2.3}> { a = MatMul(q, k) b = MatMul(v, k) s = Add(b, a) z = Div(s, c)" + END,
    "a mask of -inf": """<float c = {0.3}, float l = {-inf}, float n = {0}> {
        g = Less(v, n) t = Transpose<perm = [0, 1, 3, 2]>(g) i = Cast<to = 1>(t) j = ReduceMax<axes = [2]>(i) h = Cast<to = 9>(j)
        m = Where(h, l, n) a = MatMul(q, k) s = Add(a, m) z = Mul(s, c)"""
    + END,
}
STAYS = {
    "a factor for each query": "<float[3,1,1] o = {1, 2, 3}> { c = Mul(q, o) f = ReduceSum(c, e) a = MatMul(q, k) z = Mul(a, f)"
    " e = Constant<value = int64[1] {-1}>()" + END,
    "one number": "<float[1,1,1] c = {2}> { a = MatMul(q, k) z = Mul(a, c)" + END,
    "a sum enlarged": "<float c = {3}> { a = MatMul(q, k) b = MatMul(v, k) s = Add(a, b) z = Mul(c, s)" + END,
    "a negative number": "<float c = {-0.3}> { a = MatMul(q, k) b = MatMul(v, k) s = Add(a, b) z = Mul(c, s)" + END,
    "divided by the sum": "<float c = {2}> { a = MatMul(q, k) b = MatMul(v, k) s = Add(a, b) z = Div(c, s)" + END,
    "a mask that keeps some digits": """<float c = {0.3}, float l = {-1e9}, float n = {0}, int64[4] o = {1, 3, 1, 1}> {
        r = ReduceMax<axes = [2, 3], keepdims = 1>(v) h = Less(r, n) m = Where(h, l, n) a = MatMul(q, k) s = Add(a, m)
        z = Mul(s, c)"""
    + END,
    "no softmax": HEADS + "{ a = MatMul(q, k) z = Mul(a, c) p = Sigmoid(z) y = MatMul(p, v) }",
    "scores read as they are": HEADS
    + "{ a = MatMul(q, k) u = Mul(a, c) m = ReduceMax<axes = [-1]>(a) z = Sub(u, m)"
    + END,
}


def parsed(text: str) -> onnx.ModelProto:
    return plain.parsed(HEAD + text)


def run(model: onnx.ModelProto) -> np.ndarray:
    rng = np.random.default_rng(5)
    feeds = {
        n: rng.normal(size=s).astype(np.float32)
        for n, s in (("q", (2, 3, 5, 4)), ("k", (2, 3, 4, 5)), ("v", (2, 3, 5, 4)))
    }
    return plain.run_plain(model, feeds)[0]


@pytest.mark.parametrize("text", MOVES.values(), ids=MOVES)
def test_a_moved_factor_changes_no_number_and_lets_attention_fuse(text: str) -> None:
    proto = parsed(text)
    original, model = deepcopy(proto), inferred(proto)
    begun = moves.find(model, NO_NODES)
    assert len(begun) == 1
    moved = moves.carry_out(model, begun)
    onnx.checker.check_model(proto, full_check=True)
    np.testing.assert_allclose(run(proto), run(original), rtol=1e-5, atol=1e-6)
    assert moves.stuck(inferred(proto), moved) == {moved[0].name}, "no fusion took it"
    result = atcfuse.optimize(original, dialect="portable", min_saving_us=0.0)
    assert [f["op"] for f in result.report["fusions"]].count("FusedAttention") == 1
    np.testing.assert_allclose(run(result.model), run(original), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("text", STAYS.values(), ids=STAYS)
def test_what_is_not_proved_to_commute_stays(text: str) -> None:
    assert moves.find(inferred(parsed(text)), NO_NODES) == []


def test_a_factor_that_no_attention_takes_up_goes_back() -> None:
    """The probabilities are read elsewhere: attention is not fused, and the model stays as it was."""
    proto = parsed(MOVES["a factor for each head"].replace("y = MatMul", "o = Identity(p) y = MatMul"))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("p", 1, ["B", 3, "S", "S"]))
    result = atcfuse.optimize(deepcopy(proto), dialect="portable", kernels=False)
    assert "FusedAttention" not in [f["op"] for f in result.report["fusions"]]
    assert [n.op_type for n in result.model.graph.node][:1] == ["MatMul"]


def test_why_attention_stays_is_told_as_it_was_with_the_factor_moved() -> None:
    """Without the move the sum before the factor would be the reason; with it, it is what else reads the probabilities."""
    text = (
        "<float c = {0.3}> { a = MatMul(q, k) b = MatMul(v, k) s = Add(a, b) z = Mul(c, s) p = Softmax<axis = -1>(z) "
    )
    proto = parsed(text + "o = MatMul(p, v) w = MatMul(p, q) y = Add(o, w) }")
    result = atcfuse.optimize(proto, dialect="portable", min_saving_us=0.0)
    told = {k["value"]: k["code"] for k in result.report["kept"] if k["rule"] == "attention"}
    assert told == {"p": "ATF301"}


def test_a_factor_for_each_head_of_scores_that_an_einsum_makes_moves_too() -> None:
    """The Einsum has to become a product first."""
    text = (
        HEADS
        + """{ t = Transpose<perm = [0, 1, 3, 2]>(k) a = Einsum<equation = "bhqd,bhkd->bhqk">(q, t) z = Mul(a, c)
      p = Softmax<axis = -1>(z) y = Einsum<equation = "bhqk,bhkd->bhqd">(p, v) }"""
    )
    proto = parsed(text)
    result = atcfuse.optimize(deepcopy(proto), dialect="portable", min_saving_us=0.0)
    assert [f["op"] for f in result.report["fusions"]].count("FusedAttention") == 1
    np.testing.assert_allclose(run(result.model), run(proto), rtol=1e-5, atol=1e-6)
