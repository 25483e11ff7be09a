"""The automaton denies nothing that the matcher would find: in real models, in the rules' examples, in random graphs."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import atcfuse
from atcfuse.compiler import toolbox
from atcfuse.graph.index import Model, Scope
from atcfuse.graph.infer import infer
from atcfuse.graph.store import load
from atcfuse.graph.text import parse_graph
from atcfuse.loader import load_rules
from atcfuse.match import automaton
from atcfuse.match.automaton import ANY, KEPT, Admitted, Automaton, automaton_of
from atcfuse.match.find import Lookup, RuleFinder
from atcfuse.match.heads import VIEW_OPERATORS, either
from atcfuse.options import Options
from atcfuse.rule.model import Rule, RuleBook

BOOK = toolbox(Options()).book
LOOKUP = Lookup.of(BOOK)
SAMPLES = sorted((Path(__file__).parents[2] / "sample_models").glob("*.onnx"))
RULES = [rule for rule in (*BOOK.rules, *BOOK.atc) if rule.steps]


class _AdmitsAll(Automaton):
    def holds(self, state, found):
        return True


EVERYTHING = replace(LOOKUP, automaton=_AdmitsAll(BOOK))


def scopes_of(proto, path: Path | None = None) -> list[Scope]:
    model = Model(proto, path)
    infer(model)
    return list(model.scopes())


def found(scope: Scope, lookup: Lookup, rules: list[Rule]) -> list[tuple[object, ...]]:
    finder = RuleFinder(scope, lookup)
    return [
        (rule.name, match.anchor.index, match.members, match.outputs, match.labels)
        for rule in rules
        for match in finder.matches(rule)
    ]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_it_denies_no_match_in_a_real_model(path):
    scopes = scopes_of(load(path), path)
    expected = [found(scope, EVERYTHING, RULES) for scope in scopes]
    assert any(expected)
    assert [found(scope, LOOKUP, RULES) for scope in scopes] == expected


@pytest.mark.parametrize("rule", [r for r in RULES if r.fuses or r.keeps], ids=lambda r: r.name)
def test_it_denies_no_match_in_the_examples_of_a_rule(rule):
    for example in (*rule.fuses, *rule.keeps):
        for scope in scopes_of(parse_graph(example.graph, example.opset)):
            assert found(scope, LOOKUP, [rule]) == found(scope, EVERYTHING, [rule])


UNARY = "Sqrt Erf Tanh Sigmoid Softmax Reciprocal Relu Neg Identity Exp"
BINARY = "Add Mul Sub Div Pow MatMul Add Mul"


def random_graph(source: random.Random) -> str:
    """Operators that patterns are made of in random order, so that many patterns are there in part."""
    values, lines = ["x", "y", "c", "one", "two", "half"], []
    for step in range(source.randrange(4, 40)):
        recent = values[-4:] if source.random() < 0.7 else values
        name, kind = f"v{step}", source.random()
        if kind < 0.3:
            call = f"{source.choice(UNARY.split())}({source.choice(recent)})"
        elif kind < 0.85:
            call = f"{source.choice(BINARY.split())}({source.choice(recent)}, {source.choice(values)})"
        elif kind < 0.95:
            call = f"ReduceMean<axes=[-1]>({source.choice(recent)})"
        else:
            call = f"Transpose<perm=[1,0]>({source.choice(recent)})"
        lines.append(f"{name} = {call}")
        values.append(name)
    constants = "float one = {1.0}, float two = {2.0}, float half = {0.5}, float c = {0.044715}"
    return f"(float[4,4] x, float[4,4] y) => (float[4,4] {values[-1]}) <{constants}> {{ {' '.join(lines)} }}"


@pytest.mark.parametrize("seed", range(12))
def test_it_denies_no_match_in_random_graphs(seed):
    source = random.Random(seed)
    for _ in range(6):
        for scope in scopes_of(parse_graph(random_graph(source), 17)):
            assert found(scope, LOOKUP, RULES) == found(scope, EVERYTHING, RULES)


def test_layers_that_are_alike_take_few_transitions():
    layer = "s{i} = Mul(a{i}, a{i}) m{i} = ReduceMean<axes=[-1]>(s{i}) e{i} = Add(m{i}, eps) r{i} = Sqrt(e{i}) a{j} = Div(a{i}, r{i})"

    def met(layers: int) -> int:
        body = " ".join(layer.format(i=i, j=i + 1) for i in range(layers))
        automaton = Automaton(BOOK)
        graph = f"(float[4,8] a0) => (float[4,8] a{layers}) <float eps = {{1e-6}}> {{ {body} }}"
        for scope in scopes_of(parse_graph(graph, 17)):
            Admitted(scope, automaton)
        return len(automaton._transitions)

    assert met(100) == met(200) < 60


def test_the_automaton_of_a_book_is_kept_by_each_thread_for_itself(monkeypatch):
    """It learns while it is used, which threads must not do at once."""
    first = automaton_of(BOOK)
    assert automaton_of(BOOK) is first
    with ThreadPoolExecutor(1) as other:
        assert other.submit(automaton_of, BOOK).result() is not first
    assert automaton_of(replace(BOOK)) is not first, "a book is equal to itself only"
    monkeypatch.setattr(automaton, "MOST_LEARNED", -1)
    assert automaton_of(BOOK) is not first


def test_automata_of_many_books_are_not_kept():
    books = [RuleBook((rule,), BOOK.fragments) for rule in RULES[: KEPT + 1]]
    made = [automaton_of(book) for book in books]
    assert [automaton_of(book) is known for book, known in zip(books[1:], made[1:], strict=True)] == [True] * KEPT
    assert automaton_of(books[0]) is not made[0]


def test_it_denies_most():
    """Else it would be of no use: a lone Softmax is no attention, a lone Sqrt no norm."""
    (scope,) = scopes_of(parse_graph("(float[4,8] x) => (float[4,8] z) { y = Sqrt(x) z = Softmax(y) }", 17))
    admitted = Admitted(scope, LOOKUP.automaton)
    anchors = {rule.name: rule.step(rule.anchor).term for rule in BOOK.rules if rule.steps}
    by_name = {name: {n.op for n in admitted.among(scope.nodes, term)} for name, term in anchors.items()}
    assert by_name["layer_norm"] == by_name["rms_norm"] == by_name["attention"] == set()


PEEL = """\
fragment: peel(x)
summary: Any number of roots, then Relu.
any_of:
  deeper: {is: "peel(Sqrt(x))"}
  done: {is: Relu(x)}
"""


def test_calls_that_nest_without_end_become_any_value(tmp_path):
    """Arguments of a recursive call may grow with each call; the states stay finite and still admit what is there."""
    (tmp_path / "peel.yaml").write_text(PEEL)
    book = load_rules([tmp_path], {})
    roots = " ".join(f"a{i + 1} = Sqrt(a{i})" for i in range(30))
    (scope,) = scopes_of(parse_graph(f"(float[4] a0) => (float[4] y) {{ {roots} y = Relu(a30) }}", 17))
    term = book.fragments["peel"].alternatives[0].result
    automaton = Automaton(book)
    assert automaton.terms[id(term)] is not ANY
    assert Admitted(scope, automaton).at("y", term)
    assert not Admitted(scope, automaton).at("a30", term)


def test_what_was_expected_is_told_as_operators_not_as_a_fragment() -> None:
    graph = parse_graph(
        """(float[B,3,S,8] q, float[B,3,S,8] k) => (float[B,3,S,S] p) { t = Transpose<perm = [0, 1, 3, 2]>(k)
        a = MatMul(q, t) r = Relu(a) p = Softmax<axis = -1>(r) }""",
        17,
    )
    kept = atcfuse.optimize(graph, dialect="portable", min_saving_us=0.0).report["kept"]
    (reason,) = [k["reason"] for k in kept if k["code"] == "ATF310"]
    assert reason == "expected Add/Cast/Concat/Div/MatMul/Max/Mul/Sub/…, found Relu"
    assert either(VIEW_OPERATORS).startswith("Expand/Flatten/Gather/")
