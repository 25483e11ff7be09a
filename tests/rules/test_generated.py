"""Generated models: every choice and every pair of choices must fuse and give the original's numbers."""

from __future__ import annotations

import generate
import generate_ffn
import generate_norms
import generate_rotary
import generate_sums
import pytest
from pairwise import Case, covering
from running import difference, fused_ops, optimized, reasons, run

ATTENTION = covering(generate.CHOICES, generate.valid)
NORMS = covering(generate_norms.CHOICES, generate_norms.valid)
SUMS = covering(generate_sums.CHOICES, generate_sums.valid)
NETWORKS = covering(generate_ffn.CHOICES, generate_ffn.valid)
ROTARY = covering(generate_rotary.CHOICES, generate_rotary.valid)


def _name(case: Case) -> str:
    return "-".join(case.values())


@pytest.mark.parametrize("case", ATTENTION, ids=_name)
def test_attention_fuses_and_agrees(case: Case) -> None:
    built = generate.build(case)
    result = optimized(built.model)
    assert fused_ops(result) == ["FusedAttention"], reasons(result)
    for feed in built.feeds:
        assert difference(run(built.model, feed), run(result.model, feed), case["dtype"]) == ""


@pytest.mark.parametrize("case", NORMS, ids=_name)
def test_norms_fuse_and_agree(case: Case) -> None:
    built = generate_norms.build(case)
    result = optimized(built.model)
    assert fused_ops(result) == ["FusedLayerNormQKV"], reasons(result)
    for feed in built.feeds:
        assert difference(run(built.model, feed), run(result.model, feed), case["dtype"]) == ""


@pytest.mark.parametrize("case", SUMS, ids=_name)
def test_sums_and_norms_fuse_and_agree(case: Case) -> None:
    built = generate_sums.build(case)
    result = optimized(built.model)
    assert fused_ops(result) == [generate_sums.fused(case)], reasons(result)
    for feed in built.feeds:
        assert difference(run(built.model, feed), run(result.model, feed), case["dtype"]) == ""


@pytest.mark.parametrize("case", NETWORKS, ids=_name)
def test_feed_forward_networks_fuse_and_agree(case: Case) -> None:
    built = generate_ffn.build(case)
    result = optimized(built.model)
    assert fused_ops(result) == [generate_ffn.expected(case)], reasons(result)
    for feed in built.feeds:
        assert difference(run(built.model, feed), run(result.model, feed), case["dtype"]) == ""


@pytest.mark.parametrize("case", ROTARY, ids=_name)
def test_rotary_embeddings_fuse_and_agree(case: Case) -> None:
    built = generate_rotary.build(case)
    result = optimized(built.model)
    assert fused_ops(result) == ["FusedRotaryEmbedding"], reasons(result)
    for feed in built.feeds:
        assert difference(run(built.model, feed), run(result.model, feed), case["dtype"]) == ""


def _pairs(cases: list[dict[str, str]]) -> set[frozenset[tuple[str, str]]]:
    return {frozenset((a, b)) for case in cases for a in case.items() for b in case.items() if a != b}


@pytest.mark.parametrize(
    ("module", "cases"),
    [
        (generate, ATTENTION),
        (generate_norms, NORMS),
        (generate_sums, SUMS),
        (generate_ffn, NETWORKS),
        (generate_rotary, ROTARY),
    ],
    ids=["attention", "norms", "sums", "networks", "rotary"],
)
def test_cases_are_valid_and_cover_every_choice(module: object, cases: list[dict[str, str]]) -> None:
    assert all(module.valid(case) for case in cases)  # type: ignore[attr-defined]
    every = {(name, value) for name, values in module.CHOICES.items() for value in values}  # type: ignore[attr-defined]
    assert every == {item for case in cases for item in case.items()}
    # Random valid cases hold no pair that the covering array lacks.
    assert _pairs(covering(module.CHOICES, module.valid, seed=1)[:20]) <= _pairs(cases)  # type: ignore[attr-defined]
