"""Transposed products of attention are products of transposed operands, and what Keras makes of them by tf2onnx fuses."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
import plain
import pytest
from infer_oracle import inferred

import atcfuse
from atcfuse import moves
from atcfuse.keep_nodes import NO_NODES
from atcfuse.moves.swap import Swap

HEAD = """<ir_version: 8, opset_import: ["" : 15]> g
  (float[2,3,4,8] q, float[2,3,6,8] k, float[2,3,6,8] v, bool[2,1,1,6] m) => (float[2,3,4,8] y{more})
  <float c = {{-1e9}}, float s = {{0.25}}, float z = {{0.0}}>"""
SCORES = (
    "qs = Mul(q, s) qt = Transpose<perm = [0, 1, 3, 2]>(qs) at = MatMul(k, qt) a = Transpose<perm = [0, 1, 3, 2]>(at)"
)
TERMS = "mc = Cast<to = 1>(m) n = Not(m) nc = Cast<to = 1>(n)"
CHOSEN = f"{TERMS} kept = Mul(mc, a) fill = Mul(c, nc) sel = Add(kept, fill) p = Softmax<axis = -1>(sel)"
FUSES = {
    "scores": f"{SCORES} p = Softmax<axis = -1>(a) y = MatMul(p, v)",
    "sums": """kt = Transpose<perm = [0, 1, 3, 2]>(k) a = MatMul(q, kt) p = Softmax<axis = -1>(a)
      pt = Transpose<perm = [0, 1, 3, 2]>(p) vt = Transpose<perm = [0, 1, 3, 2]>(v) yt = MatMul(vt, pt)
      y = Transpose<perm = [0, 1, 3, 2]>(yt)""",
    "chosen by a mask and its Not": f"{SCORES} {CHOSEN} y = MatMul(p, v)",
    "probabilities as well": f"{SCORES} {CHOSEN} pm = Mul(mc, p) pz = Mul(nc, z) w = Add(pm, pz) y = MatMul(w, v)",
    "the zeros first": f"{SCORES} {CHOSEN} pm = Mul(p, mc) pz = Mul(z, nc) w = Add(pz, pm) y = MatMul(w, v)",
}
STAYS = {
    "read as it is, too": (", float[2,3,6,4] at", f"{SCORES} p = Softmax<axis = -1>(a) y = MatMul(p, v)"),
    "no softmax near": ("", f"{SCORES} p = Relu(a) y = MatMul(p, v)"),
    "other axes": (
        "",
        """kt = Transpose<perm = [2, 1, 0, 3]>(k) kq = Transpose<perm = [0, 1, 3, 2]>(k) a = MatMul(q, kq)
        p = Softmax<axis = -1>(a) y = MatMul(p, v)""",
    ),
}
OTHERS = {
    "another mask for the rest": "x = Equal(m, m) xn = Not(x) xc = Cast<to = 1>(xn) pm = Mul(mc, p) pz = Mul(xc, z)",
    "not a mask": "pm = Mul(fill, p) pz = Mul(nc, z)",
}


def parsed(body: str, more: str = "") -> onnx.ModelProto:
    return plain.parsed(f"{HEAD.format(more=more)} {{ {body} }}")


def run(model: onnx.ModelProto, mask: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(6)
    sizes = {"q": (2, 3, 4, 8), "k": (2, 3, 6, 8), "v": (2, 3, 6, 8)}
    feeds = {n: rng.normal(size=s).astype(np.float32) for n, s in sizes.items()}
    return plain.run_plain(model, {**feeds, "m": mask.reshape(2, 1, 1, 6)})[0]


def masks() -> list[np.ndarray]:
    """Some keys, all, and none of the first batch."""
    some = np.array([[1, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]], bool)
    return [some, np.ones((2, 6), bool), np.array([[0] * 6, [1, 0, 0, 0, 0, 0]], bool)]


@pytest.mark.parametrize("body", FUSES.values(), ids=FUSES)
def test_attention_fuses(body: str) -> None:
    original = parsed(body)
    result = atcfuse.optimize(deepcopy(original), dialect="portable", min_saving_us=0.0)
    assert [n.op_type for n in result.model.graph.node].count("FusedAttention") == 1
    assert not {"MatMul", "Transpose", "Softmax"} & {n.op_type for n in result.model.graph.node}
    for mask in masks():
        np.testing.assert_allclose(run(result.model, mask), run(original, mask), rtol=2e-5, atol=2e-6)


def test_two_layers_that_share_what_a_mask_is_multiplied_into_fuse() -> None:
    second = (
        "b = MatMul(y0, kt) keptb = Mul(mc, b) selb = Add(keptb, fill) pb = Softmax<axis = -1>(selb) y = MatMul(pb, v)"
    )
    body = f"{SCORES} {CHOSEN} y0 = MatMul(p, v) kt = Transpose<perm = [0, 1, 3, 2]>(k) {second}"
    original = parsed(body)
    result = atcfuse.optimize(deepcopy(original), dialect="portable", min_saving_us=0.0)
    assert [n.op_type for n in result.model.graph.node].count("FusedAttention") == 2
    for mask in masks():
        np.testing.assert_allclose(run(result.model, mask), run(original, mask), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("more", "body"), STAYS.values(), ids=STAYS)
def test_other_products_stay(more: str, body: str) -> None:
    begun = moves.find(inferred(parsed(body, more)), NO_NODES)
    assert not [b for b in begun if isinstance(b.move, Swap)]


@pytest.mark.parametrize("rest", OTHERS.values(), ids=OTHERS)
def test_probabilities_that_are_chosen_otherwise_do_not_fuse(rest: str) -> None:
    original = parsed(f"{SCORES} {CHOSEN} {rest} w = Add(pm, pz) y = MatMul(w, v)")
    result = atcfuse.optimize(deepcopy(original), dialect="portable", min_saving_us=0.0)
    assert "FusedAttention" not in {n.op_type for n in result.model.graph.node}
    for mask in masks():
        np.testing.assert_allclose(run(result.model, mask), run(original, mask), rtol=2e-5, atol=2e-6)
