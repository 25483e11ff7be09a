"""What a report says, grouped as people read it: every renderer shows these groups, and adds no analysis of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from atcfuse.lang import say, tell
from atcfuse.report.document import Report
from atcfuse.report.figures import (
    Figure,
    Time,
    count,
    count_change,
    human_bytes,
    microseconds,
    percent,
    time_total,
    total,
)
from atcfuse.report.names import pairs

Entry = Mapping[str, Any]

SAVED = ("launches_saved", "ddr_bytes_saved", "time_us_saved")
"""What a fusion saves of its region as exported; with `_after_atc` behind it, of what ATC's own passes make of that."""

_SHAPE_KEYS = ("rule", "op", "attributes", "choices", "tiling", *SAVED, *(f"{key}_after_atc" for key in SAVED))
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)")
_OF_NAMES = frozenset("0123456789_/:.")


@dataclass(frozen=True)
class FusionGroup:
    """Fusions that differ in nothing but the names of nodes."""

    fusions: tuple[Entry, ...]

    @property
    def first(self) -> Entry:
        """The member that stands for all."""
        return self.fusions[0]

    @property
    def names(self) -> list[str]:
        """The names of the fused nodes, in the order of the model."""
        return [str(fusion["name"]) for fusion in self.fusions]

    @property
    def settings(self) -> list[str]:
        """The labels chosen, then the attributes, `key=value` each."""
        return pairs(self.first["choices"]) + pairs(self.first.get("attributes") or {})

    def saved(self, key: str) -> Figure:
        """The sum of a figure over the members."""
        return total(fusion.get(key) for fusion in self.fusions)


@dataclass(frozen=True)
class RuleGroup:
    """A rule with what it did; `matched` is None for a rule that `rules` does not list."""

    rule: str
    switch: str
    matched: Figure
    groups: tuple[FusionGroup, ...]

    @property
    def count(self) -> int:
        """How many fusions it made."""
        return sum(len(group.fusions) for group in self.groups)

    def saved(self, key: str) -> Figure:
        """The sum of a figure over all its fusions."""
        return total(group.saved(key) for group in self.groups)

    def time_saved(self, key: str = "time_us_saved") -> Time:
        """The sum of the ranges of time over all its fusions, None where one is not known."""
        return time_total(fusion.get(key) for group in self.groups for fusion in group.fusions)


@dataclass(frozen=True)
class KeptGroup:
    """Kept subgraphs with one code and one reason; names and numbers within the reason may differ."""

    entries: tuple[Entry, ...]

    @property
    def first(self) -> Entry:
        """The member whose reason and hint are shown."""
        return self.entries[0]

    @property
    def rules(self) -> list[str]:
        """The rules that were kept from fusing, each once."""
        return list(dict.fromkeys(str(entry["rule"]) for entry in self.entries))

    @property
    def anchors(self) -> list[str]:
        """Where, each place once."""
        return list(dict.fromkeys(str(entry["anchor"]) for entry in self.entries))

    @property
    def varies(self) -> bool:
        """Whether the reasons are not word by word the same."""
        return any(entry["reason"] != self.first["reason"] for entry in self.entries)


@dataclass(frozen=True)
class Row:
    """A line of the headline table: a figure before and after as text, and the change.

    Where `after_atc` is told, `after` is what runs in the end, after atcfuse and ATC, and the change is against it.
    `figure` is the key of the figure in the summary, without its side.
    """

    label: str
    before: str
    after: str
    change: str = ""
    after_atc: str = ""
    figure: str = ""


def fused_shape(fusion: Entry) -> str:
    """Everything about a fusion but the names in it, as a key to compare by."""
    shape = [fusion.get(key) for key in _SHAPE_KEYS]
    return json.dumps([*shape, len(fusion["nodes"]), fusion.get("kernel")], sort_keys=True)


def fusion_groups(fusions: Iterable[Entry]) -> list[FusionGroup]:
    """Equal fusions folded, in the order in which they first occur."""
    folded: dict[str, list[Entry]] = {}
    for fusion in fusions:
        folded.setdefault(fused_shape(fusion), []).append(fusion)
    return [FusionGroup(tuple(members)) for members in folded.values()]


def rule_groups(report: Report) -> list[RuleGroup]:
    """Every rule of the report: those that fused, with most launches saved first, then the others by name."""
    by_rule: dict[str, list[Entry]] = {}
    for fusion in report["fusions"]:
        by_rule.setdefault(fusion["rule"], []).append(fusion)
    idle = sorted(set(report["rules"]) - set(by_rule))
    found = []
    for rule in [*sorted(by_rule, key=lambda rule: -_launches_saved(by_rule[rule])), *idle]:
        entry = report["rules"].get(rule, {})
        groups = tuple(fusion_groups(by_rule.get(rule, ())))
        found.append(RuleGroup(rule, entry.get("switch", "on"), entry.get("match_times"), groups))
    return found


def _launches_saved(fusions: Iterable[Entry]) -> int:
    return sum(fusion["launches_saved"] or 0 for fusion in fusions)


IDLE_NAMED = 8
"""So many rules that found nothing are told by name; of more, how many they are."""


def idle_rules(rules: Iterable[RuleGroup]) -> list[str]:
    """The rules that are on and found nothing in the model, by name."""
    return [rule.rule for rule in rules if not rule.groups and not rule.matched and rule.switch != "off"]


def kept_groups(kept: Iterable[Entry]) -> list[KeptGroup]:
    """Kept subgraphs by code and reason, the most frequent first."""
    found: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in kept:
        found.setdefault((entry["code"], template(entry), str(entry["hint"] or "")), []).append(entry)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return [KeptGroup(tuple(entries)) for _, entries in ordered]


def template(entry: Entry, names: Collection[str] = ()) -> str:
    """The reason of a kept subgraph without what the model names: quoted text, the anchor, the value it failed on,
    `names`, and words that look like a name or a number."""
    reason = _QUOTED.sub("…", str(entry["reason"]))
    for name in (entry["anchor"], entry.get("value")):
        if isinstance(name, str) and len(name) > 2:
            reason = reason.replace(name, "…")
    return " ".join(_template_word(word, names) for word in reason.split())


def _template_word(word: str, names: Collection[str]) -> str:
    core = word.strip(".,;:()")
    return word.replace(core, "…") if core and (core in names or not _OF_NAMES.isdisjoint(core)) else word


def reason_of(group: KeptGroup) -> str:
    """The reason, marked as an example where the members name different things in it."""
    reason = tell(str(group.first["reason"]))
    return say("e.g. {}", reason) if group.varies else reason


def plugin_source(plugin: Entry) -> str:
    """Which nodes a plugin is for: `OpType of domain, opset n`."""
    source = say("{} of {}", plugin["op_type"], plugin["domain"] or say("the empty domain"))
    return source if plugin["opset"] is None else say("{}, opset {}", source, plugin["opset"])


def facts(report: Report) -> list[str]:
    """What was optimized and for what: opset, chip, dialect, version."""
    model = report["model"]
    known = [f"opset {model['opset']}" if model["opset"] is not None else ""]
    known += [report["soc"] or "", say("dialect {}", report["dialect"]) if report["dialect"] else ""]
    return [*filter(None, known), f"atcfuse {report['atcfuse']}"]


def listed(texts: Iterable[str]) -> str:
    """Texts one after the other, with the comma of the language spoken."""
    return say(", ").join(texts)


def sentence(text: str) -> str:
    """A text as a sentence of its own, with a capital letter and a full stop."""
    return say("{}.", f"{text[0].upper()}{text[1:]}")


def all_diagnostics(report: Report) -> list[Entry]:
    """The diagnostics of the run, then those of its fusions."""
    return [*report["diagnostics"], *(entry for fusion in report["fusions"] for entry in fusion["diagnostics"])]


def headline_table(report: Report, of_bytes: Callable[[Figure], str]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the headline table; three columns of figures where something is known of ATC's own passes."""
    rows = headline_rows(report, of_bytes)
    if not any(row.after_atc for row in rows):
        return ["", say("before"), say("after"), say("change")], [[r.label, r.before, r.after, r.change] for r in rows]
    head = ["", say("as exported"), say("after ATC"), say("after atcfuse + ATC"), say("change")]
    return head, [[r.label, r.before, r.after_atc or "-", r.after, r.change] for r in rows]


def knows_atc(report: Report) -> bool:
    """Whether the report tells what ATC's own passes make of the model."""
    return report["summary"].get("launches_after_atc") is not None


def columns_line(report: Report) -> str:
    """What the columns of the headline table are about, in one sentence; "" where ATC has none."""
    if not knows_atc(report):
        return ""
    alone = count(report["summary"]["launches_after"])
    return say(
        "what ATC's own passes do is estimated; where that is told, the change is against ATC alone. "
        "What atcfuse hands over has {} launches, and ATC fuses among those",
        alone,
    )


def elsewhere_line(report: Report) -> str:
    """What the launches that fusions save lack to those that the model has less, in one sentence; "" for nothing."""
    summary = report["summary"]
    exported, against = (summary.get(f"launches_elsewhere{by}") for by in ("", "_after_atc"))
    if not exported and not against:
        return ""
    told = count_change(exported)
    if against is not None:
        told = say("{} against ATC alone, {} as exported", count_change(against), told)
    return say(
        "launches that no fusion claims: {} (operators that were moved or spelled out, that layers share, "
        "or that stand beside fused ones)",
        told,
    )


def headline_rows(report: Report, of_bytes: Callable[[Figure], str]) -> list[Row]:
    """The figures of the headline table, bytes as `of_bytes` shows them; weights only where they are told."""
    summary = report["summary"]
    rows = [
        _count_row(summary, say("launches"), "launches"),
        _row(summary, say("DDR bytes"), "ddr_bytes", of_bytes),
        *_rows_where_known(summary, of_bytes),
        _time_row(summary),
    ]
    if summary.get("conversions_before") or summary.get("conversions_after"):
        rows.append(_count_row(summary, say("conversions by ATC"), "conversions"))
    if summary.get("weight_bytes_before") is not None or summary.get("weight_bytes_after") is not None:
        rows.append(_row(summary, say("weight bytes"), "weight_bytes", of_bytes))
    rows.append(_count_row(summary, say("nodes"), "nodes"))
    rows.append(_count_row(summary, say("of these views"), "views"))
    rows.append(_count_row(summary, say("of these on the host"), "host_nodes"))
    return rows


def _rows_where_known(summary: Entry, of_bytes: Callable[[Figure], str]) -> list[Row]:
    named = ((say("memory traffic"), "gm_bytes"), (say("of it past L2"), "l2_miss_bytes"))
    return [_row(summary, label, key, of_bytes) for label, key in named if summary.get(f"{key}_before") is not None]


def basis_line(report: Report) -> str:
    """What the figures rest on, in one sentence; "" for a report that does not say."""
    basis = report.get("basis") or {}
    if "time_us" not in basis:
        return say("launches and bytes are computed from graph and shapes") if basis else ""
    return say(
        "launches, bytes and on-chip use are computed from graph, shapes and tilings; times and what passes L2 are "
        "estimated from the SoC file of {}",
        report["soc"],
    )


def traffic(fusion: Entry) -> str:
    """How a fusion changes the traffic at global memory and past L2, and what its workspace takes; "" if unknown."""
    if fusion.get("gm_bytes_before") is None:
        return ""
    moved, missed = (
        f"{human_bytes(fusion[f'{key}_before'])} → {human_bytes(fusion[f'{key}_after'])}"
        for key in ("gm_bytes", "l2_miss_bytes")
    )
    footprint = (fusion.get("kernel_bytes") or {}).get("workspace_footprint")
    told = say("memory traffic {}, of it past L2 {}", moved, missed)
    if not footprint:
        return told
    told = say("{}, workspace {}", told, human_bytes(footprint))
    if fusion["gm_bytes_after"] <= fusion["gm_bytes_before"]:
        return told
    return say("{}; more in all, as its cores meet in global memory, where it stays in L2", told)


def headline(report: Report) -> str:
    """The one sentence: launches and DDR bytes before and after; the change is against ATC alone where that is told."""
    summary = report["summary"]
    if knows_atc(report):
        launches = _three_steps(summary, "launches", count)
        steps = say("launches {} → {} with ATC → {} with atcfuse too{}", *launches)
        return listed([steps, "DDR {} → {} → {}{}".format(*_three_steps(summary, "ddr_bytes", human_bytes))])
    steps = say("launches {}", _step(summary["launches_before"], summary["launches_after"], count))
    return listed([steps, f"DDR {_step(summary['ddr_bytes_before'], summary['ddr_bytes_after'], human_bytes)}"])


def _three_steps(summary: Entry, key: str, shown: Callable[[Figure], str]) -> tuple[str, ...]:
    """A figure as exported, after ATC and after both, and the change in brackets."""
    before, atc, both = (summary.get(f"{key}_{side}") for side in ("before", "after_atc", "after_both"))
    return shown(before), shown(atc), shown(both), _bracketed(percent(atc, both))


def _bracketed(ratio: str) -> str:
    return f" ({ratio})" if ratio else ""


def _time_row(summary: Entry) -> Row:
    before, after, atc = (summary.get(f"time_us_{side}") for side in ("before", "after", "after_atc"))
    if atc is None:
        return Row(say("time"), microseconds(before), microseconds(after), figure="time_us")
    both = summary.get("time_us_after_both")
    return Row(say("time"), microseconds(before), microseconds(both), "", microseconds(atc), "time_us")


def _step(before: Figure, after: Figure, shown: Callable[[Figure], str]) -> str:
    if before is None and after is None:
        return shown(None)
    return f"{shown(before)} → {shown(after)}{_bracketed(percent(before, after))}"


def _count_row(summary: Entry, label: str, key: str) -> Row:
    return _row(summary, label, key, count)


def _row(summary: Entry, label: str, key: str, shown: Callable[[Figure], str]) -> Row:
    before, after = summary.get(f"{key}_before"), summary.get(f"{key}_after")
    atc, both = summary.get(f"{key}_after_atc"), summary.get(f"{key}_after_both")
    if atc is None:
        return Row(label, shown(before), shown(after), percent(before, after), figure=key)
    return Row(label, shown(before), shown(both), percent(atc, both), shown(atc), key)
