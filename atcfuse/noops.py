"""Launches that do nothing, such as a Cast to the type that a value has: an Identity, a view, takes their place.

The rules say which and prove it; this comes after the rounds, over what no fusion took in. Their patterns are read
literally: everywhere else no-ops are looked through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from atcfuse.decide import kept_by_user
from atcfuse.fold import Folding, fold
from atcfuse.graph.edit import Names, apply
from atcfuse.graph.index import Model, Scope
from atcfuse.graph.traffic import Kind
from atcfuse.match.find import Lookup, RuleFinder
from atcfuse.match.values import Refusal
from atcfuse.rewrite import foldings
from atcfuse.rule.model import Rule
from atcfuse.run import Findings, Kept, Toolbox


def take_away(model: Model, tools: Toolbox, findings: Findings) -> bool:
    """Takes away the launches that do nothing; False where there are none."""
    book = tools.book.removing
    rules = tuple(r for r in book.rules if r.opset[0] <= model.opset <= r.opset[1])
    if not rules:
        return False
    lookup = Lookup.of(book)
    kinds_of = findings.kinds_of
    told = {(k.scope.path, k.anchor) for k in findings.kept}
    chosen: list[Folding] = []
    for scope in model.scopes():
        for found in _in_scope(scope, rules, lookup, kinds_of(scope), tools, findings):
            if isinstance(found, Folding):
                chosen.append(found)
            elif (found.scope.path, found.anchor) not in told:
                findings.kept.append(found)
    if chosen:
        _carry_out(model, chosen, findings)
    return bool(chosen)


def _in_scope(
    scope: Scope, rules: Sequence[Rule], lookup: Lookup, kinds: dict[int, Kind], tools: Toolbox, findings: Findings
) -> Iterator[Folding | Kept]:
    """What is taken away in a scope, larger matches first, and why other no-ops stay."""
    finder = RuleFinder(scope.literal(), lookup)
    idle = {i for i, kind in kinds.items() if kind != "launch"}
    taken: set[int] = set()
    matches = [m for rule in rules for m in finder.matches(rule) if m.anchor.index not in idle]
    for match in sorted(matches, key=lambda m: (-len(m.members), scope.positions[m.anchor.index])):
        if not taken.isdisjoint(match.members):
            continue
        taken |= match.members
        name, here = match.rule.name, replace(match, scope=scope)
        findings.matched.setdefault(name, []).append(here.anchor.name)
        ready = tools.why_off(match.rule) or kept_by_user(here, tools.keep) or fold(here)
        yield Kept.of(here, ready) if isinstance(ready, Refusal) else ready
    for rule in rules:
        for miss in finder.misses(rule, idle | taken):
            if _speaks(rule, miss.refusal, any(o in scope.alias for o in miss.anchor.outputs)):
                yield replace(Kept.of(miss, miss.refusal), scope=scope)


def _speaks(rule: Rule, refusal: Refusal, repeats: bool) -> bool:
    """Whether a refusal is told: a rule's first condition says whether an operator looks like one that does nothing."""
    reasons = [condition.reason for condition in rule.where]
    return refusal.reason in reasons[1:] or (repeats and refusal.code in ("ATF301", "ATF302"))


def _carry_out(model: Model, chosen: Sequence[Folding], findings: Findings) -> None:
    estimate = findings.pricer.estimate if findings.pricer else None
    if estimate is not None:
        for folding in chosen:
            estimate.take_away(folding.match.scope, folding.match.members)
    names = Names(model)
    made = foldings(chosen, names)
    findings.folded += [(folding, name) for folding, (_, name) in zip(chosen, made, strict=True)]
    apply(model, [one for one, _ in made], (), names)
