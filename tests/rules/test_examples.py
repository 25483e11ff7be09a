"""The examples of every shipped rule, and the runner that judges them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from running import tools

from atcfuse.rule.model import Example, RuleBook
from atcfuse.rule_tests import run_examples

BOOK, KERNELS = tools().book, tools().kernels


@pytest.mark.parametrize("rule", [r.name for r in (*BOOK.rules, *BOOK.atc)])
def test_examples_hold(rule: str) -> None:
    results = run_examples(BOOK, KERNELS, [rule])
    assert [r.message for r in results if not r.ok] == []
    assert {r.kind for r in results} == {"fuses", "keeps"}


def _outcome(**changes: str | tuple[str, ...]) -> str:
    """What the runner says of the first attention example after a change."""
    rule = BOOK.rule("attention")
    assert rule is not None
    kind = "keeps" if changes.get("because") else "fuses"
    example: Example = replace(rule.fuses[0], **changes)  # type: ignore[arg-type]
    changed = replace(rule, **{"fuses": (), "keeps": (), kind: (example,)})  # type: ignore[arg-type]
    (result,) = run_examples(RuleBook((changed,), BOOK.fragments), KERNELS)
    assert result.ok == (not result.message)
    return result.message


def _kept_for(code: str) -> str:
    """The graph of the first attention example that stays because of a code."""
    rule = BOOK.rule("attention")
    assert rule is not None
    return next(example.graph for example in rule.keeps if example.because == code)


def test_the_runner_accepts_the_example_as_it_is() -> None:
    assert _outcome() == ""


def test_the_runner_tells_another_number_of_fusions() -> None:
    assert "gives FusedAttention instead of FusedAttention, FusedAttention" in _outcome(gives=("FusedAttention",) * 2)


def test_the_runner_tells_that_a_kept_example_was_fused() -> None:
    assert "it was fused, but ATF301 should keep it" in _outcome(because="ATF301")


def test_the_runner_tells_why_an_example_stayed() -> None:
    graph = _kept_for("ATF301")
    assert "it gives nothing instead of FusedAttention; kept: ATF301" in _outcome(graph=graph)


def test_the_runner_tells_another_code() -> None:
    graph = _kept_for("ATF301")
    assert "expected ATF302; kept: ATF301" in _outcome(graph=graph, because="ATF302")


def test_the_runner_tells_that_a_graph_cannot_be_read() -> None:
    assert "the graph cannot be read" in _outcome(graph="(float[2] x) => (float[2] y) { y = Relu(x }")


def test_the_runner_tells_that_a_graph_is_no_valid_model() -> None:
    assert "the graph cannot be read" in _outcome(graph="(float[2] x) => (float[2] y) { y = Relu(z) }")


def test_messages_name_the_line_of_the_example() -> None:
    rule = BOOK.rule("attention")
    assert rule is not None
    assert _outcome(gives=()).startswith(f"{rule.fuses[0].span}: ")
