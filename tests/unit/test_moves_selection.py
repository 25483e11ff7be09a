"""Scores chosen by arithmetic are chosen by Where, which changes no number, and attention fuses."""

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

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[B,3,4,8] q, float[B,3,8,4] k, float[B,3,4,8] v, bool[4,4] g) => (float[B,3,4,8] y)'
TABLE = "float[4,4] t = {1,0,0,0, 1,1,0,0, 1,1,1,0, 1,1,1,1}, float one = {1}, float c = {-1e4}, float d = {1e4}"
OTHERS = "float[4,4] f = {0,-7,-7,-7, 0,0,-7,-7, 0,0,0,-7, 0,0,0,0}"
END = "p = Softmax<axis = -1>(z) y = MatMul(p, v) }"
MOVES = {
    "a table": "a = MatMul(q, k) s = Mul(a, t) n = Sub(one, t) f = Mul(n, c) z = Add(s, f)",
    "subtracted, on the left": "a = MatMul(q, k) s = Mul(t, a) n = Sub(one, t) f = Mul(d, n) z = Sub(s, f)",
    "a Bool that was converted": "m = Cast<to = 1>(g) a = MatMul(q, k) s = Mul(a, m) n = Sub(one, m) f = Mul(n, c) z = Add(f, s)",
    "a view of the table": """o = Constant<value = int64[1] {0}>() u = Unsqueeze(t, o)
      a = MatMul(q, k) s = Mul(a, u) n = Sub(one, u) f = Mul(n, c) z = Add(s, f)""",
    "the fill is folded": "a = MatMul(q, k) s = Mul(a, t) z = Add(s, f)",
}
STAYS = {
    "not ones and zeros": "h = Mul(t, c) a = MatMul(q, k) s = Mul(a, h) n = Sub(one, h) f = Mul(n, c) z = Add(s, f)",
    "another mask": "r = Sub(one, t) a = MatMul(q, k) s = Mul(a, t) n = Sub(one, r) f = Mul(n, c) z = Add(s, f)",
    "another number than one": "a = MatMul(q, k) s = Mul(a, t) n = Sub(c, t) f = Mul(n, c) z = Add(s, f)",
    "the wrong sign": "m = Cast<to = 1>(g) a = MatMul(q, k) s = Mul(a, m) n = Sub(m, one) f = Mul(n, c) z = Add(s, f)",
}


def parsed(body: str) -> onnx.ModelProto:
    constants = f"{TABLE}, {OTHERS}" if "f =" not in body else TABLE

    return plain.parsed(f"{HEAD} <{constants}> {{ {body} {END}")


def run(model: onnx.ModelProto) -> np.ndarray:
    rng = np.random.default_rng(5)
    sizes = {"q": (2, 3, 4, 8), "k": (2, 3, 8, 4), "v": (2, 3, 4, 8)}
    feeds = {n: rng.normal(size=s).astype(np.float32) for n, s in sizes.items()}
    return plain.run_plain(model, {**feeds, "g": np.tri(4).astype(bool)})[0]


@pytest.mark.parametrize("body", MOVES.values(), ids=MOVES)
def test_a_choice_by_arithmetic_changes_no_number_and_lets_attention_fuse(body: str) -> None:
    proto = parsed(body)
    original, model = deepcopy(proto), inferred(proto)
    begun = moves.find(model, NO_NODES)
    assert len(begun) == 1
    moves.carry_out(model, begun)
    onnx.checker.check_model(proto, full_check=True)
    np.testing.assert_array_equal(run(proto), run(original))
    result = atcfuse.optimize(original, dialect="portable", min_saving_us=0.0)
    assert [f["op"] for f in result.report["fusions"]].count("FusedAttention") == 1
    np.testing.assert_allclose(run(result.model), run(original), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("body", STAYS.values(), ids=STAYS)
def test_what_is_no_choice_stays(body: str) -> None:
    assert not moves.find(inferred(parsed(body)), NO_NODES)
