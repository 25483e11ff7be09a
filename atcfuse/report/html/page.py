"""What the page shows, as plain text and numbers; the template beside it arranges that and escapes everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atcfuse.lang import language, say, speaking, tell
from atcfuse.report.atc_passes import atc_passes, saved_texts
from atcfuse.report.document import Report
from atcfuse.report.figures import count, count_change, human_bytes
from atcfuse.report.groups import (
    Entry,
    KeptGroup,
    RuleGroup,
    all_diagnostics,
    basis_line,
    columns_line,
    elsewhere_line,
    facts,
    headline,
    headline_rows,
    headline_table,
    idle_rules,
    kept_groups,
    knows_atc,
    plugin_source,
    reason_of,
    rule_groups,
)
from atcfuse.report.html.bars import bars, size
from atcfuse.report.html.kernels import NAME, PLACES_SHOWN, strip_items, taken_away
from atcfuse.report.html.pages import page_of_code, pieces, rule_pages
from atcfuse.report.names import UNNAMED, pairs, printable, shorten
from atcfuse.templates import environment

_COUNTED = frozenset({"nodes", "views", "host_nodes", "weight_bytes"})
"""Figures that are counted as launches are."""


def to_html(report: Report, lang: str | None = None) -> str:
    """The report as one HTML file; the same report gives the same bytes, and no text of a model can be markup."""
    page = environment(Path(__file__).parent, autoescape=True).get_template("page.html.j2")
    with speaking(lang):
        shown: dict[str, Any] = _shown(_page(report))
        return page.render(**shown, lang=language(), say=say)


def _shown(value: Any) -> Any:
    """What goes into the page: no text of a model with controls or direction marks in it."""
    if isinstance(value, dict):
        return {_shown(key): _shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(item) for item in value]
    return "\n".join(map(printable, value.split("\n"))) if isinstance(value, str) else value


def _page(report: Report) -> dict[str, Any]:
    summary, basis = report["summary"], report.get("basis") or {}
    rules, pages = rule_groups(report), rule_pages(report)
    idle = idle_rules(rules)
    kept = kept_groups(report["kept"])
    taken = taken_away(report)
    return {
        "title": shorten(report["model"]["name"] or UNNAMED, NAME),
        "headline": printable(headline(report)),
        "facts": [printable(f) for f in facts(report)],
        "lines": [*filter(None, (columns_line(report), elsewhere_line(report), basis_line(report)))],
        "basis": {key: printable(tell(text)) for key, text in sorted(basis.items())},
        "figure_names": _figure_names(),
        "bars": bars(report, basis),
        "against_atc": knows_atc(report),
        "atc": _atc(report),
        **_table(report),
        "strip": strip_items(report),
        "fusion_count": len(report["fusions"]) - len(taken),
        "taken": [[printable(f["rule"]), shorten(f["name"] or UNNAMED, NAME)] for f in taken],
        "left": [[count(entry["count"]), printable(entry["op"])] for entry in report.get("left") or ()],
        "rules": [_rule(rule) for rule in rules if rule.rule not in idle],
        "rule_pages": pages,
        "explained": [page["rule"] for page in pages],
        "idle": idle,
        "kept": [_kept(group) for group in kept],
        "kept_count": len(report["kept"]),
        "code_pages": {code: page_of_code(code) for code in sorted({str(g.first["code"]) for g in kept})},
        "assumed": pairs(summary["assumed_dims"]),
        "settings": pairs(report.get("settings") or {}),
        "switches": [{**s, "why": tell(s["why"] or "")} for s in report["switches"] if s["state"] == "off"],
        "plugins": [[printable(p["key"]), printable(plugin_source(p))] for p in report["plugins"]],
        "diagnostics": [_diagnostic(entry) for entry in all_diagnostics(report)],
    }


def _figure_names() -> dict[str, str]:
    """What people call the figures that `basis` tells the origin of."""
    return {
        "after_atc": say("after ATC"),
        "conversions": say("conversions by ATC"),
        "ddr_bytes": say("DDR bytes"),
        "gm_bytes": say("memory traffic"),
        "kernel_bytes": say("bytes of a kernel"),
        "l2_miss_bytes": say("past L2"),
        "launch_us": say("one launch"),
        "launches": say("launches"),
        "on_chip": say("on-chip use"),
        "time_us": say("time"),
    }


def _table(report: Report) -> dict[str, Any]:
    """The headline table, every row with where its figure comes from and what it is exactly."""
    head, rows = headline_table(report, human_bytes)
    keys = [row.figure for row in headline_rows(report, human_bytes)]
    sides = ("before", "after_atc", "after_both") if knows_atc(report) else ("before", "after")
    exact = []
    for key in keys:
        values = [report["summary"].get(f"{key}_{side}") for side in sides] if key.endswith("bytes") else []
        exact.append(" → ".join(f"{value:,} B" for value in values if value is not None))
    basis = report.get("basis") or {}
    origins = [tell(basis.get(key) or (basis.get("launches") if key in _COUNTED else "") or "") for key in keys]
    notes = ["; ".join(filter(None, both)) for both in zip(origins, exact, strict=True)]
    return {"head": head, "rows": list(zip(notes, rows, strict=True))}


def _atc(report: Report) -> dict[str, Any] | None:
    """ATC's own passes that act or are switched off, None where nothing is known of them."""
    passes = atc_passes(report)
    if passes is None:
        return None
    rows = [
        [
            printable(one["name"]),
            printable(one["makes"]),
            count(one["times"]),
            count_change(one["launches_saved"]),
            count(one["times_after"]),
            count_change(one["launches_saved_after"]),
            printable(tell(one["why"]) or say(one["state"])),
        ]
        for one in (*passes.acting, *passes.off)
    ]
    notes = [printable(say("{}: {}", p["name"], tell(p["numerics"]))) for p in passes.acting if p["numerics"]]
    return {"rows": rows, "notes": notes, "basis": printable(tell(passes.basis))}


def _rule(rule: RuleGroup) -> dict[str, Any]:
    exported, against = saved_texts(rule)
    sums = (rule.saved("launches_saved"), rule.saved("ddr_bytes_saved"), rule.time_saved())
    return {
        "rule": printable(rule.rule),
        "off": rule.switch == "off",
        "matched": "" if rule.matched is None else count(rule.matched),
        "fused": count(rule.count),
        "saved": (against or exported) if rule.groups else ["", "", ""],
        "order": [rule.matched or 0, rule.count, *(size(s, -1) if rule.groups else 0 for s in sums)],
    }


def _kept(group: KeptGroup) -> dict[str, Any]:
    return {
        "code": printable(group.first["code"]),
        "times": len(group.entries),
        "rules": [printable(r) for r in group.rules],
        "reason": shorten(reason_of(group), 400),
        "hint": pieces(printable(tell(group.first["hint"] or ""))),
        "anchors": [shorten(a or UNNAMED, NAME) for a in group.anchors[:PLACES_SHOWN]],
        "more": max(0, len(group.anchors) - PLACES_SHOWN),
        "searched": " ".join(shorten(a, NAME) for a in group.anchors[PLACES_SHOWN:]),
    }


def _diagnostic(entry: Entry) -> dict[str, Any]:
    notes = [tell(note) for note in (*entry.get("notes", ()), *filter(None, [entry.get("hint")]))]
    return {
        "severity": entry["severity"],
        "code": entry["code"],
        "where": printable(entry.get("span") or ""),
        "message": shorten(tell(entry["message"]), 400),
        "notes": [shorten(n, 400) for n in notes],
    }
