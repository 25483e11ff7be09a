"""JSON text → document tree. Strict RFC 8259, as ATC's parser is: no comments, trailing commas, NaN."""

from __future__ import annotations

import json
import re
from bisect import bisect_right

from atcfuse.diagnostics import AtcfuseError, Span, error
from atcfuse.switches.tree import MAX_DEPTH, Node, Scalar, Sequence, Table, is_text, shown, too_deep

_BLANK = re.compile(r"[ \t\r\n]*")
_BARE = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRINGS = json.JSONDecoder()
_HINT = "a file that starts with { is read as JSON, the way ATC reads it; mend it, or write YAML without braces"


def parse_json(text: str, file: str) -> Node:
    """The tree of one JSON document.

    Raises AtcfuseError: ATF255 for a syntax error, ATF257 for too deep nesting.
    """
    return _Parser(text, file).document()


class _Parser:
    """Recursive descent over the text. The standard decoder gives no places of keys and values and drops duplicates."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._at = 0
        self._line_starts = [0, *(m.end() for m in re.finditer("\n", text))]

    def document(self) -> Node:
        node = self._value(0)
        self._skip_blank()
        if self._at < len(self._text):
            raise self._syntax(f"found {self._found()} after the end of the document")
        return node

    def _value(self, depth: int) -> Node:
        self._skip_blank()
        if depth > MAX_DEPTH:
            raise too_deep(self._span(self._at))
        char = self._text[self._at : self._at + 1]
        if char == "{":
            return self._table(depth)
        if char == "[":
            return self._sequence(depth)
        if char == '"':
            return self._string()
        return self._bare()

    def _table(self, depth: int) -> Table:
        span = self._span(self._at)
        items: list[tuple[Scalar, Node]] = []
        self._at += 1
        if self._take("}"):
            return Table((), span)
        while True:
            self._skip_blank()
            if self._text[self._at : self._at + 1] != '"':
                raise self._syntax(f"expected a name in double quotes, found {self._found()}")
            key = self._string()
            self._expect(":")
            items.append((key, self._value(depth + 1)))
            if self._take("}"):
                return Table(tuple(items), span)
            self._expect(",", "} or ,")

    def _sequence(self, depth: int) -> Sequence:
        span = self._span(self._at)
        items: list[Node] = []
        self._at += 1
        if self._take("]"):
            return Sequence((), span)
        while True:
            items.append(self._value(depth + 1))
            if self._take("]"):
                return Sequence(tuple(items), span)
            self._expect(",", "] or ,")

    def _string(self) -> Scalar:
        start = self._at
        try:
            value, self._at = _STRINGS.raw_decode(self._text, start)
        except json.JSONDecodeError as bad:
            self._at = bad.pos
            message = bad.msg[:1].lower() + bad.msg[1:].removesuffix(" at")
            raise self._syntax(message) from None
        if not is_text(value):
            self._at = start
            raise self._syntax("the string holds half of a surrogate pair (\\ud800 to \\udfff)")
        return Scalar(value, True, self._span(start))

    def _bare(self) -> Scalar:
        match = _BARE.match(self._text, self._at)
        if match is None:
            raise self._syntax(f"expected a value, found {self._found()}")
        self._at = match.end()
        return Scalar(match[0], False, self._span(match.start()))

    def _skip_blank(self) -> None:
        match = _BLANK.match(self._text, self._at)
        if match is not None:
            self._at = match.end()

    def _take(self, char: str) -> bool:
        self._skip_blank()
        if not self._text.startswith(char, self._at):
            return False
        self._at += 1
        return True

    def _expect(self, char: str, what: str | None = None) -> None:
        if not self._take(char):
            raise self._syntax(f"expected {what or char}, found {self._found()}")

    def _found(self) -> str:
        return shown(self._text[self._at]) if self._at < len(self._text) else "the end of the file"

    def _span(self, offset: int) -> Span:
        line = bisect_right(self._line_starts, offset)
        return Span(self._file, line, offset - self._line_starts[line - 1] + 1)

    def _syntax(self, message: str) -> AtcfuseError:
        return AtcfuseError(error("ATF255", f"not valid JSON: {message}", self._span(self._at), _HINT))
