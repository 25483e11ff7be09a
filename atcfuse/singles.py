"""Operators that nothing else took up, one by one: those of which ATC makes more than the launch they count as.

This comes when all else is done, moves, rounds and groups, so that it is in the way of none.
"""

from __future__ import annotations

from atcfuse.graph.index import Model
from atcfuse.match.find import Lookup, RuleFinder
from atcfuse.match.values import Refusal
from atcfuse.reasons import DECISIONS, SINGLE
from atcfuse.rewrite import Fusion
from atcfuse.rounds import asked_for, carry_out, selected
from atcfuse.rule.model import Rule, RuleBook
from atcfuse.run import Findings, Kept, Toolbox


def replace_singles(model: Model, tools: Toolbox, findings: Findings) -> bool:
    """Replaces them by what rules of level `operator` make of them; False where there are none."""
    rules = tuple(r for r in tools.book.rules if r.level == SINGLE and r.opset[0] <= model.opset <= r.opset[1])
    if not rules:
        return False
    lookup = Lookup.of(RuleBook(rules, tools.book.fragments))
    ready: list[Fusion] = []
    kept: list[Kept] = []
    for scope in model.scopes():
        finder = RuleFinder(scope, lookup)
        for rule in rules:
            _ask(finder, rule, tools, findings, ready, kept)
    selection, beaten = selected(ready, findings.pricer, tools.options.forced)
    chosen, kept = selection.chosen, kept + beaten
    taken = {(f.match.scope.path, f.match.scope.nodes[i].name) for f in chosen for i in f.match.members}
    told = {(k.scope.path, k.anchor) for k in findings.kept}
    left = [k for k in findings.kept if (k.scope.path, k.anchor) not in taken or _is_decided(k)]
    findings.kept = [*left, *(k for k in kept if (k.scope.path, k.anchor) not in told)]
    return carry_out(model, chosen, findings)


def _is_decided(entry: Kept) -> bool:
    """Whether a larger fusion was found and given up: why, is still told."""
    return entry.refusal.code in DECISIONS and len(entry.members) > 1


def _ask(
    finder: RuleFinder, rule: Rule, tools: Toolbox, findings: Findings, ready: list[Fusion], kept: list[Kept]
) -> None:
    matches, misses = finder.find(rule)
    kept += [Kept.of(m, m.refusal) for m in misses]
    findings.matched.setdefault(rule.name, []).extend(m.anchor.name for m in matches)
    off = tools.why_off(rule)
    for match in matches:
        found = off or asked_for(match, tools, findings.pricer)
        if isinstance(found, Refusal):
            kept.append(Kept.of(match, found))
        else:
            ready.append(found)
