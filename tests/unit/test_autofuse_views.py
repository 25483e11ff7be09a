"""Views between element-wise operators of whole models: moved behind them where a group is made, else left alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx import ModelProto
from test_autofuse import alone, assert_same, fused_ops, optimized, parsed, tools

from atcfuse.elementwise import parse_expression

X = np.random.default_rng(1).normal(size=(2, 3, 40)).astype(np.float32)


def standard(model: ModelProto) -> dict[str, int]:
    return dict(Counter(n.op_type for n in model.graph.node if not n.domain))


HEADS = """heads (float[batch,3,40] x, float[8] b) => (float[batch,3,5,8] y) <int64[4] split = {0, 0, 5, 8}, float two = {2.0}> {
  a = Tanh(x)
  r = Reshape(a, split)
  m = Mul(r, two)
  s = Add(m, b)
  y = Relu(s)
}"""


def test_a_view_goes_behind_what_does_not_mind_it() -> None:
    """The constant does not; a vector as long as the new last axis does."""
    model = parsed(HEADS)
    result = optimized(model, alone())
    assert standard(result.model) == {"Reshape": 1}
    assert [n.op_type[:5] for n in result.model.graph.node] == ["Fused", "Resha", "Fused"]
    assert_same(model, result.model, {"x": X, "b": np.arange(8, dtype=np.float32)})


@pytest.mark.parametrize("view", ["Reshape(a, flat)", "Flatten<axis = 2>(a)", "Squeeze(a, first)"])
def test_last_axes_that_a_view_leaves_alone_are_broadcast_along(view: str) -> None:
    shape = "1,3,40" if "Squeeze" in view else "batch,3,40"
    model = parsed(f"""flat (float[{shape}] x, float[40] b) => (float[rows,40] y) <int64[2] flat = {{-1, 40}}, int64[1] first = {{0}}> {{
      a = Tanh(x)
      r = {view}
      s = Add(r, b)
      y = Relu(s)
    }}""")
    result = optimized(model, alone())
    assert len(fused_ops(result.model)) == 1
    assert len(result.model.graph.node) == 2
    x = X[:1] if "Squeeze" in view else X
    assert_same(model, result.model, {"x": x, "b": np.arange(40, dtype=np.float32)})


def test_both_operands_through_views_of_one_shape() -> None:
    model = parsed("""both (float[batch,3,40] x, float[batch,3,40] z) => (float[rows,40] y) <int64[2] flat = {-1, 40}> {
      a = Tanh(x)
      b = Exp(z)
      r = Reshape(a, flat)
      s = Reshape(b, flat)
      y = Add(r, s)
    }""")
    result = optimized(model, alone())
    assert [n.op_type[:5] for n in result.model.graph.node] == ["Fused", "Resha"]
    assert_same(model, result.model, {"x": X, "z": X[::-1].copy()})


MEANS = """means (float[batch,3,40] x) => (float[batch,3,40] y) <int64[1] last = {-1}, float e = {1e-5}> {
  m = ReduceMean<axes = [-1], keepdims = 0>(x)
  n = Add(m, e)
  u = Unsqueeze(n, last)
  y = Sub(x, u)
}"""


@pytest.mark.parametrize("opset", [13, 17, 18])
def test_a_reduction_that_drops_its_axis_is_a_step(opset: int) -> None:
    text = MEANS if opset < 18 else MEANS.replace("<axes = [-1], keepdims = 0>(x)", "<keepdims = 0>(x, last)")
    model = parsed(text, opset)
    result = optimized(model, alone())
    (node,) = result.model.graph.node
    assert [s.op for s in parse_expression(node.attribute[0].s.decode()).steps] == ["ReduceMean", "Add", "Sub"]
    assert_same(model, result.model, {"x": X})


def test_before_opset_13_axes_are_attributes() -> None:
    text = MEANS.replace("Unsqueeze(n, last)", "Unsqueeze<axes = [2]>(n)").replace("=> (", "=> (float[batch,3] m, ")
    model = parsed(text, 11)
    result = optimized(model, alone())
    assert_same(model, result.model, {"x": X})
    assert standard(result.model) == {"Squeeze": 1}


def test_what_a_reduction_leaves_may_be_an_output() -> None:
    model = parsed("""pool (float[batch,3,40] x) => (float[batch,3] y) {
      a = Tanh(x)
      y = ReduceMax<axes = [2], keepdims = 0>(a)
    }""")
    result = optimized(model, alone())
    assert [n.op_type[:5] for n in result.model.graph.node] == ["Fused", "Squee"]
    assert_same(model, result.model, {"x": X})


def test_a_view_stays_for_those_who_read_it_elsewhere() -> None:
    model = parsed("""read (float[2,40] x, float[8,8] w) => (float[10,8] y, float[10,8] z) <int64[2] s = {10, 8}> {
      a = Tanh(x) \n r = Reshape(a, s) \n y = Relu(r) \n z = MatMul(r, w)
    }""")
    result = optimized(model, alone())
    assert len(fused_ops(result.model)) == 1
    assert standard(result.model) == {"Reshape": 2, "MatMul": 1}
    assert_same(model, result.model, {"x": X[0, :2], "w": np.eye(8, dtype=np.float32)})


KEPT = {
    "nothing to group with": """kept (float[2,5,8] x, float[5,5] w) => (float[2,5] y) {
      y = ReduceMean<axes = [-1], keepdims = 0>(x)
    }""",
    "an operand of the new shape": """kept (float[2,40] x, float[10,8] z) => (float[10,8] y) <int64[2] s = {10, 8}> {
      a = Tanh(x) \n r = Reshape(a, s) \n y = Add(r, z)
    }""",
    "an operand of higher rank": """kept (float[2,3,8] x, float[1,1,1,8] b) => (float[1,1,6,8] y) <int64[4] s = {1, 1, 6, 8}> {
      a = Tanh(x) \n r = Reshape(a, s) \n y = Add(r, b)
    }""",
}


@pytest.mark.parametrize("name", KEPT)
def test_views_that_must_stay_do(name: str) -> None:
    model = parsed(KEPT[name])
    result = optimized(model, alone())
    assert [n.op_type for n in result.model.graph.node] == [n.op_type for n in model.graph.node]


def test_where_nothing_is_grouped_the_model_is_as_it_was() -> None:
    model = parsed(MEANS)
    result = optimized(model, tools(kernels=True, min_saving_us=1000.0))
    assert [n.SerializeToString() for n in result.model.graph.node] == [n.SerializeToString() for n in model.graph.node]


@pytest.mark.parametrize("node", ["ReduceMean_0", "Unsqueeze_2"])
def test_nodes_to_be_left_alone_are(node: str) -> None:
    model = parsed(MEANS)
    result = optimized(model, tools(keep_nodes=(node,)))
    assert node in [n.name for n in result.model.graph.node]
    assert_same(model, result.model, {"x": X})


@pytest.mark.parametrize("keepdims", [0, 1])
def test_rows_of_one_column_are_not_reduced(keepdims: int) -> None:
    """What is made of them looks like the rows themselves, so that a next function of rows would get the wrong ones."""
    after = "u = Unsqueeze(m, last)" if keepdims == 0 else "u = Neg(m)"
    model = parsed(f"""narrow (float[batch,3,1] x) => (float[batch,3,1] y, float[batch,3,1] z) <int64[1] last = {{-1}}> {{
      m = ReduceMean<axes = [-1], keepdims = {keepdims}>(x)
      {after}
      y = Softmax<axis = -1>(u)
      w = ReduceMax<axes = [-1], keepdims = 1>(u)
      z = Add(w, x)
    }}""")
    result = optimized(model, alone())
    assert_same(model, result.model, {"x": X[:, :, :1]})


@pytest.mark.parametrize("name", ["r", "back"])
def test_a_view_that_is_to_be_left_alone_stays(name: str) -> None:
    model = parsed("""kept (float[batch,3,40] x) => (float[batch,3,40] y) <int64[2] flat = {-1, 40}, int64[3] whole = {-1, 3, 40}> {
      a = Tanh(x)
      r = Reshape(a, flat)
      s = Exp(r)
      back = Reshape(s, whole)
      y = Relu(back)
    }""")
    for node in model.graph.node:
        node.name = node.output[0]
    assert standard(optimized(model, alone()).model) != standard(model)
    result = optimized(model, tools(keep_nodes=(name,), min_saving_us=0.0, soc="Ascend910B1"))
    (kept,) = [n for n in result.model.graph.node if n.name == name]
    assert [*kept.output] == [name]
    assert_same(model, result.model, {"x": X})
