"""What a difference says, folded for people: equal changes of many layers are one line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from atcfuse.lang import say, tell
from atcfuse.report.compare import Diff
from atcfuse.report.figures import count, exact_bytes, human_bytes, microseconds, percent
from atcfuse.report.groups import Entry, template
from atcfuse.report.names import plain, shorten

_FIRST = ("launches_after", "ddr_bytes_after", "time_us_after")
_SIDES = ("_after_both", "_after_atc", "_after", "_before")
_NAME_COLUMNS = 60


@dataclass(frozen=True)
class Counted:
    """Fusions that were lost (or are new) alike, and why where that is known."""

    rule: str
    op: str
    names: list[str]
    because: str

    @property
    def label(self) -> str:
        """`attention FusedAttention ×2`."""
        return _label(self.rule, self.op, len(self.names))


@dataclass(frozen=True)
class ChangeGroup:
    """Fusions that changed alike: `key: before → after` each."""

    rule: str
    op: str
    names: list[str]
    changes: list[str]

    @property
    def label(self) -> str:
        """`attention FusedAttention ×12`."""
        return _label(self.rule, self.op, len(self.names))


@dataclass(frozen=True)
class KeptLine:
    """A reason to keep that came (`+`), went (`-`) or changed (`~`), and where."""

    mark: str
    text: str
    where: str


def _label(rule: str, op: str, number: int) -> str:
    times = f" ×{number:,}" if number > 1 else ""
    return f"{shorten(rule, _NAME_COLUMNS // 2)} {shorten(op, _NAME_COLUMNS // 2)}{times}"


def figure_rows(difference: Diff, exact: bool = False) -> list[list[str]]:
    """Rows (figure, before, after, change) of what differs in the summary, what matters most first.

    Where ATC's own passes make nothing more of what is handed over, its figures are not told a second time.
    """
    summary = difference["summary"]
    repeated = {f"{key}_both" for key in summary if summary.get(f"{key}_both") == summary[key]}
    keys = sorted(set(summary) - repeated, key=lambda key: (_FIRST.index(key) if key in _FIRST else len(_FIRST), key))
    return [_figure_row(key, summary[key], exact) for key in keys]


def _figure_row(key: str, change: Entry, exact: bool) -> list[str]:
    before, after = change["before"], change["after"]
    label = _label_of(key)
    if key.startswith("time_us"):
        return [label, microseconds(before), microseconds(after), ""]
    if not all(side is None or (isinstance(side, int) and not isinstance(side, bool)) for side in (before, after)):
        return [label, plain(before), plain(after), ""]
    bytes_shown = exact_bytes if exact else human_bytes
    shown = bytes_shown if "bytes" in key or key.startswith("workspace") else count
    return [label, shown(before), shown(after), percent(before, after)]


def _label_of(key: str) -> str:
    """What people call a figure of the summary: `launches (after ATC)`."""
    side = next((side for side in _SIDES if key.endswith(side)), "")
    figure, sides = key.removesuffix(side), _side_names()
    name = _figure_names().get(figure, figure.replace("_", " "))
    return say("{} ({})", name, sides[side]) if side else name


def _figure_names() -> dict[str, str]:
    return {
        "conversions": say("conversions by ATC"),
        "ddr_bytes": say("DDR bytes"),
        "gm_bytes": say("memory traffic"),
        "host_nodes": say("nodes on the host"),
        "l2_miss_bytes": say("traffic past L2"),
        "launches": say("launches"),
        "nodes": say("nodes"),
        "time_us": say("time"),
        "unsized_values": say("values of unknown size"),
        "views": say("views"),
        "weight_bytes": say("weight bytes"),
        "workspace_footprint": say("workspace"),
    }


def _side_names() -> dict[str, str]:
    return {
        "_before": say("as exported"),
        "_after_atc": say("after ATC"),
        "_after": say("after atcfuse"),
        "_after_both": say("after atcfuse + ATC"),
    }


def counted_fusions(fusions: Iterable[Entry]) -> list[Counted]:
    """Lost or new fusions by rule, operator and reason."""
    found: dict[tuple[str, str, str], tuple[list[str], str]] = {}
    for fusion in fusions:
        because = fusion.get("because") or {}
        because = {**because, "reason": because.get("reason") or ""}
        why = " ".join(filter(None, (because.get("code"), tell(because["reason"]))))
        same = f"{because.get('code')} {template({**because, 'anchor': fusion['name']})}"
        found.setdefault((fusion["rule"], fusion["op"], same), ([], why))[0].append(fusion["name"])
    return [Counted(rule, op, names, why) for (rule, op, _), (names, why) in found.items()]


def change_groups(changed: Iterable[Entry]) -> list[ChangeGroup]:
    """Changed fusions by what changed in them."""
    found: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for entry in changed:
        lines = tuple(_change(key, change) for key, change in entry["changes"].items())
        found.setdefault((entry["rule"], entry["op"], lines), []).append(entry["after"])
    return [ChangeGroup(rule, op, names, list(lines)) for (rule, op, lines), names in found.items()]


def _change(key: str, change: Entry) -> str:
    before, after = (_side(key, change[side]) for side in ("before", "after"))
    return f"{key}: {before} → {after}"


def _side(key: str, value: Any) -> str:
    if value is not None:
        return _shown(key, value)
    return say("none") if "." in key or key in ("kernel", "op") else say("not estimated")


def _shown(key: str, value: Any) -> str:
    if key == "time_us_saved":
        return microseconds(value)
    return human_bytes(value) if key == "ddr_bytes_saved" else plain(value)


def kept_lines(kept: Entry) -> list[KeptLine]:
    """Changes of reasons, equal ones folded: changed first, then new, then gone."""
    entries = [
        ("~", pair["after"]["anchor"], [pair["before"], pair["after"]], pair["after"]) for pair in kept["changed"]
    ]
    entries += [("+", entry["anchor"], [entry], entry) for entry in kept["new"]]
    entries += [("-", entry["anchor"], [entry], entry) for entry in kept["lost"]]
    found: dict[tuple[str, str, str], tuple[str, list[str]]] = {}
    for mark, anchor, told, entry in entries:
        plain_text = " → ".join(f"{one['code']} {one['reason']}" for one in told)
        key = (mark, entry["rule"], template({"reason": plain_text, "anchor": anchor}))
        text = " → ".join(map(_reason, told))
        found.setdefault(key, (say("{}: {}", entry["rule"], text), []))[1].append(anchor)
    return [KeptLine(mark, text, _where(anchors)) for (mark, _, _), (text, anchors) in found.items()]


def _reason(entry: Entry) -> str:
    return f"{entry['code']} {tell(entry['reason'])}"


def _where(anchors: list[str]) -> str:
    first = shorten(anchors[0], _NAME_COLUMNS)
    return say("at {} and {} more", first, f"{len(anchors) - 1:,}") if len(anchors) > 1 else say("at {}", first)
