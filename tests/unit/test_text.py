"""ONNX's text form: numbers that not every version of onnx reads come out as they are written."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from atcfuse.graph.text import parse_function, parse_graph

SMALL = ["1e-39", "-1e-41", "1.0000002153053333e-39", "1e-45"]


@pytest.mark.parametrize("number", SMALL)
def test_subnormal_numbers_of_a_graph_are_read(number: str) -> None:
    text = f"""(float[2] x, bool c) => (float[2] y) <float[2] w = {{2, {number}}}, double d = {{{number}}}> {{
      a = Mul(x, w)
      b = LeakyRelu<alpha = {number}>(a)
      y = If(c) <then_branch = yes () => (float[2] t) {{ k = Constant<value = float {{{number}}}>() t = Mul(b, k) }},
                 else_branch = no () => (float[2] e) {{ e = Identity(b) }}>
    }}"""
    graph = parse_graph(text, 17).graph
    single, double = (numpy_helper.to_array(t) for t in graph.initializer)
    assert single.tolist() == [2, np.float32(number)]
    assert double == np.float64(number)
    assert graph.node[1].attribute[0].f == np.float32(number)
    branch = next(a for a in graph.node[2].attribute if a.name == "then_branch").g
    assert numpy_helper.to_array(branch.node[0].attribute[0].t) == np.float32(number)


@pytest.mark.parametrize("number", SMALL)
def test_subnormal_numbers_of_a_function_are_read(number: str) -> None:
    text = f"""<opset_import: ["" : 17], domain: "d"> F (x) => (y) {{
      c = Constant <value = float {{{number}}}> ()
      a = Selu <alpha = {number}, gamma = 0.5> (x)
      y = Mul (a, c)
    }}"""
    constant, selu, _ = parse_function(text).node
    assert numpy_helper.to_array(constant.attribute[0].t) == np.float32(number)
    assert {a.name: a.f for a in selu.attribute} == {"alpha": np.float32(number), "gamma": 0.5}


def test_other_numbers_and_names_stay_as_they_are() -> None:
    text = (
        '(float[2] x) => (float[2] "y_1e-40") <float[2] w = {1e-30, 1.1754943508222875e-38}> { "y_1e-40" = Mul(x, w) }'
    )
    graph = parse_graph(text, 17).graph
    assert graph.output[0].name == "y_1e-40"
    assert numpy_helper.to_array(graph.initializer[0]).tolist() == [np.float32(1e-30), 2.0**-126]


@pytest.mark.parametrize("number", ["1e39", "-1e400"])
def test_a_number_beyond_float32_is_a_mistake_of_the_text(number: str) -> None:
    with pytest.raises(ValueError, match="beyond the range of its type"):
        parse_graph(f"(float x) => (float y) <float w = {{{number}}}> {{ y = Mul(x, w) }}", 17)
