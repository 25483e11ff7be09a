"""Operators that nothing else took up, one by one: those of which ATC makes more than the launch they count as.

This comes when all else is done, moves, rounds and groups, so that it is in the way of none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from atcfuse.graph.index import Model
from atcfuse.match.find import Lookup, RuleFinder
from atcfuse.match.values import Refusal
from atcfuse.reasons import DECISIONS
from atcfuse.rewrite import Fusion
from atcfuse.rounds import asked_for, carry_out, matches_of, selected
from atcfuse.rule.model import Rule
from atcfuse.run import Findings, Kept, Toolbox

GIVEN_UP = DECISIONS | {"ATF321", "ATF322", "ATF325"}
"""Refusals of a whole match: by hardware, by costs, by the user."""


def replace_singles(model: Model, tools: Toolbox, findings: Findings) -> bool:
    """Replaces them by what rules of level `operator` make of them; False where there are none."""
    book = tools.book.of_operators
    rules = [r for r in book.rules if r.opset[0] <= model.opset <= r.opset[1]]
    if not rules:
        return False
    lookup = Lookup.of(book)
    ready: list[Fusion] = []
    kept: list[Kept] = []
    for scope in model.scopes():
        finder = RuleFinder(scope, lookup)
        for rule in rules:
            _ask(finder, rule, tools, findings, ready, kept)
    selection, beaten = selected(ready, findings, tools.options.forced)
    chosen, kept = selection.chosen, kept + beaten
    taken = {(f.match.scope.path, f.match.scope.nodes[i].name) for f in chosen for i in f.match.members}
    findings.kept = _told(findings.kept, kept, taken)
    return carry_out(model, chosen, findings)


def _told(by_others: Sequence[Kept], kept: Sequence[Kept], taken: Collection[tuple[str, str]]) -> list[Kept]:
    """One entry an anchor: why a larger fusion was found and given up, else why the operator was, else what others say.

    Of operators that were replaced the first alone is told.
    """
    own = {(k.scope.path, k.anchor): k for k in kept}
    found = []
    for entry in by_others:
        key = entry.scope.path, entry.anchor
        larger = entry.refusal.code in GIVEN_UP and len(entry.members) > 1
        mine = own.pop(key, None)
        if larger or (key not in taken and (mine is None or mine.refusal.code not in GIVEN_UP)):
            found.append(entry)
        elif key not in taken and mine is not None:
            found.append(mine)
    return [*found, *own.values()]


def _ask(
    finder: RuleFinder, rule: Rule, tools: Toolbox, findings: Findings, ready: list[Fusion], kept: list[Kept]
) -> None:
    off = tools.why_off(rule)
    for match in matches_of(finder, rule, kept, findings):
        found = off or asked_for(match, tools, findings.pricer)
        if isinstance(found, Refusal):
            kept.append(Kept.of(match, found))
        else:
            ready.append(found)
