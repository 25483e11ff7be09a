"""A switch file on disk → `Switches`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from atcfuse.diagnostics import AtcfuseError, Diagnostic, Span, UsageError, error, warning
from atcfuse.switches.content import BLANKS, Content
from atcfuse.switches.json_tree import parse_json
from atcfuse.switches.line_format import is_line_format, read_lines
from atcfuse.switches.model import Kind, Switches, own_kinds
from atcfuse.switches.names import judge_names
from atcfuse.switches.passes import atc_passes
from atcfuse.switches.sections import SectionReader
from atcfuse.switches.tree import Findings, shown
from atcfuse.switches.yaml_tree import parse_yaml

MAX_BYTES = 1 << 20
_BOM = "\ufeff"
_BLANK_OR_BOM = BLANKS + _BOM
_EMPTY_HINT = 'leave the option out to keep every fusion on, or write {"Switch": {"GraphFusion": {}}}'


def read_switches(path: Path, own: Iterable[str] | Mapping[str, Kind]) -> Switches:
    """Reads a fusion switch file; the format is told from its content.

    `own` are the switch names of the rules that will run, with their kinds; names given without are GraphFusion's.
    Raises UsageError (ATF250, ATF251) when there is no readable file, AtcfuseError (ATF252 to ATF264) when ATC would
    reject it or it is no valid switch file. Warnings and infos are in the result's `diagnostics`.
    """
    file = _display_name(path)
    text = _decode(_read_bytes(path, file), file)
    found = Findings()
    content = _parse(text, file, found)
    found.raise_errors()
    for diagnostic in judge_names(content, own_kinds(own), atc_passes()):
        found.add(diagnostic)
    return Switches(file, content.states(), content.extras, found.all())


def _parse(text: str, file: str, found: Findings) -> Content:
    marked, text = text.startswith(_BOM), text.removeprefix(_BOM)
    if text.lstrip(BLANKS).startswith("{"):
        return SectionReader(yaml=False, found=found).content(parse_json(text, file))
    if is_line_format(text):
        if marked:
            message = "a byte order mark opens the file, and ATC takes it as part of the first name"
            found.add(warning("ATF266", message, Span(file, 1, 1), "save the file without a byte order mark"))
        return read_lines(text, file, found)
    root = parse_yaml(text, file)
    if root is None:
        raise AtcfuseError(_empty(file))
    return SectionReader(yaml=True, found=found).content(root)


def _read_bytes(path: Path, file: str) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        hint = "check the spelling; a path is taken relative to where the command is run"
        message = f"the fusion switch file does not exist: {shown(str(path))}"
        raise UsageError(error("ATF250", message, Span(file), hint)) from None
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the path
        reason = getattr(problem, "strerror", None) or str(problem)
        message = f"the fusion switch file cannot be read: {shown(str(path))}: {reason}"
        hint = "give the path of a text file that this user may read"
        raise UsageError(error("ATF251", message, Span(file), hint)) from None
    if len(data) > MAX_BYTES:
        message = f"the fusion switch file is larger than {MAX_BYTES} bytes"
        hint = "check that the path is not that of a model or an archive; one entry a fusion is all a switch file needs"
        raise AtcfuseError(error("ATF254", message, Span(file), hint))
    return data


def _decode(data: bytes, file: str) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as bad:
        span = Span(file, data.count(b"\n", 0, bad.start) + 1, bad.start - data.rfind(b"\n", 0, bad.start))
        message = f"the fusion switch file is not UTF-8 text: byte 0x{data[bad.start]:02x}"
        raise AtcfuseError(error("ATF253", message, span, "save the file as UTF-8")) from None
    if not text.strip(_BLANK_OR_BOM):
        raise AtcfuseError(_empty(file))
    return text


def _empty(file: str) -> Diagnostic:
    return error("ATF252", "the fusion switch file is empty, and ATC rejects an empty one", Span(file), _EMPTY_HINT)


def _display_name(path: Path) -> str:
    """The path as typed, and only the name of an absolute one: reports must not depend on where a checkout lies."""
    name = path.name if path.is_absolute() else path.as_posix()
    return (name or str(path)).encode("utf-8", "backslashreplace").decode("utf-8")
