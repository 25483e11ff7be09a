"""Covering arrays: few cases in which every pair of choices of different parameters occurs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

Case = Mapping[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]

TRIES = 60


def covering(
    choices: Mapping[str, Sequence[str]], valid: Callable[[Case], bool], seed: int = 0
) -> list[dict[str, str]]:
    """Cases, all valid, that contain every pair of values that some valid case can contain."""
    rng = random.Random(seed)
    left = dict.fromkeys(_pairs_of(choices), 0)
    cases: list[dict[str, str]] = []
    while left:
        wanted = next(iter(left))
        best: tuple[int, dict[str, str]] | None = None
        for _ in range(TRIES):
            case = _around(wanted, choices, valid, left, rng)
            gained = sum(pair in left for pair in _pairs(case)) if case else 0
            if case and (best is None or gained > best[0]):
                best = (gained, case)
        if best is None:
            del left[wanted]  # no valid case was found that has the pair
            continue
        cases.append(best[1])
        for pair in _pairs(best[1]):
            left.pop(pair, None)
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
    left: Mapping[Pair, int],
    rng: random.Random,
) -> dict[str, str] | None:
    case = {name: rng.choice(values) for name, values in choices.items()}
    case.update(dict(pair))
    fixed = {name for name, _ in pair}
    names = [n for n in choices if n not in fixed]
    rng.shuffle(names)
    # Every parameter in turn takes the value that covers most of what is left.
    for name in names:
        options = list(choices[name])
        rng.shuffle(options)
        case[name] = max(options, key=lambda v: _gain({**case, name: v}, name, left))
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


def _gain(case: Case, name: str, left: Mapping[Pair, int]) -> int:
    return sum(_pair((name, case[name]), (other, value)) in left for other, value in case.items() if other != name)


def _pair(a: tuple[str, str], b: tuple[str, str]) -> Pair:
    return (a, b) if a < b else (b, a)


def _pairs(case: Case) -> list[Pair]:
    return [_pair(a, b) for a, b in combinations(case.items(), 2)]


def _pairs_of(choices: Mapping[str, Sequence[str]]) -> list[Pair]:
    return [
        _pair((first, a), (second, b))
        for first, second in combinations(choices, 2)
        for a in choices[first]
        for b in choices[second]
    ]
