"""Models with one planted fault: whatever is still fused gives the faulty model's own numbers."""

from __future__ import annotations

import random

import generate
import generate_ffn
import generate_norms
import generate_rotary
import generate_sums
import pytest
from mutants import Generator, judge
from mutate import MUTATIONS, mutant
from pairwise import random_case

PER_SEED = 20


@pytest.mark.parametrize(
    "module",
    [generate, generate_norms, generate_sums, generate_ffn, generate_rotary],
    ids=["attention", "norms", "sums", "networks", "rotary"],
)
@pytest.mark.parametrize("seed", range(8))
def test_mutants_are_kept_or_agree(module: Generator, seed: int) -> None:
    rng = random.Random(f"{module.__name__} {seed}")
    outcomes = [judge(module, rng) for _ in range(PER_SEED)]
    assert [o for o in outcomes if o not in ("kept", "fused", "invalid")] == []
    # Of attention and of a feed-forward network some part always fuses: a projection with what is left around it.
    assert ({"fused"} if module in (generate, generate_ffn) else {"kept", "fused"}) <= set(outcomes)


def test_every_kind_of_fault_applies_somewhere() -> None:
    rng = random.Random(0)
    kinds: set[str] = set()
    for _ in range(400):
        module = rng.choice([generate, generate_norms, generate_sums, generate_rotary])
        built = module.build(random_case(module.CHOICES, module.valid, rng))
        made = mutant(built.model, built.feeds[0], rng)
        if made is not None:
            kinds.add(made.what.split(":")[0])
        if kinds == set(MUTATIONS):
            return
    pytest.fail(f"never applied: {sorted(set(MUTATIONS) - kinds)}")
