"""Layout strings of strided operands as C++ expressions: sizes read from shapes, strides computed from sizes.

A layout names what each axis of an operand runs over, `B S (3 N D)`: letters, numbers (factors that the operand does
not run over) and `N:73` (the first N of a factor of 73). Letters of size 1 may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

NAMED = {"BSH": "B S (N D)", "BSND": "B S N D", "BNSD": "B N S D", "SBH": "S B (N D)"}
"""The layouts that Ascend users know by name."""


@dataclass(frozen=True)
class Term:
    """One factor of an axis: a letter, whose factor is `extent` where that is not the letter's size, or a number."""

    letter: str | None
    extent: int | None


@dataclass(frozen=True)
class Layout:
    """The axes of an operand, outermost first, each a product of terms, outermost first."""

    text: str
    axes: tuple[tuple[Term, ...], ...]

    def has(self, letter: str) -> bool:
        """Whether the operand's memory runs over the letter."""
        return any(term.letter == letter for axis in self.axes for term in axis)

    def stride(self, letter: str, sizes: Mapping[str, str]) -> str:
        """The C++ expression of the distance between neighbours along a letter, in elements; "0" without it."""
        inner: list[str] = []
        for axis in reversed(self.axes):
            for term in reversed(axis):
                if term.letter == letter:
                    return _product(inner)
                inner.insert(0, _size(term, sizes))
        return "0"

    def innermost(self) -> str | None:
        """The letter along which neighbours lie next to one another."""
        for axis in reversed(self.axes):
            for term in reversed(axis):
                if term.letter is not None or term.extent != 1:
                    return term.letter
        return None

    def shape(self, sizes: Mapping[str, str]) -> list[str]:
        """The C++ expression of every axis's size."""
        return [_product([_size(term, sizes) for term in axis]) for axis in self.axes]


@dataclass(frozen=True)
class Reading:
    """A statement of the host code: `name` is axis `axis` of input `operand`, divided by `divisor` (C++)."""

    name: str
    operand: int
    axis: int
    divisor: str


def parse_layout(text: str) -> Layout | None:
    """The layout that a string writes, None where it cannot be read."""
    spelled = NAMED.get(text, text)
    axes = []
    for group, word in re.findall(r"\(([^()]*)\)|([^\s()]+)", spelled):
        terms = [_term(item) for item in (group or word).split()]
        if not terms or None in terms:
            return None
        axes.append(tuple(t for t in terms if t is not None))
    return Layout(text, tuple(axes)) if axes else None


def read_sizes(operands: Sequence[tuple[Layout, Mapping[str, str]]], unknown: Iterable[str]) -> list[Reading] | str:
    """How the host finds the unknown sizes in the operands' shapes, or the name of one that cannot be found.

    Each operand has its layout and the C++ expression of each letter's size; a name no layout runs over is not read.
    """
    known: set[str] = set()
    readings: list[Reading] = []
    used = {sizes[t.letter] for layout, sizes in operands for axis in layout.axes for t in axis if t.letter}
    wanted = [name for name in unknown if name in used]
    progress = True
    while progress:
        progress = False
        for name in wanted:
            found = None if name in known else _reading(name, operands, set(wanted) - known)
            if found is not None:
                readings.append(found)
                known.add(name)
                progress = True
    missing = [name for name in wanted if name not in known]
    return missing[0] if missing else readings


def _reading(name: str, operands: Sequence[tuple[Layout, Mapping[str, str]]], open_names: set[str]) -> Reading | None:
    for operand, (layout, sizes) in enumerate(operands):
        for axis, terms in enumerate(layout.axes):
            inexact = any(t.letter and t.extent is not None and sizes[t.letter] == name for t in terms)
            spelled = [_size(t, sizes) for t in terms]
            if inexact or spelled.count(name) != 1 or any(s in open_names and s != name for s in spelled):
                continue
            return Reading(name, operand, axis, _product([s for s in spelled if s != name]))
    return None


def _term(word: str) -> Term | None:
    if word.isdigit():
        return Term(None, int(word))
    match = re.fullmatch(r"([BSND])(?::(\d+))?", word)
    return Term(match[1], int(match[2]) if match[2] else None) if match else None


def _size(term: Term, sizes: Mapping[str, str]) -> str:
    return str(term.extent) if term.letter is None or term.extent is not None else sizes[term.letter]


def _product(factors: Sequence[str]) -> str:
    real = [f for f in factors if f != "1"]
    return " * ".join(real) if real else "1"
