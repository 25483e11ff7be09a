"""A report as GitHub-flavoured Markdown, for a pull request and its diff."""

from __future__ import annotations

from atcfuse.report.document import Report
from atcfuse.report.figures import Figure, Time, bytes_change, count, count_change, exact_bytes, microseconds
from atcfuse.report.groups import (
    Entry,
    FusionGroup,
    KeptGroup,
    all_diagnostics,
    basis_line,
    facts,
    headline,
    headline_table,
    kept_groups,
    plugin_source,
    reason_of,
    rule_groups,
)
from atcfuse.report.markup import code, codes, prose, section, span, table
from atcfuse.report.names import UNNAMED, pairs

_PLACES_SHOWN = 3


def to_markdown(report: Report) -> str:
    """The report as Markdown; whatever a model names is inert text in it."""
    lines = [f"## {code(report['model']['name'] or UNNAMED)}: {headline(report)}", "", *_headline(report)]
    lines += section("By rule", _by_rule(report))
    lines += section("Fusions", _fusions(report))
    lines += section("Kept", _kept(report))
    lines += section("Plugins that ATC must find installed", _plugins(report))
    lines += section("Assumptions", _assumptions(report))
    lines += section("Switched off", _switches(report))
    lines += section("Diagnostics", _diagnostics(report))
    return "\n".join(lines) + "\n"


def _headline(report: Report) -> list[str]:
    head, rows = headline_table(report, exact_bytes)
    lines = [*table(head, rows, range(1, len(head))), "", ", ".join(prose(fact) for fact in facts(report))]
    basis = basis_line(report)
    return [*lines, "", prose(f"{basis[0].upper()}{basis[1:]}.")] if basis else lines


def _by_rule(report: Report) -> list[str]:
    rows = []
    for rule in rule_groups(report):
        matched = "" if rule.matched is None else count(rule.matched)
        saved = _saved(rule.saved("launches_saved"), rule.saved("ddr_bytes_saved"), rule.time_saved)
        rows.append(
            [code(rule.rule), prose(rule.switch), matched, count(rule.count), *(saved if rule.groups else ["", "", ""])]
        )
    head = ["rule", "switch", "matched", "fused", "launches", "DDR bytes", "time saved"]
    return table(head, rows, range(2, 7)) if rows else []


def _saved(launches: Figure, ddr_bytes: Figure, time: Time) -> list[str]:
    return [count_change(launches), bytes_change(ddr_bytes), microseconds(time)]


def _fusions(report: Report) -> list[str]:
    rows = [_fusion(group) for rule in rule_groups(report) for group in rule.groups]
    head = ["fused operator", "×", "where", "replaces", "launches each", "DDR each", "saves each", "how"]
    return table(head, rows, (1, 3, 4, 5, 6)) if rows else ["Nothing fused."]


def _fusion(group: FusionGroup) -> list[str]:
    first, times = group.first, len(group.fusions)
    each = _saved(first["launches_saved"], first["ddr_bytes_saved"], first.get("time_us_saved"))
    return [code(first["op"]), str(times), span(group.names), str(len(first["nodes"])), *each, codes(group.settings)]


def _kept(report: Report) -> list[str]:
    rows = [_kept_row(group) for group in kept_groups(report["kept"])]
    return table(["code", "×", "rule", "reason", "where", "what to do"], rows, (1,)) if rows else []


def _kept_row(group: KeptGroup) -> list[str]:
    anchors = group.anchors
    more = len(anchors) - _PLACES_SHOWN
    where = codes(anchors[:_PLACES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
    hint = prose(group.first["hint"] or "")
    return [
        prose(group.first["code"]),
        str(len(group.entries)),
        codes(group.rules),
        prose(reason_of(group)),
        where,
        hint,
    ]


def _plugins(report: Report) -> list[str]:
    return [f"- {code(plugin['key'])} for {prose(plugin_source(plugin))}" for plugin in report["plugins"]]


def _assumptions(report: Report) -> list[str]:
    dims = report["summary"]["assumed_dims"]
    return [f"Figures hold for {codes(pairs(dims))}; set them with `--assume`."] if dims else []


def _switches(report: Report) -> list[str]:
    rows = [
        [code(switch["name"]), prose(switch["kind"]), prose(switch["why"] or "")]
        for switch in report["switches"]
        if switch["state"] == "off"
    ]
    return table(["switch", "kind", "why"], rows) if rows else []


def _diagnostics(report: Report) -> list[str]:
    rows = [_diagnostic(entry) for entry in all_diagnostics(report)]
    return table(["severity", "code", "where", "message", "notes"], rows) if rows else []


def _diagnostic(entry: Entry) -> list[str]:
    notes = filter(None, [*entry.get("notes", ()), entry.get("hint")])
    texts = [entry["severity"], entry["code"], entry.get("span") or "", entry["message"]]
    return [*map(prose, texts), "; ".join(map(prose, notes))]
