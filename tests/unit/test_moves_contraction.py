"""Einsum of last axes with a constant is a projection: a MatMul of rows with a matrix, which changes no meaning."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

import numpy as np
import onnx
import plain
import pytest
from infer_oracle import inferred
from onnx import TensorProto, helper, numpy_helper

import atcfuse
from atcfuse import moves
from atcfuse.graph.index import Model
from atcfuse.keep_nodes import NO_NODES

RNG = np.random.default_rng(11)
MOVES = {
    "rows with a matrix": ("bsd,de->bse", ["B", "S", 6], (6, 5)),
    "a matrix of rows": ("ij, jk -> ik", ["B", 6], (6, 5)),
    "heads are made": ("abc,cde->abde", ["B", "S", 6], (6, 2, 3)),
    "heads are summed": ("abcd,cde->abe", ["B", "S", 2, 3], (2, 3, 5)),
    "both": ("abcd,cdef->abef", ["B", 4, 2, 3], (2, 3, 5, 2)),
}
STAYS = {
    "summed in another order": ("abcd,dce->abe", ["B", "S", 2, 2], (2, 2, 5)),
    "heads of their own": ("abcd,cde->abce", ["B", "S", 2, 3], (2, 3, 5)),
    "made in another order": ("abc,cde->abed", ["B", "S", 6], (6, 2, 3)),
    "the matrix transposed": ("abc,dc->abd", ["B", "S", 6], (6, 6)),
    "made in front": ("abc,cd->dab", ["B", "S", 6], (6, 5)),
    "a diagonal": ("aab,bc->ac", [3, 3, 6], (6, 5)),
    "no rows": ("ab,abc->c", [2, 3], (2, 3, 5)),
    "nothing is made": ("abc,c->ab", ["B", "S", 6], (6,)),
    "an axis that repeats": ("abc,cd->abd", ["B", "S", 1], (6, 5)),
    "axes not spelled out": ("...c,cd->...d", ["B", "S", 6], (6, 5)),
}


def parsed(equation: str, shape: list[str | int], weight: tuple[int, ...]) -> onnx.ModelProto:
    nodes = [helper.make_node("Einsum", ["x", "w"], ["y"], name="project", equation=equation)]
    w = numpy_helper.from_array(RNG.normal(size=weight).astype(np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: onnx.ModelProto, shape: list[str | int]) -> np.ndarray:
    sizes = [{"B": 2, "S": 5}.get(d, d) for d in shape]
    x = np.random.default_rng(1).normal(size=sizes).astype(np.float32)
    return plain.run_plain(model, {"x": x})[0]


@pytest.mark.parametrize(("equation", "shape", "weight"), MOVES.values(), ids=MOVES)
def test_a_projection_is_a_product_of_matrices(equation: str, shape: list[str | int], weight: tuple[int, ...]) -> None:
    proto = parsed(equation, shape, weight)
    original, model = deepcopy(proto), inferred(proto)
    begun = moves.find(model, NO_NODES)
    assert len(begun) == 1
    moves.carry_out(model, begun)
    assert {n.op_type for n in proto.graph.node} <= {"MatMul", "Reshape", "Constant"}
    assert inferred(deepcopy(proto)).main.fact("y").shape == inferred(deepcopy(original)).main.fact("y").shape
    np.testing.assert_allclose(run(proto, shape), run(original, shape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("equation", "shape", "weight"), STAYS.values(), ids=STAYS)
def test_what_is_no_projection_stays(equation: str, shape: list[str | int], weight: tuple[int, ...]) -> None:
    assert not moves.find(inferred(parsed(equation, shape, weight)), NO_NODES)


def test_a_weight_that_is_computed_stays() -> None:
    model = Model(
        plain.parsed("""<ir_version: 8, opset_import: ["" : 17]> g (float[B,S,6] x, float[6,5] w) => (float[B,S,5] y) {
        y = Einsum<equation = "abc,cd->abd">(x, w) }""")
    )
    assert not moves.find(model, NO_NODES)


def test_one_that_nothing_takes_up_is_left_alone() -> None:
    result = atcfuse.optimize(parsed("abc,cd->abd", ["B", "S", 6], (6, 5)), dialect="portable", min_saving_us=0.0)
    assert [n.op_type for n in result.model.graph.node] == ["Einsum"]


def test_heads_of_keras_are_projected_by_one_kernel_each_way() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[B,S,6] x, float[6] g, float[6] c) => (float[B,S,6] y)
        <float[6,2,3] wq, float[6,2,3] wk, float[6,2,3] wv, float[2,3,6] wo, float[2,3] bq, float[2,3] bk, float[2,3] bv,
        float[6] bo> {
        n = LayerNormalization(x, g, c)
        q0 = Einsum<equation = "abc,cde->abde">(n, wq) q = Add(q0, bq)
        k0 = Einsum<equation = "abc,cde->abde">(n, wk) k = Add(k0, bk)
        v0 = Einsum<equation = "abc,cde->abde">(n, wv) v = Add(bv, v0)
        qt = Transpose<perm = [0, 2, 1, 3]>(q) kt = Transpose<perm = [0, 2, 3, 1]>(k) vt = Transpose<perm = [0, 2, 1, 3]>(v)
        a = MatMul(qt, kt) p = Softmax<axis = -1>(a) o = MatMul(p, vt) ot = Transpose<perm = [0, 2, 1, 3]>(o)
        z0 = Einsum<equation = "abcd,cde->abe">(ot, wo) z = Add(z0, bo) y = Add(z, x) }"""
    proto = plain.parsed(text)
    for info in proto.graph.value_info:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        proto.graph.initializer.append(numpy_helper.from_array(RNG.normal(size=shape).astype(np.float32), info.name))
    original = deepcopy(proto)
    result = atcfuse.optimize(proto, dialect="portable", min_saving_us=0.0)
    assert Counter(f["op"] for f in result.report["fusions"]) == {
        "FusedLayerNormQKV": 1,
        "FusedAttention": 1,
        "FusedLinear": 1,
    }
    given = {"x": RNG.normal(size=(2, 5, 6)).astype(np.float32)}
    given |= {name: RNG.normal(size=6).astype(np.float32) for name in "gc"}
    np.testing.assert_allclose(
        plain.run_plain(result.model, given)[0], plain.run_plain(original, given)[0], rtol=1e-4, atol=1e-5
    )
