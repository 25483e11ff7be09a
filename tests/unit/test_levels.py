"""Masks that absorb: what is proved holds when the model runs, and what does not hold is not proved."""

from __future__ import annotations

import numpy as np
import pytest
from infer_oracle import session

from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.graph.text import parse_graph
from atcfuse.match.levels import HUGE, absorbs, is_ordinary, is_step

FILL = "f = Constant<value = float {-3.4e38}>() z = Constant<value = float {0}>()"
CAUSAL = """
    shape = Shape(x) i = Constant<value = int64[2] {3, 3}>() full = ConstantOfShape<value = float[1] {-3.4e38}>(i)
    l = Trilu<upper = 0>(full) m = Cast<to = 9>(l)
"""
PROVED = {
    "filled where a test of itself holds": f"{FILL} c = Cast<to = 9>(x) y = Where(c, f, x)",
    "tested through several casts": f"{FILL} b = Cast<to = 9>(x) c = Cast<to = 9>(b) y = Where(c, f, x)",
    "a tensor made of the fill": f"{FILL} {CAUSAL} y = Where(m, z, full)",
    "cast after all": f"{FILL} {CAUSAL} w = Where(m, z, full) y = Cast<to = 1>(w)",
    "cast to float16, where it becomes infinite": f"{FILL} c = Cast<to = 9>(x) w = Where(c, f, x) y = Cast<to = 10>(w)",
}
KEPT = {
    "filled where the test fails": f"{FILL} c = Cast<to = 9>(x) y = Where(c, x, f)",
    "a test of something else": f"{FILL} t = Neg(x) u = Exp(t) c = Cast<to = 9>(u) y = Where(c, z, x)",
    "a test through whole numbers": f"{FILL} h = Cast<to = 7>(x) c = Cast<to = 9>(h) y = Where(c, f, x)",
    "a small fill": "f = Constant<value = float {-1e4}>() c = Cast<to = 9>(x) y = Where(c, f, x)",
    "a tensor of a small fill": "i = Constant<value = int64[1] {3}>() y = ConstantOfShape<value = float[1] {-9.5}>(i)",
    "cast to float8, where it saturates": f"{FILL} c = Cast<to = 9>(x) w = Where(c, f, x) e = Cast<to = 17>(w) "
    "y = Cast<to = 1>(e)",
    "cast from whole numbers": "h = Cast<to = 7>(x) y = Cast<to = 1>(h)",
    "the largest float16": "f = Constant<value = float {-65504}>() c = Cast<to = 9>(x) w = Where(c, f, x) "
    "y = Cast<to = 10>(w)",
}
VALUES = np.array([[0, 1, -1], [0.4, -0.0, 7], [np.inf, np.nan, 1e20]], np.float32)


def outcome(body: str) -> tuple[bool, np.ndarray]:
    """Whether `y` is proved to absorb, and what it is when run."""
    element = "float16" if "to = 10" in body else "float"
    proto = parse_graph(f"(float[3,3] x) => ({element} y) {{ {body} }}", 19)
    model = Model(proto)
    infer(model)
    # The session has every value as an output: else onnxruntime 1.23 drops a Cast to whole numbers between two others.
    (y,) = session(proto).run(["y"], {"x": VALUES})
    return absorbs(next(iter(model.scopes())), "y"), y


def holds(y: np.ndarray) -> bool:
    least = np.inf if y.dtype == np.float16 else HUGE
    return bool(np.all((y == 0) | (np.abs(y) >= least)))


@pytest.mark.parametrize("body", PROVED.values(), ids=PROVED)
def test_what_is_proved_holds(body: str) -> None:
    proved, y = outcome(body)
    assert proved
    assert holds(y)


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_what_does_not_hold_is_not_proved(body: str) -> None:
    proved, y = outcome(body)
    assert not proved
    assert not holds(y)


STEPS = {
    "zeros and a moderate number": "y = Constant<value = float[3] {0.0, -100.0, 0.0}>()",
    "computed from constants": """a = Constant<value = float[4] {1, 2, 2, 1}>() r = Constant<value = int64[2] {1, 4}>()
        c = Constant<value = int64[2] {4, 1}>() row = Reshape(a, r) column = Reshape(a, c) d = Sub(row, column)
        z = Constant<value = float {0}>() far = Constant<value = float {-100}>() same = Equal(d, z)
        y = Where(same, z, far)""",
}
NO_STEPS = {
    "two numbers and zero": "y = Constant<value = float[3] {0.0, -100.0, 1.0}>()",
    "two negative numbers": "y = Constant<value = float[3] {0.0, -100.0, -1.0}>()",
    "a number that takes digits away": "y = Constant<value = float[2] {0.0, -10000.0}>()",
    "NaN": "y = Constant<value = float[2] {0.0, nan}>()",
    "given at run time": "y = Identity(x)",
    "computed from what is given at run time": "c = Constant<value = float {-100}>() y = Mul(x, c)",
    "random": "y = RandomUniform<shape = [2], high = 0.0, low = 0.0>()",
}


def _is_step(body: str) -> bool:
    model = Model(parse_graph(f"(float[3,3] x) => (float y) {{ {body} }}", 19))
    infer(model)
    return is_step(model.main, "y")


@pytest.mark.parametrize("body", STEPS.values(), ids=STEPS)
def test_masks_of_one_moderate_number_are_steps(body: str) -> None:
    assert _is_step(body)


@pytest.mark.parametrize("body", NO_STEPS.values(), ids=NO_STEPS)
def test_other_values_are_no_steps(body: str) -> None:
    assert not _is_step(body)


def test_a_step_in_float16_would_take_digits() -> None:
    body = "a = Constant<value = float[2] {0.0, -100.0}>() y = Cast<to = 10>(a)"
    model = Model(parse_graph(f"() => (float16 y) {{ {body} }}", 19))
    infer(model)
    assert not is_step(model.main, "y")


ORDINARY = {
    "a product": "y = MatMul(x, x)",
    "rows of a product by distance": """i = Constant<value = int64[1,3] {0, 2, 1}>() p = MatMul(x, x)
        g = GatherElements<axis = 0>(p, i) t = Transpose(g) h = Constant<value = float {0.5}>() y = Mul(t, h)""",
    "a sum of products": "p = MatMul(x, x) q = MatMul(p, x) y = Add(p, q)",
}
PERHAPS_MASKS = {
    "given": "y = Identity(x)",
    "a product and what is given": "p = MatMul(x, x) y = Add(p, x)",
    "a product in which some are filled": f"{FILL} p = MatMul(x, x) c = Cast<to = 9>(x) y = Where(c, f, p)",
    "a product times a large number": "p = MatMul(x, x) h = Constant<value = float {-1e9}>() y = Mul(p, h)",
    "an infinite constant": "y = Constant<value = float[2] {0.0, -inf}>()",
}


@pytest.mark.parametrize(
    ("body", "ordinary"), [*((b, True) for b in ORDINARY.values()), *((b, False) for b in PERHAPS_MASKS.values())]
)
def test_what_may_mask_is_no_ordinary_value(body: str, ordinary: bool) -> None:
    model = Model(parse_graph(f"(float[3,3] x) => (float y) {{ {body} }}", 19))
    infer(model)
    assert is_ordinary(model.main, "y") is ordinary


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ('Einsum<equation = "ab,bc->ac">(x, x)', True),
        ('Einsum<equation = "ab,ab->ab">(x, x)', False),
        ('Einsum<equation = "ab->a">(x)', False),
        ('Einsum<equation = "ab,bc">(x, x)', False),
    ],
)
def test_an_einsum_that_sums_products_is_one(node: str, expected: bool) -> None:
    model = Model(parse_graph(f"(float[3,3] x) => (float y) {{ y = {node} }}", 19))
    infer(model)
    assert is_ordinary(model.main, "y") is expected
