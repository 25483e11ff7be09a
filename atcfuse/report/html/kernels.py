"""The strip of the page: layers, the kernels in them and the launches left between, as plain text and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from atcfuse.lang import say, tell
from atcfuse.report.document import Report
from atcfuse.report.figures import (
    Figure,
    Time,
    bytes_change,
    count,
    count_change,
    human_bytes,
    interval,
    microseconds,
    time_total,
    total,
)
from atcfuse.report.groups import Entry, traffic
from atcfuse.report.html.bars import size, spread_bar
from atcfuse.report.html.strip import Block, strip
from atcfuse.report.names import UNNAMED, pairs, printable, shorten, span_of

NODES_SHOWN = 40
PLACES_SHOWN = 12
NAME = 96
_NOTHING = "Identity"
"""What stands for a launch that was taken away."""
_LANES = ("load", "cube", "vector", "store", "wait")
_PLANNED = frozenset({"L1", "UB"})
"""The memories that kernels fill up to the occupancy of the run only."""


def strip_items(report: Report) -> list[dict[str, Any]]:
    """The strip from top to bottom: layers that repeat, kernels alone, and between them what was left, by operator."""
    found: list[dict[str, Any]] = []
    fusions, last = _in_place(report)
    for block in strip(fusions):
        if block.times == 1:
            for fusion in block.fusions:
                found += left_items(fusion.get("left_before") or {})
                found.append({"kind": "kernel", **_kernel(fusion, [fusion], report)})
            continue
        found += left_items(block.fusions[0].get("left_before") or {})
        found.append(_layer(block, report))
    return found + left_items(last)


def taken_away(report: Report) -> list[Entry]:
    """The fusions of which nothing is left in the model: launches that did nothing."""
    return [fusion for fusion in report["fusions"] if fusion["op"] == _NOTHING]


def _in_place(report: Report) -> tuple[list[Entry], Mapping[str, int]]:
    """The other fusions, with all launches that were left before each, and what was left behind the last."""
    found: list[Entry] = []
    waiting: Counter[str] = Counter()
    for fusion in report["fusions"]:
        left = waiting + Counter(fusion.get("left_before") or {})
        waiting = left if fusion["op"] == _NOTHING else Counter()
        if fusion["op"] != _NOTHING:
            found.append({**fusion, "left_before": dict(left)})
    return found, waiting + Counter(report.get("left_last") or {})


def left_items(left: Mapping[str, int]) -> list[dict[str, Any]]:
    """Launches that stay as they are, as one item of the strip, or none."""
    if not left:
        return []
    return [{"kind": "left", "ops": _operators(left), "launches": count(sum(left.values()))}]


def _operators(left: Mapping[str, int]) -> list[str]:
    ordered = sorted(left.items(), key=lambda item: (-item[1], item[0]))
    return [printable(op) if times == 1 else f"{printable(op)} ×{times}" for op, times in ordered]


def _layer(block: Block, report: Report) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for i, fusion in enumerate(block.fusions):
        left = block.between if i == 0 else fusion.get("left_before") or {}
        items += left_items(left)
        items.append({"kind": "kernel", **_kernel(fusion, block.all[i :: len(block.fusions)], report)})
    names = [str(f["name"]) for f in block.all]
    return {
        "kind": "layer",
        "times": block.times,
        "items": items,
        "ops": [printable(f["op"]) for f in block.fusions],
        "where": [shorten(text, NAME // 2) for text in span_of(names)],
        "saved": _saved(block.all),
        "slower": _slower(block.all),
    }


def _kernel(fusion: Entry, alike: Sequence[Entry], report: Report) -> dict[str, Any]:
    nodes = [printable(n or UNNAMED) for n in fusion["nodes"]]
    return {
        "op": printable(fusion["op"]),
        "slower": _slower(alike),
        "rule": printable(fusion["rule"]),
        "name": shorten(fusion["name"] or UNNAMED, NAME),
        "others": [shorten(f["name"], NAME) for f in alike[1 : PLACES_SHOWN + 1]],
        "more": max(0, len(alike) - 1 - PLACES_SHOWN),
        "searched": " ".join(shorten(f["name"], NAME) for f in alike[PLACES_SHOWN + 1 :]),
        "nodes": [shorten(n, NAME) for n in nodes[:NODES_SHOWN]],
        "nodes_more": max(0, len(nodes) - NODES_SHOWN),
        "node_count": len(nodes),
        "saved": _saved_each(alike, _suffix(alike)),
        "exported": _saved_each(alike, "") if _suffix(alike) else [],
        "time": _before_after(fusion),
        "earlier": bool(fusion.get("earlier")),
        "kernel": printable(fusion.get("kernel") or ""),
        "status": printable(tell(fusion.get("chip_status") or "")),
        "settings": [printable(p) for p in pairs(fusion["choices"]) + pairs(fusion.get("attributes") or {})],
        "tiling": pairs(fusion.get("tiling") or {}),
        "traffic": traffic(fusion),
        "remarks": [printable(tell(r)) for r in fusion.get("remarks") or ()],
        "memories": _memories(fusion.get("on_chip") or {}, report.get("chip") or {}, report.get("settings") or {}),
        "lanes": _lanes(fusion.get("stages_us") or {}),
    }


def _suffix(fusions: Iterable[Entry]) -> str:
    """`_after_atc` where it is known of all what ATC would have made of them."""
    known = all(fusion.get("launches_saved_after_atc") is not None for fusion in fusions)
    return "_after_atc" if known else ""


def _saved(fusions: Sequence[Entry]) -> list[str]:
    """What fusions save together: launches, DDR bytes and time, against ATC where that is known."""
    by = _suffix(fusions)
    return [
        count_change(total(f.get(f"launches_saved{by}") for f in fusions)),
        bytes_change(total(f.get(f"ddr_bytes_saved{by}") for f in fusions)),
        microseconds(time_total(f.get(f"time_us_saved{by}") for f in fusions)),
    ]


def _slower(fusions: Sequence[Entry]) -> bool:
    """Whether together they save no time at either end of the estimate, but cost some."""
    by = _suffix(fusions)
    return size(time_total(f.get(f"time_us_saved{by}") for f in fusions), -1) < 0


def _saved_each(fusions: Sequence[Entry], by: str) -> list[str]:
    """What each of several like fusions saves; a range where they differ."""
    times = [fusion.get(f"time_us_saved{by}") for fusion in fusions]
    return [
        _spread([f.get(f"launches_saved{by}") for f in fusions], count_change),
        _spread([f.get(f"ddr_bytes_saved{by}") for f in fusions], bytes_change),
        microseconds(_hull(times)),
    ]


def _spread(figures: Sequence[Figure], shown: Callable[[Figure], str]) -> str:
    known = [figure for figure in figures if figure is not None]
    if len(known) < len(figures) or not known:
        return shown(None)
    return interval([shown(end) for end in dict.fromkeys((max(known), min(known)))])


def _hull(times: Sequence[Time]) -> Time:
    """The least range that holds all of them, None when one is not known."""
    ends: list[float] = []
    for time in times:
        if time is None:
            return None
        ends += [time] if isinstance(time, (int, float)) else time
    return [min(ends), max(ends)] if ends else None


def _before_after(fusion: Entry) -> str:
    """The time of the region as exported and fused, launches included; "" where it was not estimated."""
    before, after = fusion.get("time_us_before"), fusion.get("time_us_after")
    if after is None:
        return ""
    return microseconds(after) if before is None else f"{microseconds(before)} → {microseconds(after)}"


def _memories(used: Mapping[str, int], chip: Mapping[str, int], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """On-chip use against capacity; the share is None where the report does not tell the capacity."""
    found = []
    limit = settings.get("occupancy")
    for name, taken in sorted(used.items()):
        whole = chip.get(name)
        share = None if not whole else round(100 * taken / whole, 1)
        found.append(
            {
                "name": name,
                "text": say("{} of {}", human_bytes(taken), human_bytes(whole)) if whole else human_bytes(taken),
                "share": share,
                "limit": round(100 * limit) if whole and name in _PLANNED and isinstance(limit, (int, float)) else None,
            }
        )
    return found


def _lanes(stages: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """How long each unit of the busiest core works, all to the scale of the longest."""
    known = [(lane, stages[lane]) for lane in _LANES if size(stages.get(lane), -1)]
    most = max((size(time, -1) for _, time in known), default=0.0) or 1.0
    names = {
        "load": say("load"),
        "cube": say("cube"),
        "vector": say("vector"),
        "store": say("store"),
        "wait": say("wait"),
    }
    return [{"lane": lane, "name": names[lane], "text": _brief(time), **spread_bar(time, most)} for lane, time in known]


def _brief(time: Sequence[float]) -> str:
    """A short time with three digits, `0.02 to 0.03 µs`; one number where both ends read the same."""
    return f"{interval(list(dict.fromkeys(f'{end:.3g}' for end in time)))} µs"
