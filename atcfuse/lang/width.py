"""How wide text is on a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

_WIDE = frozenset("WF")
_NARROWEST = 20
"""Columns that the last column of a table folds into at least."""
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


def fill(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` columns; what has no place to break may be wider."""
    lines = [""]
    for space, part in breakable(text):
        if lines[-1] and display_width(lines[-1]) + len(space) + display_width(part) > width:
            lines.append(part)
        else:
            lines[-1] += f"{space if lines[-1] else ''}{part}"
    return lines


def folded(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A table in at most `width` columns: the last column folds; where that leaves it no room, each row is a block."""
    widths = [max(map(display_width, column)) for column in zip(head, *rows, strict=True)]
    rest = width - sum(widths[:-1]) - 2 * (len(widths) - 1)
    if widths[-1] <= rest:
        return aligned([head, *rows])
    if rest < _NARROWEST:
        return [line for row in rows for line in _block(head, row, width)]
    found = []
    for row in (head, *rows):
        first, *others = fill(row[-1], rest)
        found.append((*row[:-1], first))
        found += [(*[""] * (len(row) - 1), line) for line in others]
    return aligned(found)


def _block(head: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    """A row as its first cell and below it the others, each behind its head."""
    lines = [row[0]]
    for name, cell in zip(head[1:], row[1:], strict=True):
        first, *others = fill(cell, width - 4 - display_width(name))
        lines += [f"  {name}: {first}", *(f"{' ' * (4 + display_width(name))}{line}" for line in others)]
    return lines
