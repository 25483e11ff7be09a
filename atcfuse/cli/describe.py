"""Fusions and kept subgraphs of a report in full, as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atcfuse.report.groups import kept_groups, reason_of
from atcfuse.report.layout import Page
from atcfuse.report.names import pairs

Document = Mapping[str, Any]


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


def _fusion(page: Page, entry: Document) -> None:
    page.section(f"{entry['rule']} fused {len(entry['nodes'])} nodes into {entry['op']}")
    page.bullet(f"name: {entry['name']}")
    for label, values in (("choices", entry["choices"]), ("attributes", entry.get("attributes") or {})):
        if values:
            page.bullet(f"{label}: {', '.join(pairs(values))}")
    page.bullet(f"saves {entry['launches_saved']} launches and {entry['ddr_bytes_saved']} DDR bytes")
    page.bullet("replaces:")
    for name in entry["nodes"]:
        page.bullet(name, "-", depth=2)
    for name in entry.get("shapes_rewritten", ()):
        page.bullet(f"{name} (Shape, rewritten to read another value)", "~", depth=2)


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
