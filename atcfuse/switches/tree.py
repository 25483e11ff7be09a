"""What the JSON and the YAML reader both produce: a document tree with the place of every key and value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from atcfuse.diagnostics import AtcfuseError, Diagnostic, Span, error

MAX_DEPTH = 16  # a switch file needs four levels; the bound keeps hostile nesting from exhausting the stack
_SHOWN_CHARS = 60
_SHOWN_PER_CODE = 20


@dataclass(frozen=True)
class Scalar:
    """A leaf as written; `quoted` tells a string from a bare word, number or literal."""

    text: str
    quoted: bool
    span: Span


@dataclass(frozen=True)
class Table:
    """A JSON object or YAML mapping, in file order, duplicate keys included."""

    items: tuple[tuple[Scalar, Node], ...]
    span: Span


@dataclass(frozen=True)
class Sequence:
    """A JSON array or YAML sequence."""

    items: tuple[Node, ...]
    span: Span


Node = Scalar | Table | Sequence


@dataclass
class Findings:
    """Collects diagnostics while a file is checked; of each code only the first few are kept, the rest are counted."""

    kept: list[Diagnostic] = field(default_factory=list)
    _count: dict[str, int] = field(default_factory=dict)

    def add(self, diagnostic: Diagnostic) -> None:
        """Adds one diagnostic, or only counts it where there are many of its code."""
        count = self._count[diagnostic.code] = self._count.get(diagnostic.code, 0) + 1
        if count <= _SHOWN_PER_CODE:
            self.kept.append(diagnostic)

    def all(self) -> tuple[Diagnostic, ...]:
        """The diagnostics in file order; of a code that was cut off, one says how many are missing."""
        return tuple(sorted(self._with_rest(), key=_place))

    def raise_errors(self) -> None:
        """Raises AtcfuseError with the errors, if there are any."""
        errors = [d for d in self.all() if d.severity == "error"]
        if errors:
            raise AtcfuseError(errors)

    def _with_rest(self) -> Iterator[Diagnostic]:
        seen: dict[str, int] = {}
        for diagnostic in self.kept:
            nth = seen[diagnostic.code] = seen.get(diagnostic.code, 0) + 1
            rest = self._count[diagnostic.code] - _SHOWN_PER_CODE
            if nth == _SHOWN_PER_CODE and rest > 0:
                diagnostic = replace(diagnostic, notes=(*diagnostic.notes, f"{rest} more like this one are not shown"))
            yield diagnostic


def _place(diagnostic: Diagnostic) -> tuple[int, int]:
    return (diagnostic.span.line, diagnostic.span.column) if diagnostic.span else (0, 0)


def shown(text: str) -> str:
    """A piece of the user's file, quoted, escaped and cut for a one-line message."""
    cut = text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
    return json.dumps(cut, ensure_ascii=not cut.isprintable())


def is_text(text: str) -> bool:
    """Whether the text can be written as UTF-8: escapes can smuggle lone surrogates in."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def too_deep(span: Span) -> AtcfuseError:
    """The error for a document nested deeper than MAX_DEPTH."""
    return AtcfuseError(
        error(
            "ATF257",
            f"nested deeper than {MAX_DEPTH} levels",
            span,
            "a switch file has the levels Switch, GraphFusion or UBFusion, and the names; nothing goes deeper",
        )
    )
