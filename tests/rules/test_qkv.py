"""Several projections of one tensor without a norm: which become one FusedQKV, which stay, and that numbers are kept."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from running import difference, fused_ops, optimized, reasons, run, tools

from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.graph.text import parse_graph
from atcfuse.options import Options

NUMPY = {1: np.float32, 10: np.float16}


def with_weights(text: str, opset: int = 17) -> onnx.ModelProto:
    """A model in which the inputs whose names begin with `w` or `b` are initializers of random numbers."""
    model = parse_graph(text, opset)
    rng = np.random.default_rng(0)
    given = {i.name: i for i in model.graph.input if i.name[0] in "wb"}
    for name, value in given.items():
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape).astype(NUMPY[value.type.tensor_type.elem_type])
        model.graph.initializer.append(numpy_helper.from_array(array, name))
        model.graph.input.remove(value)
    return model


def feeds(model: onnx.ModelProto, **sizes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    made = {}
    for given in model.graph.input:
        tensor = given.type.tensor_type
        shape = [d.dim_value or sizes[d.dim_param] for d in tensor.shape.dim]
        made[given.name] = rng.standard_normal(shape).astype(NUMPY[tensor.elem_type])
    return made


def layers(count: int) -> str:
    """Keys and values of so many layers, all of the same encoder states."""
    names = [f"{kind}{layer}" for layer in range(count) for kind in "kv"]
    inputs = ", ".join(f"float[8,6] w{n}, float[6] b{n}" for n in names)
    outputs = ", ".join(f"float[2,S,6] {n}" for n in names)
    body = "\n".join(f"p{n} = MatMul(x, w{n})\n{n} = Add(b{n}, p{n})" for n in names)
    return f"(float[2,S,8] x, {inputs}) => ({outputs}) {{ {body} }}"


@pytest.mark.parametrize(("count", "projections"), [(1, [2]), (2, [4]), (3, [3, 3]), (4, [4, 4]), (6, [4, 4, 4])])
def test_layers_that_read_the_same_states_are_taken_together_in_node_order(count: int, projections: list[int]) -> None:
    model = with_weights(layers(count))
    result = optimized(model)
    fusions = result.report["fusions"]
    assert [f["attributes"]["num_projections"] for f in fusions] == projections, reasons(result)
    first = next(n for n in result.model.graph.node if n.op_type == "FusedQKV")
    assert list(first.input[1:3]) == ["wk0", "wv0"]
    feed = feeds(model, S=5)
    assert difference(run(model, feed), run(result.model, feed), "float32") == ""


CASES = {
    "a row alone": (
        """(float[8] x, float[8,6] w1, float[8,5] w2) => (float[6] y, float[5] z) { y = MatMul(x, w1)
        z = MatMul(x, w2) }""",
        1,
    ),
    "float16 with one bias": (
        """(float16[2,S,8] x, float16[8,6] w1, float16[8,5] w2, float16[5] b2)
        => (float16[2,S,6] y, float16[2,S,5] z) { y = MatMul(x, w1)
        p = MatMul(x, w2)
        z = Add(p, b2) }""",
        1,
    ),
    "a matrix product and a Gemm": (
        """(float[S,8] x, float[8,6] w1, float[5,8] w2, float[5] b2) => (float[S,6] y, float[S,5] z) {
        y = MatMul(x, w1)
        z = Gemm<transB = 1>(x, w2, b2) }""",
        1,
    ),
    "weights that are batches of matrices": (
        """(float[2,S,8] x, float[2,8,6] w1, float[2,8,5] w2) => (float[2,S,6] y, float[2,S,5] z) {
        y = MatMul(x, w1)
        z = MatMul(x, w2) }""",
        0,
    ),
    "the tensor is the second operand": (
        """(float[8,4] x, float[6,8] w1, float[5,8] w2) => (float[6,4] y, float[5,4] z) { y = MatMul(w1, x)
        z = MatMul(w2, x) }""",
        0,
    ),
    "one of the other": (
        """(float[2,S,8] x, float[8,8] w1, float[8,5] w2) => (float[2,S,8] y, float[2,S,5] z) { y = MatMul(x, w1)
        z = MatMul(y, w2) }""",
        0,
    ),
    "a bias that follows from the other, which stays outside": (
        """(float[2,8] x, float[8,6] w1, float[8,6] w2) => (float[2,6] y, float[2,6] z) {
        y = MatMul(x, w1)
        s = ReduceSum<keepdims = 0>(y, axis)
        p = MatMul(x, w2)
        z = Add(p, s) }""".replace("{", "<int64[1] axis = {0}> {", 1),
        1,
    ),
    "a Gemm of the transposed tensor": (
        """(float[8,8] x, float[8,6] w1, float[8,5] w2) => (float[8,6] y, float[8,5] z) { y = Gemm<transA = 1>(x, w1)
        z = Gemm(x, w2) }""",
        0,
    ),
    "rows of other columns": (
        """(float[2,4,8] x, float[8,6] w1, float[16,5] w2) => (float[2,4,6] y, float[4,5] z) <int64[2] s = {4,16}> {
        y = MatMul(x, w1)
        r = Reshape(x, s)
        z = MatMul(r, w2) }""",
        0,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_stay_whatever_fuses(name: str) -> None:
    graph, fused = CASES[name]
    model = with_weights(graph)
    result = optimized(model)
    assert fused_ops(result) == ["FusedQKV"] * fused, reasons(result)
    feed, tolerance = feeds(model, S=3), "float16" if "float16" in graph else "float32"
    assert difference(run(model, feed), run(result.model, feed), tolerance) == ""


def test_the_same_product_twice_is_one_projection() -> None:
    text = """(float[2,3,8] x, float[8,6] w) => (float[2,3,6] y, float[2,3,6] z) { y = MatMul(x, w)
    z = MatMul(x, w) }"""
    model = with_weights(text)
    result = optimized(model)
    feed = feeds(model)
    assert difference(run(model, feed), run(result.model, feed), "float32") == ""


def test_weights_of_the_running_model_stay() -> None:
    text = "(float[2,3,8] x, float[8,6] u, float[8,6] v) => (float[2,3,6] y, float[2,3,6] z) { y = MatMul(x, u)\nz = MatMul(x, v) }"
    result = optimized(with_weights(text))
    assert fused_ops(result) == []
    assert "a weight is computed while the model runs" in {k["reason"] for k in result.report["kept"]}


def test_a_lone_projection_is_told_what_is_missing() -> None:
    text = "(float[2,3,8] x, float[8,6] w) => (float[2,3,6] y) { y = MatMul(x, w) }"
    chosen = {"qkv_pair"}
    made = tools()
    book = type(made.book)(tuple(r for r in made.book.rules if r.name in chosen), made.book.fragments)
    result = optimize_proto(with_weights(text), type(made)(**{**vars(made), "book": book}))
    assert [(k["rule"], k["code"]) for k in result.report["kept"]] == [("qkv_pair", "ATF318")]
    assert result.report["kept"][0]["reason"] == '"x" feeds 0 more linear, 1 are needed'


def test_large_products_are_left_to_the_toolkit_unless_forced() -> None:
    """Where launches are nothing beside the products, nothing is saved for sure."""
    text = """(float[4096,2048] x, float[2048,2048] w1, float[2048,2048] w2) => (float[4096,2048] y, float[4096,2048] z) {
    y = MatMul(x, w1)
    z = MatMul(x, w2) }"""
    model = with_weights(text)
    kept = optimize_proto(deepcopy(model), toolbox(Options(dialect="portable"))).report["kept"]
    assert {k["code"] for k in kept if k["rule"] == "qkv_pair"} == {"ATF337"}
    forced = toolbox(Options(dialect="portable", forced=frozenset({"qkv_pair"})))
    assert [f["op"] for f in optimize_proto(model, forced).report["fusions"]] == ["FusedQKV"]


def test_a_norm_takes_its_projections_along() -> None:
    text = """(float[2,3,8] x, float[8] bg, float[8,6] w1, float[8,6] w2, float[8,6] w3)
    => (float[2,3,6] q, float[2,3,6] k, float[2,3,6] v) { n = LayerNormalization(x, bg)
    q = MatMul(n, w1)
    k = MatMul(n, w2)
    v = MatMul(n, w3) }"""
    assert fused_ops(optimized(with_weights(text))) == ["FusedLayerNormQKV"]
