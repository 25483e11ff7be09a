"""A report as a file: byte-stable JSON out, coded errors for whatever is no report in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from atcfuse.diagnostics import AtcfuseError, Span, did_you_mean, error
from atcfuse.report.contract import SCHEMA, validate

Report: TypeAlias = Mapping[str, Any]
"""A report document: JSON values only, of the schema `atcfuse.report/1`."""

_PROBLEMS_SHOWN = 5
_INDENT = "  "
_HOLDERS = (dict, list, tuple)

# Lone surrogates cannot be written as UTF-8; direction and line marks would show a reviewer another text than there is.
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def to_json(document: Mapping[str, Any]) -> str:
    """A document as JSON text: sorted keys, two spaces of indent, a final newline; same document, same text.

    Raises ValueError for NaN and infinities, TypeError for what is no JSON value.
    """
    text = _Writer().text(document, 0)
    return (text if text.isascii() and "\x7f" not in text else _UNSAFE.sub(_escaped, text)) + "\n"


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


class _Writer:
    """Writes JSON as `json.dumps` does with an indent, which the standard encoder only knows in Python.

    What alike fusions share is written once: `document` holds the same object for all of them.
    """

    def __init__(self) -> None:
        self._encoders: dict[int, Callable[[object], str]] = {}
        self._known: dict[tuple[int, int], str] = {}

    def text(self, value: object, depth: int) -> str:
        """A value whose first line is already indented by `depth` levels."""
        if not isinstance(value, _HOLDERS):
            return self._plain(depth)(value)
        key = id(value), depth
        if key not in self._known:
            self._known[key] = self._held(value, depth)
        return self._known[key]

    def _held(self, value: Mapping[str, object] | Sequence[object], depth: int) -> str:
        encode, inner = self._plain(depth + 1), "\n" + _INDENT * (depth + 1)
        items = value.values() if isinstance(value, dict) else value
        if not any(isinstance(item, _HOLDERS) for item in items):
            written = encode(value)
            opening, body, closing = written[0], written[1:-1], written[-1]
        elif isinstance(value, dict):
            if not all(isinstance(name, str) for name in value):
                raise TypeError(value)
            pairs = [f"{encode(name)}: {self.text(value[name], depth + 1)}" for name in sorted(value)]
            opening, body, closing = "{", f",{inner}".join(pairs), "}"
        else:
            opening, body, closing = "[", f",{inner}".join([self.text(item, depth + 1) for item in items]), "]"
        return f"{opening}{inner}{body}{inner[: -len(_INDENT)]}{closing}" if body else opening + closing

    def _plain(self, depth: int) -> Callable[[object], str]:
        """Encodes what holds nothing that is indented further."""
        if depth not in self._encoders:
            between = f",\n{_INDENT * depth}", ": "
            encoder = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False, separators=between)
            self._encoders[depth] = encoder.encode
        return self._encoders[depth]


def read_report(path: Path) -> dict[str, Any]:
    """The report in a file.

    Raises AtcfuseError: ATF530 no such file, ATF531 not readable, ATF532 not JSON, ATF533 of another schema, ATF534
    against the contract.
    """
    document = _parsed(read_text(path), path)
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(document, dict) or schema != SCHEMA:
        raise AtcfuseError(_other_schema(document, schema, path))
    problems = validate(document)
    if problems:
        more = len(problems) - _PROBLEMS_SHOWN
        notes = problems[:_PROBLEMS_SHOWN] + ([f"and {more} more"] if more > 0 else [])
        message = f"the report breaks its contract in {len(problems)} place{'s' if len(problems) > 1 else ''}"
        hint = "write the report again with `atcfuse optimize --report`"
        raise AtcfuseError(error("ATF534", message, Span(str(path)), hint, notes))
    return document


def settings_of(path: Path, model: str) -> dict[str, Any]:
    """Chip and options with which the run behind a report file wrote the model of that name.

    Nothing for a file that is no report, one of another model, or a chip that has no name of its own here.
    """
    from atcfuse.device import load_device

    try:
        document = read_report(path)
        load_device(document["soc"] or "")
    except AtcfuseError:
        return {}
    if document["files"]["model"] != model or "settings" not in document:
        return {}
    return {"soc": document["soc"], **document["settings"]}


def read_text(path: Path) -> str:
    """The text of a file that a user gave.

    Raises AtcfuseError: ATF530 no such file, ATF531 not readable, ATF532 not UTF-8.
    """
    span = Span(str(path))
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as exc:
        hint = "check the path; a baseline report has to be checked in or fetched before the gate runs"
        raise AtcfuseError(error("ATF530", "the report file does not exist", span, hint)) from exc
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        hint = "give the path of the report file itself, readable for this user"
        raise AtcfuseError(error("ATF531", f"the report file cannot be read: {reason}", span, hint)) from exc
    except UnicodeDecodeError as exc:
        raise AtcfuseError(error("ATF532", "not a report: the file is not UTF-8 text", span, _JSON_HINT)) from exc


_JSON_HINT = "a report is the .report.json file that `atcfuse optimize --report` writes"


def _parsed(text: str, path: Path) -> object:
    try:
        document: object = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as exc:
        span = Span(str(path), exc.lineno, exc.colno)
        raise AtcfuseError(error("ATF532", f"not JSON: {exc.msg.lower()}", span, _JSON_HINT)) from exc
    except (ValueError, RecursionError) as exc:
        raise AtcfuseError(error("ATF532", f"not JSON that can be read: {exc}", Span(str(path)), _JSON_HINT)) from exc
    return document


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _other_schema(document: object, schema: object, path: Path) -> Any:
    if isinstance(schema, str):
        found = f"a document of the schema {schema[:80]!r}"
    elif isinstance(document, dict):
        found = "a JSON object without a schema"
    else:
        found = "JSON that is no object"
    near = did_you_mean(schema, [SCHEMA]) if isinstance(schema, str) else ""
    newer = isinstance(schema, str) and schema.startswith("atcfuse.report/")
    hint = "write the report again with this version of atcfuse" if newer else near or _JSON_HINT
    return error("ATF533", f"expected {SCHEMA!r}, found {found}", Span(str(path)), hint)
