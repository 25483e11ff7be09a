"""`atcfuse check`: what ATC would refuse, told before ATC is run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from atcfuse.diagnostics import Diagnostic
from atcfuse.lang import say, speaking

if TYPE_CHECKING:
    from atcfuse.graph.atc_rules import Finding, ModelProto

SCHEMA = "atcfuse.check/1"

_RANK = {"error": 0, "warning": 1, "info": 2}
_PLACES_SHOWN = 3


def check(model: ModelProto, model_dir: Path | None = None, file_bytes: int | None = None) -> list[Diagnostic]:
    """What ATC would refuse or misread in `model`, one diagnostic a cause.

    Errors come first, then warnings and what ATC has to be told; within each by code, then by first place in the
    model. `model` has its external data left on disk; `model_dir` is where external files are looked up and
    `file_bytes` the size of the .onnx file (neither is checked when not given).
    """
    from atcfuse.graph.atc_rules import atc_findings  # here, so that this module is imported without onnx

    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in atc_findings(model, model_dir, file_bytes):
        groups.setdefault(_cause(finding), []).append(finding)
    ordered = sorted(groups.values(), key=lambda group: (_RANK[group[0].severity], group[0].code))
    return [_diagnostic(group) for group in ordered]


def _cause(finding: Finding) -> tuple[str, ...]:
    """Everything but the place."""
    return (finding.code, finding.severity, finding.message, finding.op, finding.hint, finding.atc_error)


def _diagnostic(group: list[Finding]) -> Diagnostic:
    first = group[0]
    message = f"{first.message} (ATC: {first.atc_error})" if first.atc_error else first.message
    places = list(dict.fromkeys(finding.node for finding in group if finding.node))
    notes = (_places(places, len(group)),) if places else ()
    return Diagnostic(first.code, first.severity, message, None, first.hint, notes)


def _places(names: list[str], count: int) -> str:
    """The first places by name and how many more there are."""
    shown = names[:_PLACES_SHOWN]
    text = ", ".join(f'"{name}"' for name in shown)
    text += ", ..." if len(names) > len(shown) else ""
    return f"{count} times: {text}" if count > 1 else text


def counts(diagnostics: list[Diagnostic]) -> dict[str, int]:
    """How many diagnostics there are of each severity."""
    found = Counter(diagnostic.severity for diagnostic in diagnostics)
    return {"errors": found["error"], "warnings": found["warning"], "infos": found["info"]}


def check_text(diagnostics: list[Diagnostic], lang: str | None = None) -> str:
    """The diagnostics and a summary for a terminal."""
    with speaking(lang):
        return "\n".join([*(str(diagnostic) for diagnostic in diagnostics), _summary(counts(diagnostics))]) + "\n"


def _summary(found: dict[str, int]) -> str:
    refused = say("ATC would refuse or misread this model"), say("nothing found that ATC would refuse")
    verdict = refused[0] if found["errors"] else refused[1]
    parts = (
        _number(found["errors"], "{} error", "{} errors"),
        _number(found["warnings"], "{} warning", "{} warnings"),
        _number(found["infos"], "{} note", "{} notes"),
    )
    return say("{} ({})", verdict, say(", ").join(filter(None, parts))) if any(parts) else verdict


def _number(number: int, one: str, many: str) -> str:
    return say(one if number == 1 else many, number) if number else ""


def check_json(model_name: str, diagnostics: list[Diagnostic]) -> str:
    """The diagnostics as JSON of the schema `atcfuse.check/1`: sorted keys, no paths, no time stamps."""
    document = {
        "schema": SCHEMA,
        "model": model_name,
        "summary": counts(diagnostics),
        "diagnostics": [diagnostic.as_dict() for diagnostic in diagnostics],
    }
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
