"""The answer of the page as bars: launches, DDR bytes and time on every side, to one scale a figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atcfuse.lang import say, tell
from atcfuse.report.document import Report
from atcfuse.report.figures import Figure, Time, count, human_bytes, interval, microseconds, percent
from atcfuse.report.groups import knows_atc
from atcfuse.report.names import printable


def bars(report: Report, basis: Mapping[str, str]) -> list[dict[str, Any]]:
    """One entry a figure: its bars, and the change against ATC's own passes, or as exported where those are unknown."""
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
        sized = [(name, report["summary"].get(f"{key}_{side}")) for name, side in sides]
        known = [(name, value) for name, value in sized if value is not None]
        if known:
            most = max(size(value, -1) for _, value in known) or 1.0
            rows = [{"side": name, "text": shown(value), **spread_bar(value, most)} for name, value in known]
            change = _change(known[-2][1], known[-1][1]) if len(known) > 1 else ""
            found.append({"label": label, "bars": rows, "change": change, "origin": printable(origin)})
    return found


def size(value: Figure | Time, end: int) -> float:
    """A figure as a length; of a range the low (0) or the high (-1) end."""
    if value is None:
        return 0.0
    return float(value) if isinstance(value, (int, float)) else float(value[end])


def spread_bar(value: Figure | Time, most: float) -> dict[str, float]:
    """A bar in percent of `most`: `share` up to the low end, `spread` from there to the high one."""
    low, high = (max(0.0, size(value, end)) for end in (0, -1))
    return {"share": round(100 * low / most, 1), "spread": round(100 * (high - low) / most, 1)}


def _change(before: Figure | Time, after: Figure | Time) -> str:
    """The change in percent, of ranges at either end."""
    ends = [percent(round(size(before, end) * 1000), round(size(after, end) * 1000)) for end in (0, -1)]
    return "" if "" in ends else interval(list(dict.fromkeys(ends)))
