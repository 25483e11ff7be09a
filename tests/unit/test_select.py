"""Selection of overlapping fusions against brute force, and cycles that several fusions close together."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atcfuse import select as module
from atcfuse.graph.index import Model, Scope
from atcfuse.graph.text import parse_graph
from atcfuse.match.values import Value
from atcfuse.select import EXACT, select


def scope_of(text: str) -> Scope:
    (scope,) = Model(parse_graph(text, 17)).scopes()
    return scope


CHAIN = scope_of("(float[1] x) => (float[1] y) { y = Relu(x) }")


@dataclass(eq=False)
class Fusion:
    """As much of a fusion as selection looks at."""

    members: frozenset[int]
    scope: Scope = CHAIN
    outputs: tuple[str, ...] = ("y",)
    inputs: tuple[Any, ...] = ()
    level: str = "graph"
    match: Any = field(init=False)

    def __post_init__(self) -> None:
        self.match = SimpleNamespace(
            scope=self.scope,
            members=self.members,
            outputs=self.outputs,
            shapes={},
            rule=SimpleNamespace(level=self.level),
        )


def gain(fusion: Any) -> float:
    return float(len(fusion.match.members))


SETS = st.lists(st.frozensets(st.integers(0, 8), min_size=1, max_size=4), max_size=8)


@given(SETS)
@settings(max_examples=200, deadline=None)
def test_small_groups_are_solved_exactly(sets: list[frozenset[int]]) -> None:
    fusions: list[Any] = [Fusion(s) for s in sets]
    chosen = select(fusions, gain).chosen
    assert all(not a.members & b.members for a, b in combinations(chosen, 2))
    best = max(
        sum(len(s) for s in some)
        for count in range(len(sets) + 1)
        for some in combinations(sets, count)
        if all(not a & b for a, b in combinations(some, 2))
    )
    assert sum(map(gain, chosen)) == best


WEIGHTED = st.lists(
    st.tuples(st.frozensets(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 10**6)), max_size=10
)


@given(WEIGHTED)
@settings(max_examples=200, deadline=None)
def test_savings_in_time_are_solved_exactly(weighted: list[tuple[frozenset[int], int]]) -> None:
    """Gains as the cost model gives them: any number of microseconds, more for fewer nodes."""
    fusions: list[Any] = [Fusion(members) for members, _ in weighted]
    saved = {id(f): thousandths / 1000 for f, (_, thousandths) in zip(fusions, weighted, strict=True)}
    chosen = select(fusions, lambda f: saved[id(f)]).chosen
    best = max(
        sum(saved[id(f)] for f in some)
        for count in range(len(fusions) + 1)
        for some in combinations(fusions, count)
        if all(not a.members & b.members for a, b in combinations(some, 2))
    )
    assert sum(saved[id(f)] for f in chosen) == pytest.approx(best, abs=1e-3)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 4), st.floats(0.001, 1000)), min_size=30, max_size=60))
@settings(max_examples=60, deadline=None)
def test_large_groups_save_no_less_than_greedy_in_node_order(spans: list[tuple[int, int, float]]) -> None:
    fusions: list[Any] = [Fusion(frozenset(range(start, start + size + 1))) for start, size, _ in sorted(spans)]
    saved = {id(f): time for f, (_, _, time) in zip(fusions, sorted(spans), strict=True)}
    taken: set[int] = set()
    in_order = 0.0
    for f in fusions:
        if not taken & f.members:
            taken |= f.members
            in_order += saved[id(f)]
    chosen = select(fusions, lambda f: saved[id(f)]).chosen
    assert all(not a.members & b.members for a, b in combinations(chosen, 2))
    assert sum(saved[id(f)] for f in chosen) >= in_order * (1 - 1e-6)


@given(SETS)
@settings(max_examples=100, deadline=None)
def test_every_loser_names_a_winner_that_it_overlaps(sets: list[frozenset[int]]) -> None:
    fusions: list[Any] = [Fusion(s) for s in sets]
    selection = select(fusions, gain)
    assert {id(f) for f in selection.chosen} | {id(loser) for loser, _ in selection.losers} == {id(f) for f in fusions}
    for loser, winner in selection.losers:
        assert any(winner is f for f in selection.chosen)
        assert loser.match.members & winner.match.members


def test_large_groups_are_no_worse_than_node_order() -> None:
    fusions: list[Any] = [Fusion(frozenset({i, i + 1})) for i in range(2 * EXACT)]
    assert sum(map(gain, select(fusions, gain).chosen)) == 2 * EXACT


def test_ties_go_to_the_higher_level_then_to_the_earlier_one() -> None:
    low, high, late = Fusion(frozenset({1}), level="pattern"), Fusion(frozenset({1})), Fusion(frozenset({1}))
    fusions: list[Any] = [low, high, late]
    assert select(fusions, gain).chosen == (high,)


def test_two_fusions_that_read_each_other_are_not_both_taken() -> None:
    """Each alone is fine: a1 feeds b2 and b1 feeds a2."""
    scope = scope_of(
        """(float[1] x) => (float[1] p, float[1] q) {
          a1 = Relu(x)
          b1 = Abs(x)
          p = Add(a1, b1)
          q = Mul(a1, b1)
        }"""
    )
    a1, b1, p, q = (node.index for node in scope.nodes)
    first: Any = Fusion(frozenset({a1, p}), scope, ("a1", "p"), (Value("x"), Value("b1")))
    second: Any = Fusion(frozenset({b1, q}), scope, ("b1", "q"), (Value("x"), Value("a1")))
    assert select([first], gain).chosen == (first,)
    assert select([second], gain).chosen == (second,)
    assert select([first, second], gain).chosen == (first,)


def test_fusions_in_a_row_are_both_taken() -> None:
    scope = scope_of(
        """(float[1] x) => (float[1] a1, float[1] a2, float[1] b1, float[1] b2) {
          a1 = Relu(x)
          a2 = Abs(a1)
          b1 = Neg(a2)
          b2 = Exp(a1)
        }"""
    )
    a1, a2, b1, b2 = (node.index for node in scope.nodes)
    first: Any = Fusion(frozenset({a1, a2}), scope, ("a1", "a2"), (Value("x"),))
    second: Any = Fusion(frozenset({b1, b2}), scope, ("b1", "b2"), (Value("a1"), Value("a2")))
    assert select([first, second], gain).chosen == (first, second)
    assert module._stuck([first, second]) == set()


def test_long_chains_of_layers_are_solved_as_well_as_one_layer() -> None:
    """A residual sum pays most with the norm behind it, but two fusions around it pay more than that one."""
    fusions: list[Any] = []
    saved: dict[int, float] = {}
    layers = 3 * EXACT
    for layer in range(layers):
        product, total, norm, after = (4 * layer + k for k in range(4))
        for members, time in (
            ((product, total), 5.0),
            ((total, norm), 6.0),
            ((norm, after), 5.0),
            ((after, product + 4), 4.0),
        ):
            fusions.append(Fusion(frozenset(members)))
            saved[id(fusions[-1])] = time
    chosen = select(fusions, lambda f: saved[id(f)]).chosen
    assert sum(saved[id(f)] for f in chosen) == 10.0 * layers
