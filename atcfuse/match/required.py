"""The operators without which a rule cannot match: the cheapest look of all, at a whole graph."""

from __future__ import annotations

from collections.abc import Iterable

from atcfuse.rule.model import Rule, RuleBook
from atcfuse.rule.terms import Alternative, Call, Choice, Ref, Step, Term

_None = frozenset[str]()


def required_operators(rule: Rule, book: RuleBook) -> frozenset[str]:
    """Operators that every match of the rule has, as the index spells them."""
    step = rule.step(rule.anchor)
    outputs = (rule.step(output.step) for output in rule.outputs if not output.if_used)
    roots = {id(s): s for s in (step, *outputs) if s is not None}
    return _all(_of(s.term, rule.steps, book, frozenset()) for s in roots.values())


def _of(term: Term, steps: tuple[Step, ...], book: RuleBook, open_: frozenset[str]) -> frozenset[str]:
    if isinstance(term, Choice):
        return _any(_alternative(a, steps, book, open_) for a in term.alternatives)
    if isinstance(term, Ref):
        step = next((s for s in steps if term.name in s.names), None)
        known = step is None or term.name in open_
        return _None if known or step is None else _of(step.term, steps, book, open_ | {term.name})
    if not isinstance(term, Call):
        return _None
    inner = _all(_of(argument, steps, book, open_) for argument in term.args)
    if term.is_operator:
        return inner | {term.op}
    fragment = book.fragments.get(term.head)
    if fragment is None:
        # Of the combinators only optional() may match without its argument, and then with a part of it.
        return _None if term.head == "optional" else inner
    if f"{term.head}()" in open_:
        return _None
    own = _any(_alternative(a, a.steps, book, open_ | {f"{term.head}()"}) for a in fragment.alternatives)
    return own | inner


def _alternative(
    alternative: Alternative, steps: tuple[Step, ...], book: RuleBook, open_: frozenset[str]
) -> frozenset[str]:
    return _of(alternative.result, steps, book, open_)


def _all(parts: Iterable[frozenset[str]]) -> frozenset[str]:
    return _None.union(*parts)


def _any(parts: Iterable[frozenset[str]]) -> frozenset[str]:
    found = list(parts)
    return found[0].intersection(*found[1:]) if found else _None
