"""The legacy format: one `Name:on` or `Name:off` a line, for both kinds at once."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise

from atcfuse.diagnostics import Span, error, warning
from atcfuse.switches.content import BLANKS, Content, Entry
from atcfuse.switches.model import EXTRA_SECTIONS, KINDS
from atcfuse.switches.tree import Findings, shown

_SWITCH = re.compile(r"[^:#]*:\s*(?:on|off)\b[^:]*", re.IGNORECASE)
# A list item, a document or directive mark, a complex key, an opened flow collection, an anchor, alias, tag or block.
_YAML_LINE = re.compile(r"\s*(?:-\s|---|\.\.\.|%|\?\s).*|[^#]*:\s*[{\[&*!|>].*")
_KEY_WITHOUT_VALUE = re.compile(r"(\s*)([^:#]*):\s*(?:#.*)?")
_SECTION_KEYS = frozenset(("Switch", *EXTRA_SECTIONS, *KINDS))


def is_line_format(text: str) -> bool:
    """Whether the text is meant as lines: some line sets a switch, and none has the structure of YAML.

    ATC trims names, so indented lines count too; YAML of our shape always has a key whose value is a mapping.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    if not any(map(_SWITCH.fullmatch, lines)) or any(map(_YAML_LINE.fullmatch, lines)):
        return False
    return not any(_opens_mapping(line, following) for line, following in pairwise([*lines, ""]))


def _opens_mapping(line: str, following: str) -> bool:
    """Whether the line is a YAML key whose value is a block: a section's name, or the next line is indented deeper."""
    key = _KEY_WITHOUT_VALUE.fullmatch(line)
    if key is None:
        return False
    indent = len(following) - len(following.lstrip())
    return key[2].strip() in _SECTION_KEYS or indent > len(key[1])


def read_lines(text: str, file: str, found: Findings) -> Content:
    """The switches of the lines, as ATC reads them; problems go to `found`."""
    entries: dict[str, Entry] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        entry = _read_line(line, file, number, found)
        if entry is None:
            continue
        if entry.name in entries:
            first = entries[entry.name].span.line
            found.add(
                error(
                    "ATF262",
                    f"{shown(entry.name)} is set twice",
                    entry.span,
                    "keep one of the two lines: ATC rejects the file",
                    [f"first set in line {first}"],
                )
            )
            continue
        entries[entry.name] = entry
    found.add(
        warning(
            "ATF267",
            "a switch file of lines is ignored by ATC's newer pass executor, which then leaves every pass on",
            Span(file),
            f"turn it into JSON: atcfuse switches {shlex.quote(file)} --for-atc OUT.json",
        )
    )
    return Content(dict.fromkeys(KINDS, entries))


def _read_line(line: str, file: str, number: int, found: Findings) -> Entry | None:
    """The switch of one line; None for an empty line and for one that is reported."""
    if not line:
        return None
    name, colon, value = (part.strip(BLANKS) for part in line.partition(":"))
    span = Span(file, number, len(line) - len(line.lstrip(BLANKS)) + 1)
    if not line.strip(BLANKS):
        found.add(
            error("ATF263", "the line holds only blanks", Span(file, number, 1), "empty it: ATC rejects the file")
        )
        return None
    if name.startswith("#") or not colon:
        found.add(
            error(
                "ATF263",
                f"expected Name:on or Name:off, found {shown(line.strip(BLANKS))}",
                span,
                "write one switch a line; this format has no comments, and ATC rejects the file",
            )
        )
        return None
    if value not in ("on", "off"):
        at = line.index(":") + 1
        column = at + len(line[at:]) - len(line[at:].lstrip(BLANKS)) + 1 if value else at + 1
        found.add(
            error(
                "ATF261",
                f"{shown(name)} must be on or off, found {shown(value)}",
                Span(file, number, column),
                "write on or off in lower case and nothing after it: ATC rejects the file",
            )
        )
        return None
    if not name:
        found.add(warning("ATF272", "a switch without a name sets nothing", span, "remove the line or name the fusion"))
        return None
    return Entry(name, value == "on", span)
