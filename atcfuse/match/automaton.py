"""Which terms can match at a value by operators alone, told for every value of a scope in one walk.

The terms of a rule book are the states of a bottom-up tree automaton: an operator's arguments are states, a fragment
is one for each set of arguments it is called with, its alternatives lead to it without a step. What holds at a value
follows from its operator and from what holds at the operands, so layers that are alike cost one dictionary lookup a
node. What the automaton denies cannot match; what it admits is for the matcher to prove: attributes, types, sharing and
conditions are not looked at.

Tree automata for instruction selection: Hoffmann and O'Donnell, "Pattern matching in trees", JACM 29 (1982).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from atcfuse.graph.index import Node, Scope
from atcfuse.graph.schema import COMMUTATIVE
from atcfuse.match.heads import VIEW_OPERATORS
from atcfuse.rule.model import RuleBook
from atcfuse.rule.terms import Call, Choice, Ref, Step, Term

Class = int
"""The states that hold at a value, as one number."""
ANY = None
"""In place of a state: every value will do."""
MAX_NESTING = 12
"""Arguments nested deeper in calls of fragments may be anything: that keeps the states finite."""

KEPT = 4
"""So many automata of books are kept for later runs in a thread."""
MOST_LEARNED = 100_000
"""One that has met more transitions than these is built anew."""


class _Production(NamedTuple):
    state: int
    operands: tuple[int | None, ...]


class _Context(NamedTuple):
    """What names mean inside a term: steps of the rule or alternative, states of a fragment's parameters."""

    steps: Mapping[str, Step]
    params: Mapping[str, int | None]


class Automaton:
    """The states of a rule book and the transitions met so far; scopes share it.

    `sets` are the states by class, `terms` the state of each term in a rule or in an alternative of a fragment, whose
    parameters may then be any value, by its identity.
    """

    def __init__(self, book: RuleBook) -> None:
        self._book = book
        self._states: dict[object, int] = {}
        self._depth: list[int] = []
        self._always: set[int] = set()
        self._by_op: dict[str, dict[int | None, list[_Production]]] = defaultdict(lambda: defaultdict(list))
        self._follows: dict[int, list[int]] = defaultdict(list)
        self.terms: dict[int, int | None] = {}
        self._classes: dict[frozenset[int], Class] = {}
        self.sets: list[frozenset[int]] = []
        self._transitions: dict[tuple[str, tuple[Class, ...]], Class] = {}
        for fragment in book.fragments.values():
            for alternative in fragment.alternatives:
                self._enter_terms([alternative.result], alternative.steps)
        for rule in (*book.rules, *book.atc):
            self._enter_terms([], (*rule.steps, *rule.context))

    def _enter_terms(self, terms: Sequence[Term], steps: Sequence[Step]) -> None:
        table = {name: step for step in steps for name in step.names}
        for term in (*terms, *(step.term for step in steps)):
            self._of(term, _Context(table, {}))

    def _of(self, term: Term, context: _Context) -> int | None:
        if isinstance(term, Ref):
            step = context.steps.get(term.name)
            return context.params.get(term.name) if step is None else self._of(step.term, context)
        if isinstance(term, Choice):
            key = ("choice", id(term), tuple(sorted(context.params.items(), key=str)))
            state = self._either(key, [(a.result, context) for a in term.alternatives])
        elif isinstance(term, Call):
            state = self._call(term, context)
        else:
            return ANY
        if not context.params:
            self.terms[id(term)] = state
        return state

    def _call(self, term: Call, context: _Context) -> int | None:
        if term.head == "merged":
            return self._of(term.args[0], context)
        if term.head == "strided":
            return ANY
        operands = tuple(self._of(argument, context) for argument in term.args)
        if term.head in ("same", "part", "packed", "view"):
            return self._viewed(operands[0], term.head == "view")
        if term.head == "optional":
            inner = term.args[0]
            return self._either(("optional", operands), [(inner, context), (_first(inner), context)])
        return self._operator(term.op, operands) if term.is_operator else self._fragment(term.head, operands)

    def _operator(self, op: str, operands: tuple[int | None, ...]) -> int:
        state, fresh = self._enter((op, operands), operands)
        if fresh:
            self._produce(op, state, operands)
            if len(operands) == 2 and op in COMMUTATIVE:
                self._produce(op, state, operands[::-1])
        return state

    def _produce(self, op: str, state: int, operands: tuple[int | None, ...]) -> None:
        """Enters a production of an operator, under the state that it wants of the first operand."""
        self._by_op[op][operands[0] if operands else ANY].append(_Production(state, operands))

    def _viewed(self, operand: int | None, itself: bool) -> int | None:
        """Views of a value for which a state holds, one at least unless it is one `itself`."""
        if itself and operand is ANY:
            return ANY
        state, fresh = self._enter(("viewed", operand, itself), (operand,))
        if fresh:
            for op in VIEW_OPERATORS:
                self._produce(op, state, (operand,))
                self._produce(op, state, (state,))
            if itself and operand is not None:
                self._follows[operand].append(state)
        return state

    def _fragment(self, name: str, operands: tuple[int | None, ...]) -> int | None:
        fragment = self._book.fragments[name]
        if any(operand is not None and self._depth[operand] > MAX_NESTING for operand in operands):
            operands = (ANY,) * len(operands)
        if (name, operands) in self._states:
            return self._states[name, operands]
        params = dict(zip(fragment.params, operands, strict=False))
        tables = ({n: step for step in a.steps for n in step.names} for a in fragment.alternatives)
        contexts = [(a.result, _Context(table, params)) for a, table in zip(fragment.alternatives, tables, strict=True)]
        return self._either((name, operands), contexts, operands)

    def _either(
        self, key: object, ways: Sequence[tuple[Term, _Context]], operands: tuple[int | None, ...] = ()
    ) -> int | None:
        """A state that holds where one of several terms does."""
        state, fresh = self._enter(key, operands)
        if fresh:
            for term, context in ways:
                way = self._of(term, context)
                if way is ANY:
                    self._always.add(state)
                else:
                    self._follows[way].append(state)
        return state

    def _enter(self, key: object, operands: tuple[int | None, ...]) -> tuple[int, bool]:
        if key in self._states:
            return self._states[key], False
        state = self._states[key] = len(self._depth)
        self._depth.append(1 + max((self._depth[o] for o in operands if o is not None), default=0))
        return state, True

    def after(self, op: str, operands: tuple[Class, ...]) -> Class:
        """The class of what an operator makes of values of these classes."""
        key = op, operands
        known = self._transitions.get(key)
        if known is None:
            known = self._transitions[key] = self._class(self._reached(op, operands))
        return known

    @property
    def learned(self) -> int:
        """How many transitions it has met."""
        return len(self._transitions)

    def outside(self) -> Class:
        """The class of a value that no node of the scope makes."""
        return self._class(set())

    def _reached(self, op: str, operands: tuple[Class, ...]) -> set[int]:
        if op not in self._by_op:
            return set()
        sets, by_first = [self.sets[operand] for operand in operands], self._by_op[op]
        firsts = [ANY, *(by_first.keys() & sets[0])] if sets else by_first
        return {p.state for first in firsts for p in by_first.get(first, ()) if _fits(p.operands[1:], sets[1:])}

    def _class(self, states: set[int]) -> Class:
        """The number of a set of states and all that follow from them."""
        reached, pending = set(states), [*states, *self._always]
        reached |= self._always
        while pending:
            for state in self._follows.get(pending.pop(), ()):
                if state not in reached:
                    reached.add(state)
                    pending.append(state)
        key = frozenset(reached)
        if key not in self._classes:
            self._classes[key] = len(self.sets)
            self.sets.append(key)
        return self._classes[key]


def _first(term: Term) -> Term:
    assert isinstance(term, Call)  # optional() is of a call: the loader saw to that
    return term.args[0]


def _fits(wanted: tuple[int | None, ...], operands: Sequence[frozenset[int]]) -> bool:
    """Whether the operands that are there are of the states wanted; one that is not there may be optional."""
    return all(state is ANY or state in found for state, found in zip(wanted, operands, strict=False))


class _Kept(threading.local):
    """The automata of a thread by their books: one learns while it is used, which two threads must not do at once."""

    def __init__(self) -> None:
        self.automata: dict[RuleBook, Automaton] = {}


_KEPT = _Kept()


def automaton_of(book: RuleBook) -> Automaton:
    """The automaton of a book, kept for the last few books: building one takes longer than matching a small model."""
    kept = _KEPT.automata
    found = kept.pop(book, None)
    if found is None or found.learned > MOST_LEARNED:
        found = Automaton(book)
    kept[book] = found
    for oldest in list(kept)[:-KEPT]:
        del kept[oldest]
    return found


class Admitted:
    """What the automaton admits at the values of one scope."""

    def __init__(self, scope: Scope, automaton: Automaton) -> None:
        self._terms, self._sets = automaton.terms, automaton.sets
        alias, outside = scope.alias, automaton.outside()
        self._alias = alias
        self._classes: dict[str, Class] = {}
        classes, nodes, after = self._classes, scope.nodes, automaton.after
        for index in scope.order:
            node = nodes[index]
            found = after(node.op, tuple([classes.get(alias.get(name, name), outside) for name in node.inputs]))
            for output in node.outputs:
                if output:
                    classes[output] = found
        self._outside = outside

    def at(self, value: str, term: Term) -> bool:
        """Whether a term may match at a value, no-ops looked through."""
        state = self._terms.get(id(term), ANY)
        return state is ANY or state in self._sets[self._classes.get(self._alias.get(value, value), self._outside)]

    def among(self, nodes: Iterable[Node], term: Term) -> list[Node]:
        """The nodes of which a term may match at what they make."""
        state = self._terms.get(id(term), ANY)
        if state is ANY:
            return list(nodes)
        classes, alias, outside, sets = self._classes, self._alias, self._outside, self._sets
        found = []
        for node in nodes:
            value = node.outputs[0] or next((o for o in node.outputs if o), "")
            if state in sets[classes.get(alias.get(value, value), outside)]:
                found.append(node)
        return found
