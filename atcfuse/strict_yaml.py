"""Strict YAML with places: every value knows its file, line and column, and only plain data gets through.

Duplicate and unknown keys, anchors, aliases, tags, implicit booleans and nulls are errors. Nothing is constructed from
a tag, so a file can never run code; size and nesting are bounded, so it cannot exhaust memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from atcfuse.diagnostics import AtcfuseError, Span, TextSpan, did_you_mean, error
from atcfuse.paths import read_at_most

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_DIGITS = 100
_FASTEST: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?([eE][-+]?\d+)?|\.inf|inf)$", re.ASCII)
_COLLECTIONS: dict[type, Any] = {yaml.SequenceStartEvent: yaml.SequenceNode, yaml.MappingStartEvent: yaml.MappingNode}
_IMPLICIT = re.compile(r"(?i)^(yes|no|on|off|true|false|null|~|)$")


class Value:
    """A YAML value with its place. The readers below return plain data or raise a coded error with that place."""

    def __init__(self, node: yaml.Node, file: str, source: str = "") -> None:
        self.node = node
        self.file = file
        self.source = source

    @property
    def span(self) -> Span:
        """Where the value begins."""
        mark = self.node.start_mark
        return Span(self.file, mark.line + 1, mark.column + 1)

    def text_span(self) -> Span:
        """Where the text itself begins, behind the quote or below the head of a block, with every place inside."""
        style, mark = getattr(self.node, "style", None), self.node.start_mark
        start, line, column = mark.index, mark.line + 1, mark.column + 1
        if style in ("|", ">"):
            rest = self.source[self.source.find("\n", start) + 1 :]
            blank = len(rest) - len(rest.lstrip())
            start = len(self.source) - len(rest) + blank
            line += 1 + rest.count("\n", 0, blank)
            column = blank - rest.rfind("\n", 0, blank)
        elif style:
            start, column = start + 1, column + 1
        return TextSpan(self.file, line, column, str(self.node.value), self.source, start)

    def fail(self, code: str, message: str, hint: str = "") -> AtcfuseError:
        """An error at this place."""
        return AtcfuseError(error(code, message, self.span, hint))

    def is_mapping(self) -> bool:
        """Whether the value is a mapping."""
        return isinstance(self.node, yaml.MappingNode)

    def is_text(self) -> bool:
        """Whether the value is a scalar."""
        return isinstance(self.node, yaml.ScalarNode)

    def text(self) -> str:
        """The scalar as text. ATF205 for an implicit boolean or null, ATF207 for a list or mapping."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.fail("ATF207", f"expected text, found a {self._kind()}")
        if not self.node.style and _IMPLICIT.match(self.node.value):
            shown = self.node.value or "nothing"
            raise self.fail("ATF205", f"{shown} is not text to YAML", f'write "{self.node.value}" in quotes')
        return str(self.node.value)

    def number(self) -> int | float | str:
        """A number, or the text itself where it is none."""
        text = self.text()
        if getattr(self.node, "style", None) or not _NUMBER.match(text):
            return text
        if text.lstrip("+-").isdecimal():
            return self._integer(text)
        return float(text.replace(".inf", "inf"))

    def _integer(self, text: str) -> int:
        """ATF207 for a number of more digits than any figure has: Python itself reads no more than a few thousand."""
        if len(text) > MAX_DIGITS:
            raise self.fail("ATF207", f"a number of {len(text)} digits")
        return int(text)

    def integer(self) -> int:
        """A whole number. ATF207 for anything else."""
        value = self.number()
        if not isinstance(value, int):
            raise self.fail("ATF207", f"expected a whole number, found {value!r}")
        return value

    def boolean(self) -> bool:
        """`true` or `false`, spelled so."""
        if isinstance(self.node, yaml.ScalarNode) and not self.node.style and self.node.value in ("true", "false"):
            return bool(self.node.value == "true")
        raise self.fail("ATF207", "expected true or false")

    def items(self) -> Iterator[tuple[str, Value, Value]]:
        """The pairs of a mapping as (key text, key, value). ATF207 for another kind, ATF203 for a duplicate key."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.fail("ATF207", f"expected a mapping (key: value), found a {self._kind()}")
        seen: set[str] = set()
        for key_node, value_node in self.node.value:
            key = Value(key_node, self.file, self.source)
            if not isinstance(key_node, yaml.ScalarNode):
                raise key.fail("ATF207", "a key must be text")
            name = str(key_node.value)
            if name in seen:
                raise key.fail("ATF203", f"duplicate key {name!r}", "remove one of the two")
            seen.add(name)
            yield name, key, Value(value_node, self.file, self.source)

    def fields(self, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Value]:
        """A mapping with known keys. ATF202 for an unknown key, ATF206 for a missing one."""
        required = tuple(required)
        known = (*required, *optional)
        found: dict[str, Value] = {}
        for name, key, value in self.items():
            if name not in known:
                hint = did_you_mean(name, known) or f"known keys are {', '.join(known)}"
                raise key.fail("ATF202", f"unknown key {name!r}", hint)
            found[name] = value
        missing = [name for name in required if name not in found]
        if missing:
            raise self.fail("ATF206", f"the key {missing[0]!r} is missing", f"add `{missing[0]}: …` here")
        return found

    def list(self) -> list[Value]:
        """The items of a list. ATF207 for another kind."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.fail("ATF207", f"expected a list, found a {self._kind()}")
        return [Value(n, self.file, self.source) for n in self.node.value]

    def _kind(self) -> str:
        kinds = {yaml.MappingNode: "mapping", yaml.SequenceNode: "list", yaml.ScalarNode: "text"}
        return kinds.get(type(self.node), "value")


def read_documents(path: Path, shown: str) -> list[Value]:
    """All documents of a YAML file; `shown` is the name that errors give it."""
    try:
        data = read_at_most(path, MAX_BYTES)
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the path
        reason = getattr(problem, "strerror", None) or str(problem)
        raise AtcfuseError(error("ATF200", f"cannot read it: {reason}", Span(shown))) from None
    if data is None:
        raise AtcfuseError(error("ATF217", f"larger than {MAX_BYTES} bytes", Span(shown)))
    try:
        return parse_documents(data.decode("utf-8"), shown)
    except UnicodeDecodeError as problem:
        where = Span(shown, data[: problem.start].count(b"\n") + 1)
        raise AtcfuseError(error("ATF201", "not UTF-8 text", where, "save the file as UTF-8")) from None


def parse_documents(text: str, shown: str) -> list[Value]:
    """All documents of a YAML text."""
    try:
        nodes = _compose(text, shown, _FASTEST)
    except (yaml.YAMLError, AtcfuseError):
        # Once more in Python: libyaml words its errors in its own way, and may not be there on the next machine.
        try:
            nodes = _compose(text, shown, yaml.SafeLoader)
        except yaml.YAMLError as problem:
            raise _syntax(problem, shown) from None
    return [Value(n, shown, text) for n in nodes if n is not None]


def _compose(text: str, shown: str, loader: type[Any]) -> list[yaml.Node]:
    """The root nodes of all documents, made of the events that may be there; tags are none of them."""
    roots: list[yaml.Node] = []
    open_nodes: list[tuple[yaml.Node, list[yaml.Node]]] = []  # collections, and the nodes found in each so far
    events: Iterable[Any] = yaml.parse(text, Loader=loader)
    node: Any
    for event in events:
        kind, node = type(event), None
        if kind is yaml.AliasEvent or getattr(event, "anchor", None):
            raise _refused(event, shown, "ATF204", "anchors and aliases are not allowed", "write the value out")
        tag = getattr(event, "tag", None)
        if tag:
            raise _refused(event, shown, "ATF204", f"the tag {tag} is not allowed", "remove the tag")
        if kind is yaml.ScalarEvent:
            node = yaml.ScalarNode("", event.value, event.start_mark, event.end_mark, event.style)
        elif kind in _COLLECTIONS:
            node = _COLLECTIONS[kind]("", [], event.start_mark, event.end_mark, event.flow_style)
            open_nodes.append((node, []))
            if len(open_nodes) > MAX_DEPTH:
                raise _refused(event, shown, "ATF217", f"nested more than {MAX_DEPTH} deep")
            continue
        elif isinstance(event, yaml.CollectionEndEvent):
            node, items = open_nodes.pop()
            is_mapping = isinstance(node, yaml.MappingNode)
            node.value = list(zip(items[::2], items[1::2], strict=True)) if is_mapping else items
        if node is not None:
            (open_nodes[-1][1] if open_nodes else roots).append(node)
    return roots


def _refused(event: yaml.Event, shown: str, code: str, message: str, hint: str = "") -> AtcfuseError:
    mark = event.start_mark
    here = Span(shown, mark.line + 1, mark.column + 1) if mark else Span(shown)
    return AtcfuseError(error(code, message, here, hint))


def _syntax(problem: yaml.YAMLError, shown: str) -> AtcfuseError:
    mark = getattr(problem, "problem_mark", None)
    where = Span(shown, mark.line + 1, mark.column + 1) if mark else Span(shown)
    what = getattr(problem, "problem", None) or getattr(problem, "reason", None) or "not YAML"
    return AtcfuseError(error("ATF201", f"YAML syntax: {what}", where, "check indentation and quotes"))
