"""Matches of rules in one scope, and for every anchor without one the deepest reason why.

Matches are found with the automaton's help, which dismisses most attempts without a word. Reasons are told by a second
matcher that has to try everything; it is asked only for anchors that are still there when the matches are carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from atcfuse.graph.index import Node, Scope
from atcfuse.match.automaton import Admitted, Automaton, automaton_of
from atcfuse.match.builtins import BUILTINS
from atcfuse.match.engine import Matcher
from atcfuse.match.frames import Frame, frame_of
from atcfuse.match.heads import Heads, HeadSet
from atcfuse.match.required import required_operators
from atcfuse.match.search import Match, Search
from atcfuse.match.values import Refusal
from atcfuse.rule.model import Fragment, Rule, RuleBook
from atcfuse.rule.terms import Call, Step

NEAR = 4
"""So many nodes of a fragment in their place are no coincidence."""


@dataclass(frozen=True)
class NearMiss:
    """An anchor that did not become a match, the deepest reason, and the nodes that were recognised all the same."""

    rule: Rule
    scope: Scope
    anchor: Node
    refusal: Refusal
    members: frozenset[int]


@dataclass(frozen=True)
class Lookup:
    """What a rule book is searched with, computed once for all scopes."""

    book: RuleBook
    heads: Heads
    automaton: Automaton

    @classmethod
    def of(cls, book: RuleBook) -> Lookup:
        """The tables of a rule book."""
        return cls(book, Heads(book), automaton_of(book))


class RuleFinder:
    """Finds the matches of rules in a scope; fragments are shared between the rules."""

    def __init__(self, scope: Scope, lookup: Lookup) -> None:
        self.scope, self.book, self.heads = scope, lookup.book, lookup.heads
        self._admitted = Admitted(scope, lookup.automaton)
        matcher = Matcher(scope, self.book, BUILTINS, self.heads, self._admitted)
        self._search = Search(scope, self.book, self.heads, matcher)
        self._occurrences = Occurrences(self._search)
        self._by_op = self._search.by_op
        self._required: dict[str, bool] = {}
        self._named: dict[str, HeadSet] = {}
        self._matched: dict[str, list[Match]] = {}
        self._found: dict[int, tuple[Rule, dict[int, Match | object]]] = {}
        self._near: dict[tuple[str, int], bool] = {}
        self._shorter: dict[tuple[int, int], tuple[Match, Match | None]] = {}

    @cached_property
    def _telling(self) -> Search:
        """The search that tries everything and so knows how far it got."""
        numbers = self._search.matcher.numbers
        matcher = Matcher(self.scope, self.book, BUILTINS, self.heads, numbers=numbers)
        return Search(self.scope, self.book, self.heads, matcher)

    def may_match(self, rule: Rule) -> bool:
        """Whether the scope has every operator that the rule cannot do without."""
        if rule.name not in self._required:
            self._required[rule.name] = required_operators(rule, self.book) <= self._by_op.keys()
        return self._required[rule.name]

    def matches_among(
        self, rule: Rule, passed_over: Callable[[Node], bool], among: Iterable[int] | None = None
    ) -> list[Match]:
        """The matches of a rule in node order but at anchors `passed_over`, those inside others too.

        Where `among` is given, only these nodes are looked at.
        """
        step = rule.step(rule.anchor)
        if step is None:
            return []
        if rule.name not in self._named:
            self._named[rule.name] = self.heads.of(step.term, rule.steps)
        ops = self._named[rule.name]
        named = self._by_op.keys() if ops is None else ops
        if among is None:
            looked_at = [n for op in named for n in self._by_op.get(op, ())]
        else:
            looked_at = [n for n in (self.scope.nodes[i] for i in among) if n.op in named]
        return self._at(rule, step, [n for n in looked_at if not passed_over(n)])

    def matches(self, rule: Rule) -> list[Match]:
        """All matches of a rule in node order."""
        step = rule.step(rule.anchor)
        if step is None:
            return []
        if rule.name not in self._matched:
            fragment = self._anchoring(step)
            if fragment is None:
                self._matched[rule.name] = self._at(rule, step, self._head_nodes(step))
            else:
                self._matched[rule.name] = self._at_occurrences(rule, step, fragment)
        return self._matched[rule.name]

    def _at_occurrences(self, rule: Rule, step: Step, fragment: Fragment) -> list[Match]:
        """The matches where a fragment is found: those of the largest occurrences, and those within one that gave none.

        An occurrence is the union of all ways to read it. Where the match is a smaller one, or there is none, what is
        found in the rest of it stands for itself: of `(p + r) + s` all is an occurrence, but where `p + r` is read
        elsewhere too and `s` is a projection as well, there are two.
        """
        inner = self._occurrences.inner(fragment)
        nodes, occurrences = self.scope.nodes, self._occurrences.of(fragment)
        found = self._at(rule, step, (nodes[i] for i in occurrences if i not in inner))
        taken = {member for match in found for member in match.members}
        for index in sorted((i for i in occurrences if i in inner), key=self.scope.positions.__getitem__, reverse=True):
            if index not in taken:
                within = self._at(rule, step, [nodes[index]])
                taken.update(member for match in within for member in match.members)
                found += within
        return sorted(found, key=lambda match: self._position(match.anchor))

    def shorter(self, match: Match, without: int) -> Match | None:
        """Another match from the same anchor, without one of the nodes, or None."""
        key = id(match), without
        if key not in self._shorter:
            self._shorter[key] = match, self._without(match, without)
        return self._shorter[key][1]

    def _without(self, match: Match, without: int) -> Match | None:
        step = match.rule.step(match.rule.anchor)
        assert step is not None  # it has matched
        found = self._search.from_anchor(match.rule, step, match.anchor, _frame(match.rule), without)
        return found if isinstance(found, Match) and found.members < match.members else None

    def _at(self, rule: Rule, step: Step, nodes: Iterable[Node]) -> list[Match]:
        """The matches at such of the nodes as the automaton admits."""
        admitted = sorted(self._admitted.among(nodes, step.term), key=self._position)
        if not admitted:
            return []
        frame = _frame(rule)
        found = self._found.setdefault(id(rule), (rule, {}))[1]  # an identity is only good while the rule lives
        for n in admitted:
            if n.index not in found:
                found[n.index] = self._search.from_anchor(rule, step, n, frame)
        at = (found[n.index] for n in admitted)
        return [match for match in at if isinstance(match, Match)]

    def find(self, rule: Rule) -> tuple[list[Match], list[NearMiss]]:
        """All matches of a rule in node order, and a near miss for every other anchor."""
        return self.matches(rule), self.misses(rule, frozenset())

    def misses(self, rule: Rule, passed_over: Set[int]) -> list[NearMiss]:
        """A near miss for every anchor of the rule that has no match and is not `passed_over`, in node order."""
        step = rule.step(rule.anchor)
        if step is None:
            return []
        matched = {match.anchor.index for match in self.matches(rule)}
        left = (n for n in self._head_nodes(step) if n.index not in matched and n.index not in passed_over)
        fragment, frame, misses = self._anchoring(step), _frame(rule), []
        for node in left:
            if fragment is not None and not self._is_anchor(fragment, node):
                continue
            told = self._telling.from_anchor(rule, step, node, frame)
            if isinstance(told, tuple):
                misses.append(NearMiss(rule, self.scope, node, *told))
        return misses

    def _position(self, node: Node) -> int:
        return self.scope.positions[node.index]

    def _anchoring(self, step: Step) -> Fragment | None:
        """The fragment that a rule starts from, None where it is an operator or a combinator."""
        term = step.term
        return self.book.fragments.get(term.head) if isinstance(term, Call) and not term.is_operator else None

    def _head_nodes(self, step: Step) -> list[Node]:
        """The nodes that may be anchors by their operator alone."""
        term = step.term
        if isinstance(term, Call) and term.is_operator:
            return self._by_op.get(term.op, [])
        return self._search.head_nodes(self.heads.of(term))

    def _is_anchor(self, fragment: Fragment, node: Node) -> bool:
        """Whether a fragment is found on a node, or so much that the rest needs a reason, and not inside another."""
        if node.index in self._occurrences.inner(fragment):
            return False
        if node.index in self._occurrences.of(fragment):
            return True
        readers = (r for o in node.outputs if o for r in self.scope.consumers.get(o, ()))
        return self._is_near(fragment, node) and not any(self._is_near(fragment, r) for r in readers)

    def _is_near(self, fragment: Fragment, node: Node) -> bool:
        """Whether a fragment was nearly found: it is that very operator, or several nodes of it are there."""
        key = fragment.name, node.index
        if key not in self._near:
            self._near[key] = self._nearly(fragment, node)
        return self._near[key]

    def _nearly(self, fragment: Fragment, node: Node) -> bool:
        ops = self.heads.fragment(fragment)
        heads = ops is None or node.op in ops
        if not heads or not self._search.is_typed(node.outputs[0]):
            return False
        if node.index in self._occurrences.of(fragment):
            return False
        failure = self._telling.failure(fragment, node)
        if failure is None or self.scope.fact(node.outputs[0]).size == 1:  # such as a scale worked out from a shape
            return False
        if failure.code == "ATF310":
            return failure.depth >= NEAR
        return failure.depth >= NEAR - 1 or (failure.code == "ATF311" and failure.where == node.name)


class Occurrences:
    """Where fragments are found among the nodes that a search looks at."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._found: dict[str, dict[int, frozenset[int]]] = {}
        self._parts: dict[str, set[int]] = {}

    def of(self, fragment: Fragment) -> Mapping[int, frozenset[int]]:
        """Nodes on which a fragment is found, in node order, with all nodes of what is found there.

        A node that repeats what another makes, such as a Cast to the same type, has nothing of its own there.
        """
        if fragment.name not in self._found:
            occurrences: dict[int, frozenset[int]] = {}
            for node in self._search.head_nodes(self._search.heads.fragment(fragment)):
                repeats = node.outputs[0] in self._search.scope.alias
                results = () if repeats else self._search.results(fragment, node)
                if results:
                    occurrences[node.index] = frozenset().union(*(r.members for r in results))
            self._found[fragment.name] = occurrences
        return self._found[fragment.name]

    def inner(self, fragment: Fragment) -> Set[int]:
        """Nodes inside a larger occurrence of a fragment: parts of it, not anchors of their own."""
        if fragment.name not in self._parts:
            self._parts[fragment.name] = {m for i, members in self.of(fragment).items() for m in members if m != i}
        return self._parts[fragment.name]


def _frame(rule: Rule) -> Frame:
    return frame_of((*rule.steps, *rule.context), rule.inputs, types=rule.types)


__all__ = ["Lookup", "Match", "NearMiss", "RuleFinder"]
