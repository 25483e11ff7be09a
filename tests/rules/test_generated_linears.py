"""Generated projections: every choice and pair of choices fuses and agrees; what a planted fault leaves fused agrees."""

from __future__ import annotations

import random

import generate_linears
import pytest
from mutants import judge
from pairwise import Case, covering
from running import difference, fused_ops, optimized, reasons, run

LINEARS = covering(generate_linears.CHOICES, generate_linears.valid)
MUTANTS = 20


@pytest.mark.parametrize("case", LINEARS, ids=lambda case: "-".join(case.values()))
def test_linears_fuse_and_agree(case: Case) -> None:
    built = generate_linears.build(case)
    result = optimized(built.model)
    assert fused_ops(result) == [generate_linears.operator(case)], reasons(result)
    for feed in built.feeds:
        assert difference(run(built.model, feed), run(result.model, feed), case["dtype"]) == ""


def test_cases_are_valid_and_cover_every_choice() -> None:
    assert all(generate_linears.valid(case) for case in LINEARS)
    every = {(name, value) for name, values in generate_linears.CHOICES.items() for value in values}
    assert every == {item for case in LINEARS for item in case.items()}


@pytest.mark.parametrize("seed", range(8))
def test_mutants_are_kept_or_agree(seed: int) -> None:
    rng = random.Random(f"linears {seed}")
    outcomes = [judge(generate_linears, rng) for _ in range(MUTANTS)]
    assert [o for o in outcomes if o not in ("kept", "fused", "invalid")] == []
    assert "fused" in outcomes
