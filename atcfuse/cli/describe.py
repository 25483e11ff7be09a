"""Fusions and kept subgraphs of a report in full, as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atcfuse.lang import say, speaking, tell
from atcfuse.report.figures import microseconds, plural
from atcfuse.report.groups import SAVED, kept_groups, listed, reason_of, traffic
from atcfuse.report.layout import Page
from atcfuse.report.names import pairs, shorten

Document = Mapping[str, Any]

_OP_COLUMNS = 26


def kept_text(report: Document, width: int, color: bool, lang: str | None = None) -> str:
    """Every kept subgraph of a report, those with one reason together, and all places of each."""
    page = Page(width, color)
    with speaking(lang):
        _all_kept(page, report)
    return page.text()


def _all_kept(page: Page, report: Document) -> None:
    fused, kept = report["fusions"], report["kept"]
    page.title(say("{}: {} fused, {} kept", report["model"]["name"], len(fused), len(kept)))
    for group in kept_groups(kept):
        page.section(f"{group.first['code']} ×{len(group.entries)} {', '.join(group.rules)}")
        page.bullet(reason_of(group))
        for anchor in group.anchors:
            page.bullet(anchor, "-", depth=2)
        _advice(page, group.first)
    if kept:
        page.lines.append("")
        page.detail(say("--node NAME tells all about one of them, `atcfuse explain ATFnnn` about a code"), depth=0)


def full_text(report: Document, width: int, color: bool, lang: str | None = None) -> str:
    """Every fusion and every kept subgraph of a report, one after the other, in full."""
    page = Page(width, color)
    with speaking(lang):
        _in_full(page, report)
    return page.text()


def _in_full(page: Page, found: Document) -> None:
    for entry in found["fusions"]:
        _fusion(page, entry)
    for entry in found["kept"]:
        _kept(page, entry)


def node_text(found: Document, width: int, color: bool, lang: str | None = None) -> str:
    """The explanation of one node (`atcfuse.explain/1`)."""
    page = Page(width, color)
    with speaking(lang):
        page.title(say("{}: {}", f"{found['node']} ({found['op']})", _status(found["status"])))
        _in_full(page, found)
        if found["status"] == "uncovered":
            page.bullet(say("no rule covers the operator {}", found["op"]))
        elif found["status"] == "untouched":
            page.bullet(say("read by the rules {}, none of which begins at this node", ", ".join(found["rules"])))
        _near(page, found["near"])
    return page.text()


def _near(page: Page, places: Sequence[Document]) -> None:
    if places:
        page.section(say("The nearest places where a rule begins"))
    for near in places:
        entry, steps = near["entry"], plural(near["steps"], "{} node away", "{} nodes away")
        if "anchor" in entry:
            why = f"{entry['code']} {tell(entry['reason'])}"
            page.bullet(say("{}, {}: {} was kept, {}", entry["anchor"], steps, entry["rule"], why), "-")
        else:
            page.bullet(say("{}, {}: {} fused", entry["name"], steps, entry["rule"]), "+")


def _status(status: str) -> str:
    said = {
        "optimized": say("a fused node that the model came with"),
        "fused": say("fused"),
        "kept": say("a rule begins here, and it was kept"),
    }
    return said.get(status) or say("in no fusion")


def _saved(entry: Document, against: str) -> str:
    launches, moved, time = (entry.get(f"{key}{against}") for key in SAVED)
    parts = [plural(launches or 0, "{} launch", "{} launches"), say("{} DDR bytes", f"{moved or 0:,}")]
    return ", ".join([*parts, *([microseconds(time)] if time is not None else [])])


def _fusion(page: Page, entry: Document) -> None:
    page.section(say("{} fused {} nodes into {}", entry["rule"], len(entry["nodes"]), entry["op"]))
    page.bullet(say("name: {}", entry["name"]))
    if entry["choices"]:
        page.bullet(say("choices: {}", ", ".join(pairs(entry["choices"]))))
    if entry.get("attributes"):
        page.bullet(say("attributes: {}", ", ".join(pairs(entry["attributes"]))))
    if not entry.get("earlier"):
        page.bullet(say("saves, as exported: {}", _saved(entry, "")))
        if entry.get("launches_saved_after_atc") is not None:
            page.bullet(say("saves, against ATC alone (estimated): {}", _saved(entry, "_after_atc")))
    if entry.get("time_us_saved") is not None:
        before, after = (microseconds(entry[f"time_us_{key}"]) for key in ("before", "after"))
        page.bullet(say("takes {} as it stands, {} fused", before, after))
        page.bullet(traffic(entry))
    elif entry.get("time_us_after") is not None:
        page.bullet(say("takes {}, by {}", microseconds(entry["time_us_after"]), entry["kernel"]))
    page.bullet(say("replaces:"))
    for name in entry["nodes"]:
        page.bullet(name, "-", depth=2)
    for name in entry.get("shapes_rewritten", ()):
        page.bullet(say("{} (Shape, rewritten to read another value)", name), "~", depth=2)
    if "cost" in entry:
        _stages(page, entry)


_TIMES = ("load", "cube", "vector", "store", "wait", "total")
"""Columns of a stage table; `wait` is what the compute units wait for transfers (dma)."""


def _stages(page: Page, entry: Document) -> None:
    """The launches of both sides with what each takes on the busiest core; overheads of launches are not in it."""
    for side, what in (("before", say("as it stands")), ("after", say("fused"))):
        if side not in entry["cost"]:
            continue
        stages = entry["cost"][side]["stages"]
        page.section(say("Stages in µs on the busiest core, without launches: {}", what))
        head = ["", say("load"), say("cube"), say("vector"), say("store"), say("dma wait"), say("total")]
        labels = [s["op"] for s in stages]
        if side == "after":
            labels[-1] = listed([entry["op"], labels[-1]])
        named = zip(labels, stages, strict=True)
        page.table(head, [[shorten(n, _OP_COLUMNS), *(_time(s[f"{t}_us"]) for t in _TIMES)] for n, s in named])


def _time(time: list[float]) -> str:
    low, high = (f"{end:.2f}" for end in time)
    return low if low == high else f"{low}-{high}"


def _kept(page: Page, entry: Document) -> None:
    page.section(say("{} at {}: kept", entry["rule"], entry["anchor"]))
    page.bullet(f"{entry['code']}: {tell(entry['reason'])}")
    if entry.get("value"):
        page.bullet(say("it failed on: {}", entry["value"]))
    if entry.get("depth"):
        page.bullet(say("got as far as {} matched nodes, further than any other reading", entry["depth"]))
    _advice(page, entry)


def _advice(page: Page, entry: Document) -> None:
    if entry["hint"]:
        page.detail(say("help: {}", tell(entry["hint"])))
