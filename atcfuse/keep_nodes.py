"""Nodes that the user wants left alone: names or patterns of names, or a file that lists names and operator types.

The file has the form that graph-autofusion reads: sections `[ByNodeName]` and `[ByNodeType]`, one entry a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from atcfuse.diagnostics import AtcfuseError, Diagnostic, Span, UsageError, did_you_mean, error, warning
from atcfuse.paths import is_file, read_at_most

_BY_NAME, _BY_TYPE = "ByNodeName", "ByNodeType"
_FILES = (".ini", ".cfg", ".txt")
MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Entry:
    """A name, a pattern of names (`*`, `?`, `[…]`), or an operator type, and where it was given."""

    text: str
    is_type: bool
    given: str

    def names(self, name: str, op: str) -> bool:
        """Whether a node of this name and operator type (`domain::Type` beside ONNX's own) is meant."""
        if self.is_type:
            return self.text == op
        return bool(name) and (self.text == name or fnmatchcase(name, self.text))


@dataclass(frozen=True)
class KeepNodes:
    """Everything that is to be left alone."""

    entries: tuple[Entry, ...] = ()

    def entry(self, name: str, op: str) -> Entry | None:
        """The first entry that means a node."""
        return next((entry for entry in self.entries if entry.names(name, op)), None)

    def reason(self, name: str, op: str) -> str:
        """That the node is left alone, and which entry means it; "" where none does."""
        entry = self.entry(name, op)
        return "" if entry is None else f"{name or op} is left alone: {entry.text!r} in {entry.given}"

    def unmatched(self, nodes: Iterable[tuple[str, str]]) -> list[Diagnostic]:
        """A warning for each entry that means none of the nodes, given by name and operator type."""
        known = list(nodes) if self.entries else []
        found = []
        for entry in self.entries:
            if any(entry.names(name, op) for name, op in known):
                continue
            what, position = ("operator", 1) if entry.is_type else ("node", 0)
            near = did_you_mean(entry.text, sorted({node[position] for node in known}))
            hint = near or "`atcfuse explain MODEL` lists nodes that rules begin at"
            message = f"{entry.given} names no {what} of the model: {entry.text!r}"
            found.append(warning("ATF155", message, hint=hint))
        return found


NO_NODES = KeepNodes()


def parse_keep_nodes(texts: Sequence[str]) -> KeepNodes:
    """What `--keep-nodes` was given, once or several times: the path of a file, or a name or pattern.

    Raises UsageError ATF154 for a file that is not there, AtcfuseError ATF154 with the line for a mistake in one.
    """
    entries: list[Entry] = []
    for text in texts:
        path = Path(text)
        if is_file(path):
            entries += _read(path)
        elif path.suffix in _FILES:
            hint = "give a file that is there, or a pattern of node names"
            raise UsageError(error("ATF154", f"there is no file {text}", hint=hint))
        else:
            entries.append(Entry(text, False, "--keep-nodes"))
    return KeepNodes(tuple(entries))


def _read(path: Path) -> list[Entry]:
    try:
        data = read_at_most(path, MAX_BYTES)
        if data is None:
            raise AtcfuseError(error("ATF154", f"the file is larger than {MAX_BYTES} bytes", Span(str(path))))
        lines = data.decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        hint = f"a text file with sections [{_BY_NAME}] and [{_BY_TYPE}]"
        raise AtcfuseError(error("ATF154", f"the file cannot be read: {exc}", Span(str(path)), hint)) from exc
    entries: list[Entry] = []
    section = ""
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith(("#", ";")):
            continue
        if text.startswith("[") and text.endswith("]"):
            section = _section(text[1:-1].strip(), Span(str(path), number, 1))
        elif not section:
            hint = f"begin with [{_BY_NAME}] or [{_BY_TYPE}]"
            raise AtcfuseError(error("ATF154", f"{text!r} stands in no section", Span(str(path), number, 1), hint))
        else:
            entries.append(Entry(text, section == _BY_TYPE, f"[{section}] of {path.name}"))
    return entries


def _section(name: str, span: Span) -> str:
    if name in (_BY_NAME, _BY_TYPE):
        return name
    hint = did_you_mean(name, (_BY_NAME, _BY_TYPE)) or f"there are [{_BY_NAME}] and [{_BY_TYPE}]"
    raise AtcfuseError(error("ATF154", f"there is no section [{name}]", span, hint))
