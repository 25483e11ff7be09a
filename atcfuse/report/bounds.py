"""Keeps the figures of a report within what its schema and its readers hold."""

from __future__ import annotations

import math
from typing import Any

LARGEST = 2**63 - 1


def bounded(document: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The document with every number cut to ±`LARGEST`, and whether there was one to cut."""
    if not _exceeds(document):
        return document, False
    found = _Bounds()
    made: dict[str, Any] = found.of(document)
    return (made, True) if found.cut else (document, False)


def _exceeds(document: dict[str, Any]) -> bool:
    """Whether there is a number to cut: a quick look, for there hardly ever is."""
    stack: list[Any] = [document]
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind is dict:
            stack.extend(value.values())
        elif kind is list or kind is tuple:
            stack.extend(value)
        elif kind is int:
            if not -LARGEST <= value <= LARGEST:
                return True
        elif kind is float:
            if not math.isfinite(value):
                return True
        elif not isinstance(value, (str, bool, type(None))):
            return True  # of a type of its own: looked at closely
    return False


class _Bounds:
    def __init__(self) -> None:
        self.cut = False

    def of(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.of(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.of(item) for item in value]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return value
        if isinstance(value, int):
            cut = max(min(value, LARGEST), -LARGEST)
            self.cut |= cut != value
            return cut
        if math.isfinite(value):
            return value
        self.cut = True
        return float(-LARGEST if value < 0 else LARGEST)
