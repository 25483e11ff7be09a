"""ATC's own passes as a report lists them, and savings against them; both renderers show these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atcfuse.report.document import Report
from atcfuse.report.figures import bytes_change, count_change, microseconds
from atcfuse.report.groups import SAVED, FusionGroup, RuleGroup


@dataclass(frozen=True)
class AtcPasses:
    """The passes of a report: those that act on a side, those switched off, the others by name, and the basis."""

    acting: tuple[Mapping[str, Any], ...]
    off: tuple[Mapping[str, Any], ...]
    idle: tuple[str, ...]
    basis: str


def atc_passes(report: Report) -> AtcPasses | None:
    """The passes, None in a report that knows none."""
    section = report.get("atc")
    if not section:
        return None
    passes = section["passes"]
    acting = tuple(p for p in passes if p["times"] or p["times_after"])
    off = tuple(p for p in passes if p["state"] == "off")
    busy = {p["name"] for p in (*acting, *off)}
    idle = tuple(dict.fromkeys(p["name"] for p in passes if p["name"] not in busy))
    return AtcPasses(acting, off, idle, section["basis"])


def saved_texts(group: FusionGroup | RuleGroup, each: bool = False) -> tuple[list[str], list[str]]:
    """What is saved as exported and, second, against ATC's own passes: launches, DDR and time; the second may be empty.

    `each` asks for the first fusion of a group instead of the sum over all.
    """
    return _saved(group, each, ""), _saved(group, each, "_after_atc")


def _saved(group: FusionGroup | RuleGroup, each: bool, against: str) -> list[str]:
    launches, moved, time = (f"{key}{against}" for key in SAVED)
    if each:
        assert isinstance(group, FusionGroup)
        found = group.first.get(launches), group.first.get(moved), group.first.get(time)
    elif isinstance(group, RuleGroup):
        found = group.saved(launches), group.saved(moved), group.time_saved(time)
    else:
        found = group.saved(launches), group.saved(moved), None
    if against and found[0] is None:
        return []
    return [count_change(found[0]), bytes_change(found[1]), microseconds(found[2])]
