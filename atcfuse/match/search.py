"""The search from one anchor of a rule: backwards through producers, then forwards for the rule's other outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from atcfuse.graph import views
from atcfuse.graph.facts import INTEGRAL
from atcfuse.graph.index import Node, Scope
from atcfuse.match.arrange import arrange
from atcfuse.match.engine import BUDGET, BudgetExhausted, Matcher
from atcfuse.match.frames import Frame
from atcfuse.match.heads import Heads
from atcfuse.match.values import Found, Operand, Refusal, State, Value
from atcfuse.rule.model import Fragment, Output, Rule, RuleBook
from atcfuse.rule.terms import Call, Ref, Step, Term, names_in
from atcfuse.safety import Shapes, precision_lost

FORWARD_DEPTH = 12
FORWARD_VALUES = 256
FAR = 2
"""So many nodes matched from a value that might be the rule's other output are no coincidence."""


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


class Search:
    """Searches from anchors in a scope with one matcher; what fragments found is shared between the rules."""

    def __init__(self, scope: Scope, book: RuleBook, heads: Heads, matcher: Matcher) -> None:
        self.scope, self.book, self.heads, self.matcher = scope, book, heads, matcher
        self._types = _element_types(book)
        self._heads_of: dict[frozenset[str] | None, list[Node]] = {}
        self._applied: dict[str, dict[int | str, list[str]]] = {}
        self.by_op = scope.by_op

    def from_anchor(
        self, rule: Rule, step: Step, node: Node, frame: Frame, without: int | None = None
    ) -> Match | tuple[Refusal, frozenset[int]] | None:
        """The first safe match from an anchor, else why there is none; None where the anchor is not one.

        The match does not have the node `without` among its members.
        """
        matcher, value = self.matcher, next((o for o in node.outputs if o), "")
        matcher.start()
        is_call = isinstance(step.term, Call) and step.term.is_operator
        anchored, recognised = is_call, frozenset({node.index})
        try:
            for state in matcher.match_step(step, 0, value, State(), frame):
                anchored, recognised = True, recognised | state.members
                after = self._branch(state.members) if _sibling(rule, step) else -1
                for complete in self._roots(rule, list(rule.outputs), state, frame, after):
                    found = None if without in complete.members else self._finish(rule, node, complete)
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
        sibling, wanted = _sibling(rule, step), _alike(rule, step, left)
        branches = len({branch for branch, _ in found})
        if not found and not sibling:
            self._nothing_computed(step, state, frame)
        elif branches < wanted:
            self._too_few(step, branches, wanted, state)
            return
        if sibling:
            # The values of a model's later layers are computed from the same one: only the next of them is a partner.
            found = [pair for pair in found if pair[0] == found[0][0]]
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
            for node in self.head_nodes(self.heads.fragment(fragment)):
                for result in self.results(fragment, node):
                    first = result.params.get(fragment.params[0])
                    if first is not None:
                        key = self.matcher.numbers.key(self.scope.source(str(first)))
                        found.setdefault(key, {})[node.outputs[0]] = None
            self._applied[fragment.name] = {source: list(values) for source, values in found.items()}
        return self._applied[fragment.name]

    def head_nodes(self, ops: frozenset[str] | None) -> list[Node]:
        """The nodes of some operators (None: of any) that are of a rule's business, in node order."""
        if ops not in self._heads_of:
            scope, heads = self.scope, self._heads
            found = sorted([position for op in (heads if ops is None else ops) for position in heads.get(op, ())])
            self._heads_of[ops] = [scope.nodes[scope.order[position]] for position in found]
        return self._heads_of[ops]

    @cached_property
    def _heads(self) -> Mapping[str, Sequence[int]]:
        """The positions of the nodes that are of a rule's business, by operator."""
        heads: dict[str, list[int]] = {}
        for position, index in enumerate(self.scope.order):
            node = self.scope.nodes[index]
            if self.is_typed(node.outputs[0]):
                heads.setdefault(node.op, []).append(position)
        return heads

    def is_typed(self, value: str) -> bool:
        """Whether a value may be of a rule's business: shape arithmetic is not unless a rule names its type."""
        dtype = self.scope.fact(value).dtype
        return dtype not in INTEGRAL or dtype in self._types

    def results(self, fragment: Fragment, node: Node) -> tuple[Found, ...]:
        """All ways in which a fragment is found on a node."""
        return self._within_budget(fragment, node)[0]

    def failure(self, fragment: Fragment, node: Node) -> Refusal | None:
        """The deepest reason why a fragment is not found on a node in another way."""
        return self._within_budget(fragment, node)[1]

    def _within_budget(self, fragment: Fragment, node: Node) -> tuple[tuple[Found, ...], Refusal | None]:
        outer = self.matcher.budget
        self.matcher.budget = BUDGET
        try:
            return self.matcher.fragment(fragment, node.outputs[0])
        except BudgetExhausted:
            return (), None
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
        inputs = _input_types(self.scope, rule, state)
        lost = None if rule.removes else precision_lost(self.scope, arranged.members, inputs)
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
    if not others or not all(isinstance(c, Call) and c.args and not c.is_operator for c in calls):
        return False
    return len({(c.head, getattr(c.args[0], "name", "")) for c in calls if isinstance(c, Call)}) == 1


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
    return tuple(link.value for link in bound.links) if isinstance(bound, Operand) else bound


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
