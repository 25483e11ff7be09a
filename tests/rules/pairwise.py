"""Covering arrays: few cases in which every pair of choices of different parameters occurs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

Case = Mapping[str, str]
Item = tuple[str, str]
Pair = tuple[Item, Item]

TRIES = 60
HOPELESS = 4
"""A pair for which so many tries, of 200 random cases each, find nothing valid is taken to have no valid case."""


class _Left:
    """The pairs that no case holds yet, in the order in which they are wanted; counting is on bits, one an item."""

    def __init__(self, choices: Mapping[str, Sequence[str]]) -> None:
        items = [(name, value) for name, values in choices.items() for value in values]
        self.bit: dict[Item, int] = {item: 1 << index for index, item in enumerate(items)}
        self._partners: dict[Item, int] = dict.fromkeys(items, 0)
        self._wanted = dict.fromkeys(_pairs_of(choices))
        for a, b in self._wanted:
            self._partners[a] |= self.bit[b]
            self._partners[b] |= self.bit[a]

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def first(self) -> Pair:
        return next(iter(self._wanted))

    def drop(self, pair: Pair) -> None:
        if pair in self._wanted:
            a, b = pair
            del self._wanted[pair]
            self._partners[a] &= ~self.bit[b]
            self._partners[b] &= ~self.bit[a]

    def bits(self, case: Case) -> int:
        return sum(map(self.bit.__getitem__, case.items()))

    def with_item(self, item: Item, others: int) -> int:
        """How many pairs of the item with one of `others` are left."""
        return (self._partners[item] & others).bit_count()

    def inside(self, case: Case) -> int:
        """How many pairs of a case are left."""
        every = self.bits(case)
        return sum(self.with_item(item, every) for item in case.items()) // 2


def covering(
    choices: Mapping[str, Sequence[str]], valid: Callable[[Case], bool], seed: int = 0
) -> list[dict[str, str]]:
    """Cases, all valid, that contain every pair of values that some valid case can contain."""
    rng = random.Random(seed)
    left = _Left(choices)
    cases: list[dict[str, str]] = []
    while left:
        wanted = left.first()
        best: tuple[int, dict[str, str]] | None = None
        for tried in range(TRIES):
            if tried == HOPELESS and best is None:
                break
            case = _around(wanted, choices, valid, left, rng)
            gained = left.inside(case) if case else 0
            if case and (best is None or gained > best[0]):
                best = (gained, case)
        if best is None:
            left.drop(wanted)  # no valid case was found that has the pair
            continue
        cases.append(best[1])
        for a, b in combinations(best[1].items(), 2):
            left.drop(_pair(a, b))
    return cases


def random_case(
    choices: Mapping[str, Sequence[str]], valid: Callable[[Case], bool], rng: random.Random
) -> dict[str, str]:
    """One valid case, drawn at random."""
    while True:
        case = {name: rng.choice(values) for name, values in choices.items()}
        if valid(case):
            return case


def _around(
    pair: Pair,
    choices: Mapping[str, Sequence[str]],
    valid: Callable[[Case], bool],
    left: _Left,
    rng: random.Random,
) -> dict[str, str] | None:
    case = {name: rng.choice(values) for name, values in choices.items()}
    case.update(dict(pair))
    fixed = {name for name, _ in pair}
    names = [n for n in choices if n not in fixed]
    rng.shuffle(names)
    bits = left.bits(case)
    # Every parameter in turn takes the value that covers most of what is left.
    for name in names:
        options = list(choices[name])
        rng.shuffle(options)
        others = bits - left.bit[name, case[name]]
        case[name] = max(options, key=lambda v: left.with_item((name, v), others))
        bits = others + left.bit[name, case[name]]
    if valid(case):
        return case
    for name in names:
        for value in rng.sample(list(choices[name]), len(choices[name])):
            changed = {**case, name: value}
            if valid(changed):
                return changed
    for _ in range(200):
        changed = {name: rng.choice(values) for name, values in choices.items()} | dict(pair)
        if valid(changed):
            return changed
    return None


def _pair(a: Item, b: Item) -> Pair:
    return (a, b) if a < b else (b, a)


def _pairs_of(choices: Mapping[str, Sequence[str]]) -> list[Pair]:
    return [
        _pair((first, a), (second, b))
        for first, second in combinations(choices, 2)
        for a in choices[first]
        for b in choices[second]
    ]
