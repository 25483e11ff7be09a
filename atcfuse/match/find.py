"""Matches of one rule in one scope: every anchor is tried, each failure leaves its deepest reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from atcfuse.graph import views
from atcfuse.graph.facts import INTEGRAL
from atcfuse.graph.index import Node, Scope
from atcfuse.match.arrange import Arranged, arrange
from atcfuse.match.builtins import BUILTINS
from atcfuse.match.engine import BUDGET, BudgetExhausted, Matcher
from atcfuse.match.frames import Frame, frame_of
from atcfuse.match.heads import Heads
from atcfuse.match.required import required_operators
from atcfuse.match.values import Found, Operand, Refusal, State, Value
from atcfuse.rule.model import Fragment, Output, Rule, RuleBook
from atcfuse.rule.terms import Call, Choice, Ref, Step, Term, names_in
from atcfuse.safety import Shapes, precision_lost

FORWARD_DEPTH = 12
FORWARD_VALUES = 256
NEAR = 4
"""So many nodes of a fragment in their place are no coincidence."""
FAR = 2
"""So many nodes matched from a value that might be the rule's other output are no coincidence either."""


@dataclass(frozen=True)
class Match:
    """A complete, safe match: what the fused node takes, makes and is told."""

    rule: Rule
    scope: Scope
    anchor: Node
    members: frozenset[int]
    outputs: tuple[str, ...]
    env: Mapping[str, Any]
    labels: tuple[str, ...]
    shapes: Shapes


@dataclass(frozen=True)
class NearMiss:
    """An anchor that did not become a match, the deepest reason, and the nodes that were recognised all the same."""

    rule: Rule
    scope: Scope
    anchor: Node
    refusal: Refusal
    members: frozenset[int]


class RuleFinder:
    """Finds the matches of rules in a scope; fragments are shared between the rules."""

    def __init__(self, scope: Scope, book: RuleBook, heads: Heads | None = None) -> None:
        self.scope, self.book = scope, book
        self.heads = heads or Heads(book)
        self.matcher = Matcher(scope, book, BUILTINS, self.heads)
        self._types = _element_types(book)
        self._may_match: dict[str, bool] = {}
        self._fragment_anchors: dict[str, list[Node]] = {}
        self._applied: dict[str, dict[int | str, list[str]]] = {}
        self.by_op: dict[str, list[Node]] = {}
        for index in scope.order:
            node = scope.nodes[index]
            self.by_op.setdefault(node.op, []).append(node)

    def may_match(self, rule: Rule) -> bool:
        """Whether the scope has every operator that the rule cannot do without."""
        if rule.name not in self._may_match:
            self._may_match[rule.name] = required_operators(rule, self.book) <= self.by_op.keys()
        return self._may_match[rule.name]

    def matches(
        self, rule: Rule, passed_over: Callable[[Node], bool], among: Iterable[int] | None = None
    ) -> list[Match]:
        """The matches of a rule in node order but at anchors `passed_over`, without a word about other anchors.

        Where `among` is given, only these nodes are looked at.
        """
        step = rule.step(rule.anchor)
        if step is None:
            return []
        frame = frame_of((*rule.steps, *rule.context), rule.inputs, types=rule.types)
        ops = self.heads.of(step.term, rule.steps)
        named = self.by_op.keys() if ops is None else ops
        if among is None:
            looked_at = [n for op in named for n in self.by_op.get(op, ())]
        else:
            looked_at = [n for n in (self.scope.nodes[i] for i in among) if n.op in named]
        wanted = [n for n in looked_at if not passed_over(n)]
        nodes = [n for n in wanted if self._may_begin(step.term, n, rule.steps)]
        found = []
        for node in sorted(nodes, key=lambda n: self.scope.positions[n.index]):
            result = self._anchor(rule, step, node, frame)
            if isinstance(result, Match):
                found.append(result)
        return found

    def _may_begin(self, term: Term, node: Node, steps: tuple[Step, ...]) -> bool:
        """Whether a node and the operators right before it can be the end of a term: what most nodes are not."""
        if isinstance(term, Choice):
            return any(self._may_begin(a.result, node, steps) for a in term.alternatives)
        if not isinstance(term, Call):
            return True
        if term.is_operator:
            return node.op == term.op and all(self._is_read(a, node, steps) for a in term.args)
        fragment = self.book.fragments.get(term.head)
        if fragment is None:
            return True
        return any(self._may_begin(a.result, node, a.steps) for a in fragment.alternatives)

    def _is_read(self, argument: Term, node: Node, steps: tuple[Step, ...]) -> bool:
        """Whether one of a node's inputs may be made by what ends the argument."""
        heads = self.heads.term(argument, steps) if isinstance(argument, Call) else None
        if heads is None:
            return True
        made = (self.scope.producer(name) for name in node.inputs)
        return any(before is not None and before.op in heads for before in made)

    def find(self, rule: Rule) -> tuple[list[Match], list[NearMiss]]:
        """All matches of a rule in node order, and a near miss for every other anchor."""
        frame = frame_of((*rule.steps, *rule.context), rule.inputs, types=rule.types)
        step = rule.step(rule.anchor)
        if step is None:
            return [], []
        matches: list[Match] = []
        misses: list[NearMiss] = []
        for node in self._anchors(step.term):
            result = self._anchor(rule, step, node, frame)
            if isinstance(result, Match):
                matches.append(result)
            elif result is not None:
                misses.append(NearMiss(rule, self.scope, node, *result))
        return matches, misses

    def _anchors(self, term: Term) -> list[Node]:
        """The nodes to start from: all of an operator, or those on which a fragment is found at all."""
        if isinstance(term, Call) and term.is_operator:
            return self.by_op.get(term.op, [])
        nodes = self._head_nodes(self.heads.of(term))
        fragment = self.book.fragments.get(term.head) if isinstance(term, Call) else None
        if fragment is None:
            return nodes
        if fragment.name not in self._fragment_anchors:
            self._fragment_anchors[fragment.name] = self._occurrences(fragment, nodes)
        return self._fragment_anchors[fragment.name]

    def _occurrences(self, fragment: Fragment, nodes: list[Node]) -> list[Node]:
        """The nodes on which a fragment is found, and those on which so much of it is that the rest needs a reason."""
        found = {n.index: self._results(fragment, n) for n in nodes}
        near = {n.index for n in nodes if not found[n.index] and self._is_near(fragment, n)}
        # A value inside a larger occurrence of the same fragment is a part of it, not an anchor of its own.
        inner = {m for i, results in found.items() for r in results for m in r.members if m != i}
        made = {i: self.scope.nodes[i].outputs for i in near}
        inner |= {i for i, outputs in made.items() if any(r.index in near for o in outputs for r in self._readers(o))}
        return [n for n in nodes if (found[n.index] or n.index in near) and n.index not in inner]

    def _readers(self, value: str) -> list[Node]:
        return self.scope.consumers.get(value, []) if value else []

    def _is_near(self, fragment: Fragment, node: Node) -> bool:
        """Whether a fragment was nearly found: it is that very operator, or several nodes of it are there."""
        failure = self.matcher.fragment(fragment, node.outputs[0])[1]
        if failure is None or self.scope.fact(node.outputs[0]).size == 1:  # such as a scale worked out from a shape
            return False
        if failure.code == "ATF310":
            return failure.depth >= NEAR
        return failure.depth >= NEAR - 1 or (failure.code == "ATF311" and failure.where == node.name)

    def _anchor(
        self, rule: Rule, step: Step, node: Node, frame: Frame
    ) -> Match | tuple[Refusal, frozenset[int]] | None:
        """The first safe match from an anchor, else why there is none; None where the anchor is not one."""
        matcher, value = self.matcher, next((o for o in node.outputs if o), "")
        matcher.start()
        is_call = isinstance(step.term, Call) and step.term.is_operator
        anchored, recognised = is_call, frozenset({node.index})
        try:
            for state in matcher.match_step(step, 0, value, State(), frame):
                anchored, recognised = True, recognised | state.members
                after = self._branch(state.members) if _sibling(rule, step) else -1
                for complete in self._roots(rule, list(rule.outputs), state, frame, after):
                    found = self._finish(rule, node, complete)
                    if found is not None:
                        return found
        except BudgetExhausted:
            refusal = Refusal("ATF316", "too many ways to read this subgraph; it was given up", node.name)
            return refusal, recognised
        if not anchored:
            return None if matcher.best is None else (matcher.best, recognised)
        return matcher.best or Refusal("ATF310", "the pattern does not occur here", node.name), recognised

    def _roots(self, rule: Rule, left: list[Output], state: State, frame: Frame, after: int) -> Iterator[State]:
        """All ways to find the rule's other outputs forward from what is bound, in node order."""
        while left and (left[0].if_used or left[0].step in state.env):
            left = left[1:]
        if not left:
            yield from self._context(rule, list(rule.context), state, frame)
            return
        step = rule.step(left[0].step)
        if step is None:
            return
        found = sorted(self._forward(step, state, frame, after), key=lambda pair: pair[0])
        if _sibling(rule, step):
            # The values of a model's later layers are computed from the same one: only the next of them is a partner.
            found = [pair for pair in found if pair[0] == found[0][0]]
        wanted = _alike(rule, step, left)
        branches = len({branch for branch, _ in found})
        if not found:
            self._nothing_computed(step, state, frame)
        elif branches < wanted:
            self._too_few(step, branches, wanted, state)
            return
        for branch, longer in found:
            yield from self._roots(rule, left[1:], longer, frame, branch)

    def _too_few(self, step: Step, found: int, wanted: int, state: State) -> None:
        term = step.term
        assert isinstance(term, Call)  # only alike calls are counted
        source = state.env.get(getattr(term.args[0], "name", ""), "")
        reason = f'"{source}" feeds {found} more {term.head}, {wanted} are needed'
        self.matcher.refuse("ATF318", reason, str(source), len(state.members))

    def _nothing_computed(self, step: Step, state: State, frame: Frame) -> None:
        depth = len(state.members)
        for source in _bound_sources(step.term, frame, state):
            readers = self.scope.consumers.get(source, ())
            if self.scope.is_output(source) and not readers:
                reason = f'"{source}" is only an output of the model: no {step.names[0]} is computed from it'
                self.matcher.refuse("ATF318", reason, source, depth)
            elif self.scope.is_output(source):
                self.matcher.refuse("ATF301", f'"{source}" is an output of the model', source, depth)
            elif readers:
                read = ", ".join(sorted({r.op for r in readers}))
                reason = f'no {step.names[0]} is computed from "{source}", which is read by {read}'
                self.matcher.refuse("ATF318", reason, source, depth)

    def _context(self, rule: Rule, left: list[Step], state: State, frame: Frame) -> Iterator[State]:
        if not left:
            yield state
            return
        made = [str(state.env[o.step]) for o in rule.outputs if isinstance(state.env.get(o.step), Value)]
        candidates = self._reachable(made, self.heads.of(left[0].term))
        for _, found in self._matched_at(candidates, left[0], state, frame, -1):
            env = {n: _plain(bound) for n, bound in found.env.items()}
            yield from self._context(rule, left[1:], State(env, state.members, state.labels), frame)
        self.matcher.refuse("ATF318", f"no {left[0].names[0]} is computed from it", "", len(state.members))

    def _forward(self, step: Step, state: State, frame: Frame, after: int) -> list[tuple[int, State]]:
        """Matches of a step at values computed from what is bound; longest first within a branch.

        A branch is told by its first own node; it shares nothing but views and no-ops with what is matched already, and
        only branches behind `after` in node order are given.
        """
        outer, self.matcher.best = self.matcher.best, None
        try:
            found = self._matched_at(self._candidates(step, frame, state), step, state, frame, after)
        finally:
            inner, self.matcher.best = self.matcher.best, outer
        if inner is not None:
            # What came far is no coincidence: its reason then tells more than that nothing was found.
            depth = inner.depth + (len(state.members) if inner.depth >= FAR else 0)
            self.matcher.refuse(inner.code, inner.reason, inner.where, depth)
        return found

    def _matched_at(
        self, candidates: Iterable[str], step: Step, state: State, frame: Frame, after: int
    ) -> list[tuple[int, State]]:
        bound = State(state.env, frozenset(), state.labels)
        found: list[tuple[int, State]] = []
        for value in candidates:
            for own in self.matcher.match_step(step, 0, value, bound, frame):
                computing = {i for i in own.members if not self._rearranges(i)}
                if not computing or computing & state.members:
                    continue
                branch = self._branch(computing)
                if branch > after:
                    found.append((branch, State(own.env, own.members | state.members, own.labels)))
        return _longest_first(found)

    def _branch(self, members: Iterable[int]) -> int:
        """The position of the first node that computes something."""
        return min((self.scope.positions[i] for i in members if not self._rearranges(i)), default=-1)

    def _rearranges(self, index: int) -> bool:
        """Whether a node only passes its operand on, so that several branches may share it."""
        node = self.scope.nodes[index]
        return views.is_view(node) or any(o in self.scope.alias for o in node.outputs)

    def _candidates(self, step: Step, frame: Frame, state: State) -> Iterable[str]:
        """Values at which the step may match, computed from what is bound."""
        term = step.term
        if isinstance(term, Call) and term.head in self.book.fragments and isinstance(term.args[0], Ref):
            bound = state.env.get(term.args[0].name)
            if isinstance(bound, Value):
                key = self.matcher.numbers.key(self.scope.source(str(bound)))
                return self._applications(self.book.fragments[term.head]).get(key, ())
        return self._reachable(_bound_sources(term, frame, state), self.heads.of(term))

    def _applications(self, fragment: Fragment) -> dict[int | str, list[str]]:
        """Every value on which the fragment is found, by the number of the value that its first parameter receives."""
        if fragment.name not in self._applied:
            found: dict[int | str, dict[str, None]] = {}
            for node in self._head_nodes(self.heads.fragment(fragment)):
                for result in self._results(fragment, node):
                    first = result.params.get(fragment.params[0])
                    if first is not None:
                        key = self.matcher.numbers.key(self.scope.source(str(first)))
                        found.setdefault(key, {})[node.outputs[0]] = None
            self._applied[fragment.name] = {source: list(values) for source, values in found.items()}
        return self._applied[fragment.name]

    def _head_nodes(self, ops: frozenset[str] | None) -> list[Node]:
        nodes = self.scope.nodes if ops is None else [n for op in ops for n in self.by_op.get(op, ())]
        made = (n for n in nodes if n.outputs and self._is_typed(n.outputs[0]))
        return sorted(made, key=lambda n: self.scope.positions[n.index])

    def _is_typed(self, value: str) -> bool:
        """Whether a value may be of a rule's business: shape arithmetic is not unless a rule names its type."""
        dtype = self.scope.fact(value).dtype
        return dtype not in INTEGRAL or dtype in self._types

    def _results(self, fragment: Fragment, node: Node) -> tuple[Found, ...]:
        outer = self.matcher.budget
        self.matcher.budget = BUDGET
        try:
            return self.matcher.fragment(fragment, node.outputs[0])[0]
        except BudgetExhausted:
            return ()
        finally:
            self.matcher.budget = outer

    def _reachable(self, sources: Iterable[str], heads: frozenset[str] | None) -> list[str]:
        """Values computed from the sources within a few nodes whose operator is one of `heads`."""
        seen: dict[str, None] = {}
        front = list(sources)
        for _ in range(FORWARD_DEPTH):
            reached: list[str] = []
            for value in front:
                for node in self.scope.consumers.get(value, ()):
                    for output in node.outputs:
                        if output and output not in seen and len(seen) < FORWARD_VALUES:
                            seen[output] = None
                            reached.append(output)
            front = reached
        made = self.scope.producers
        return [v for v in seen if heads is None or made[v].op in heads]

    def _finish(self, rule: Rule, node: Node, state: State) -> Match | None:
        arranged = arrange(self.scope, rule, state)
        if isinstance(arranged, Refusal):
            self.matcher.refuse(arranged.code, arranged.reason, arranged.where, len(state.members) + 100)
            return None
        state = State(arranged.env, arranged.members, state.labels)
        lost = precision_lost(self.scope, arranged.members, _input_types(self.scope, rule, state))
        if lost is not None:
            self.matcher.refuse("ATF305", lost.reason, lost.value, len(state.members) + 100)
            return None
        if not self.matcher.holds(rule.where, state, node.name):
            return None
        state = self.matcher.evaluate_let(rule.let, state)
        return Match(
            rule, self.scope, node, arranged.members, arranged.outputs, state.env, state.labels, arranged.shapes
        )


def _sibling(rule: Rule, step: Step) -> bool:
    """Whether the anchor and another output are found alike: the same fragment of the same value."""
    anchor = rule.step(rule.anchor)
    others = [rule.step(o.step) for o in rule.outputs if not o.if_used and o.step != rule.anchor]
    calls = [s.term for s in (anchor, step, *others) if s is not None]
    heads = {(c.head, getattr(c.args[0], "name", "")) for c in calls if isinstance(c, Call) and c.args}
    return bool(others) and len(heads) == 1 and not any(isinstance(c, Call) and c.is_operator for c in calls)


def _alike(rule: Rule, step: Step, left: list[Output]) -> int:
    """How many of the outputs left are found just as this one is: the same fragment of the same value."""
    term = step.term
    if not isinstance(term, Call) or term.is_operator or not term.args or not isinstance(term.args[0], Ref):
        return 1
    source = term.args[0].name
    others = (rule.step(o.step) for o in left if not o.if_used)
    calls = [o.term for o in others if o is not None and isinstance(o.term, Call) and o.term.head == term.head]
    return sum(1 for c in calls if c.args and isinstance(c.args[0], Ref) and c.args[0].name == source)


def _input_types(scope: Scope, rule: Rule, state: State) -> frozenset[int]:
    bound = (state.env.get(name) for name in rule.inputs)
    return frozenset(scope.fact(str(value)).dtype for value in bound if isinstance(value, Value))


def _element_types(book: RuleBook) -> frozenset[int]:
    return frozenset(t for rule in book.rules for types in rule.types.values() for t in types)


def _plain(bound: Any) -> Any:
    # What a context step reads is only looked at, never rearranged: its roots by name are enough.
    return tuple(str(link.value) for link in bound.links) if isinstance(bound, Operand) else bound


def _bound_sources(term: Term, frame: Frame, state: State) -> list[str]:
    """The values bound so far that the term is computed from, through steps not yet matched."""
    found: dict[str, None] = {}
    pending, seen = [term], set()  # type: list[Term], set[str]
    while pending:
        for name in names_in(pending.pop()):
            if name in seen:
                continue
            seen.add(name)
            bound = state.env.get(name)
            if isinstance(bound, Value) and name in frame.steps:
                found[str(bound)] = None
            elif name in frame.steps:
                pending.append(frame.steps[name][0].term)
    return list(found)


def _longest_first(found: list[tuple[int, State]]) -> list[tuple[int, State]]:
    return sorted(found, key=lambda pair: -len(pair[1].members))


__all__ = ["Arranged", "Match", "NearMiss", "RuleFinder"]
