"""Whether nodes may become one node: uses outside, paths that come back, readers of shapes, lost precision."""

from __future__ import annotations

import pytest

from atcfuse.graph.index import Model, Scope
from atcfuse.graph.infer import infer
from atcfuse.graph.text import parse_graph
from atcfuse.safety import Shapes, check, precision_lost

BODY = """
          a = Relu(x)
          b = Abs(a)
          c = Neg(b)
          y = Exp(c)
"""


def scope_of(text: str) -> Scope:
    model = Model(parse_graph(text, 17))
    infer(model)
    return next(iter(model.scopes()))


def judged(text: str, members: str, outputs: str, needed: str = "x") -> tuple[str, Shapes]:
    """Code and reason of the violation ("" for none) when the makers of the named values become one node."""
    scope = scope_of(text)
    chosen = frozenset(scope.producers[name].index for name in members.split())
    found, shapes = check(scope, chosen, outputs.split(), needed.split(), frozenset(needed.split()))
    return ("" if found is None else f"{found.code} {found.reason}"), shapes


def graph(body: str = BODY, outs: str = "", ins: str = "") -> str:
    return f"(float[B,4] x{ins}) => (float[B,4] y{outs}) {{{body}}}"


def test_a_chain_is_safe() -> None:
    assert judged(graph(), "a b c", "c") == ("", {})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (graph(outs=", float[B,4] b"), 'ATF301 "b" is an output of the model'),
        (graph(BODY + "z = Abs(b)\n", ", float[B,4] z"), 'ATF301 "b" is also read by Abs "Abs_4"'),
        (
            graph(
                BODY + "z = If(f) <then_branch = g () => (float[B,4] p) { p = Relu(b) },"
                " else_branch = h () => (float[B,4] q) { q = Abs(x) }>\n",
                ", float[B,4] z",
                ", bool f",
            ),
            'ATF302 "b" is read inside the body of a control-flow node',
        ),
    ],
)
def test_inner_values_used_outside(text: str, told: str) -> None:
    assert judged(text, "a b c", "c")[0] == told
    # As an output of the set the value may be read by anyone.
    assert judged(text, "a b c", "b c")[0] == ""


def test_a_value_that_the_node_itself_reads_must_survive() -> None:
    assert judged(graph(), "a b c", "c", "x b")[0] == 'ATF301 "b" is also read by the fused node itself'


def test_a_path_that_comes_back() -> None:
    text = graph("a = Relu(x)\nm = Abs(a)\nb = Add(a, m)\ny = Exp(b)\n")
    assert judged(text, "a b", "a b", "x m")[0] == 'ATF303 "m" is computed from what the subgraph makes and read by it'
    assert judged(text, "a m b", "a b", "x")[0] == ""


def test_a_path_to_a_shape_that_vanishes_closes_nothing() -> None:
    text = graph("a = Relu(x)\ns = Shape(a)\nb = Reshape(a, s)\nn = Neg(b)\ny = Exp(n)\nz = Abs(a)\n", ", float[B,4] z")
    assert judged(text, "a b n", "a n")[0] == ""


def test_readers_that_only_serve_the_set_die_with_it() -> None:
    text = graph("a = Relu(x)\ns = Shape(a)\nb = Reshape(a, s)\ny = Exp(b)\n")
    assert judged(text, "a b", "b") == ("", {})


def test_a_node_that_nobody_reads_stays_and_so_must_its_operand() -> None:
    text = graph(BODY + "dead = Abs(b)\n")
    assert judged(text, "a b c", "c")[0] == 'ATF301 "b" is also read by Abs "Abs_4"'


def test_a_shape_is_read_from_what_survives() -> None:
    text = graph(BODY + "s = Shape(b)\n", ", int64[2] s")
    told, shapes = judged(text, "a b c", "c")
    assert (told, list(shapes.values())) == ("", [(("x", 0), 4)])


def test_a_shape_that_is_known_nowhere_else() -> None:
    body = "n = NonZero(x)\nf = Cast<to = 1>(n)\na = Relu(f)\nb = Abs(a)\nr = ReduceSum<keepdims = 1>(b)\ny = Add(x, r)\ns = Shape(a)\n"
    told, _ = judged(graph(body, ", int64[2] s"), "f a b r", "r")
    assert told.startswith('ATF301 the shape of "a" is read by "Shape_6" and known nowhere else')


@pytest.mark.parametrize(
    ("middle", "types", "lost"),
    [
        ("h = Cast<to = 10>(a)\nb = Cast<to = 1>(h)\n", {1}, True),
        ("h = Cast<to = 11>(a)\nb = Cast<to = 1>(h)\n", {1}, False),
        ("h = Cast<to = 11>(a)\nd = Neg(h)\nb = Cast<to = 1>(d)\n", {1}, True),
        ("h = Cast<to = 11>(a)\nb = Cast<to = 1>(h)\nd = Neg(h)\n", {1}, True),
        ("h = Cast<to = 11>(a)\nb = Cast<to = 10>(h)\n", {1}, True),
        ("h = Cast<to = 10>(a)\nb = Cast<to = 1>(h)\n", {10}, False),
        ("h = Abs(a)\nb = Neg(h)\n", {1}, False),
    ],
)
def test_precision_that_the_kernel_does_not_keep(middle: str, types: set[int], lost: bool) -> None:
    scope = scope_of(graph(f"a = Relu(x)\n{middle}y = Exp(b)\n"))
    found = precision_lost(scope, frozenset(range(3)), frozenset(types))
    assert (found is not None and found.code == "ATF305" and found.value == "h") == lost


@pytest.mark.parametrize(
    ("step", "types", "lost"),
    [
        ("ReduceMean<axes = [-1]>(h)", {10}, False),
        ("ReduceMean<axes = [-1]>(h)", {10, 16}, False),
        ("ReduceMean<axes = [-1]>(h)", {1}, True),
        ("ReduceMean<axes = [-1]>(h)", {1, 10}, True),
        ("Softmax<axis = -1>(h)", {10}, True),
        ("Mul(h, h)", {10}, True),
    ],
)
def test_only_statistics_of_a_norm_of_short_rows_may_be_double(step: str, types: set[int], lost: bool) -> None:
    scope = scope_of(graph(f"h = Cast<to = 11>(x)\nm = {step}\nd = Sub(h, m)\nb = Cast<to = 1>(d)\ny = Exp(b)\n"))
    assert (precision_lost(scope, frozenset(range(4)), frozenset(types)) is not None) == lost
