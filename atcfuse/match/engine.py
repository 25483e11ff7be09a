"""The matcher: terms against values, top down, with backtracking and memoised fragments.

A term is matched at a value by looking at the node that makes it. Fragments are closed: what one finds at a value
depends on nothing else, so each (fragment, value) is computed once a scope. Every failed check leaves a `Refusal`; the
deepest one is the reason that is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from atcfuse.expr import evaluate, proved
from atcfuse.graph.constants import scalar
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.numbering import ValueNumbers
from atcfuse.graph.schema import COMMUTATIVE, input_position, parameter, unexpected_attributes
from atcfuse.match.automaton import Admitted
from atcfuse.match.chains import passed_noops
from atcfuse.match.frames import Bindings, Frame, frame_of
from atcfuse.match.functions import functions_for
from atcfuse.match.heads import Heads, either
from atcfuse.match.parameters import close, same_parameter
from atcfuse.match.typing import type_problem
from atcfuse.match.values import Found, Refusal, State, Value
from atcfuse.rule.model import Fragment, Input, RuleBook
from atcfuse.rule.terms import Alternative, Call, Choice, Condition, Literal, Ref, Step, Term

MAX_RESULTS = 24
MAX_DEPTH = 60
BUDGET = 20_000


class BudgetExhausted(Exception):
    """The step budget of one anchor is used up; the anchor is refused with ATF316."""


BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Where", "Equal", "And", "Or"})
"""Operators whose constant operands could enlarge the result."""

Builtin = Callable[["Matcher", Call, str, State, Frame], Iterable[State]]


class Matcher:
    """Matches terms in one scope. `builtins` are the combinators that know about views.

    What cannot match is dismissed by the heads of terms, with a reason; or by what the automaton `admitted`, where that
    is given: it dismisses far more but does not know how much of a pattern is there.
    """

    def __init__(
        self,
        scope: Scope,
        book: RuleBook,
        builtins: Mapping[str, Builtin],
        heads: Heads,
        admitted: Admitted | None = None,
        numbers: ValueNumbers | None = None,
    ) -> None:
        self.scope, self.book, self.builtins = scope, book, builtins
        self._heads, self._admitted = heads, admitted
        self.numbers = ValueNumbers(scope) if numbers is None else numbers
        self.functions = functions_for(scope)
        self.best: Refusal | None = None
        self.budget = BUDGET
        self._memo: dict[tuple[str, str], tuple[tuple[Found, ...], Refusal | None]] = {}
        self._open: set[tuple[str, str]] = set()
        self._frames: dict[int, Frame] = {}

    def start(self) -> None:
        """Begins a new anchor: a fresh budget and no reason yet."""
        self.best, self.budget = None, BUDGET

    def refuse(self, code: str, reason: str, where: str, depth: int) -> None:
        """Notes a failed check. The deepest wins; of equals the one that says more, then the first."""
        if self.best is None or (depth, _weight(code)) > (self.best.depth, _weight(self.best.code)):
            self.best = Refusal(code, reason, where, depth)

    def through(self, value: str) -> tuple[str, frozenset[int]]:
        """The value behind no-ops such as Identity, and the no-op nodes passed."""
        return self.scope.source(value), passed_noops(self.scope, value)

    def match(self, term: Term, value: str, state: State, frame: Frame) -> Iterable[State]:
        """All ways in which the term matches the value."""
        self.budget -= 1
        if self.budget < 0 or len(self._open) > MAX_DEPTH:
            raise BudgetExhausted
        if isinstance(term, Ref):
            return self._ref(term, value, state, frame)
        if isinstance(term, Literal):
            return self._literal(term, value, state)
        if isinstance(term, Choice):
            return self._choice(term, value, state, frame)
        if not self._may_match(term, value, state, frame):
            return ()
        if term.is_operator:
            return self._operator(term, value, state, frame)
        builtin = self.builtins.get(term.head)
        if builtin is not None:
            return builtin(self, term, value, state, frame)
        return self._fragment_call(term, value, state, frame)

    def _may_match(self, term: Call, value: str, state: State, frame: Frame) -> bool:
        """Whether the operators that make the value can be those of the term at all: most attempts end here."""
        if self._admitted is not None:
            return self._admitted.at(value, term)
        heads = self._heads.term(term, frame.all_steps)
        if heads is None:
            return True
        node = self.scope.producer(value)
        if node is not None and node.op in heads:
            return True
        depth = len(state.members)
        if self.best is None or depth > self.best.depth:  # else `refuse` would not keep the text
            found = node.op if node else "a value from outside"
            wanted = either(heads)
            self.refuse("ATF310", f"expected {wanted}, found {found}", node.name if node else value, depth)
        return False

    def _ref(self, term: Ref, value: str, state: State, frame: Frame) -> Iterable[State]:
        name = term.name
        if name in state.env:
            return self._again(name, value, state, frame)
        step = frame.steps.get(name)
        if step is not None:
            return self.match_step(step[0], step[1], value, state, frame)
        if name in frame.inputs:
            bound = self._typed(frame.inputs[name], value, state, frame)
            return () if bound is None else (bound,)
        # A parameter keeps the name it was found under, so that the caller takes the no-ops in between as its own.
        return (state.named(name, Value(value)),)

    def _again(self, name: str, value: str, state: State, frame: Frame) -> Iterable[State]:
        bound = state.env[name]
        root, passed = self.through(value)
        if not isinstance(bound, str) or not self.numbers.same(self.scope.source(str(bound)), root):
            self.refuse("ATF310", f"{name} is already {bound}, here it would be {root}", root, len(state.members))
            return ()
        step = frame.steps.get(name)
        if step is None:
            return (state,)
        if str(bound) == root or root not in self.scope.producers:
            return (state.take(*passed),)
        # A copy of the same computation: its nodes become members as well.
        return self.match(step[0].term, root, state.take(*passed), frame)

    def match_step(self, step: Step, position: int, value: str, state: State, frame: Frame) -> Iterator[State]:
        """A named step at a value; with several names the value must be that output of the node."""
        root, passed = self.through(value)
        node = self.scope.producers.get(root)
        if len(step.names) > 1 and (node is None or self.scope_output(node, position) != root):
            return
        for found in self.match(step.term, root, state, frame):
            bound = self._bind_outputs(step, root, node, found).take(*passed)
            typed = bound if step.type is None else self._check_type(step.type, root, step.names[0], bound, frame)
            if typed is not None:
                yield typed

    @staticmethod
    def scope_output(node: Node, position: int) -> str:
        """An output of a node by position, "" where there is none."""
        return node.outputs[position] if position < len(node.outputs) else ""

    def _bind_outputs(self, step: Step, root: str, node: Node | None, state: State) -> State:
        if len(step.names) == 1 or node is None:
            return state.named(step.names[0], Value(root))
        return state.bind(**{n: Value(self.scope_output(node, i)) for i, n in enumerate(step.names)})

    def _typed(self, declared: Input, value: str, state: State, frame: Frame) -> State | None:
        root = self.scope.source(value)
        checked = self._check_type(declared.type, root, declared.name, state, frame)
        return None if checked is None else checked.named(declared.name, Value(root))

    def _check_type(self, spec: Any, value: str, name: str, state: State, frame: Frame) -> State | None:
        dims, problem = type_problem(self.scope, spec, value, state.env, frame.types, self.functions)
        if problem is not None:
            self.refuse(problem.code, f"{name}: {problem.reason}", value, len(state.members))
            return None
        return state.bind(**dims) if dims else state

    def _literal(self, term: Literal, value: str, state: State) -> Iterable[State]:
        found = scalar(self.scope, value)
        expected = term.value
        if not isinstance(expected, (int, float)):
            self.refuse("ATF312", f"{expected!r} is not a number that a value can be", value, len(state.members))
        elif found is None:
            self.refuse("ATF312", f"expected the constant {expected}, found no known number", value, len(state.members))
        elif not close(found, expected):
            self.refuse("ATF312", f"expected the constant {expected}, found {found:g}", value, len(state.members))
        else:
            return (state,)
        return ()

    def _choice(self, term: Choice, value: str, state: State, frame: Frame) -> Iterator[State]:
        for alternative in term.alternatives:
            for found in self.match(alternative.result, value, state, frame):
                done = self.conclude(alternative, value, found, frame)
                if done is not None:
                    yield self.labelled(done, term.name, alternative.label)

    @staticmethod
    def labelled(state: State, name: str, label: str) -> State:
        """The state with the label of an alternative noted."""
        return State({**state.env, f"chosen {name}": label}, state.members, (*state.labels, f"{name}={label}"))

    def conclude(self, alternative: Alternative, value: str, state: State, frame: Frame) -> State | None:
        """Type, conditions and `let`, in this order, of an alternative whose term matched."""
        if alternative.type is not None:
            typed = self._check_type(alternative.type, value, alternative.label, state, frame)
            if typed is None:
                return None
            state = typed
        if not self.holds(alternative.where, state, value):
            return None
        return self.evaluate_let(alternative.let, state)

    def evaluate_let(self, let: tuple[tuple[str, Any], ...], state: State) -> State:
        """The state with the `let` names computed, in order."""
        for name, expr in let:
            state = state.named(name, evaluate(expr, Bindings(state.env), self.functions))
        return state

    def holds(self, conditions: tuple[Condition, ...], state: State, value: str) -> bool:
        """Whether every condition is proved; notes the first that is not."""
        for condition in conditions:
            if not proved(evaluate(condition.test, Bindings(state.env), self.functions)):
                self.refuse("ATF314", condition.reason, value, len(state.members))
                return False
        return True

    def _operator(self, term: Call, value: str, state: State, frame: Frame) -> Iterator[State]:
        root, passed = self.through(value)
        node = self.scope.producers.get(root)
        depth = len(state.members)
        if node is None or node.op != term.op:
            return
        if root not in node.outputs[: 1 if node.op not in ("Split",) else None]:
            self.refuse("ATF310", f"{root} is not the first output of {node.op}", node.name, depth)
            return
        held = self._attributes(term, node, state.take(node.index, *passed))
        if held is None:
            return
        for order in self._orders(term, node):
            for done in self._arguments(term, node, order, 0, held, frame):
                if node.op not in BROADCASTING or self._keeps_shape(term, node, order, depth):
                    yield done

    def _orders(self, term: Call, node: Node) -> Iterator[tuple[int, ...]]:
        plain = tuple(range(len(term.args)))
        yield plain
        if len(plain) == 2 and node.op in COMMUTATIVE and len(node.inputs) == 2:
            yield (1, 0)

    def _keeps_shape(self, term: Call, node: Node, order: tuple[int, ...], depth: int) -> bool:
        """Whether constants among the operands only give numbers and leave the shape to the others."""
        facts = [self.scope.fact(name) for name in node.inputs]
        literal = {order[i] for i, a in enumerate(term.args) if isinstance(a, Literal)}
        result = self.scope.fact(node.outputs[0])
        others = [f for i, f in enumerate(facts) if f.size != 1 and i not in literal]
        if not others or len(others) == len(facts):
            return True
        if any(facts[i].size != 1 for i in literal):
            kept = result.shape is not None and any(f.shape == result.shape for f in others)
        else:
            kept = any(f.rank is None for f in others) or result.rank in {f.rank for f in others}
        if not kept:
            self.refuse("ATF313", f"a constant operand of {node.op} gives the result another shape", node.name, depth)
        return kept

    def _attributes(self, term: Call, node: Node, state: State) -> State | None:
        depth = len(state.members) - 1
        mentioned = {name for name, _ in term.keywords}
        odd = unexpected_attributes(self.scope, node, mentioned)
        if odd:
            self.refuse("ATF311", f"{node.op} has {odd[0]}={node.attributes[odd[0]]}", node.name, depth)
            return None
        by_keyword = {input_position(self.scope, node, name) for name in mentioned}
        extra = [i for i, n in enumerate(node.inputs) if n and i >= len(term.args) and i not in by_keyword]
        if extra:
            self.refuse("ATF317", f"{node.op} has an input {extra[0]} that the pattern does not have", node.name, depth)
            return None
        for name, target in term.keywords:
            found = parameter(self.scope, node, name)
            if isinstance(target, Ref):
                bound = self.unify(target.name, found, state)
                if bound is None:
                    return None
                state = bound
            elif not same_parameter(self.scope, node, name, target.value, found):
                self.refuse("ATF311", f"{node.op} has {name}={found}, not {target.value}", node.name, depth)
                return None
        return state

    def unify(self, name: str, found: Any, state: State) -> State | None:
        """Binds a name to what was found, or checks that it is the same."""
        if name not in state.env:
            return state.named(name, found)
        bound = state.env[name]
        if bound == found or (isinstance(bound, float) and isinstance(found, float) and close(found, bound)):
            return state
        if isinstance(bound, str) and isinstance(found, str) and self.numbers.same(bound, found):
            return state
        self.refuse("ATF313", f"{name} is {bound} in one place and {found} in another", "", len(state.members))
        return None

    def _arguments(
        self, term: Call, node: Node, order: tuple[int, ...], done: int, state: State, frame: Frame
    ) -> Iterator[State]:
        if done == len(term.args):
            yield state
            return
        argument, source = term.args[done], node.input(order[done])
        if source:
            ways = self.match(argument, source, state, frame)
        else:
            absent = self._absent(argument, state, frame, node)
            ways = () if absent is None else (absent,)
        if done + 1 == len(term.args):
            yield from ways
            return
        for found in ways:
            yield from self._arguments(term, node, order, done + 1, found, frame)

    def _absent(self, argument: Term, state: State, frame: Frame, node: Node) -> State | None:
        if isinstance(argument, Ref) and argument.name in frame.inputs and frame.inputs[argument.name].optional:
            return state if state.env.get(argument.name) is None else None
        self.refuse("ATF317", f"{node.op} lacks an input", node.name, len(state.members))
        return None

    def _fragment_call(self, term: Call, value: str, state: State, frame: Frame) -> Iterator[State]:
        fragment = self.book.fragments[term.head]
        results, failure = self.fragment(fragment, value)
        if failure is not None:
            self.refuse(failure.code, failure.reason, failure.where, failure.depth + len(state.members))
        for found in results:
            inherited = found.exports if term.inherits else {}
            env = {**state.env, f"chosen {term.head}": found.label, **inherited}
            labels = (*state.labels, f"{term.head}={found.label}")
            merged = State(env, state.members | found.members, labels)
            captured = self._captures(term, found, merged)
            if captured is not None:
                yield from self._parameters(term, fragment, found, 0, captured, frame)

    def _captures(self, term: Call, found: Found, state: State) -> State | None:
        for name, target in term.keywords:
            value = found.exports.get(name)
            if isinstance(target, Ref):
                bound = self.unify(target.name, value, state)
                if bound is None:
                    return None
                state = bound
            elif value != target.value and not (isinstance(value, float) and close(value, float(target.value))):  # type: ignore[arg-type]
                self.refuse("ATF312", f"{term.head} gives {name}={value}, not {target.value}", "", len(state.members))
                return None
        return state

    def _parameters(
        self, term: Call, fragment: Fragment, found: Found, done: int, state: State, frame: Frame
    ) -> Iterator[State]:
        if done == len(term.args):
            yield state
            return
        value = found.params.get(fragment.params[done])
        argument = term.args[done]
        if value is not None:
            ways = self.match(argument, value, state, frame)
        else:
            missing = isinstance(argument, Ref) and state.env.get(argument.name) is None
            ways = (state,) if missing else ()
        if done + 1 == len(term.args):
            yield from ways
            return
        for next_state in ways:
            yield from self._parameters(term, fragment, found, done + 1, next_state, frame)

    def fragment(self, fragment: Fragment, value: str) -> tuple[tuple[Found, ...], Refusal | None]:
        """All ways in which a fragment matches a value, and the deepest reason where an alternative did not."""
        key = (fragment.name, value)
        if key in self._memo:
            return self._memo[key]
        if key in self._open:
            return (), None
        outer, self.best = self.best, None
        self._open.add(key)
        try:
            results = tuple(self._alternatives(fragment, value))
        finally:
            self._open.discard(key)
            failure, self.best = self.best, outer
        self._memo[key] = (results, failure)
        return self._memo[key]

    def _alternatives(self, fragment: Fragment, value: str) -> Iterator[Found]:
        count = 0
        node = self.scope.producer(value)
        op = node.op if node else ""
        tried = False
        for alternative in fragment.alternatives:
            if not self._may_be(alternative, value, op):
                continue
            tried = True
            frame = self._frame(fragment, alternative)
            for state in self.match(alternative.result, value, State(), frame):
                done = self.conclude(alternative, value, state, frame)
                if done is None:
                    continue
                params = {p: done.env.get(p) for p in fragment.params}
                exports = {e: done.env.get(e) for e in fragment.exports}
                yield Found(params, exports, done.members, alternative.label)
                count += 1
                if count >= MAX_RESULTS:
                    return
        if not tried:
            wanted = either(self._heads.fragment(fragment) or ())
            self.refuse("ATF310", f"expected {wanted}, found {op or 'a value from outside'}", value, 0)

    def _may_be(self, alternative: Alternative, value: str, op: str) -> bool:
        if self._admitted is not None:
            return self._admitted.at(value, alternative.result)
        heads = self._heads.alternative(alternative)
        return heads is None or op in heads

    def _frame(self, fragment: Fragment, alternative: Alternative) -> Frame:
        key = id(alternative)
        if key not in self._frames:
            self._frames[key] = frame_of(alternative.steps, fragment.inputs, fragment.params)
        return self._frames[key]


def _weight(code: str) -> int:
    """How much a failed check says: that another operator is there says least."""
    return int(code != "ATF310")
