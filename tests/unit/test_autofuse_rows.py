"""Reductions of rows within element-wise groups of whole models."""

from __future__ import annotations

import numpy as np
import pytest
from test_autofuse import alone, assert_same, fused_ops, optimized, parsed, tools

from atcfuse.elementwise import parse_expression

NORM = """norm (float[batch,3,40] x, float[40] g) => (float[batch,3,40] y) <float e = {1e-5}, int64[1] last = {-1}> {
  m = ReduceMean<axes = [-1]>(x)
  c = Sub(x, m)
  s = Mul(c, c)
  v = ReduceMean<axes = [2]>(s)
  p = Add(v, e)
  r = Sqrt(p)
  q = Div(c, r)
  y = Mul(q, g)
}"""
X = np.random.default_rng(1).normal(size=(2, 3, 40)).astype(np.float32)


def test_a_norm_spelled_out_is_one_kernel() -> None:
    model = parsed(NORM)
    result = optimized(model, alone())
    (node,) = result.model.graph.node
    expression = parse_expression(node.attribute[0].s.decode())
    assert expression.columns == 1
    assert [expression.steps[i].op for i in (0, 3)] == ["ReduceMean", "ReduceMean"]
    assert_same(model, result.model, {"x": X, "g": np.linspace(0, 2, 40, dtype=np.float32)})


@pytest.mark.parametrize("opset", [11, 13, 17, 18])
def test_axes_are_written_as_the_opset_has_them(opset: int) -> None:
    axes, given = ("<keepdims = 1>", "(x, last)") if opset >= 18 else ("<axes = [-1], keepdims = 1>", "(x)")
    total = "(e, last)" if opset >= 13 else "<axes = [-1]>(e)"
    model = parsed(
        f"""softmax (float[2,3,40] x) => (float[2,3,40] y) <int64[1] last = {{-1}}> {{
          m = ReduceMax{axes}{given}
          c = Sub(x, m)
          e = Exp(c)
          s = ReduceSum{total}
          y = Div(e, s)
        }}""",
        opset,
    )
    result = optimized(model, alone())
    assert len(result.model.graph.node) == 1
    assert_same(model, result.model, {"x": X})


def test_two_trailing_axes_are_the_columns_and_the_sums_an_output() -> None:
    model = parsed("""sums (float[batch,4,5,6] x, float[batch,4,1,1] scale) => (float[batch,4,5,6] y, float[batch,4,1,1] t)
    <int64[2] axes = {3, 2}> {
      a = Mul(x, scale)
      s = ReduceSum(a, axes)
      t = Mul(s, scale)
      y = Add(a, t)
    }""")
    result = optimized(model, alone())
    (node,) = result.model.graph.node
    assert parse_expression(node.attribute[0].s.decode()).output_kinds == ("column", "full")
    source = np.random.default_rng(2)
    inputs = {"x": source.normal(size=(2, 4, 5, 6)), "scale": source.normal(size=(2, 4, 1, 1))}
    assert_same(model, result.model, {k: v.astype(np.float32) for k, v in inputs.items()})


def test_one_row_in_all_still_has_columns() -> None:
    """With one row a value a row is one element, yet no constant."""
    model = parsed(NORM.replace("batch,3,", "1,1,"))
    result = optimized(model, alone())
    assert len(result.model.graph.node) == 1
    assert_same(model, result.model, {"x": X[:1, :1], "g": np.ones(40, np.float32)})


def test_values_of_rows_computed_outside_are_columns_of_the_group() -> None:
    model = parsed("""scaled (float[batch,8] x, float[batch,1] s) => (float[batch,8] y) {
      r = Sqrt(s)
      q = Reciprocal(r)
      y = Mul(x, q)
    }""")
    (node,) = optimized(model, alone()).model.graph.node
    expression = parse_expression(node.attribute[0].s.decode())
    assert [expression.kind_of(expression.steps[2].arguments[i]) for i in (0, 1)] == ["full", "column"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("opset", "axis", "columns"),
    [(11, "<axis = 1>", 2), (12, "<axis = -1>", 1), (12, "", 2), (13, "", 1), (17, "<axis = 2>", 1)],
)
def test_softmax_takes_its_axes_as_the_opset_has_them(opset: int, axis: str, columns: int) -> None:
    text = f"""soft (float[2,3,40] x, float[2,3,40] z) => (float[2,3,40] y) {{
      a = Mul(x, z)
      s = LogSoftmax{axis}(a)
      y = Exp(s)
    }}"""
    model = parsed(text, opset)
    result = optimized(model, alone())
    (node,) = result.model.graph.node
    assert parse_expression(node.attribute[0].s.decode()).columns == columns
    assert_same(model, result.model, {"x": X, "z": X[::-1].copy()})


@pytest.mark.parametrize(("opset", "axis"), [(13, "<axis = 1>"), (17, "<axis = 0>"), (12, "<axis = 0>")])
def test_softmax_of_other_axes_stays(opset: int, axis: str) -> None:
    text = f"soft (float[2,3,40] x) => (float[2,3,40] y) {{ a = Neg(x) \n s = Softmax{axis}(a) \n y = Exp(s) }}"
    result = optimized(parsed(text, opset), alone())
    assert "Softmax" in [n.op_type for n in result.model.graph.node]


ABSOLUTE = """absolute (float[batch,3,40] x) => (float[batch,3,40] y) {
  a = Abs(x)
  b = Exp(a)
  m = ReduceMax<axes = [-1]>(b)
  c = Div(b, m)
  d = Tanh(c)
  e = Sub(d, x)
  y = Mul(e, d)
}"""
KEPT = {
    "dynamic rows": ("batch,3,keys", "ATF334"),
    "rows beyond the chip": ("batch,3,20000", "ATF338"),
    "rows beyond the chip with their temporaries": ("batch,3,12000", "ATF338"),
}


@pytest.mark.parametrize("name", KEPT)
def test_rows_that_may_not_fit_are_kept_with_a_reason(name: str) -> None:
    shape, code = KEPT[name]
    using = tools(kernels=True, forced=frozenset({"elementwise"}))
    result = optimized(parsed(ABSOLUTE.replace("batch,3,40", shape)), using)
    assert [n.op_type for n in result.model.graph.node if not n.domain] == ["ReduceMax"]
    assert [k["code"] for k in result.report["kept"] if k["rule"] == "elementwise"] == [code]
    assert len(fused_ops(result.model)) == 2


def test_rows_that_fit_are_one_kernel() -> None:
    using = tools(kernels=True, forced=frozenset({"elementwise"}))
    assert len(optimized(parsed(ABSOLUTE.replace("40", "4000")), using).model.graph.node) == 1


def test_very_many_short_rows_are_not_worth_it() -> None:
    result = optimized(parsed(ABSOLUTE.replace("batch,3,40", "100000,8")), tools(kernels=True))
    assert "ATF337" in [k["code"] for k in result.report["kept"]]
    assert not [f for f in result.report["fusions"] if "Reduce" in str(f["attributes"])]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("axes = [-1]>(x)", "axes = [1]>(x)"),
        ("v = ReduceMean<axes = [2]>", "v = ReduceProd<axes = [2]>"),
        ("axes = [-1]>(x)", "axes = [0, 1, 2]>(x)"),
    ],
)
def test_other_reductions_stay(before: str, after: str) -> None:
    model = parsed(NORM.replace(before, after))
    result = optimized(model, alone())
    assert any(n.op_type.startswith("Reduce") for n in result.model.graph.node)
    assert_same(model, result.model, {"x": X, "g": np.ones(40, np.float32)})


def test_310p_says_that_it_reduces_no_rows() -> None:
    using = tools(kernels=True, soc="Ascend310P3", forced=frozenset({"elementwise"}))
    result = optimized(parsed(ABSOLUTE.replace("40", "64")), using)
    assert [k["code"] for k in result.report["kept"] if k["rule"] == "elementwise"] == ["ATF324"]
    assert [n.op_type for n in result.model.graph.node if not n.domain] == ["ReduceMax", "Div"]
