"""One report on several models: what became of each, and the sums of their figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from atcfuse import __version__
from atcfuse.diagnostics import Diagnostic
from atcfuse.lang import say, speaking, tell
from atcfuse.report.document import Report
from atcfuse.report.figures import count, human_bytes, total
from atcfuse.report.groups import listed
from atcfuse.report.markup import code, prose, table

SCHEMA = "atcfuse.models/1"
SUMS = ("nodes", "launches", "ddr_bytes")
STATES = ("before", "after", "after_atc", "after_both")
Outcome = Literal["done", "skipped", "failed"]


@dataclass(frozen=True)
class Entry:
    """What became of one model; `report` is None where its run ended without one."""

    name: str
    outcome: Outcome
    report: Report | None
    diagnostics: Sequence[Diagnostic]


def merged(entries: Sequence[Entry], kernels: str | None) -> dict[str, Any]:
    """The document (schema `atcfuse.models/1`): an entry a model, and sums over those that have a report.

    A sum is null where a report has no such figure.
    """
    reports = [e.report for e in entries if e.report is not None and e.outcome != "failed"]
    keys = [f"{figure}_{state}" for figure in SUMS for state in STATES]
    ops = Counter(str(fusion["op"]) for report in reports for fusion in report["fusions"])
    return {
        "schema": SCHEMA,
        "atcfuse": __version__,
        "kernels": kernels,
        "models": [_row(entry) for entry in entries],
        "outcomes": {outcome: sum(e.outcome == outcome for e in entries) for outcome in ("done", "skipped", "failed")},
        "fusions": dict(sorted(ops.items())),
        "summary": {key: total(r["summary"].get(key) for r in reports) for key in keys},
    }


def _row(entry: Entry) -> dict[str, Any]:
    report = entry.report
    return {
        "name": entry.name,
        "outcome": entry.outcome,
        "diagnostics": [d.as_dict() for d in entry.diagnostics],
        "sha256": report["model"]["sha256"] if report else None,
        "files": report["files"] if report else None,
        "fusions": len(report["fusions"]) if report else None,
        "summary": report["summary"] if report else None,
    }


def merged_markdown(document: Mapping[str, Any], lang: str | None = None) -> str:
    """The document for people: a table of the models, and why some failed."""
    with speaking(lang):
        return "\n".join(_lines(document)) + "\n"


def _lines(document: Mapping[str, Any]) -> list[str]:
    outcomes = {"done": say("done"), "skipped": say("skipped"), "failed": say("failed")}
    told = listed(f"{number} {outcomes[outcome]}" for outcome, number in document["outcomes"].items() if number)
    head = [say("model"), say("outcome"), say("fusions"), say("launches"), say("with ATC"), say("with atcfuse too")]
    head += [say("DDR bytes before"), say("after")]
    models = document["models"]
    rows = [_cells(code(r["name"]), outcomes[r["outcome"]], r["fusions"], r["summary"] or {}) for r in models]
    rows.append(_cells(say("all"), "", sum(document["fusions"].values()), document["summary"]))
    title = say("{} models: {}", count(len(models)), told)
    lines = [f"## {title}", "", *table(head, rows, range(2, len(head)))]
    for row in models:
        errors = [d for d in row["diagnostics"] if d["severity"] == "error"]
        if errors:
            messages = (f"- {d['code']}: {prose(tell(str(d['message'])))}" for d in errors)
            lines += ["", f"{code(row['name'])}:", "", *messages]
    return lines


def _cells(name: str, outcome: str, fusions: int | None, summary: Mapping[str, Any]) -> list[str]:
    launches = [summary.get(key) for key in ("launches_before", "launches_after_atc", "launches_after_both")]
    memory = [summary.get(key) for key in ("ddr_bytes_before", "ddr_bytes_after")]
    counted = ["-" if number is None else count(number) for number in (fusions, *launches)]
    return [name, outcome, *counted, *("-" if number is None else human_bytes(number) for number in memory)]
