"""Which operators can make a value that a term matches: the cheap look that spares most full ones."""

from __future__ import annotations

from collections.abc import Iterable

from atcfuse.rule.model import Fragment, RuleBook
from atcfuse.rule.terms import Alternative, Call, Choice, Ref, Step, Term

HeadSet = frozenset[str] | None
"""Operators by name, or None where any value may match."""


class Heads:
    """Head operators of the terms of a rule book, each computed once."""

    def __init__(self, book: RuleBook) -> None:
        self.book = book
        self._fragments: dict[str, HeadSet] = {}
        self._alternatives: dict[int, HeadSet] = {}

    def of(self, term: Term, steps: tuple[Step, ...] = (), seen: frozenset[str] = frozenset()) -> HeadSet:
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
        fragment = self.book.fragments.get(term.head)
        if fragment is None:
            return None
        # A recursive call adds nothing that the other alternatives do not say.
        return frozenset() if fragment.name in seen else self._fragment(fragment, seen)

    def fragment(self, fragment: Fragment) -> HeadSet:
        """The operators that can make a value of the fragment."""
        if fragment.name not in self._fragments:
            self._fragments[fragment.name] = self._fragment(fragment, frozenset())
        return self._fragments[fragment.name]

    def _fragment(self, fragment: Fragment, seen: frozenset[str]) -> HeadSet:
        inner = seen | {fragment.name}
        return _union(self.of(a.result, a.steps, inner) for a in fragment.alternatives)

    def alternative(self, alternative: Alternative) -> HeadSet:
        """The operators that can make a value of one alternative."""
        key = id(alternative)
        if key not in self._alternatives:
            self._alternatives[key] = self.of(alternative.result, alternative.steps)
        return self._alternatives[key]


def _union(parts: Iterable[HeadSet]) -> HeadSet:
    total: frozenset[str] = frozenset()
    for part in parts:
        if part is None:
            return None
        total |= part
    return total
