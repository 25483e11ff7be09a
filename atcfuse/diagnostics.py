"""What atcfuse says to people: coded diagnostics, the errors that carry them, refusals as data.

Every code `ATFnnn` has a page in `atcfuse/codes/`; its first line is the title. A diagnostic tells what was found, what
was expected and, as `hint`, what to do; `span` points into the file it is about.

Ranges: 1xx model files and usage · 2xx rule, kernel and switch files · 3xx reasons to keep a subgraph · 4xx what ATC
would refuse · 5xx verification · 6xx dialect repairs · 7xx kernels.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from typing import Literal

from atcfuse.lang import LANGUAGES, say, tell

Severity = Literal["error", "warning", "info"]


def printable(text: str) -> str:
    """`text` with everything that is no visible character (controls, direction marks, surrogates) as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


@dataclass(frozen=True)
class Span:
    """A place in a text file, 1-based; line or column 0 when not known."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return ":".join([self.file, *(str(n) for n in (self.line, self.column) if n)])


@dataclass(frozen=True)
class TextSpan(Span):
    """Where a text begins that a file may hold folded over lines or with escapes; it can tell every place inside.

    `text` is what was read of `source`, the whole file, beginning at the character `start`.
    """

    text: str = field(default="", compare=False, repr=False)
    source: str = field(default="", compare=False, repr=False)
    start: int = field(default=0, compare=False, repr=False)

    def at(self, offset: int) -> Span:
        """The place of a character of the text.

        Both are walked along together: a blank of the text may be a line break and an indent in the file, and what is
        in the file alone (escapes, the other half of a doubled quote) is passed.
        """
        head = self.text[: offset + 1]
        if "\n" not in head and self.source.startswith(head, self.start):
            return Span(self.file, self.line, self.column + offset)
        place = end = self.start
        for char in head:
            if char.isspace():
                while self.source[end : end + 1].isspace():
                    end += 1
            else:
                place = max(self.source.find(char, end), end)
                end = place + 1
        line = self.source.count("\n", self.start, place)
        return Span(self.file, self.line + line, place - self.source.rfind("\n", 0, place))


@dataclass(frozen=True)
class Diagnostic:
    """One coded statement about a file, a node or a setting."""

    code: str
    severity: Severity
    message: str
    span: Span | None = None
    hint: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The diagnostic as it is shown on a terminal, first line first, in the language spoken."""
        where = f"{self.span}: " if self.span else ""
        out = [f"{where}{say(self.severity)}: {self.code}: {tell(self.message)}"]
        out += [f"  {say('note: {}', tell(note))}" for note in self.notes]
        if self.hint:
            out.append(f"  {say('help: {}', tell(self.hint))}")
        return [printable(line) for text in out for line in text.split("\n")]

    def as_dict(self) -> dict[str, object]:
        """The diagnostic as report JSON; empty fields are left out."""
        out: dict[str, object] = {"code": self.code, "severity": self.severity, "message": self.message}
        if self.span:
            out["span"] = str(self.span)
        if self.hint:
            out["hint"] = self.hint
        if self.notes:
            out["notes"] = list(self.notes)
        return out


class AtcfuseError(Exception):
    """Ends the program with exit code 1: an input or a result is not acceptable."""

    exit_code = 1

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        one = isinstance(diagnostics, Diagnostic)
        self.diagnostics: tuple[Diagnostic, ...] = (diagnostics,) if one else tuple(diagnostics)  # type: ignore[arg-type,assignment]
        super().__init__("\n".join(str(d) for d in self.diagnostics))

    def __reduce__(self) -> tuple[type[AtcfuseError], tuple[tuple[Diagnostic, ...]]]:
        """Errors travel between processes with their diagnostics."""
        return type(self), (self.diagnostics,)


class UsageError(AtcfuseError):
    """Ends the program with exit code 2: the call itself is wrong."""

    exit_code = 2


def error(code: str, message: str, span: Span | None = None, hint: str = "", notes: Iterable[str] = ()) -> Diagnostic:
    """An error diagnostic."""
    return Diagnostic(code, "error", message, span, hint, tuple(notes))


def warning(code: str, message: str, span: Span | None = None, hint: str = "", notes: Iterable[str] = ()) -> Diagnostic:
    """A warning diagnostic."""
    return Diagnostic(code, "warning", message, span, hint, tuple(notes))


def info(code: str, message: str, span: Span | None = None, hint: str = "", notes: Iterable[str] = ()) -> Diagnostic:
    """An informational diagnostic."""
    return Diagnostic(code, "info", message, span, hint, tuple(notes))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean "x"?` for the nearest known name, or "" where none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f'did you mean "{near[0]}"?' if near else ""


def code_page(code: str, lang: str = LANGUAGES[0]) -> str | None:
    """The Markdown page of a code in a language, or None where there is no such code."""
    folder = resources.files("atcfuse") / "codes"
    page = (folder if lang == LANGUAGES[0] else folder / lang) / f"{code}.md"
    return page.read_text(encoding="utf-8") if page.is_file() else None


def all_codes() -> list[str]:
    """Every code that has a page, sorted."""
    folder = resources.files("atcfuse") / "codes"
    return sorted(p.name[:-3] for p in folder.iterdir() if p.name.endswith(".md"))
