"""Fused nodes read the first of operands that are the same; what only the later ones needed is gone."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from atcfuse import sharing
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.graph.numbering import ValueNumbers
from atcfuse.graph.text import parse_graph

sys.path.insert(0, str(Path(__file__).parents[1] / "rules"))
from running import difference, fused_ops, optimized, run

LAYER = """
        s{i} = Shape({k})
        e{i} = Slice(s{i}, two, three)
        w{i} = Slice(bias, zero, e{i}, three)
        m{i} = Mul(w{i}, big)
        t{i} = Transpose<perm = [0, 1, 3, 2]>({k})
        a{i} = MatMul({q}, t{i})
        b{i} = Add(a{i}, m{i})
        p{i} = Softmax<axis = -1>(b{i})
        o{i} = MatMul(p{i}, {k})"""
TEXT = """(float[B,2,S,8] q, float[B,2,L,8] k, float[B,2,L,8] k2, float[1,1,S,9] bias) => (float[B,2,S,8] y{more})
      <int64[1] zero = {0}, int64[1] two = {2}, int64[1] three = {3}, float big = {-8.0}> {
        {layers}
        y = Identity(o1)
      }"""


def layers(second: str = "k", more: str = "", body: str = "") -> str:
    """Two attentions, the second over the first one's result; each cuts the bias to its keys' length."""
    first = LAYER.replace("{i}", "0").replace("{q}", "q").replace("{k}", "k")
    second = LAYER.replace("{i}", "1").replace("{q}", "o0").replace("{k}", second)
    return TEXT.replace("{layers}", first + second + body).replace("{more}", more)


def counts(text: str) -> tuple[dict[str, int], str]:
    """How many nodes of an operator are left, and how the results differ."""
    model = parse_graph(text, 17)
    result = optimized(model)
    assert fused_ops(result) == ["FusedAttention"] * 2
    rng = np.random.default_rng(5)
    shapes = {"q": (2, 2, 3, 8), "k": (2, 2, 7, 8), "k2": (2, 2, 7, 8), "bias": (1, 1, 3, 9)}
    feed = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    ops = [n.op_type for n in result.model.graph.node]
    return {op: ops.count(op) for op in ("Slice", "Mul")}, difference(
        run(model, feed), run(result.model, feed), "float32"
    )


def test_a_mask_cut_again_for_the_same_length_is_made_once() -> None:
    assert counts(layers()) == ({"Slice": 2, "Mul": 1}, "")


def test_keys_of_the_same_length_need_not_be_the_same_keys() -> None:
    assert counts(layers("k2")) == ({"Slice": 2, "Mul": 1}, "")


def test_another_length_is_another_mask() -> None:
    text = layers("k2").replace("float[B,2,L,8] k2", "float[B,2,M,8] k2")
    assert counts(text) == ({"Slice": 4, "Mul": 2}, "")


def test_what_something_else_reads_stays() -> None:
    assert counts(layers("k2", ", float[1,1,S,L] m1")) == ({"Slice": 4, "Mul": 2}, "")


@pytest.mark.parametrize("by_elements", [True, False])
def test_known_integers_are_equal_however_they_are_computed(by_elements: bool) -> None:
    model = Model(parse_graph(layers("k2"), 17))
    infer(model)
    numbers = ValueNumbers(model.main, by_elements)
    assert numbers.same("e0", "e1") is by_elements
    assert numbers.same("m0", "m1") is by_elements
    assert not numbers.same("o0", "o1")


@pytest.mark.parametrize("rewritten", [False, True])
def test_what_is_computed_from_a_value_that_vanishes_is_not_shared(rewritten: bool) -> None:
    text = """(float[2,S,8] x, float[9,9] m) => (float[2,S,8] y, float[9,9] z) <int64[1] i = {0}, int64[1] j = {1}> {
        a = Relu(x)
        s = Shape(a)
        e = Gather(s, j)
        c = Slice(m, i, e, j)
        y = Neg(a)
        t = Shape(y)
        g = Gather(t, j)
        d = Slice(m, i, g, j)
        z = Neg(m)
      }"""
    model = Model(parse_graph(text, 17))
    infer(model)
    scope = model.main
    index = {o: n.index for n in scope.nodes for o in n.outputs}
    shapes = {index["s"]: (2, ("y", 1), 8)} if rewritten else {}
    match = SimpleNamespace(members=frozenset({index["a"], index["y"]}), outputs=("y",), shapes=shapes)
    left = sharing._surviving(scope, [SimpleNamespace(match=match)])  # type: ignore[list-item]
    assert {"d", "g", "z"} <= left
    assert "a" not in left
    assert ({"c", "e"} <= left) is rewritten
    assert left.isdisjoint({"c", "e"}) is not rewritten
