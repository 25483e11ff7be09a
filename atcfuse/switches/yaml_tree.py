"""YAML text → document tree, from the parser's events.

Events rather than loaded objects: no value is resolved or constructed, anchors can be refused before anything is
expanded, duplicate keys survive to be reported, and the nesting bound holds before the parser goes deeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atcfuse.diagnostics import AtcfuseError, Span, error
from atcfuse.switches.tree import MAX_DEPTH, Node, Scalar, Sequence, Table, is_text, too_deep

if TYPE_CHECKING:
    import yaml

_SYNTAX_HINT = "write the file as nested mappings (Switch: / GraphFusion: / Name: off), as JSON, or as lines Name:off"


def parse_yaml(text: str, file: str) -> Node | None:
    """The tree of one YAML document; None where the file holds only comments.

    Raises AtcfuseError: ATF256 for a syntax error, ATF257 for too deep nesting, ATF258 for anchors, aliases, tags and
    further documents.
    """
    import yaml  # deferred: only a YAML switch file needs it

    try:
        reader = _Reader(yaml.SafeLoader(text), file)
    except yaml.reader.ReaderError as bad:
        before = text[: bad.position]
        span = Span(file, before.count("\n") + 1, bad.position - before.rfind("\n"))
        raise _syntax(f"the character U+{ord(text[bad.position]):04X} is not allowed", span) from None
    try:
        return reader.document()
    except yaml.MarkedYAMLError as bad:
        raise _syntax(bad.problem or "not understood", reader.span(bad.problem_mark or bad.context_mark)) from None
    except (ValueError, OverflowError):  # PyYAML lets these out for \U escapes and numbers beyond Python's ranges
        raise _syntax("a number or an escape is out of range", reader.here()) from None


def _syntax(message: str, span: Span) -> AtcfuseError:
    return AtcfuseError(error("ATF256", f"not valid YAML: {message}", span, _SYNTAX_HINT))


class _Reader:
    """Builds the tree from the event stream of one loader."""

    def __init__(self, loader: yaml.SafeLoader, file: str) -> None:
        self._loader = loader
        self._file = file

    def span(self, mark: object) -> Span:
        """The place of a parser mark (0-based there, 1-based here)."""
        line, column = getattr(mark, "line", None), getattr(mark, "column", None)
        if line is None or column is None:
            return Span(self._file)
        return Span(self._file, line + 1, column + 1)

    def here(self) -> Span:
        """The place the scanner has come to."""
        return self.span(self._loader)

    def document(self) -> Node | None:
        import yaml

        self._next()  # the start of the stream
        if isinstance(self._next(), yaml.StreamEndEvent):
            return None
        node = self._node(self._next(), 0)
        self._next()  # the end of the document
        after = self._next()
        if not isinstance(after, yaml.StreamEndEvent):
            raise self._refused(
                "a second document", after, "keep one document: remove everything from the second --- on"
            )
        return node

    def _node(self, event: yaml.Event, depth: int) -> Node:
        import yaml

        if depth > MAX_DEPTH:
            raise too_deep(self.span(event.start_mark))
        if isinstance(event, yaml.AliasEvent):
            raise self._refused(f"the alias *{event.anchor}", event, "write the value out instead of referring to it")
        if not isinstance(event, yaml.ScalarEvent | yaml.MappingStartEvent | yaml.SequenceStartEvent):
            raise _syntax("not understood", self.span(event.start_mark))
        if event.anchor is not None:
            raise self._refused(f"the anchor &{event.anchor}", event, "remove it; aliases are not read either")
        if event.tag is not None:
            raise self._refused(f"the tag {event.tag}", event, "remove it; a switch file needs no types")
        span = self.span(event.start_mark)
        if isinstance(event, yaml.MappingStartEvent):
            return Table(tuple(self._pairs(depth)), span)
        if isinstance(event, yaml.SequenceStartEvent):
            return Sequence(tuple(self._elements(depth)), span)
        if not is_text(event.value):
            raise _syntax("the string holds half of a surrogate pair (\\ud800 to \\udfff)", span)
        return Scalar(event.value, bool(event.style), span)

    def _pairs(self, depth: int) -> list[tuple[Scalar, Node]]:
        import yaml

        pairs: list[tuple[Scalar, Node]] = []
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            if not isinstance(key, Scalar):
                raise _syntax("a key must be a plain name", key.span)
            pairs.append((key, self._node(self._next(), depth + 1)))
        return pairs

    def _elements(self, depth: int) -> list[Node]:
        import yaml

        elements: list[Node] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            elements.append(self._node(event, depth + 1))
        return elements

    def _next(self) -> yaml.Event:
        event: yaml.Event = self._loader.get_event()  # type: ignore[no-untyped-call]
        return event

    def _refused(self, what: str, event: yaml.Event, hint: str) -> AtcfuseError:
        return AtcfuseError(
            error("ATF258", f"{what} is not allowed in a switch file", self.span(event.start_mark), hint)
        )
