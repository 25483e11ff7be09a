"""How wide text is on a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

_WIDE = frozenset("WF")
_NO_LINE_BEGINS = frozenset("，。、；：？！）》」』】〕％…—”’·,.;:?!)]}%")
_NO_LINE_ENDS = frozenset("（《「『【〔“‘([{")


def char_width(char: str) -> int:
    """Columns of a character: two for East Asian wide ones, one for any other."""
    return 2 if unicodedata.east_asian_width(char) in _WIDE else 1


def display_width(text: str) -> int:
    """Columns of a text."""
    return len(text) if text.isascii() else sum(map(char_width, text))


def aligned(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Rows of a table as lines: columns to the left, as wide as their widest cell, two spaces between."""
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell + " " * (width - display_width(cell)) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return [f"{indent}{line}".rstrip() for line in lines]


def breakable(text: str) -> Iterator[tuple[str, str]]:
    """The parts of a text that stay in one line, each with the space before it; Chinese breaks between characters."""
    for i, word in enumerate(text.split(" ")):
        space = " " if i else ""
        for part in [word] if word.isascii() else _parts(word):
            yield space, part
            space = ""


def _parts(word: str) -> list[str]:
    """A word cut around its wide characters, but not so that punctuation begins a line or an open bracket ends one."""
    parts = [""]
    for before, char in zip(f" {word}", word, strict=False):
        wide = char_width(char) == 2 or char_width(before) == 2
        if parts[-1] and wide and char not in _NO_LINE_BEGINS and before not in _NO_LINE_ENDS:
            parts.append("")
        parts[-1] += char
    return parts
