"""Generated projections: every choice and pair of choices fuses and agrees; what a planted fault leaves fused agrees."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import generate_linears
import pytest
from mutate import mutant
from pairwise import Case, covering, random_case
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


def _outcome(rng: random.Random) -> str:
    """One mutant: `kept`, `fused`, `invalid` where onnxruntime refuses it, or what is wrong."""
    case = random_case(generate_linears.CHOICES, generate_linears.valid, rng)
    built = generate_linears.build(case)
    made = next(filter(None, (mutant(built.model, built.feeds[0], rng) for _ in range(50))))
    references = _results(lambda: [run(made.model, feed) for feed in built.feeds])
    if references is None:
        return "invalid"
    result = optimized(made.model)
    if not fused_ops(result):
        return "kept"
    for feed, reference in zip(built.feeds, references, strict=True):
        wrong = difference(reference, run(result.model, feed), case["dtype"])
        if wrong:
            return f"{wrong} after {made.what} in {case}"
    return "fused"


def _results(compute: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]] | None:
    try:
        return compute()
    except Exception:  # onnxruntime's exceptions share no base class; a faulty model may not run at all
        return None


@pytest.mark.parametrize("seed", range(8))
def test_mutants_are_kept_or_agree(seed: int) -> None:
    rng = random.Random(f"linears {seed}")
    outcomes = [_outcome(rng) for _ in range(MUTANTS)]
    assert [o for o in outcomes if o not in ("kept", "fused", "invalid")] == []
    assert "fused" in outcomes
