"""LayerNorms of heads, each by itself, become one that a rotary embedding takes in; others stay as they are."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import plain
import pytest

import atcfuse

NORMS = """l0 = LayerNormalization<axis = -1, epsilon = 1e-5>(p0, g0) l1 = LayerNormalization<axis = -1, epsilon = 1e-5>(p1, g1, z)
    l2 = LayerNormalization<axis = 3, epsilon = 1e-5>(p2, g2)"""
TEXT = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[B,S,24] x, float[S,8] c, float[S,8] s) => (float[B,3,S,8] y)
    <int64[4] heads = {{0, 0, 3, 8}}, int64[3] ones = {{1, 1, 1}}, float[8] g0 = {{1, 2, 3, 4, 5, 6, 7, 8}},
     float[8] g1 = {{-1, 0.5, 1, 2, 0.1, 3, 1, 1}}, float[8] g2 = {{2, 2, 2, 1, 1, 1, 0, 1}},
     float[8] z = {{0, 0, 0, 0, 0, 0, 0, 0}}, float[8] o = {{0, 0, 0, 0, 0, 0, 0, 1}}, int64[2] halves = {{4, 4}}> {{
    f = Reshape(x, heads) q = Transpose<perm = [0, 2, 1, 3]>(f) p0, p1, p2 = Split<axis = 1>(q, ones)
    {NORMS} n = Concat<axis = 1>(l0, l1, l2) a, b = Split<axis = -1>(n, halves) m = Neg(b)
    t = Concat<axis = -1>(m, a) u = Mul(n, c) v = Mul(t, s) y = Add(u, v) }}"""


def parsed(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
    return model


def compared(model: onnx.ModelProto) -> Counter[str]:
    """The operators of the optimized model, which gives the same numbers for several sizes."""
    off = frozenset({"layer_norm_operator"})
    done = atcfuse.optimize(model, dialect="portable", min_saving_us=0.0, disabled=off).model
    before, after = plain.plain_session(model), plain.plain_session(done)
    rng = np.random.default_rng(3)
    for batch, length in ((1, 1), (2, 5), (3, 8)):
        sizes = {"x": (batch, length, 24), "c": (length, 8), "s": (length, 8), "w": (8,)}
        names = [i.name for i in before.get_inputs()]
        feeds = {n: rng.normal(size=sizes[n]).astype(np.float32) for n in names}
        for found, expected in zip(after.run(None, feeds), before.run(None, feeds), strict=True):
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    return Counter(n.op_type for n in done.graph.node)


def test_norms_of_heads_go_into_the_rotation() -> None:
    left = compared(parsed(TEXT))
    assert left["FusedRotaryEmbedding"] == 1
    assert not {"LayerNormalization", "Split", "Transpose", "Mul"} & set(left)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n = Concat<axis = 1>(l0, l1, l2)", "n = Concat<axis = 1>(l1, l0, l2)"),  # heads change places
        ("l0 = LayerNormalization<axis = -1, epsilon = 1e-5>", "l0 = LayerNormalization<axis = -1, epsilon = 0.1>"),
        ("(p1, g1, z)", "(p1, g1, o)"),  # a shift
        ("(float[B,S,24] x,", "(float[8] w, float[B,S,24] x,"),  # a scale that is no constant, see below
        ("=> (float[B,3,S,8] y)", "=> (float[B,3,S,8] y, float[B,1,S,8] l0)"),
        ("=> (float[B,3,S,8] y)", "=> (float[B,3,S,8] y, float[B,1,S,8] p2)"),
    ],
)
def test_norms_that_are_not_one_stay(old: str, new: str) -> None:
    text = TEXT.replace(old, new)
    text = text.replace("(p2, g2)", "(p2, w)") if "float[8] w" in new else text
    assert text != TEXT
    assert compared(parsed(text))["LayerNormalization"] == 3


def test_where_nothing_takes_the_norm_in_all_stays() -> None:
    text = TEXT[: TEXT.index("a, b = Split")] + "y = Relu(n) }"
    left = compared(parsed(text.replace(", float[S,8] c, float[S,8] s", "")))
    assert (left["LayerNormalization"], left["Split"]) == (3, 1)
