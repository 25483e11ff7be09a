"""What ATC did on top of atcfuse: its own counters held against what a report expects of its passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atcfuse.diagnostics import Diagnostic, error
from atcfuse.report.atc_result import AtcResult, Counts
from atcfuse.report.compare import identity
from atcfuse.report.document import Report
from atcfuse.report.figures import plural

ATC_DIFF_SCHEMA = "atcfuse.diff-atc/1"
VERDICTS = ("on_fused", "switched_off", "more", "fewer", "as_expected", "undescribed", "own")
"""How a pass is judged, what matters most first."""

_SECTIONS = {"GraphFusion": "graph_fusion", "UBFusion": "ub_fusion"}
_NONE = Counts(0, 0)


@dataclass(frozen=True)
class _Expected:
    """What a report estimates of a pass; several descriptions of one are added up."""

    makes: tuple[str, ...]
    state: str
    exported: int
    after: int


def atc_diff(report: Report, result: AtcResult) -> dict[str, Any]:
    """What ATC did to the model of a report, as a JSON document of the schema `atcfuse.diff-atc/1`.

    `passes` has every pass that ATC counted or the report expects, each with `verdict`: `on_fused` where it took effect
    more often than expected and the model as exported has such places, so that nodes which atcfuse fuses may be among
    them; `switched_off` where it ran all the same; `more` and `fewer` than expected, `as_expected`, `undescribed` where
    no estimate exists, `own` for a switch of atcfuse's. ATC's file names passes and no nodes.
    """
    expected = _expected(report)
    own = {(_SECTIONS.get(s["kind"], s["kind"]), s["name"]) for s in report["switches"] if "rule" in s}
    keys = {*result.passes, *(key for key, value in expected.items() if value.after)}
    rows = [_row(key, result.passes.get(key, _NONE), expected.get(key), key in own) for key in keys]
    rows.sort(key=lambda row: (VERDICTS.index(row["verdict"]), row["kind"], row["name"]))
    return {
        "schema": ATC_DIFF_SCHEMA,
        "before": identity(report),
        "graphs": len(result.graphs),
        "caveats": _caveats(report, result, expected),
        "passes": rows,
    }


def atc_gate(difference: Mapping[str, Any]) -> list[Diagnostic]:
    """ATF551 for each pass that took effect where atcfuse fuses, or although the switch file turns it off."""
    found = []
    hint = "give ATC the model that atcfuse wrote, and the same switch file (`atcfuse switches F --for-atc OUT.json`)"
    for row in difference["passes"]:
        took = f"{row['name']} took effect {plural(row['effect_times'], '{} time', '{} times')}"
        if row["verdict"] == "on_fused":
            message = f"{took}, {row['expected']} expected and {row['exported']} in the model as exported"
            found.append(error("ATF551", message, hint=hint))
        elif row["verdict"] == "switched_off":
            found.append(error("ATF551", f"{took} although it is switched off", hint=hint))
    return found


def _expected(report: Report) -> dict[tuple[str, str], _Expected]:
    found: dict[tuple[str, str], _Expected] = {}
    for entry in report.get("atc", {}).get("passes", ()):
        key = (_SECTIONS.get(entry["kind"], entry["kind"]), entry["name"])
        before = found.get(key, _Expected((), entry["state"], 0, 0))
        makes = tuple(dict.fromkeys((*before.makes, entry["makes"])))
        found[key] = _Expected(
            makes, entry["state"], before.exported + entry["times"], before.after + entry["times_after"]
        )
    return found


def _row(key: tuple[str, str], counts: Counts, expected: _Expected | None, own: bool) -> dict[str, Any]:
    return {
        "kind": key[0],
        "name": key[1],
        "verdict": "own" if own else _verdict(counts, expected),
        "makes": list(expected.makes) if expected else [],
        "state": expected.state if expected else None,
        "exported": expected.exported if expected else None,
        "expected": expected.after if expected else None,
        "match_times": counts.matched,
        "effect_times": counts.effect,
    }


def _verdict(counts: Counts, expected: _Expected | None) -> str:
    if expected is None:
        return "undescribed"
    if expected.state == "off" and counts.effect:
        return "switched_off"
    if counts.effect == expected.after:
        return "as_expected"
    if counts.effect < expected.after:
        return "fewer"
    return "on_fused" if expected.exported > expected.after else "more"


def _caveats(report: Report, result: AtcResult, expected: Mapping[tuple[str, str], _Expected]) -> list[str]:
    """Why counters and estimates may not be of one thing."""
    found = []
    if not expected:
        found.append(f"no pass of ATC is described for {report['soc'] or 'the chip of the report'}")
    if len(result.graphs) > 1:
        found.append(f"the counts of {len(result.graphs)} graphs are added up; the report is of one model")
    differing = [key for key, e in expected.items() if e.exported != e.after and e.state == "on"]
    if differing and all(result.passes.get(key, _NONE).effect == expected[key].exported for key in differing):
        found.append("the counts are those of the model as exported: ATC may have been given that one")
    return found


def result_diff(before: AtcResult, after: AtcResult) -> dict[str, Any]:
    """The passes whose counters differ between two runs of ATC, a document of the schema `atcfuse.diff-atc/1` too."""
    rows = []
    for kind, name in sorted({*before.passes, *after.passes}):
        old, new = before.passes.get((kind, name), _NONE), after.passes.get((kind, name), _NONE)
        if old != new:
            sides = {"before": _counters(old), "after": _counters(new)}
            rows.append({"kind": kind, "name": name, "verdict": "changed", **sides})
    graphs = (len(before.graphs), len(after.graphs))
    caveats = [] if graphs[0] == graphs[1] else [f"graphs: {graphs[0]} → {graphs[1]}"]
    return {"schema": ATC_DIFF_SCHEMA, "before": None, "graphs": graphs[1], "caveats": caveats, "passes": rows}


def _counters(counts: Counts) -> dict[str, int]:
    return {"match_times": counts.matched, "effect_times": counts.effect}
