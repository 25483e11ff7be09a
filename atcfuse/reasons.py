"""Which reason is told of a place that stays, where several rules began there."""

from __future__ import annotations

from collections.abc import Sequence

from atcfuse.rewrite import Fusion
from atcfuse.run import Kept

LAST = "elementwise"
"""The level of rules that take what is left when nothing larger fuses."""

DECISIONS = frozenset(f"ATF33{n}" for n in range(10))
"""Refusals of a whole match by hardware and costs; see "Decisions" in docs/costs.md."""


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
