"""Small models that were once fused wrongly, or not at all: what fuses must agree, and the good ones must fuse."""

from __future__ import annotations

import numpy as np
import pytest
from running import difference, fused_ops, optimized, reasons, run

from atcfuse.graph.text import parse_graph

QKV = "(float[2,3,4,8] q, float[2,3,6,8] k, float[2,3,6,8] v"
CORE = "t = Transpose<perm = [0, 1, 3, 2]>(k)\n a = MatMul(q, t)\n"
FIVE = """(float[2,5,72] x) => (float[2,3,5,8] y, float[2,3,5,8] z) <int64[5] heads = {2, 5, 3, 3, 8}, int64 i = {0}, int64 j = {1},
  int64 l = {2}> {
    five = Reshape(x, heads)
    s = Transpose<perm = [2, 0, 3, 1, 4]>(five)
    q = Gather<axis = 0>(s, i)
    k = Gather<axis = 0>(s, j)
    v = Gather<axis = 0>(s, l)
    z = Neg(%s)
    t = Transpose<perm = [0, 1, 3, 2]>(k)
    a = MatMul(q, t)
    p = Softmax<axis = -1>(a)
    y = MatMul(p, v)
  }"""
GROUPED = """(float[2,4,5,8] q, float[2,2,6,8] k, float[2,2,6,8] v) => (float[2,4,5,8] y, float[2,4,6,8] k4)
  <int64[1] two = {2}, int64[5] wide = {2, 2, 2, 6, 8}, int64[4] four = {2, 4, 6, 8}> {
    k5 = Unsqueeze(k, two)
    kw = Expand(k5, wide)
    k4 = Reshape(kw, four)
    v5 = Unsqueeze(v, two)
    vw = Expand(v5, wide)
    v4 = Reshape(vw, four)
    t = Transpose<perm = [0, 1, 3, 2]>(k4)
    a = MatMul(q, t)
    p = Softmax<axis = -1>(a)
    y = MatMul(p, v4)
  }"""
KEPT_OR_RIGHT = {
    "the part of a packed value lies above batch and positions": FIVE % "q",
    "all of a packed value is read in another order": FIVE % "k",
    "four heads across two axes of two": GROUPED,
    "the scores are added to themselves": f"{QKV}) => (float[2,3,4,8] y) {{ {CORE}"
    " c = Add(a, a)\n p = Softmax<axis = -1>(c)\n y = MatMul(p, v) }",
    "the probabilities are cut to whole numbers": f"{QKV}) => (float[2,3,4,8] y) {{ {CORE}"
    " p = Softmax<axis = -1>(a)\n i = Cast<to = 6>(p)\n w = Cast<to = 1>(i)\n y = MatMul(w, v) }",
    "a mask applied by arithmetic with an infinite fill": f"{QKV}, bool[4,6] m) => (float[2,3,4,8] y) <float low = {{-inf}}> {{ {CORE}"
    " f = Cast<to = 1>(m)\n g = Mul(f, a)\n n = Not(m)\n h = Cast<to = 1>(n)\n i = Mul(h, low)\n c = Add(g, i)\n"
    " p = Softmax<axis = -1>(c)\n y = MatMul(p, v) }",
    "scores capped twice": f"{QKV}) => (float[2,3,4,8] y) <float c = {{2.0}}, float d = {{0.5}}> {{ {CORE}"
    " b = Div(a, c)\n e = Tanh(b)\n f = Mul(e, c)\n g = Div(f, d)\n h = Tanh(g)\n i = Mul(h, d)\n"
    " p = Softmax<axis = -1>(i)\n y = MatMul(p, v) }",
    "scores cut off twice": f"{QKV}) => (float[2,3,4,8] y) <float c = {{0.5}}, float d = {{-0.5}}> {{ {CORE}"
    " b = Max(a, c)\n e = Max(b, d)\n p = Softmax<axis = -1>(e)\n y = MatMul(p, v) }",
    "rows set to zero although they were cut off": f"{QKV}, float[2,1,4,6] m) => (float[2,3,4,8] y)"
    f" <float low = {{-9.0}}, float never = {{-inf}}, float zero = {{0.0}}> {{ {CORE}"
    " c = Add(a, m)\n d = Max(c, low)\n p = Softmax<axis = -1>(d)\n r = ReduceMax<axes = [-1]>(m)\n"
    " e = Equal(r, never)\n w = Where(e, zero, p)\n y = MatMul(w, v) }",
    "keys cut out of longer ones": "(float[2,3,4,8] q, float[2,3,9,8] k, float[2,3,6,8] v) => (float[2,3,4,8] y)"
    " <int64[1] b = {2}, int64[1] e = {8}, int64[1] x = {2}> {"
    " c = Slice(k, b, e, x)\n t = Transpose<perm = [0, 1, 3, 2]>(c)\n a = MatMul(q, t)\n p = Softmax<axis = -1>(a)\n y = MatMul(p, v) }",
}
NORM = "(float[2,4,8] x, float[8] g, float[8] b, float[8,6] w, float[8,6] u"
MUST_FUSE = {
    "a no-op between the norm and its projections": f"{NORM}) => (float[2,4,6] q, float[2,4,6] k) {{"
    " n = LayerNormalization<axis = -1>(x, g, b)\n i = Identity(n)\n q = MatMul(i, w)\n k = MatMul(i, u) }",
    "a no-op that is also the residual": f"{NORM}) => (float[2,4,6] q, float[2,4,6] k, float[2,4,8] z) {{"
    " n = LayerNormalization<axis = -1>(x, g, b)\n i = Identity(n)\n q = MatMul(i, w)\n k = MatMul(i, u)\n z = Add(i, x) }",
    "projections that share their flattened rows": f"{NORM}, float[6] c) => (float[2,4,6] q, float[2,4,6] k)"
    " <int64[2] rows = {-1, 8}, int64[3] back = {2, 4, 6}> {"
    " n = LayerNormalization<axis = -1>(x, g, b)\n f = Reshape(n, rows)\n q2 = Gemm(f, w, c)\n q = Reshape(q2, back)\n"
    " k2 = Gemm(f, u, c)\n k = Reshape(k2, back) }",
    "a target computed from the norm that is also an output": "(float[B,S,8] x, float[8] g, float[8] b, float[8,6] w, float[8,6] u,"
    " float[6] c) => (float[B,S,6] q, float[B,S,6] k, float[B,S,8] n) <int64[2] rows = {-1, 8}, int64[1] m = {6},"
    " int64[2] lead = {0, 1}> { n = LayerNormalization<axis = -1>(x, g, b)\n f = Reshape(n, rows)\n s = Shape(n)\n"
    " bs = Gather<axis = 0>(s, lead)\n back = Concat<axis = 0>(bs, m)\n q2 = Gemm(f, w, c)\n q = Reshape(q2, back)\n"
    " k2 = Gemm(f, u, c)\n k = Reshape(k2, back) }",
}


def _difference(text: str) -> tuple[list[str], str, object]:
    model = parse_graph(text, 17)
    rng = np.random.default_rng(3)
    sizes = {"B": 2, "S": 3}
    feed = {}
    for value in model.graph.input:
        shape = [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim]
        is_mask = value.name == "m"
        x = rng.standard_normal(shape).astype(np.float32)
        if is_mask:
            x = rng.random(shape) < 0.6 if value.type.tensor_type.elem_type == 9 else np.where(x < 0, -np.inf, x)
            x.reshape(-1, shape[-1])[0] = False if x.dtype == bool else -np.inf
        feed[value.name] = x.astype(np.float32) if x.dtype != bool else x
    result = optimized(model)
    return fused_ops(result), difference(run(model, feed), run(result.model, feed), "float32"), reasons(result)


@pytest.mark.parametrize("text", KEPT_OR_RIGHT.values(), ids=KEPT_OR_RIGHT)
def test_kept_or_right(text: str) -> None:
    assert _difference(text)[1] == ""


@pytest.mark.parametrize("text", MUST_FUSE.values(), ids=MUST_FUSE)
def test_fused_and_right(text: str) -> None:
    fused, wrong, why = _difference(text)
    assert fused == ["FusedLayerNormQKV"], why
    assert wrong == ""


HEADS = """(float[B,S,72] x) => (float[B,S,24] y, OTHER) <int64[4] heads = {0, 0, 3, 24}, int64[3] merged = {0, 0, 24}> {
    wide = Reshape(x, heads)
    turned = Transpose<perm = [0, 2, 1, 3]>(wide)
    q, k, v = Split<axis = 3, num_outputs = 3>(turned)
    READ
    t = Transpose<perm = [0, 1, 3, 2]>(k)
    a = MatMul(q, t)
    p = Softmax<axis = -1>(a)
    o = MatMul(p, v)
    b = Transpose<perm = [0, 2, 1, 3]>(o)
    y = Reshape(b, merged)
  }"""
SHARED = {
    "the queries are read elsewhere": ("float[B,3,S,8] z", "z = Relu(q)"),
    "all heads are read elsewhere": ("float[B,3,S,24] z", "z = Relu(turned)"),
    "the values are an output": ("float[B,3,S,8] v", ""),
    "the body of an If reads the keys": (
        "float[B,3,S,8] z",
        """m = ReduceMax<keepdims = 0>(x)
    c = Cast<to = 9>(m)
    z = If(c) <then_branch = g1 () => (float[B,3,S,8] z1) { z1 = Neg(k) },
               else_branch = g2 () => (float[B,3,S,8] z2) { z2 = Abs(k) }>""",
    ),
}


@pytest.mark.parametrize(("other", "read"), SHARED.values(), ids=SHARED)
def test_operands_are_read_from_below_views_that_have_other_readers(other: str, read: str) -> None:
    model = parse_graph(HEADS.replace("OTHER", other).replace("READ", read), 18)
    feed = {"x": np.random.default_rng(5).standard_normal((2, 5, 72)).astype(np.float32)}
    result = optimized(model)
    (node,) = [n for n in result.model.graph.node if n.op_type == "FusedAttention"]
    assert list(node.input[:3]) == ["x", "x", "x"], reasons(result)
    assert difference(run(model, feed), run(result.model, feed), "float32") == ""


BLOCK = """
        m{i} = MatMul({z}, o)
        e{i} = Add(m{i}, d)
        x{i} = Add({r}, e{i})
        n{i} = LayerNormalization<axis = -1>(x{i}, g, b)
        p{i} = MatMul(n{i}, w)
        l{i} = Add(p{i}, c)
        f{i} = Mul(l{i}, s)
        h{i} = Reshape(f{i}, heads)
        q{i} = Transpose<perm = [0, 2, 1, 3]>(h{i})
        t{i} = Transpose<perm = [0, 1, 3, 2]>(k)
        a{i} = MatMul(q{i}, t{i})
        i{i} = Softmax<axis = -1>(a{i})
        v{i} = MatMul(i{i}, v)
        u{i} = Transpose<perm = [0, 2, 1, 3]>(v{i})
        y{i} = Reshape(u{i}, merged)"""


@pytest.mark.parametrize("layers", [1, 5])
def test_a_factor_between_a_projection_and_attention_is_no_reason_to_fuse_less(layers: int) -> None:
    blocks = [
        BLOCK.replace("{z}", f"y{i - 1}" if i else "z").replace("{r}", f"x{i - 1}" if i else "r").replace("{i}", str(i))
        for i in range(layers)
    ]
    text = f"""(float[2,4,24] z, float[2,4,8] r, float[24,8] o, float[8] d, float[8] g, float[8] b, float[8,24] w,
      float[24] c, float[2,3,6,8] k, float[2,3,6,8] v) => (float[2,4,24] y)
      <float s = {{0.25}}, int64[4] heads = {{0, 0, 3, 8}}, int64[3] merged = {{0, 0, 24}}> {{
        {"".join(blocks)}
        y = Identity(y{layers - 1}) }}"""
    fused, wrong, why = _difference(text)
    assert fused == sorted(["FusedAttention", "FusedLayerNormLinear", "FusedLinear"] * layers), why
    assert wrong == ""
