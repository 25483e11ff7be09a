"""Text that a model controls, made fit to be shown: visible controls, a bounded length, lines of a bounded width."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate

from atcfuse.diagnostics import printable as printable
from atcfuse.lang import say
from atcfuse.lang.width import breakable, char_width, display_width

UNNAMED = "(unnamed)"
_TEXT_LIMIT = 600
"""Longest text that is laid out; a longer one loses its middle first, so that a 10 kB name fills no screens."""

_AND_MORE = 40
"""Columns that are left for what `listed_names` says of the rest."""


def shorten(text: str, limit: int) -> str:
    """Printable `text` in at most `limit` (at least 3) columns; what is too long loses its middle to `…`.

    The middle goes because exporters put the layer first and the operator last.
    """
    shown = printable(text)
    if display_width(shown) <= limit:
        return shown
    room = max(limit, 3) - 1
    return f"{_head(shown, room - room // 2)}…{_head(shown[::-1], room // 2)[::-1]}"


def _head(text: str, columns: int) -> str:
    used = 0
    for i, char in enumerate(text):
        used += char_width(char)
        if used > columns:
            return text[:i]
    return text


def wrap(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """Printable `text` broken at spaces, and between Chinese characters, into lines of at most `width` columns.

    `first` starts the first line and `rest` (as many spaces, where not given) the others. A word that fits no line
    loses its middle.
    """
    indent = " " * display_width(first) if rest is None else rest
    lines, line, empty = [], first, True
    for space, part in breakable(shorten(text, _TEXT_LIMIT)):
        if not empty and display_width(line) + len(space) + display_width(part) > width:
            lines.append(line.rstrip())
            line, empty = indent, True
        room = width - display_width(line)
        line += shorten(part, room) if empty else f"{space}{part}"
        empty = False
    return [*lines, line.rstrip()]


def listed_names(items: Sequence[str]) -> str:
    """Items separated by commas, as many as a text that is laid out holds, and how many more there are."""
    room = _TEXT_LIMIT - _AND_MORE
    ends = accumulate(display_width(item) + 2 for item in items)
    shown = max(sum(end <= room for end in ends), 1)
    text, more = ", ".join(items[:shown]), len(items) - shown
    return say("{} and {} more", text, f"{more:,}") if more > 0 else text


def span_of(names: Sequence[str]) -> list[str]:
    """What stands for the names of equal things: the name of one; of several the parts in which first and last differ.

    Twelve layers are `layer.0` and `layer.11`, without the path that they share.
    """
    first, last = names[0] or UNNAMED, names[-1] or UNNAMED
    if len(names) == 1:
        return [first]
    separator = "/" if "/" in first else "."
    a, b = first.split(separator), last.split(separator)
    start, end = _shared(a, b), _shared(a[::-1], b[::-1])
    shorter = min(len(a), len(b))
    if start == shorter or start + end >= shorter:
        return [first, last]
    if start and (a[start].isdigit() or b[start].isdigit()):
        start -= 1  # a bare number says nothing without the word before it
    return [separator.join(parts[start : len(parts) - end]) for parts in (a, b)]


def _shared(a: Sequence[str], b: Sequence[str]) -> int:
    """How many parts are the same from the beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def span_text(names: Sequence[str], room: int) -> str:
    """`span_of` as text of at most `room` columns, `layer.0 … layer.11`."""
    ends = span_of(names)
    joint = ", " if len(names) == 2 else " … "
    return joint.join(shorten(end, room if len(ends) == 1 else (room - len(joint)) // 2) for end in ends)


def pairs(values: Mapping[str, object]) -> list[str]:
    """`key=value` of each entry, in the order of the keys."""
    return [f"{key}={plain(values[key])}" for key in sorted(values)]


def plain(value: object) -> str:
    """A JSON value as text: strings as they are, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
