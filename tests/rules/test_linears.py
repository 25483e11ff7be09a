"""Projections in unusual company: what fuses gives the numbers of the original, what would not stays."""

from __future__ import annotations

import numpy as np
import pytest
from running import difference, fused_ops, optimized, reasons, run

from atcfuse.graph.text import parse_graph

DYNAMIC = {"K": 8, "N": 4}
CASES = {
    "a product added to itself": (
        """(float[2,3,8] x, float[8,6] w) => (float[2,3,6] y) { l = MatMul(x, w)
        y = Add(l, l) }""",
        0,
    ),
    "a product added to itself with its bias": (
        """(float[2,3,8] x, float[8,6] w, float[6] b) => (float[2,3,6] y) { p = MatMul(x, w)
        l = Add(p, b)
        y = Add(l, p) }""",
        0,
    ),
    "a product times itself": (
        """(float[1,8] x, float[8,6] w) => (float[1,6] y) { p = MatMul(x, w)
        y = Mul(p, p) }""",
        0,
    ),
    "a product added to its copy": (
        """(float[2,3,8] x, float[8,6] w) => (float[2,3,6] y) { l = MatMul(x, w)
        m = MatMul(x, w)
        y = Add(l, m) }""",
        1,
    ),
    "a product added to its activation": (
        """(float[2,3,8] x, float[8,6] w) => (float[2,3,6] y) { l = MatMul(x, w)
        a = Relu(l)
        y = Add(a, l) }""",
        0,
    ),
    "the operand added": (
        """(float[2,3,8] x, float[8,8] w) => (float[2,3,8] y) { l = MatMul(x, w)
        y = Add(x, l) }""",
        1,
    ),
    "the operand added to its activation's projection": (
        """(float[2,3,8] x, float[8,8] w) => (float[2,3,8] y) { a = Relu(x)
        l = MatMul(a, w)
        y = Add(x, l) }""",
        1,
    ),
    "an activation added to its own projection": (
        """(float[2,3,8] x, float[8,8] w) => (float[2,3,8] y) { a = Relu(x)
        l = MatMul(a, w)
        y = Add(a, l) }""",
        1,
    ),
    "a Gemm with alpha": (
        """(float[3,8] x, float[8,6] w, float[6] b, float[3,6] r) => (float[3,6] y) { l = Gemm<alpha=0.5>(x, w, b)
        y = Add(r, l) }""",
        0,
    ),
    "a Gemm with a matrix as bias": (
        """(float[3,8] x, float[8,6] w, float[3,6] b) => (float[3,6] y) { l = Gemm(x, w, b)
        y = Relu(l) }""",
        0,
    ),
    "a Gemm with one number as bias": (
        """(float[3,8] x, float[8,6] w, float[1] b) => (float[3,6] y) { l = Gemm(x, w, b)
        y = Relu(l) }""",
        0,
    ),
    "a Gemm of a transposed operand": (
        """(float[8,3] x, float[8,6] w, float[6] b) => (float[3,6] y) { l = Gemm<transA=1>(x, w, b)
        y = Relu(l) }""",
        0,
    ),
    "a row alone": (
        """(float[8] x, float[8,6] w, float[6] r) => (float[6] y) { l = MatMul(x, w)
        y = Add(l, r) }""",
        1,
    ),
    "a weight of one column without its axis": (
        """(float[2,3,8] x, float[8] w, float[2,3] r) => (float[2,3] y) { l = MatMul(x, w)
        y = Add(l, r) }""",
        0,
    ),
    "a factor that adds a batch": (
        """(float[3,8] x, float[8,6] w, float[2,1,6] g) => (float[2,3,6] y) { l = MatMul(x, w)
        y = Mul(l, g) }""",
        0,
    ),
    "a factor that adds an axis": (
        """(float[3,8] x, float[8,6] w, float[1,1,6] g) => (float[1,3,6] y) { l = MatMul(x, w)
        y = Mul(l, g) }""",
        0,
    ),
    "a factor a row": (
        """(float[6,8] x, float[8,6] w, float[6,1] g) => (float[6,6] y) { l = MatMul(x, w)
        y = Mul(l, g) }""",
        0,
    ),
    "one column and its factor": (
        """(float[3,8] x, float[8,1] w, float[1] g) => (float[3,1] y) { l = MatMul(x, w)
        y = Mul(l, g) }""",
        1,
    ),
    "a factor known at run time only": (
        """(float[3,8] x, float[8,6] w, float[1] g) => (float[3,6] y) { l = MatMul(x, w)
        y = Mul(l, g) }""",
        0,
    ),
    "a bias behind the factor": (
        """(float[3,8] x, float[8,6] w, float[6] b) => (float[3,6] y) <float h={0.5}> { l = MatMul(x, w)
        s=Mul(l,h)
        y = Add(s, b) }""",
        1,
    ),
    "a factor behind the activation": (
        """(float[3,8] x, float[8,6] w, float[3,6] r) => (float[3,6] y) <float h={0.5}> { l = MatMul(x, w)
        a=Relu(l)
        s=Mul(a,h)
        y = Add(s, r) }""",
        1,
    ),
    "an activation behind the sum": (
        """(float[3,8] x, float[8,6] w, float[3,6] r) => (float[3,6] y) { l = MatMul(x, w)
        s = Add(l, r)
        y = Relu(s) }""",
        1,
    ),
    "a product subtracted": (
        """(float[3,8] x, float[8,6] w, float[3,6] r) => (float[3,6] y) { l = MatMul(x, w)
        y = Sub(r, l) }""",
        0,
    ),
    "operands without columns": (
        """(float[N,0] x, float[0,6] w, float[N,6] r) => (float[N,6] y) { l = MatMul(x, w)
        y = Add(r, l) }""",
        0,
    ),
    "a bias with axes of extent 1": (
        """(float[2,3,8] x, float[8,6] w, float[1,1,6] b, float[2,3,6] r) => (float[2,3,6] y) { l = MatMul(x, w)
        m=Add(l,b)
        y = Add(r, m) }""",
        1,
    ),
    "a weight with a dynamic extent": (
        """(float[2,3,8] x, float[K,6] w, float[2,3,6] r) => (float[2,3,6] y) { l = MatMul(x, w)
        y = Add(r, l) }""",
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_stay_whatever_fuses(name: str) -> None:
    graph, fused = CASES[name]
    model = parse_graph(graph, 17)
    result = optimized(model)
    assert fused_ops(result) == ["FusedLinear"] * fused, reasons(result)
    rng = np.random.default_rng(0)
    shapes = {
        i.name: [d.dim_value or DYNAMIC.get(d.dim_param, 0) for d in i.type.tensor_type.shape.dim]
        for i in model.graph.input
    }
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    assert difference(run(model, feeds), run(result.model, feeds), "float32") == ""
