"""Work of unfused nodes: bytes as the traffic count has them, flops from shapes, views and host nodes free."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.graph.store import load
from atcfuse.graph.traffic import Sizes, kinds, measure
from atcfuse.graph.work import NodeWorks, OpWork, Product, cast_work, transdata_work, work_of, works_of

SAMPLES = sorted((Path(__file__).parents[2] / "sample_models").glob("*.onnx"))


def works(graph: str, narrow: bool = False) -> dict[str, OpWork]:
    """The works of a graph by first output."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> g {graph}'
    model = Model(onnx.parser.parse_model(text))
    infer(model)
    scope, found = model.main, kinds(model.main)
    return {n.outputs[0]: work_of(scope, n, Sizes({}), found[n.index], narrow) for n in scope.nodes}


def test_products_by_operator() -> None:
    made = works(
        """(float16[2,5,8] x, float16[8,6] w, float16[2,8,5] y, float16[4,8] a, float16[7,4] c) => (float16[2,5,6] p,
        float16[2,5,5] q, float16[8,7] r) {
          p = MatMul(x, w)
          q = MatMul(x, y)
          r = Gemm<transA = 1, transB = 1>(a, c)
        }"""
    )
    assert made["p"].product == Product(1, 10, 6, 8, "x", "w")
    assert made["q"].product == Product(2, 5, 5, 8, "x", "y")
    assert made["r"].product == Product(1, 8, 7, 4, "a", "c")
    assert made["p"].cube_flops == 2 * 10 * 6 * 8
    assert made["p"].reads == {"x": 160, "w": 96}
    assert made["p"].writes == {"p": 120}
    assert all(work.vector_elements == 0 for work in made.values())


def test_convolutions() -> None:
    made = works(
        """(float[1,4,8,8] x, float[6,2,3,3] w, float[4,3,2,2] t) => (float[1,6,6,6] y, float[1,3,9,9] z) {
          y = Conv<group = 2>(x, w)
          z = ConvTranspose(x, t)
        }"""
    )
    assert made["y"].cube_flops == 2 * 6 * 6 * 6 * (2 * 3 * 3)
    assert made["z"].cube_flops == 2 * 4 * 8 * 8 * (3 * 2 * 2)
    assert made["y"].product is None


def test_vector_work() -> None:
    made = works(
        """(float16[2,3,4] x, float16[4] b, bool[2,3,4] m) => (float16[2,3,4] y) {
          s = Add(x, b)
          e = Erf(s)
          p = Softmax(e)
          r = ReduceSum<keepdims = 1>(p)
          d = Div(p, r)
          t = Transpose<perm = [0, 1, 2]>(d)
          n = Not(m)
          z = Mul(t, t)
          y = Where(n, z, x)
        }"""
    )
    elements = {name: work.vector_elements for name, work in made.items()}
    assert elements == {"s": 24, "e": 23 * 24, "p": 5 * 24, "r": 24, "d": 24, "t": 0, "n": 24, "z": 24, "y": 24}
    assert {name: made[name].dtype for name in ("s", "p", "r", "n")} == {
        "s": "float16",
        "p": "float32",
        "r": "float32",
        "n": "bool",
    }
    assert made["z"].reads == {"t": 96}, "an input that is named twice is read twice"


def test_views_and_host_nodes_are_free() -> None:
    made = works(
        """(float[2,3,4] x, float[4] g) => (float[2,12] y, float[4] z) <int64[2] to = {2, 12}> {
          s = Shape(x)
          f = Flatten(x)
          y = Reshape(f, to)
          z = Relu(g)
        }"""
    )
    assert [made[n].launches for n in ("s", "f", "y", "z")] == [0, 0, 0, 1]
    assert made["y"].tensor_bytes == 0


def test_constants_are_named() -> None:
    made = works("(float[2,3] x) => (float[2,3] y) <float[3] w = {1, 2, 3}> { y = Mul(x, w) }")
    assert made["y"].constants == {"w"}


def test_force_fp16_halves_floats_and_nothing_else() -> None:
    graph = """(float[2,5,8] x, float[8,6] w, int64[2,5,6] i) => (float[2,5,6] y, int64[2,5,6] j) {
      y = MatMul(x, w)
      j = Add(i, i)
    }"""
    plain, narrow = works(graph), works(graph, narrow=True)
    assert narrow["y"].tensor_bytes * 2 == plain["y"].tensor_bytes
    assert (plain["y"].dtype, narrow["y"].dtype) == ("float32", "float16")
    assert narrow["y"].product == Product(1, 10, 6, 8, "x", "w", 2)
    assert narrow["j"] == plain["j"]


def test_boundaries() -> None:
    cast = cast_work("x", 10, 4, 2)
    assert (cast.reads, cast.tensor_bytes, cast.launches) == ({"x": 40}, 60, 1)
    assert transdata_work("x", 64).tensor_bytes == 128


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_launches_and_bytes_are_those_of_the_traffic_count(path: Path) -> None:
    model = Model(load(path), path)
    infer(model)
    counted = measure(model.main, Sizes({}))
    found = works_of(model.main, NodeWorks(Sizes({})))
    assert sum(work.launches for work in found) == counted.launches
    assert sum(work.tensor_bytes for work in found) == counted.ddr_bytes


def test_of_an_if_the_costlier_branch_counts() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (bool c, float[4] x) => (float[4] y) {
      y = If(c) <
        then_branch = t () => (float[4] a) { u = Exp(x)  a = Relu(u) },
        else_branch = e () => (float[4] b) { b = Neg(x) }
      >
    }"""
    model = Model(onnx.parser.parse_model(text))
    infer(model)
    assert [work.op for work in works_of(model.main, NodeWorks(Sizes({}))) if work.launches] == ["Exp", "Relu"]
