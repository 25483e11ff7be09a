"""Launches that do nothing: which are taken away, bit for bit, and what is said of them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atcfuse.compiler import Result, optimize_proto, toolbox
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.graph.text import parse_graph
from atcfuse.graph.traffic import kinds
from atcfuse.keep_nodes import parse_keep_nodes
from atcfuse.options import Options

TOOLS = toolbox(Options(dialect="portable"))
FLOAT, FLOAT16, INT64 = 1, 10, 7
APART = replace(TOOLS, options=replace(TOOLS.options, disabled=frozenset({"elementwise"})))
"""No groups are made."""
CONSTANTS = """int64[2] once = {1,1}, int64[4] none = {0,0,0,0}, int64[1] first = {0}, int64[1] last = {1000},
  float onef = {1.0}, float minusf = {-0.0}, float zerof = {0.0}, bool true = {1}, bool false = {0}, int64 onei = {1},
  int64 zeroi = {0}"""
NOTHING = {
    FLOAT: (
        "Cast<to=1>({x})", "Mul({x}, onef)", "Mul(onef, {x})", "Div({x}, onef)", "Add({x}, minusf)", "Sub({x}, zerof)",
        "Expand({x}, shape)", "Tile({x}, once)", "Pad({x}, none)", "Slice({x}, first, last, first)", "Concat<axis=1>({x})",
        "Transpose<perm=[0,1]>({x})", "Dropout({x})", "Max({x})", "Sum({x})", "Where(true, {x}, zerof)",
    ),
    INT64: (
        "Cast<to=7>({x})", "Mul({x}, onei)", "Add(zeroi, {x})", "Sub({x}, zeroi)", "Expand({x}, shape)",
        "Slice({x}, first, last, first)", "Concat<axis=0>({x})", "Where(false, zeroi, {x})", "Tile({x}, once)",
    ),
}  # fmt: skip
SOMETHING = {
    FLOAT: (
        "Neg({x})",
        "Abs({x})",
        "Add({x}, zerof)",
        "Sub({x}, minusf)",
        "Mul({x}, {x})",
        "Transpose<perm=[1,0]>({x})",
    ),
    INT64: ("Neg({x})", "Abs({x})", "Add({x}, onei)", "Transpose<perm=[1,0]>({x})"),
}


def result_of(text: str, tools: Any = TOOLS, opset: int = 17) -> tuple[onnx.ModelProto, Result]:
    model = parse_graph(text, opset)
    return model, optimize_proto(deepcopy(model), tools)


def rules_of(result: Result) -> list[str]:
    return sorted(f["rule"] for f in result.report["fusions"])


def outputs(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(made.run(None, feed))


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, int]:
    """A square matrix through operators that do something and operators that do not, with results read twice."""
    dtype = draw(st.sampled_from([FLOAT, INT64]))
    lines, values = ["shape = Shape(x)"], ["x"]
    for at in range(draw(st.integers(1, 12))):
        source = draw(st.sampled_from(values[-3:]))
        ways = NOTHING[dtype] if draw(st.integers(0, 3)) else SOMETHING[dtype]
        lines.append(f"v{at} = {draw(st.sampled_from(ways)).format(x=source)}")
        values.append(f"v{at}")
    name = {FLOAT: "float", INT64: "int64"}[dtype]
    made = sorted({values[-1], *draw(st.lists(st.sampled_from(values[1:]), max_size=2))})
    shown = ", ".join(f"{name}[12,12] {value}" for value in made)
    lines.append(f"sizes = Shape({draw(st.sampled_from(values))})")
    return f"({name}[12,12] x) => ({shown}, int64[2] sizes) <{CONSTANTS}> {{ {' '.join(lines)} }}", dtype


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_random_models_keep_every_bit_and_no_launch_does_nothing(program: tuple[str, int]) -> None:
    text, dtype = program
    model, result = result_of(text, APART)
    rng = np.random.default_rng(0)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 65504.0, 1e38], np.float32)
    given_x = rng.choice(special, (12, 12)) if dtype == FLOAT else rng.integers(-(2**62), 2**62, (12, 12))
    for before, after in zip(outputs(model, {"x": given_x}), outputs(result.model, {"x": given_x}), strict=True):
        assert np.array_equal(np.isnan(before), np.isnan(after))
        number = ~np.isnan(before)
        assert before[number].tobytes() == after[number].tobytes()
    left = Model(result.model)
    infer(left)
    kind = kinds(left.main)
    launched = [n for n in left.main.nodes if kind[n.index] == "launch" and n.outputs[0] in left.main.alias]
    assert [
        n for n in launched if dtype != FLOAT or n.op not in ("Add", "Sub")
    ] == []  # those would lose signs of zeros
    again = optimize_proto(deepcopy(result.model), TOOLS)
    assert [f for f in again.report["fusions"] if f["rule"].startswith("no_op")] == []


def test_zeros_keep_their_sign() -> None:
    text = "(float[2,50] x) => (float[2,50] y) <float zero = {0.0}> { y = Add(x, zero) }"
    _, result = result_of(text)
    assert rules_of(result) == []
    (y,) = outputs(result.model, {"x": np.full((2, 50), -0.0, np.float32)})
    assert not np.signbit(y).any()  # as the model says: -0.0 + 0.0 is 0.0


def test_names_of_values_and_nodes_stay() -> None:
    text = "(float[2,50] x) => (float[2,50] y) { a = Neg(x) y = Cast<to=1>(a) }"
    model, result = result_of(text)
    assert [o.name for o in result.model.graph.output] == ["y"]
    assert [(n.op_type, n.name) for n in result.model.graph.node] == [
        ("Neg", model.graph.node[0].name),
        ("Identity", model.graph.node[1].name),
    ]


def test_a_pair_of_casts_is_two_launches_that_atc_saves_too() -> None:
    text = "(float16[2,50] x) => (float16[2,50] y) { a = Neg(x) w = Cast<to=1>(a) y = Cast<to=10>(w) }"
    _, result = result_of(text, APART)
    (fusion,) = result.report["fusions"]
    assert (fusion["rule"], fusion["launches_saved"], fusion["launches_saved_after_atc"]) == ("no_op_cast_pair", 2, 0)
    summary = result.report["summary"]
    counts = [summary[f"launches_{side}"] for side in ("before", "after_atc", "after", "after_both")]
    assert counts == [3, 1, 1, 1]


def test_what_atc_does_not_take_away_is_claimed_against_it() -> None:
    text = "(float[2,50] x) => (float[2,50] y) <float one = {1.0}> { a = Neg(x) y = Mul(a, one) }"
    _, result = result_of(text, APART)
    (fusion,) = result.report["fusions"]
    assert (fusion["launches_saved"], fusion["launches_saved_after_atc"]) == (1, 1)
    assert fusion["ddr_bytes_saved"] == fusion["ddr_bytes_saved_after_atc"] > 0
    assert result.report["summary"]["launches_after_atc"] == 2


def test_a_value_read_by_many_and_a_body() -> None:
    text = """(bool c, float[2,50] x) => (float[2,50] y, float[2,50] z) {
      s = Neg(x)
      a = Cast<to=1>(s)
      z = Abs(a)
      y = If (c) <then_branch = t () => (float[2,50] r) { r = Cast<to=1>(a) }, else_branch = e () => (float[2,50] q) { q = Exp(a) }>
    }"""
    model, result = result_of(text, APART)
    assert rules_of(result) == ["no_op_cast", "no_op_cast"]
    for c in (True, False):
        feed = {"c": np.asarray(c), "x": np.linspace(-3, 3, 100, dtype=np.float32).reshape(2, 50)}
        for before, after in zip(outputs(model, feed), outputs(result.model, feed), strict=True):
            assert np.array_equal(before, after)


def test_what_only_served_it_goes_too() -> None:
    text = """(float[2,50] x, float[2,50] z) => (float[2,50] y) <bool all = {1}> {
      s = Exp(z) a = Where(all, x, s) y = Neg(a) }"""
    _, result = result_of(text, APART)
    assert sorted(n.op_type for n in result.model.graph.node) == ["Identity", "Neg"]


@pytest.mark.parametrize("read", ["Shape(a)", "Shape<start = 1>(a)"])
def test_the_shape_of_what_goes_is_read_elsewhere(read: str) -> None:
    text = (
        f"(float[N,M] x) => (float[N,M] y, int64[K] z) {{ a = Cast<to=1>(x) b = Cast<to=1>(a) y = Neg(b) z = {read} }}"
    )
    model, result = result_of(text, APART)
    assert rules_of(result)
    feed = {"x": np.ones((3, 5), np.float32)}
    for before, after in zip(outputs(model, feed), outputs(result.model, feed), strict=True):
        assert np.array_equal(before, after)


def test_shape_arithmetic_is_left_alone() -> None:
    text = "(float[batch,50] x) => (int64[2] y) { s = Shape(x) y = Cast<to=7>(s) }"
    model, result = result_of(text)
    assert [n.SerializeToString() for n in result.model.graph.node] == [n.SerializeToString() for n in model.graph.node]


@pytest.mark.parametrize("how", ["switch", "keep"])
def test_what_the_user_says_counts(how: str) -> None:
    text = "(float[2,50] x) => (float[2,50] y) { a = Neg(x) y = Cast<to=1>(a) }"
    model = parse_graph(text, 17)
    name = model.graph.node[1].name
    tools = replace(TOOLS, options=replace(TOOLS.options, disabled=frozenset({"no_op_cast"})))
    if how == "keep":
        tools = replace(TOOLS, keep=parse_keep_nodes((name,)))
    result = optimize_proto(model, tools)
    assert result.report["fusions"] == []
    kept = [(k["anchor"], k["code"]) for k in result.report["kept"]]
    assert (name, {"switch": "ATF321", "keep": "ATF325"}[how]) in kept


def test_what_is_told_of_a_norm_before_a_no_op_is_told_of_the_norm() -> None:
    text = """(float[2,S,8] x, float[8] g) => (float[2,8,S] y) {
      n = LayerNormalization(x, g)
      same = Cast<to=1>(n)
      y = Transpose<perm=[0,2,1]>(same)
    }"""
    model, result = result_of(text, toolbox(Options(dialect="portable", disabled=frozenset({"layer_norm_operator"}))))
    told = {k["anchor"]: k["code"] for k in result.report["kept"]}
    assert told == {model.graph.node[0].name: "ATF321"}
