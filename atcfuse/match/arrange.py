"""From a matched pattern to a safe set of nodes: outputs, strided operands' roots, masks.

Each strided operand starts at its deepest root. A layout that does not work out or a value that is also read elsewhere
names an operand, which is then read less deep, until everything holds or the fault lies in the pattern itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atcfuse import safety
from atcfuse.graph import views
from atcfuse.graph.facts import INTEGRAL
from atcfuse.graph.index import Scope
from atcfuse.match.chains import merges
from atcfuse.match.functions import Aligned
from atcfuse.match.layouts import Blame, Layouts, solve
from atcfuse.match.masks import Agreement, broadcast, combined, cycle
from atcfuse.match.values import Link, Operand, Refusal, State, Value
from atcfuse.rule.model import Rule
from atcfuse.rule.terms import Call, Ref, Step, subterms

OUT = "out"
BOOL = 9


@dataclass(frozen=True)
class Arranged:
    """A safe set of nodes with its outputs and all names bound."""

    env: Mapping[str, Any]
    members: frozenset[int]
    outputs: tuple[str, ...]
    shapes: safety.Shapes


def arrange(scope: Scope, rule: Rule, state: State) -> Arranged | Refusal:
    """The state as a safe set of nodes, or the reason why there is none."""
    operands = {name: bound for name, bound in state.env.items() if isinstance(bound, Operand)}
    if operands:
        return _Joint(scope, rule, state, operands).arrange()
    state = State(state.env, _without_shared_noops(scope, state.members), state.labels)
    outputs = _outputs(scope, rule, state)
    survivors = [str(v) for n, v in state.env.items() if n in rule.inputs and isinstance(v, Value)]
    violation, shapes = safety.check(scope, state.members, outputs, survivors, _needed(scope, rule, state))
    if violation is not None:
        return Refusal(violation.code, violation.reason, violation.value)
    env = _with_masks(scope, state.env, outputs[0])
    return env if isinstance(env, Refusal) else Arranged(env, state.members, outputs, shapes)


def _with_masks(scope: Scope, env: Mapping[str, Any], scores: str) -> Mapping[str, Any] | Refusal:
    """The names with every list of masks as one operand that broadcasts to the scores."""
    lists = {name: bound for name, bound in env.items() if _is_masks(bound)}
    found = {name: None if bound == [] else bound for name, bound in env.items()}
    for name, items in lists.items():
        op = "And" if scope.fact(items[0].value).dtype == BOOL else "Add"
        one = broadcast(scope, items, op, scope.fact(scores).shape or ())
        if isinstance(one, Refusal):
            return one
        found[name] = one
    return found


def _is_masks(bound: Any) -> bool:
    return isinstance(bound, list) and bool(bound) and all(isinstance(b, Aligned) for b in bound)


def _without_shared_noops(scope: Scope, members: frozenset[int]) -> frozenset[int]:
    """The members but for no-ops that are also read outside: those go on reading what they repeat."""
    kept = set(members)
    for index in sorted(members, key=lambda i: -scope.positions[i]):
        outputs = scope.nodes[index].outputs
        if all(o in scope.alias for o in outputs) and any(_read_outside(scope, o, frozenset(kept)) for o in outputs):
            kept.discard(index)
    return frozenset(kept)


def _needed(scope: Scope, rule: Rule, state: State) -> frozenset[str]:
    """The values that the fused node may read: all that no member makes, and the inputs that `replace` names."""
    called = _called(rule)
    found: set[str] = set()
    for bound_name, bound in state.env.items():
        for item in bound if isinstance(bound, list) else (bound,):
            name = item.value if isinstance(item, Aligned) else item if isinstance(item, Value) else ""
            node = scope.producers.get(str(name))
            if name and (bound_name in called or node is None or node.index not in state.members):
                found.add(str(name))
    if rule.atc is not None:
        found |= _read_by(scope, state.members)
    return frozenset(found)


def _read_by(scope: Scope, members: frozenset[int]) -> set[str]:
    """Numbers from outside that members compute with: a rule about ATC does not name every operand of what it makes."""
    made = {o for i in members for o in scope.nodes[i].outputs}
    read = {v for i in members for v in scope.nodes[i].inputs if v} - made
    return {v for v in read if scope.fact(v).dtype not in INTEGRAL and scope.source(v) not in made}


def _called(rule: Rule) -> frozenset[str]:
    """Names of values that the replacement reads."""
    if rule.rebuilt is not None:
        return frozenset(rule.rebuilt.names) & frozenset(rule.inputs)
    return frozenset() if rule.replace is None else rule.replace.argument_names


def _outputs(scope: Scope, rule: Rule, state: State) -> tuple[str, ...]:
    found = []
    for output in rule.outputs:
        value = state.env.get(output.step)
        if isinstance(value, Value) and (not output.if_used or _read_outside(scope, str(value), state.members)):
            found.append(str(value))
    return tuple(found)


def _read_outside(scope: Scope, value: str, members: frozenset[int]) -> bool:
    if scope.escapes(value):
        return True
    return any(r.index not in members for r in scope.value_readers(value))


def _reads(step: Step, operand: str) -> bool:
    strided = (t for t in subterms(step.term) if isinstance(t, Call) and t.head == "strided")
    return any(isinstance(t.args[0], Ref) and t.args[0].name == operand for t in strided)


class _Joint:
    """The search for the deepest roots of all operands together."""

    def __init__(self, scope: Scope, rule: Rule, state: State, operands: Mapping[str, Operand]) -> None:
        self.scope, self.rule, self.state, self.operands = scope, rule, state, operands
        core = str(state.env[rule.outputs[0].step])
        self.links: dict[str, tuple[Link, ...]] = {name: o.links for name, o in operands.items()}
        self.links[OUT] = merges(scope, core)
        product = next(s for s in rule.steps if _reads(s, "q"))
        self.scores = scope.fact(str(state.env[product.names[0]])).shape or ()
        self.depth = {name: len(links) - 1 for name, links in self.links.items()}

    def arrange(self) -> Arranged | Refusal:
        """Reads operands less deep until layouts, masks and safety hold."""
        if not self.links[OUT]:
            core = str(self.state.env[self.rule.outputs[0].step])
            return Refusal("ATF313", "the rank of the result is not known", core)
        deepest, by_choice = dict(self.depth), False
        while True:
            result = self._attempt(ordinary=True)
            if not isinstance(result, Blame):
                break
            by_choice = by_choice or result.by_choice
            if self.depth[result.operand] == 0:
                result = result.refusal
                break
            self.depth[result.operand] -= 1
        if isinstance(result, Arranged) or not by_choice:
            return result
        self.depth = deepest
        return self._any_layout()

    def _any_layout(self) -> Arranged | Refusal:
        """As `arrange`, with any layout that can be named: what it is for is left to the kernel."""
        while True:
            result = self._attempt(ordinary=False)
            if not isinstance(result, Blame):
                return result
            if self.depth[result.operand] == 0:
                return result.refusal
            self.depth[result.operand] -= 1

    def _attempt(self, ordinary: bool) -> Arranged | Refusal | Blame:
        chosen = {name: links[self.depth[name]] for name, links in self.links.items()}
        out = chosen.pop(OUT)
        layouts = solve(chosen, out, self.links[OUT][0].shape, self.scores, ordinary)
        if not isinstance(layouts, Layouts):
            return layouts
        members = self.state.members.union(*(link.members for link in chosen.values()), out.members)
        survivors = [str(link.value) for link in chosen.values()]
        needed = _needed(self.scope, self.rule, self.state) | {str(link.value) for link in chosen.values()}
        while True:
            violation, shapes = safety.check(self.scope, members, [str(out.value)], survivors, needed)
            if violation is None:
                break
            shared = self._shared_view(violation, members - self.state.members - out.members)
            if shared is None:
                return self._blame(violation)
            members -= {shared}
        env = self._env(chosen, out, layouts)
        if isinstance(env, Refusal):
            return env
        return Arranged(env, members, (str(out.value),), shapes)

    def _shared_view(self, violation: safety.Violation, members: frozenset[int]) -> int | None:
        """The view among these nodes that makes the value which is read elsewhere, if one does.

        Such a view stays for its other readers: the operand is read from below it all the same.
        """
        node = self.scope.producers.get(violation.value)
        if violation.code not in ("ATF301", "ATF302") or node is None or node.index not in members:
            return None
        return node.index if views.is_view(node) or all(o in self.scope.alias for o in node.outputs) else None

    def _blame(self, violation: safety.Violation) -> Refusal | Blame:
        """The operand whose chain makes the value that is read elsewhere; the pattern itself where none does."""
        refusal = Refusal(violation.code, violation.reason, violation.value)
        node = self.scope.producers.get(violation.value)
        if node is None or node.index in self.state.members:
            return refusal
        candidates = [n for n, links in self.links.items() if node.index in links[self.depth[n]].members]
        if not candidates:
            return refusal
        return Blame(max(candidates, key=lambda n: self.depth[n]), refusal)

    def _env(self, chosen: Mapping[str, Link], out: Link, layouts: Layouts) -> dict[str, Any] | Refusal:
        env: dict[str, Any] = {**self.state.env, **layouts.attributes, self.rule.outputs[0].name: out.value}
        values = self.links["v"][0].shape
        agree = Agreement(self.links["k"][0].shape[-1] == values[-2], len(values) == len(self.links[OUT][0].shape) == 3)
        for name, link in chosen.items():
            env[name] = link.value
            by = self.state.env.get(f"by {name}")
            if by is not None:
                env[by] = link.factor
        for name, bound in self.state.env.items():
            if not isinstance(bound, list):
                continue
            boolean = bool(bound) and self.scope.fact(bound[0].value).dtype == 9
            items = [b for b in bound if isinstance(b, Aligned)]
            one = combined(self.scope, items, "And" if boolean else "Add", layouts, self.scores, agree)
            if isinstance(one, Refusal):
                return one
            env[name], env[f"{name}_cycles"] = one, int(cycle(self.scope, items, layouts) > 1)
        return env
