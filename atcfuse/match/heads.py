"""Which operators can make a value that a term matches: the cheap look that spares most full ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from atcfuse.graph import views
from atcfuse.rule.model import Fragment, RuleBook
from atcfuse.rule.terms import Alternative, Call, Choice, Ref, Step, Term

VIEW_OPERATORS = frozenset(views.OPERATORS)
_MOST_NAMED = 8
HeadSet = frozenset[str] | None
"""Operators by name, or None where any value may match."""


class Heads:
    """Head operators of the terms of a rule book, each computed once."""

    def __init__(self, book: RuleBook) -> None:
        self.book = book
        self._fragments: dict[str, HeadSet] = {}
        self._alternatives: dict[int, HeadSet] = {}
        self._terms: dict[int, HeadSet] = {}

    def of(self, term: Term, steps: tuple[Step, ...] = (), seen: frozenset[int] = frozenset()) -> HeadSet:
        """The operators that can make a value of the term."""
        if isinstance(term, Choice):
            return _union(self.of(a.result, steps, seen) for a in term.alternatives)
        if isinstance(term, Ref):
            step = next((s for s in steps if term.name in s.names), None)
            return None if step is None else self.of(step.term, steps, seen)
        if not isinstance(term, Call):
            return None
        if term.is_operator:
            return frozenset({term.op})
        if term.head == "merged":
            return self.of(term.args[0], steps, seen)
        if term.head in ("same", "part", "packed"):
            return VIEW_OPERATORS
        fragment = self.book.fragments.get(term.head)
        if fragment is None:
            return None
        if id(term) in seen:
            # The same call again is a recursion: it adds nothing that the other alternatives do not say.
            return frozenset()
        inner = seen | {id(term)}
        return _union(self._in_call(a, fragment, term, steps, inner) for a in fragment.alternatives)

    def _in_call(
        self, alternative: Alternative, fragment: Fragment, call: Call, steps: tuple[Step, ...], seen: frozenset[int]
    ) -> HeadSet:
        """The heads of an alternative in a call: where it is just a parameter, those of what the call puts there."""
        result = alternative.result
        if isinstance(result, Ref) and result.name in fragment.params:
            position = fragment.params.index(result.name)
            return self.of(call.args[position], steps, seen) if position < len(call.args) else None
        return self.of(result, alternative.steps, seen)

    def term(self, term: Call, steps: tuple[Step, ...]) -> HeadSet:
        """The operators that can make a value of a term, remembered for the term as an object."""
        key = id(term)
        if key not in self._terms:
            self._terms[key] = self.of(term, steps)
        return self._terms[key]

    def fragment(self, fragment: Fragment) -> HeadSet:
        """The operators that can make a value of the fragment."""
        if fragment.name not in self._fragments:
            self._fragments[fragment.name] = _union(self.of(a.result, a.steps) for a in fragment.alternatives)
        return self._fragments[fragment.name]

    def alternative(self, alternative: Alternative) -> HeadSet:
        """The operators that can make a value of one alternative."""
        key = id(alternative)
        if key not in self._alternatives:
            self._alternatives[key] = self.of(alternative.result, alternative.steps)
        return self._alternatives[key]


def either(operators: Collection[str]) -> str:
    """Operators as a refusal names those that it expected, the first few of many; views tell least."""
    names = sorted(set(operators) - VIEW_OPERATORS or set(operators))
    return "/".join(names if len(names) <= _MOST_NAMED else [*names[:_MOST_NAMED], "…"])


def _union(parts: Iterable[HeadSet]) -> HeadSet:
    total: frozenset[str] = frozenset()
    for part in parts:
        if part is None:
            return None
        total |= part
    return total
