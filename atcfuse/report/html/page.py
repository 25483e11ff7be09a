"""What the page shows, as plain text and numbers; the template beside it arranges that and escapes everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atcfuse.lang import language, say, speaking, tell
from atcfuse.report.atc_passes import atc_passes, saved_texts
from atcfuse.report.document import Report
from atcfuse.report.figures import (
    Figure,
    Time,
    count,
    count_change,
    exact_bytes,
    human_bytes,
    interval,
    microseconds,
    percent,
)
from atcfuse.report.groups import (
    Entry,
    FusionGroup,
    KeptGroup,
    RuleGroup,
    all_diagnostics,
    basis_line,
    columns_line,
    facts,
    headline,
    headline_table,
    idle_rules,
    kept_groups,
    knows_atc,
    plugin_source,
    reason_of,
    rule_groups,
    traffic,
)
from atcfuse.report.html.strip import Block, strip
from atcfuse.report.names import UNNAMED, pairs, printable, shorten, span_of
from atcfuse.templates import environment

NODES_SHOWN = 40
PLACES_SHOWN = 12
_NAME = 96
_LANES = ("load", "cube", "vector", "store", "wait")


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
    return printable(value) if isinstance(value, str) else value


def _page(report: Report) -> dict[str, Any]:
    head, rows = headline_table(report, exact_bytes)
    summary, basis = report["summary"], report.get("basis") or {}
    rules = rule_groups(report)
    idle = idle_rules(rules)
    return {
        "title": shorten(report["model"]["name"] or UNNAMED, _NAME),
        "headline": printable(headline(report)),
        "facts": [printable(f) for f in facts(report)],
        "lines": [*filter(None, (columns_line(report), basis_line(report)))],
        "basis": {key: printable(tell(text)) for key, text in sorted(basis.items())},
        "bars": _bars(report, basis),
        "atc": _atc(report),
        "head": head,
        "rows": rows,
        "blocks": [_block(block, report) for block in strip(report["fusions"])],
        "fusion_count": len(report["fusions"]),
        "left": [[count(entry["count"]), printable(entry["op"])] for entry in report.get("left") or ()],
        "rules": [_rule(rule) for rule in rules if rule.rule not in idle],
        "rule_rows": [printable(rule.rule) for rule in rules if rule.rule not in idle],
        "idle": idle,
        "kept": [_kept(group) for group in kept_groups(report["kept"])],
        "kept_count": len(report["kept"]),
        "assumed": pairs(summary["assumed_dims"]),
        "switches": [{**s, "why": tell(s["why"] or "")} for s in report["switches"] if s["state"] == "off"],
        "plugins": [[printable(p["key"]), printable(plugin_source(p))] for p in report["plugins"]],
        "diagnostics": [_diagnostic(entry) for entry in all_diagnostics(report)],
    }


def _bars(report: Report, basis: Mapping[str, str]) -> list[dict[str, Any]]:
    """The answer: launches, DDR bytes and time as bars; against ATC's own passes where the report knows those."""
    sides = [(say("as exported"), "before"), (say("after"), "after")]
    if knows_atc(report):
        sides = [(say("as exported"), "before"), (say("after ATC"), "after_atc"), (say("with atcfuse"), "after_both")]
    figures = (
        (say("launches"), "launches", count, tell(basis.get("launches", ""))),
        (say("DDR bytes"), "ddr_bytes", human_bytes, tell(basis.get("ddr_bytes", ""))),
        (say("time"), "time_us", microseconds, tell(basis.get("time_us", ""))),
    )
    found = []
    for label, key, shown, origin in figures:
        known = [(name, report["summary"].get(f"{key}_{side}")) for name, side in sides]
        known = [(name, value) for name, value in known if value is not None]
        if known:
            most = max(_size(value) for _, value in known) or 1.0
            bars = [
                {"side": name, "text": shown(value), "share": round(100 * _size(value) / most, 1)}
                for name, value in known
            ]
            against, last = (round(_size(value) * 1000) for _, value in (known[-2:] if len(known) > 1 else known * 2))
            found.append({"label": label, "bars": bars, "change": percent(against, last), "origin": printable(origin)})
    return found


def _atc(report: Report) -> dict[str, Any] | None:
    """ATC's own passes that act or are switched off, None where nothing is known of them."""
    passes = atc_passes(report)
    if passes is None:
        return None
    rows = [
        [
            printable(one["name"]),
            printable(tell(one["why"]) or say(one["state"])),
            printable(one["makes"]),
            count(one["times"]),
            count_change(one["launches_saved"]),
            count(one["times_after"]),
            count_change(one["launches_saved_after"]),
        ]
        for one in (*passes.acting, *passes.off)
    ]
    notes = [printable(say("{}: {}", p["name"], tell(p["numerics"]))) for p in passes.acting if p["numerics"]]
    return {"rows": rows, "notes": notes, "basis": printable(tell(passes.basis))}


def _size(value: Figure | Time) -> float:
    """A figure as a length, of a range the middle."""
    if value is None:
        return 0.0
    return float(value) if isinstance(value, (int, float)) else sum(value) / len(value)


def _block(block: Block, report: Report) -> dict[str, Any]:
    names = [str(f["name"]) for f in block.all]
    kernels = [_kernel(fusion, block.all[i :: len(block.fusions)], report) for i, fusion in enumerate(block.fusions)]
    return {
        "times": block.times,
        "kernels": kernels,
        "where": [shorten(text, _NAME) for text in span_of(names)],
        "ops": [k["op"] for k in kernels],
    }


def _kernel(fusion: Entry, alike: Sequence[Entry], report: Report) -> dict[str, Any]:
    nodes = [printable(n or UNNAMED) for n in fusion["nodes"]]
    exported, against = saved_texts(FusionGroup(tuple(alike)), each=True)
    return {
        "op": printable(fusion["op"]),
        "rule": printable(fusion["rule"]),
        "name": shorten(fusion["name"] or UNNAMED, _NAME),
        "others": [shorten(f["name"], _NAME) for f in alike[1 : PLACES_SHOWN + 1]],
        "more": max(0, len(alike) - 1 - PLACES_SHOWN),
        "nodes": [shorten(n, _NAME) for n in nodes[:NODES_SHOWN]],
        "nodes_more": max(0, len(nodes) - NODES_SHOWN),
        "node_count": len(nodes),
        "gain": say("{} against ATC", _gain(against)) if against else _gain(exported),
        "exported": _gain(exported) if against else "",
        "earlier": bool(fusion.get("earlier")),
        "kernel": printable(fusion.get("kernel") or ""),
        "status": printable(tell(fusion.get("chip_status") or "")),
        "settings": [printable(p) for p in pairs(fusion["choices"]) + pairs(fusion.get("attributes") or {})],
        "tiling": pairs(fusion.get("tiling") or {}),
        "traffic": traffic(fusion),
        "remarks": [printable(tell(r)) for r in fusion.get("remarks") or ()],
        "memories": _memories(fusion.get("on_chip") or {}, report.get("chip") or {}),
        "lanes": _lanes(fusion.get("stages_us") or {}),
    }


def _memories(used: Mapping[str, int], chip: Mapping[str, int]) -> list[dict[str, Any]]:
    """On-chip use against capacity; the share is None where the report does not tell the capacity."""
    found = []
    for name, size in sorted(used.items()):
        whole = chip.get(name)
        share = None if not whole else round(100 * size / whole, 1)
        found.append(
            {"name": name, "used": human_bytes(size), "of": human_bytes(whole) if whole else "", "share": share}
        )
    return found


def _lanes(stages: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """How long each unit of the busiest core works, all to the scale of the longest."""
    known = [(lane, stages[lane]) for lane in _LANES if lane in stages]
    most = max((_size(time) for _, time in known), default=0.0) or 1.0
    names = {
        "load": say("load"),
        "cube": say("cube"),
        "vector": say("vector"),
        "store": say("store"),
        "wait": say("wait"),
    }
    return [
        {"lane": lane, "name": names[lane], "text": _brief(time), "share": round(100 * _size(time) / most, 1)}
        for lane, time in known
    ]


def _gain(saved: Sequence[str]) -> str:
    launches, moved, time = saved
    return say("{} launches, {}, saves {}", launches, moved, time)


def _brief(time: Sequence[float]) -> str:
    """A short time with three digits, `0.02 to 0.03 µs`."""
    return f"{interval([f'{end:.3g}' for end in time])} µs"


def _rule(rule: RuleGroup) -> dict[str, Any]:
    exported, against = saved_texts(rule)
    sums = (rule.saved("launches_saved"), rule.saved("ddr_bytes_saved"), rule.time_saved())
    return {
        "rule": printable(rule.rule),
        "switch": rule.switch,
        "matched": "" if rule.matched is None else count(rule.matched),
        "fused": count(rule.count),
        "saved": (against or exported) if rule.groups else ["", "", ""],
        "order": [rule.matched or 0, rule.count, *(_size(s) if rule.groups else 0 for s in sums)],
    }


def _kept(group: KeptGroup) -> dict[str, Any]:
    return {
        "code": printable(group.first["code"]),
        "times": len(group.entries),
        "rules": [printable(r) for r in group.rules],
        "reason": shorten(reason_of(group), 400),
        "hint": printable(tell(group.first["hint"] or "")),
        "anchors": [shorten(a or UNNAMED, _NAME) for a in group.anchors[:PLACES_SHOWN]],
        "more": max(0, len(group.anchors) - PLACES_SHOWN),
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
