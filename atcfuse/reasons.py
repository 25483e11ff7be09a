"""Which reason is told of a place that stays, where several rules began there."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from atcfuse.graph.index import Model, Scope
from atcfuse.match.values import Refusal
from atcfuse.moves import KINDS, Moved
from atcfuse.rewrite import Fusion
from atcfuse.run import Kept, Toolbox

LAST = "elementwise"
"""The level of rules that take what is left when nothing larger fuses."""
SINGLE = "operator"
"""That of rules that replace one operator, when nothing else takes it up."""

_QUOTED = re.compile(r'"([^"]*)"')
"""A name of the model in a reason."""

DECISIONS = frozenset({"ATF347", "ATF348", *(f"ATF33{n}" for n in range(10))})
"""Refusals of a whole match by hardware and costs, see "Decisions" in docs/costs.md, and by what ATC reads."""


def _weight(entry: Kept) -> tuple[bool, bool, int]:
    """A place that would fuse but for a switch or for ATC is told so, whatever other rules say; else the deepest wins.

    What rules for leftovers say counts only where no other rule says anything.
    """
    return entry.refusal.code in ("ATF321", "ATF322", "ATF339"), entry.rule.level != LAST, entry.refusal.depth


def one_each(kept: Sequence[Kept], chosen: Sequence[Fusion]) -> list[Kept]:
    """One entry an anchor, the one that got deepest; none for anchors inside a chosen fusion or a larger candidate.

    A fusion that took some of the nodes does not answer why a refused one did not happen that would have taken more.
    """
    taken = {(id(f.match.scope), member): f.match.rule for f in chosen for member in f.match.members}
    inner = _inner(kept)
    best: dict[tuple[int, int], Kept] = {}
    for entry in kept:
        key = (id(entry.scope), entry.index)
        owner = taken.get(key)
        left_over = owner is not None and owner.level == LAST != entry.rule.level and owner.kernel != entry.rule.kernel
        wider = entry.refusal.code in DECISIONS and any((key[0], m) not in taken for m in entry.members)
        if key in inner or (owner is not None and not left_over and not wider):
            continue
        if key not in best or _weight(entry) > _weight(best[key]):
            best[key] = entry
    return sorted(best.values(), key=lambda k: (k.scope.path, k.scope.positions[k.index]))


def _inner(kept: Sequence[Kept]) -> set[tuple[int, int]]:
    """Nodes where only candidates start that are no larger than one which starts elsewhere and has the node inside."""
    widest: dict[tuple[int, int], Kept] = {}
    for entry in kept:
        key = (id(entry.scope), entry.index)
        if key not in widest or len(entry.members) > len(widest[key].members):
            widest[key] = entry
    found = set()
    for entry in kept:
        scope, size = id(entry.scope), len(entry.members)
        for member in entry.members:
            other = widest.get((scope, member))
            if (other is None or len(other.members) <= size) and member != entry.index:
                found.add((scope, member))
    return found


def of_trials(moved: Sequence[Moved], stuck: Collection[str], kept: Sequence[Kept]) -> dict[str, Refusal]:
    """Why moves that nothing took up were not, by their names: what was told of a node that such a move made."""
    makers = {node: move.name for move in moved if move.name in stuck for node in move.nodes}
    best: dict[str, Kept] = {}
    for entry in kept:
        name = makers.get(entry.anchor)
        if name is not None and (name not in best or _weight(entry) > _weight(best[name])):
            best[name] = entry
    return {name: entry.refusal for name, entry in best.items()}


def told_better(kept: Sequence[Kept], trials: Mapping[tuple[str, str], Kept]) -> list[Kept]:
    """The entries, with what was told of their anchors while moves were tried, where that got deeper.

    `trials` has it by path of the scope and anchor. A reason that names what only the move made is left out.
    """
    found = []
    for entry in kept:
        other = trials.get((entry.scope.path, entry.anchor))
        if other is not None and _weight(other) > _weight(entry) and _names_what_is_there(entry.scope, other.refusal):
            entry = replace(entry, rule=other.rule, refusal=other.refusal)
        found.append(entry)
    return found


def _names_what_is_there(scope: Scope, refusal: Refusal) -> bool:
    """Whether the value that a reason is about, and those and the nodes that it names, are in the model."""
    names = set(_QUOTED.findall(refusal.reason))
    unknown = {name for name in names if not scope.defines(name)}
    return scope.defines(refusal.where) and (not unknown or unknown <= {node.name for node in scope.nodes})


def in_trials(kept: Sequence[Kept], before: Mapping[tuple[str, str], Kept]) -> dict[tuple[str, str], Kept]:
    """What was told of each anchor by name, here or in trials before, the deepest each."""
    best = dict(before)
    for entry in kept:
        key = entry.scope.path, entry.anchor
        if entry.anchor and (key not in best or _weight(entry) > _weight(best[key])):
            best[key] = entry
    return best


def of_others(moved: Sequence[Moved], kept: Sequence[Kept]) -> list[Kept]:
    """The entries of nodes that were in the model: of what a move made and a fusion took up, no one asks."""
    made = {node for move in moved for node in move.nodes}
    return [entry for entry in kept if entry.anchor not in made]


def of_operators(model: Model, tools: Toolbox, told: Mapping[str, Refusal]) -> list[Kept]:
    """Why operators stayed that no rule knows as they are: one entry each.

    `told` is what was told of them when they were spelled in operators that rules know, by their names.
    """
    kinds = {kind.operator: kind for kind in KINDS if kind.obstacle is not None}
    found = []
    for scope in model.scopes():
        for node in scope.nodes:
            kind = kinds.get(node.op)
            rule = None if kind is None else tools.book.rule(kind.kernel)
            if kind is None or kind.obstacle is None or rule is None:
                continue
            by_user = tools.keep.reason(node.name, node.op)
            obstacle = kind.obstacle(scope, node)
            if by_user:
                refusal = Refusal("ATF325", by_user)
            elif obstacle is not None:
                refusal = Refusal("ATF314", obstacle)
            else:
                spelled_out = Refusal("ATF314", f"{node.op} is spelled out in operators that no fusion takes up")
                refusal = tools.why_off(rule) or told.get(node.name, spelled_out)
            own = replace(refusal, where=node.name)
            found.append(Kept(rule, scope, node.name, node.index, own, frozenset({node.index})))
    return found
