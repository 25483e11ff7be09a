"""Fusions and kept subgraphs of a report in full, as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atcfuse.report.figures import microseconds, plural
from atcfuse.report.groups import SAVED, kept_groups, reason_of, traffic
from atcfuse.report.layout import Page
from atcfuse.report.names import pairs, shorten

Document = Mapping[str, Any]

_OP_COLUMNS = 26


def kept_text(report: Document, width: int, color: bool) -> str:
    """Every kept subgraph of a report, those with one reason together, and all places of each."""
    page = Page(width, color)
    fused, kept = report["fusions"], report["kept"]
    page.title(f"{report['model']['name']}: {len(fused)} fused, {len(kept)} kept")
    for group in kept_groups(kept):
        page.section(f"{group.first['code']} ×{len(group.entries)} {', '.join(group.rules)}")
        page.bullet(reason_of(group))
        for anchor in group.anchors:
            page.bullet(anchor, "-", depth=2)
        _advice(page, group.first)
    if kept:
        page.lines.append("")
        page.detail("--node NAME tells all about one of them, `atcfuse explain ATFnnn` about a code", depth=0)
    return page.text()


def full_text(report: Document, width: int, color: bool) -> str:
    """Every fusion and every kept subgraph of a report, one after the other, in full."""
    page = Page(width, color)
    for entry in report["fusions"]:
        _fusion(page, entry)
    for entry in report["kept"]:
        _kept(page, entry)
    return page.text()


def node_text(found: Document, width: int, color: bool) -> str:
    """The explanation of one node (`atcfuse.explain/1`)."""
    page = Page(width, color)
    page.title(f"{found['node']} ({found['op']}): {_STATUS[found['status']]}")
    for entry in found["fusions"]:
        _fusion(page, entry)
    for entry in found["kept"]:
        _kept(page, entry)
    if found["status"] == "uncovered":
        page.bullet(f"no rule covers the operator {found['op']}")
    elif found["status"] == "untouched":
        page.bullet(f"read by the rules {', '.join(found['rules'])}, none of which begins at this node")
    if found["near"]:
        page.section("The nearest places where a rule begins")
    for near in found["near"]:
        entry, steps = near["entry"], f"{near['steps']} node{'' if near['steps'] == 1 else 's'} away"
        if "anchor" in entry:
            page.bullet(f"{entry['anchor']}, {steps}: {entry['rule']} was kept, {entry['code']} {entry['reason']}", "-")
        else:
            page.bullet(f"{entry['name']}, {steps}: {entry['rule']} fused", "+")
    return page.text()


_STATUS = {
    "optimized": "a fused node that the model came with",
    "fused": "fused",
    "kept": "a rule begins here, and it was kept",
    "untouched": "in no fusion",
    "uncovered": "in no fusion",
}


def _saved(entry: Document, against: str) -> str:
    launches, moved, time = (entry.get(f"{key}{against}") for key in SAVED)
    parts = [plural(launches or 0, "launch", "launches"), f"{moved or 0:,} DDR bytes"]
    return ", ".join([*parts, *([microseconds(time)] if time is not None else [])])


def _fusion(page: Page, entry: Document) -> None:
    page.section(f"{entry['rule']} fused {len(entry['nodes'])} nodes into {entry['op']}")
    page.bullet(f"name: {entry['name']}")
    for label, values in (("choices", entry["choices"]), ("attributes", entry.get("attributes") or {})):
        if values:
            page.bullet(f"{label}: {', '.join(pairs(values))}")
    if not entry.get("earlier"):
        page.bullet(f"saves, as exported: {_saved(entry, '')}")
        if entry.get("launches_saved_after_atc") is not None:
            page.bullet(f"saves, against ATC alone (estimated): {_saved(entry, '_after_atc')}")
    if entry.get("time_us_saved") is not None:
        before, after = (microseconds(entry[f"time_us_{key}"]) for key in ("before", "after"))
        page.bullet(f"takes {before} as it stands, {after} fused")
        page.bullet(traffic(entry))
    elif entry.get("time_us_after") is not None:
        page.bullet(f"takes {microseconds(entry['time_us_after'])}, by {entry['kernel']}")
    page.bullet("replaces:")
    for name in entry["nodes"]:
        page.bullet(name, "-", depth=2)
    for name in entry.get("shapes_rewritten", ()):
        page.bullet(f"{name} (Shape, rewritten to read another value)", "~", depth=2)
    if "cost" in entry:
        _stages(page, entry)


_TIMES = ("load", "cube", "vector", "store", "wait", "total")
"""Columns of a stage table; `wait` is what the compute units wait for transfers (dma)."""


def _stages(page: Page, entry: Document) -> None:
    """The launches of both sides with what each takes on the busiest core; overheads of launches are not in it."""
    for side, what in (("before", "as it stands"), ("after", "fused")):
        if side not in entry["cost"]:
            continue
        stages = entry["cost"][side]["stages"]
        page.section(f"Stages in µs on the busiest core, without launches: {what}")
        head = ["", *_TIMES[:-2], "dma wait", "total"]
        labels = [s["op"] for s in stages]
        if side == "after":
            labels[-1] = f"{entry['op']}, {labels[-1]}"
        named = zip(labels, stages, strict=True)
        page.table(head, [[shorten(n, _OP_COLUMNS), *(_time(s[f"{t}_us"]) for t in _TIMES)] for n, s in named])


def _time(time: list[float]) -> str:
    low, high = (f"{end:.2f}" for end in time)
    return low if low == high else f"{low}-{high}"


def _kept(page: Page, entry: Document) -> None:
    page.section(f"{entry['rule']} at {entry['anchor']}: kept")
    page.bullet(f"{entry['code']}: {entry['reason']}")
    if entry.get("value"):
        page.bullet(f"it failed on: {entry['value']}")
    if entry.get("depth"):
        page.bullet(f"got as far as {entry['depth']} matched nodes, further than any other reading")
    _advice(page, entry)


def _advice(page: Page, entry: Document) -> None:
    if entry["hint"]:
        page.detail(f"help: {entry['hint']}")
