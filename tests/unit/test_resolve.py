"""Names in rules: what a rule mentions must exist, in the shipped rules above all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atcfuse.diagnostics import AtcfuseError, Span
from atcfuse.expr import parse
from atcfuse.kernel import load_kernels
from atcfuse.loader import load_rules
from atcfuse.resolve import Known, Operator, check_book, mistakes
from atcfuse.resources import data_folder
from atcfuse.rule.model import Fragment, Rule, RuleBook
from atcfuse.rule.terms import Alternative, Call, Condition, parse_term, subterms
from atcfuse.rule.vocabulary import COMBINATORS, FUNCTIONS

KERNELS = load_kernels(data_folder("kernels"))
BOOK = load_rules([data_folder("rules")], KERNELS)
SPAN = Span("rules/x.yaml", 3, 5)


def code(rule: Rule | None = None, fragment: Fragment | None = None) -> str:
    """The code of the mistake in a changed rule or fragment."""
    rules = tuple(rule if rule and r.name == rule.name else r for r in BOOK.rules)
    fragments = {**BOOK.fragments, **({fragment.name: fragment} if fragment else {})}
    with pytest.raises(AtcfuseError) as caught:
        check_book(RuleBook(rules, fragments), KERNELS)
    return caught.value.diagnostics[0].code


def attention() -> Rule:
    rule = BOOK.rule("attention")
    assert rule is not None
    return rule


def alternative(text: str, where: str = "1 == 1", let: str = "1") -> Alternative:
    condition = Condition(parse(where, SPAN), "why")
    return Alternative("a", (), parse_term(text, SPAN), None, (("by", parse(let, SPAN)),), (condition,), SPAN)


def fragment(**changes: object) -> Fragment:
    made = Fragment("mine", ("x",), {"by": "it"}, {}, (alternative("Neg(x)"),), "s", SPAN)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_shipped_rules_hold() -> None:
    check_book(BOOK, KERNELS)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (fragment(name="view"), "ATF211"),
        (fragment(alternatives=(alternative("nothing(x)"),)), "ATF209"),
        (fragment(alternatives=(alternative("Neg(nothing(x))"),)), "ATF209"),
        (fragment(alternatives=(alternative("mine(x, x)"),)), "ATF213"),
        (fragment(alternatives=(alternative("mine(x, of=a)"),)), "ATF213"),
        (fragment(alternatives=(alternative("Neg(x)", where="no_function(x)"),)), "ATF209"),
        (fragment(alternatives=(alternative("Neg(x)", let="no_function(x)"),)), "ATF209"),
    ],
)
def test_fragments(changed: Fragment, expected: str) -> None:
    assert code(fragment=changed) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"anchor": "nowhere"}, "ATF210"),
        ({"kernel": "nothing"}, "ATF218"),
        ({"kernel": "layer_norm_qkv"}, "ATF215"),
        ({"let": (("scale", parse("no_function(1)", SPAN)),)}, "ATF209"),
        ({"where": (Condition(parse("no_function(1)", SPAN), "w"),)}, "ATF209"),
        ({"replace": parse("FusedAttention(q, k, v, nobody)", SPAN)}, "ATF215"),
        ({"replace": parse("q + k", SPAN)}, "ATF215"),
    ],
)
def test_rules(changes: dict[str, object], expected: str) -> None:
    assert code(replace(attention(), **changes)) == expected  # type: ignore[arg-type]


def test_near_names_are_suggested() -> None:
    with pytest.raises(AtcfuseError, match='did you mean "probs"'):
        check_book(RuleBook((replace(attention(), anchor="prob"),), BOOK.fragments), KERNELS)


OPERATORS = {
    "Neg": Operator(frozenset({"X"}), 1),
    "Sum": Operator(frozenset({"data_0"}), 1 << 31),
    "NPUOwn": Operator(),
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Neg(x)", []),
        ("Negg(x)", ["ATF209: ONNX has no operator 'Negg' did you mean \"Neg\"?"]),
        ("Neg(Entirely(x))", ["ATF209: ONNX has no operator 'Entirely' operators are spelled as ONNX spells them"]),
        ("Neg(x, y)", ["ATF213: Neg takes at most 1 values, not 2 "]),
        ("Neg(x, XX=3)", ["ATF213: Neg has no parameter 'XX' it has X"]),
        ("Sum(x, y, z, x)", []),
        ("NPUOwn(x, y, eps=3)", []),
        ("com.microsoft.Anything(x, a=3)", []),
    ],
)
def test_operators_are_those_of_onnx(text: str, found: list[str]) -> None:
    book = RuleBook((), {"mine": fragment(alternatives=(alternative(text),))})
    said = [f"{d.code}: {d.message} {d.hint}" for d in mistakes(Known(book, KERNELS, OPERATORS))]
    assert len(said) == len(found)
    assert all(one.startswith(part) for one, part in zip(said, found, strict=True))
    assert list(mistakes(Known(book, KERNELS))) == []


def test_the_table_of_operators_holds_every_opset() -> None:
    from atcfuse.graph.schema import all_parameters

    table = all_parameters()
    assert {"axes", "keepdims", "data"} <= table["ReduceMean"][0]
    assert table["Softmax"] == (frozenset({"axis", "input"}), 1)
    assert table["Concat"][1] > 1000


def test_every_combinator_and_function_is_implemented_and_every_fragment_used() -> None:
    from atcfuse.match.builtins import BUILTINS

    assert set(BUILTINS) == COMBINATORS
    steps = [s.term for r in (*BOOK.rules, *BOOK.atc) for s in (*r.steps, *r.context)]
    parts = [(f.name, a) for f in BOOK.fragments.values() for a in f.alternatives]
    inside = [(name, t) for name, a in parts for t in (a.result, *(s.term for s in a.steps))]
    called = {t.head for term in steps for t in subterms(term) if isinstance(t, Call)}
    called |= {t.head for name, term in inside for t in subterms(term) if isinstance(t, Call) and t.head != name}
    assert set(BOOK.fragments) - called == set()
    assert FUNCTIONS & {"scalar", "dtype", "shape"} == {"scalar", "dtype", "shape"}


def test_functions_are_those_of_the_matcher() -> None:
    from atcfuse.graph.index import Model
    from atcfuse.graph.text import parse_graph
    from atcfuse.match.functions import functions_for

    (scope,) = Model(parse_graph("(float[1] x) => (float[1] y) { y = Relu(x) }", 17)).scopes()
    assert set(functions_for(scope)) >= FUNCTIONS - {"chosen"}
