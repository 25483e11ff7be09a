"""Which entry of one report is which of another, when nodes may have been renamed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Entry = Mapping[str, Any]
Key = Callable[[Entry], Hashable]
NameSet = Callable[[Entry], Iterable[str]]

_CELLS_LIMIT = 1_000_000
"""Largest table of a longest common subsequence; beyond it only what is equal at both ends is aligned."""


@dataclass
class Alignment:
    """Entries paired so far, as (before, after), and those still without a partner, in the order of their reports."""

    pairs: list[tuple[Entry, Entry]]
    before: list[Entry]
    after: list[Entry]

    @classmethod
    def of(cls, before: Sequence[Entry], after: Sequence[Entry]) -> Alignment:
        """Nothing paired yet."""
        return cls([], list(before), list(after))

    def by_key(self, key: Key) -> Alignment:
        """Pairs entries of equal keys, in order."""
        waiting: dict[Hashable, deque[int]] = {}
        for j, entry in enumerate(self.after):
            waiting.setdefault(key(entry), deque()).append(j)
        found = [(i, q.popleft()) for i, e in enumerate(self.before) if (q := waiting.get(key(e)))]
        return self._paired(found)

    def by_sequence(self, key: Key) -> Alignment:
        """Pairs entries of equal keys that lie in the same place between their neighbours.

        So of twelve equal layers the one that is gone is found even where every name is another.
        """
        return self._paired(_common([key(entry) for entry in self.before], [key(entry) for entry in self.after]))

    def by_shared_name(self, key: Key, names: NameSet) -> Alignment:
        """Pairs entries of equal keys that have a name in common."""
        holder = {(key(entry), name): j for j, entry in enumerate(self.after) for name in names(entry)}
        found, taken = [], set()
        for i, entry in enumerate(self.before):
            shared = [j for name in names(entry) if (j := holder.get((key(entry), name))) is not None]
            free = [j for j in shared if j not in taken]
            if free:
                found.append((i, free[0]))
                taken.add(free[0])
        return self._paired(found)

    def by_key_if_renamed(self, key: Key, names: NameSet, known: tuple[frozenset[str], frozenset[str]]) -> Alignment:
        """Pairs entries of equal keys in order, but none whose names the other report knows: those were not renamed.

        `known` are all names of the report before and of the one after.
        """
        strange = Alignment.of(
            [entry for entry in self.before if known[1].isdisjoint(names(entry))],
            [entry for entry in self.after if known[0].isdisjoint(names(entry))],
        ).by_key(key)
        gone = {id(entry) for pair in strange.pairs for entry in pair}
        return Alignment(
            self.pairs + strange.pairs,
            [entry for entry in self.before if id(entry) not in gone],
            [entry for entry in self.after if id(entry) not in gone],
        )

    def _paired(self, found: list[tuple[int, int]]) -> Alignment:
        left, right = {i for i, _ in found}, {j for _, j in found}
        return Alignment(
            self.pairs + [(self.before[i], self.after[j]) for i, j in found],
            [entry for i, entry in enumerate(self.before) if i not in left],
            [entry for j, entry in enumerate(self.after) if j not in right],
        )


def _common(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Positions of a longest common subsequence.

    Equal ends are paired first: they are part of some longest one, and what is left is small when little changed.
    """
    start, end = _equal_ends(a, b)
    ends = [(i, i) for i in range(start)] + [(len(a) - i, len(b) - i) for i in range(end, 0, -1)]
    rest_a, rest_b = a[start : len(a) - end], b[start : len(b) - end]
    if len(rest_a) * len(rest_b) > _CELLS_LIMIT:
        return ends
    return ends + [(start + i, start + j) for i, j in _longest(rest_a, rest_b)]


def _equal_ends(a: Sequence[Hashable], b: Sequence[Hashable]) -> tuple[int, int]:
    shorter = min(len(a), len(b))
    start = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    left = shorter - start
    return start, next((i for i in range(left) if a[-1 - i] != b[-1 - i]), left)


def _longest(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The pairs of a longest common subsequence, by the textbook table of lengths of the remainders."""
    lengths = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(len(a) - 1, -1, -1):
        row, below = lengths[i], lengths[i + 1]
        for j in range(len(b) - 1, -1, -1):
            row[j] = below[j + 1] + 1 if a[i] == b[j] else max(below[j], row[j + 1])
    found, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return found
