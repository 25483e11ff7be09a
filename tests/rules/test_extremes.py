"""Models at the edge of what fuses: extreme numbers, parts across axes, empty shapes. Kept or right."""

from __future__ import annotations

import numpy as np
import pytest
from running import Array, difference, fused_ops, optimized, reasons, run

from atcfuse.graph.text import parse_graph

QKV = "float[2,3,4,8] q, float[2,3,6,8] k, float[2,3,6,8] v"
CORE = "t = Transpose<perm = [0, 1, 3, 2]>(k)\n a = MatMul(q, t)\n"
END = "p = Softmax<axis = 3>(c)\n y = MatMul(p, v) }"


def attention(more: str, body: str, constants: str = "") -> str:
    """An attention whose scores `a` become `c` by the body."""
    return f"({QKV}{more}) => (float[2,3,4,8] y) {constants} {{ {CORE} {body} {END}"


def normal(*shape: int) -> Array:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


Q, K = normal(2, 3, 4, 8), normal(2, 3, 6, 8)
BASE = {"q": Q, "k": K, "v": K[..., ::-1].copy()}
TRIANGLE = np.arange(24).reshape(4, 6) > 5
CASES = {
    "a part of the values across two axes of their root": (
        (
            "(float[2,3,4,8] q, float[2,3,6,8] k, float[2,3,6,2,6] v) => (float[2,3,4,4] y)"
            " <int64[4] sh = {2,3,6,12}, int64[1] b = {4}, int64[1] e = {8}, int64[1] ax = {3}> {"
            f" {CORE} v2 = Reshape(v, sh)\n v3 = Slice(v2, b, e, ax)\n p = Softmax<axis = 3>(a)\n y = MatMul(p, v3) }}"
        ),
        17,
        {"q": Q, "k": K, "v": normal(2, 3, 6, 2, 6)},
    ),
    "rows regrouped under a bias": (
        (
            "(float[2,3,3,8] q, float[2,3,6,8] k, float[2,3,6,8] v, float[9,6] m) => (float[2,3,3,8] y)"
            " <int64[3] f = {2,9,6}, int64[4] b = {2,3,3,6}> {"
            f" {CORE} r = Reshape(a, f)\n d = Add(r, m)\n c = Reshape(d, b)\n {END}"
        ),
        17,
        {"q": normal(2, 3, 3, 8), "k": K, "v": BASE["v"], "m": normal(9, 6)},
    ),
    "a clip without bounds over a fully masked row": (
        attention(", float[2,1,4,6] m", "r = Add(a, m)\n c = Clip(r)\n"),
        12,
        {**BASE, "m": np.full((2, 1, 4, 6), -np.inf, np.float32)},
    ),
    "two added values that cancel": (
        attention(", float[2,1,1,6] b, float[4,6] m", "d = Add(a, b)\n c = Add(d, m)\n"),
        17,
        {**BASE, "b": np.full((2, 1, 1, 6), -1e9, np.float32), "m": np.full((4, 6), 1e9, np.float32)},
    ),
    "a bias under a mask of moderate numbers": (
        attention(", float[3,4,6] b, float[2,1,1,6] m", "d = Add(a, b)\n c = Add(d, m)\n"),
        17,
        {**BASE, "b": normal(3, 4, 6), "m": np.full((2, 1, 1, 6), -10000, np.float32)},
    ),
    "a fill that overflows when it is scaled": (
        attention(", bool[4,6] m", "r = Where(m, a, f)\n c = Mul(r, s)\n", "<float f = {-3.4e38}, float s = {4.0}>"),
        17,
        {**BASE, "m": TRIANGLE},
    ),
    "scores cut off at NaN": (attention("", "c = Max(a, f)\n", "<float f = {nan}>"), 17, BASE),
    "a selection by arithmetic before Where existed": (
        attention(
            ", bool[2,1,1,6] m",
            "f = Cast<to = 1>(m)\n g = Mul(f, a)\n n = Not(m)\n h = Cast<to = 1>(n)\n i = Mul(h, low)\n c = Add(g, i)\n",
            "<float low = {-1e9}>",
        ),
        8,
        {**BASE, "m": np.ones((2, 1, 1, 6), bool)},
    ),
    "an empty range of an inner shape": (
        (
            "(float[B,S,24] q, float[B,3,L,8] k, float[B,3,L,8] v) => (float[B,3,S,8] y, int64[N] none)"
            " <int64[4] h = {0,0,3,8}> { qs = Reshape(q, h)\n q4 = Transpose<perm = [0, 2, 1, 3]>(qs)\n"
            " none = Shape<start = 2, end = 2>(q4)\n t = Transpose<perm = [0, 1, 3, 2]>(k)\n c = MatMul(q4, t)\n"
            f" {END}"
        ),
        17,
        {"q": normal(2, 4, 24), "k": K, "v": BASE["v"]},
    ),
    "a bias that widens a projection": (
        (
            "(float[2,3,8] x, float[8] g, float[8] b, float[8,1] w, float[6] c) => (float[2,3,6] k, float[2,3,6] v) {"
            " n = LayerNormalization<axis = -1>(x, g, b)\n e = MatMul(n, w)\n k = Add(e, c)\n f = MatMul(n, w)\n v = Add(f, c) }"
        ),
        17,
        {"x": normal(2, 3, 8), "g": normal(8), "b": normal(8), "w": normal(8, 1), "c": normal(6)},
    ),
}


@pytest.mark.parametrize(("text", "opset", "feed"), CASES.values(), ids=CASES)
def test_kept_or_right(text: str, opset: int, feed: dict[str, Array]) -> None:
    model = parse_graph(text, opset)
    result = optimized(model)
    assert difference(run(model, feed), run(result.model, feed), "float32") == ""


def test_a_bias_under_a_mask_that_swallows_it_fuses() -> None:
    text = attention(
        ", float[3,4,6] b, int64[2,1,1,6] m",
        "f = Cast<to = 1>(m)\n g = Sub(one, f)\n h = Mul(g, low)\n d = Add(a, b)\n c = Add(d, h)\n",
        "<float one = {1.0}, float low = {-3.4e38}>",
    )
    model = parse_graph(text, 17)
    result = optimized(model)
    assert fused_ops(result) == ["FusedAttention"], reasons(result)
    keep = np.ones((2, 1, 1, 6), np.int64)
    keep[0] = 0
    keep[1, ..., 3:] = 0
    feed = {**BASE, "b": normal(3, 4, 6), "m": keep}
    assert difference(run(model, feed), run(result.model, feed), "float32") == ""
