"""The document tree of a JSON or YAML switch file → its switches and extras, checked the way ATC checks them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from atcfuse.diagnostics import did_you_mean, error, warning
from atcfuse.switches.content import BLANKS, Content, Entry
from atcfuse.switches.model import EXTRA_SECTIONS, KINDS, Kind
from atcfuse.switches.tree import Findings, Node, Scalar, Sequence, Table, shown

_SECTIONS = ("Switch", *EXTRA_SECTIONS)
_LEVELS: Mapping[str, range] = {"Top": range(1000), "Main": range(1000, 2000), "Down": range(2000, 3000)}
_YAML_STATES = {"on": True, "On": True, "ON": True, "off": False, "Off": False, "OFF": False}
_REJECTS = "ATC rejects the file as it is"


@dataclass(frozen=True)
class SectionReader:
    """Reads one tree. `yaml` makes an error of what ATC would let through in JSON: no ATC ever reads the YAML form."""

    yaml: bool
    found: Findings

    def content(self, root: Node) -> Content:
        """The content of the document; problems go to `found`."""
        sections = dict(self._sections(root))
        extras: dict[str, object] = {}
        if "Priority" in sections:
            extras["Priority"] = self._priorities(sections["Priority"])
        if "ExceptionalPassOfO1Level" in sections:
            extras["ExceptionalPassOfO1Level"] = self._names(sections["ExceptionalPassOfO1Level"])
        switches = self._switches(sections["Switch"]) if "Switch" in sections else {}
        return Content(switches, extras)

    def _sections(self, root: Node) -> Iterable[tuple[str, Node]]:
        for key, value in self._members(root, "the file"):
            if key.text in KINDS:
                hint = self._with_fate(f'put {key.text} under "Switch"')
                self.found.add(error("ATF260", f"{key.text} stands at the top level", key.span, hint))
                continue
            name = self._known(key, _SECTIONS)
            if name is not None:
                yield name, value

    def _switches(self, section: Node) -> dict[Kind, dict[str, Entry]]:
        switches: dict[Kind, dict[str, Entry]] = {}
        for key, value in self._members(section, "Switch"):
            kind = self._known(key, KINDS)
            if kind is not None:
                switches[cast(Kind, kind)] = dict(self._entries(value, kind))
        return switches

    def _entries(self, table: Node, kind: str) -> Iterable[tuple[str, Entry]]:
        for key, value in self._members(table, kind):
            on = self._state(key, value)
            if on is None:
                continue
            if not key.text:
                self._trap("ATF272", "a switch without a name sets nothing", key, "remove it or name the fusion")
            elif key.text != key.text.strip(BLANKS):
                message = f"the name {shown(key.text)} has blanks around it, which ATC takes as part of the name"
                self._trap("ATF266", message, key, "remove the blanks; as it is, the entry switches nothing")
            if key.text:
                yield key.text, Entry(key.text, on, key.span)

    def _state(self, key: Scalar, value: Node) -> bool | None:
        """What the value says; None where it is not a switch state."""
        if isinstance(value, Scalar):
            if self.yaml and not value.quoted and value.text in _YAML_STATES:
                return _YAML_STATES[value.text]
            if value.quoted and value.text in ("on", "off"):
                return value.text == "on"
            if not self.yaml and value.quoted and value.text.strip(BLANKS) in ("on", "off"):
                message = f"{shown(value.text)} has blanks around it: ATC accepts it and then reads it as off"
                self.found.add(warning("ATF266", message, value.span, f'write "{value.text.strip(BLANKS)}"'))
                return False
        hint = self._with_fate('write "on" or "off"')
        message = f"{shown(key.text)} must be on or off, found {_what(value)}"
        self.found.add(error("ATF261", message, value.span, hint))
        return None

    def _priorities(self, section: Node) -> dict[str, dict[str, dict[str, str]]]:
        priorities: dict[str, dict[str, dict[str, str]]] = {}
        for key, table in self._members(section, "Priority"):
            kind = self._known(key, KINDS)
            if kind is None:
                continue
            placed: dict[str, str] = {}
            levels: dict[str, dict[str, str]] = {}
            for level_key, level_table in self._members(table, kind):
                level = self._known(level_key, tuple(_LEVELS))
                if level is not None:
                    levels[level] = dict(sorted(self._level(level, level_table, placed)))
            priorities[kind] = {level: levels[level] for level in _LEVELS if level in levels}
        return {kind: priorities[kind] for kind in KINDS if kind in priorities}

    def _level(self, level: str, table: Node, placed: dict[str, str]) -> Iterable[tuple[str, str]]:
        """Name and priority of one level; `placed` remembers the level of each name of this kind."""
        allowed = _LEVELS[level]
        for key, value in self._members(table, level):
            name = key.text.strip(BLANKS)
            if name in placed:
                message = f"{shown(name)} has a priority twice, in {placed[name]} and in {level}"
                self.found.add(error("ATF264", message, key.span, self._with_fate("keep one of them")))
                continue
            placed[name] = level
            number = self._number(value)
            if number is None or int(number) not in allowed:
                message = (
                    f"the priority of {shown(name)} must be {allowed.start} to {allowed.stop - 1}, found {_what(value)}"
                )
                hint = self._with_fate(f'write a whole number in quotes, such as "{allowed.start}"')
                self.found.add(error("ATF264", message, value.span, hint))
            elif name:
                yield name, number

    def _number(self, value: Node) -> str | None:
        """The digits of a small whole number; ATC wants them in a string, YAML may go without quotes."""
        if not isinstance(value, Scalar) or not (value.quoted or self.yaml):
            return None
        digits = value.text.strip(BLANKS)
        return digits if digits.isascii() and digits.isdigit() and len(digits) <= 9 else None

    def _names(self, section: Node) -> list[str]:
        if not isinstance(section, Sequence):
            self._shape("ExceptionalPassOfO1Level", "a list of names", section)
            return []
        names: list[str] = []
        for item in section.items:
            if isinstance(item, Scalar) and (item.quoted or self.yaml):
                names.append(item.text)
            else:
                self._shape("an element of ExceptionalPassOfO1Level", "a name in quotes", item)
        return names

    def _members(self, node: Node, what: str) -> list[tuple[Scalar, Node]]:
        """Keys and values of a table; of duplicate keys the last, as in ATC."""
        if not isinstance(node, Table):
            self._shape(what, "a mapping" if self.yaml else "an object", node)
            return []
        members: dict[str, tuple[Scalar, Node]] = {}
        for key, value in node.items:
            if key.text in members:
                first = [f"first given at {members[key.text][0].span}"]
                message = f"{shown(key.text)} is given twice in {what}"
                if self.yaml:
                    self.found.add(error("ATF262", message, key.span, "keep one of them", first))
                else:
                    taken = f"{message}, and ATC takes the last one only"
                    self.found.add(warning("ATF265", taken, key.span, "merge the two or remove one", first))
            members[key.text] = (key, value)
        return list(members.values())

    def _known(self, key: Scalar, allowed: tuple[str, ...]) -> str | None:
        """The key where it is one that is read; None where it is unknown or, for its blanks, ignored by ATC."""
        if key.text in allowed:
            return key.text
        bare = key.text.strip(BLANKS)
        if bare in allowed and not self.yaml:
            message = f"{shown(key.text)} has blanks around it: ATC accepts the key and then ignores what it holds"
            self.found.add(warning("ATF266", message, key.span, f'write "{bare}"'))
            return None
        expected = ", ".join(allowed)
        hint = did_you_mean(key.text, allowed) or f"remove it or write one of {expected}"
        message = f"unknown key {shown(key.text)}, expected one of {expected}"
        self.found.add(error("ATF260", message, key.span, self._with_fate(hint)))
        return None

    def _shape(self, what: str, expected: str, node: Node) -> None:
        hint = "see the shape of the file with: atcfuse explain ATF259"
        self.found.add(error("ATF259", f"{what} must be {expected}, found {_what(node)}", node.span, hint))

    def _with_fate(self, hint: str) -> str:
        """The hint, with what ATC would do where ATC may be given the same file."""
        return hint if self.yaml else f"{hint} (ATC rejects the file as it is)"

    def _trap(self, code: str, message: str, key: Scalar, hint: str) -> None:
        """What ATC lets through in JSON is a warning there and an error in YAML."""
        make = error if self.yaml else warning
        self.found.add(make(code, message, key.span, hint))


def _what(node: Node) -> str:
    if isinstance(node, Table):
        return "a mapping"
    if isinstance(node, Sequence):
        return "a list"
    if node.quoted:
        return f"the string {shown(node.text)}"
    return shown(node.text).strip('"') or "nothing"
