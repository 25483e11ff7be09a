"""Values made of constants alone: found, computed as onnxruntime computes them, and only those."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from atcfuse.graph.constants import constant
from atcfuse.graph.fixed import MAX_COMPUTED, fixed
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.graph.text import parse_graph
from atcfuse.graph.traffic import kinds

WINDOWS = """
    side = Constant<value = int64[2] {80, 80}>()
    canvas = ConstantOfShape<value = float[1] {0.0}>(side)
    from = Constant<value = int64[2] {0, 4}>() to = Constant<value = int64[2] {80, 9}>()
    part = Slice(canvas, from, to)
    one = Constant<value = float {1}>()
    filled = Add(part, one)
    pads = Constant<value = int64[4] {0, 4, 0, 71}>()
    y = Pad(filled, pads)
"""
"""A canvas with a stripe, too large to be known element by element."""


def index(text: str, opset: int = 17) -> Model:
    model = Model(parse_graph(text, opset))
    infer(model)
    return model


def test_a_chain_of_constants_is_computed() -> None:
    model = index(f"(float[B] x) => (float[80,80] y) {{ {WINDOWS} }}")
    found = constant(model.main, "y")
    (want,) = ort.InferenceSession(model.proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": np.zeros(1, np.float32)}
    )
    assert found is not None
    np.testing.assert_array_equal(found, want)


def test_it_is_no_launch() -> None:
    model = index(f"(float[80,80] x) => (float[80,80] z) {{ {WINDOWS} z = Add(x, y) }}")
    found = kinds(model.main)
    assert [n.op for n in model.main.nodes if found[n.index] == "launch"] == ["Add"]


@pytest.mark.parametrize(
    "body",
    [
        "y = Mul(x, x)",
        "s = Shape(x) y = ConstantOfShape<value = float[1] {2.0}>(s)",
        "y = RandomNormal<shape = [2, 2]>()",
        """c = Constant<value = bool {1}>() y = If(c) <then_branch = a () => (float[1] p) {
           p = Constant<value = float[1] {1.0}>() }, else_branch = b () => (float[1] q) {
           q = Constant<value = float[1] {2.0}>() }>""",
    ],
)
def test_what_inputs_reach_is_not_fixed(body: str) -> None:
    model = index(f"(float[A,B] x) => (float y) {{ {body} }}")
    assert "y" not in fixed(model.main)


def test_an_initializer_that_a_caller_may_override_is_not_fixed() -> None:
    model = index("(float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Mul(w, w) }")
    assert "y" not in fixed(model.main)


def test_what_is_too_large_is_fixed_but_not_computed() -> None:
    ends = f"a = Constant<value = int64 {{0}}>() b = Constant<value = int64 {{{MAX_COMPUTED + 1}}}>()"
    model = index(
        f"(float[2] x) => (float y) {{ {ends} c = Constant<value = int64 {{1}}>() r = Range(a, b, c) y = Cast<to = 1>(r) }}"
    )
    assert "y" in fixed(model.main)
    assert constant(model.main, "y") is None


def test_what_cannot_be_computed_has_no_value() -> None:
    """Sizes that contradict each other: the model does not run."""
    body = f"{WINDOWS} w = Constant<value = int64[2] {{7, -1}}>() z = Reshape(y, w)".replace("80, 80", "80, 81")
    model = index(f"(float[2] x) => (float z) {{ {body} }}")
    assert constant(model.main, "z") is None
