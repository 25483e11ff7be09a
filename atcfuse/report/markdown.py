"""A report as GitHub-flavoured Markdown, for a pull request and its diff."""

from __future__ import annotations

from atcfuse.report.atc_passes import atc_passes, saved_texts
from atcfuse.report.document import Report
from atcfuse.report.figures import count, count_change, exact_bytes
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
)
from atcfuse.report.markup import code, codes, prose, section, span, table
from atcfuse.report.names import UNNAMED, pairs

_PLACES_SHOWN = 3


def to_markdown(report: Report) -> str:
    """The report as Markdown; whatever a model names is inert text in it."""
    lines = [f"## {code(report['model']['name'] or UNNAMED)}: {headline(report)}", "", *_headline(report)]
    lines += section("By rule", _by_rule(report))
    lines += section("Fusions", _fusions(report))
    lines += section("ATC's own passes, estimated", _atc(report))
    lines += section("Kept", _kept(report))
    lines += section("Plugins that ATC must find installed", _plugins(report))
    lines += section("Assumptions", _assumptions(report))
    lines += section("Switched off", _switches(report))
    lines += section("Diagnostics", _diagnostics(report))
    return "\n".join(lines) + "\n"


def _headline(report: Report) -> list[str]:
    head, rows = headline_table(report, exact_bytes)
    lines = [*table(head, rows, range(1, len(head))), "", ", ".join(prose(fact) for fact in facts(report))]
    for said in filter(None, (columns_line(report), basis_line(report))):
        lines += ["", prose(f"{said[0].upper()}{said[1:]}.")]
    return lines


def _by_rule(report: Report) -> list[str]:
    rows = []
    atc = knows_atc(report)
    rules = rule_groups(report)
    idle = idle_rules(rules)
    for rule in (r for r in rules if r.rule not in idle):
        matched = "" if rule.matched is None else count(rule.matched)
        saved = _saved(rule, atc) if rule.groups else [""] * len(_saved_head("", atc))
        rows.append([code(rule.rule), prose(rule.switch), matched, count(rule.count), *saved])
    head = ["rule", "switch", "matched", "fused", *_saved_head("", atc)]
    lines = table(head, rows, range(2, len(head))) if rows else []
    return [*lines, *([""] if lines else []), f"Nothing for {codes(idle)}."] if idle else lines


def _saved_head(each: str, atc: bool) -> list[str]:
    head = [f"launches{each}", f"DDR{each}" if each else "DDR bytes", f"saves{each}" if each else "time saved"]
    return [f"{title} ({side})" for side in ("against ATC", "as exported") for title in head] if atc else head


def _saved(group: FusionGroup | RuleGroup, atc: bool) -> list[str]:
    """Launches, DDR and time; against ATC's own passes first where the report knows those."""
    exported, against = saved_texts(group, each=isinstance(group, FusionGroup))
    return [*(against or ["-"] * len(exported)), *exported] if atc else exported


def _fusions(report: Report) -> list[str]:
    atc = knows_atc(report)
    rows = [_fusion(group, atc) for rule in rule_groups(report) for group in rule.groups]
    head = ["fused operator", "×", "where", "replaces", *_saved_head(" each", atc), "how"]
    return table(head, rows, (1, *range(3, len(head) - 1))) if rows else ["Nothing fused."]


def _fusion(group: FusionGroup, atc: bool) -> list[str]:
    first, times = group.first, len(group.fusions)
    each = _saved(group, atc)
    return [code(first["op"]), str(times), span(group.names), str(len(first["nodes"])), *each, codes(group.settings)]


def _atc(report: Report) -> list[str]:
    passes = atc_passes(report)
    if passes is None:
        return []
    rows = [_pass(one) for one in (*passes.acting, *passes.off)]
    head = ["pass", "state", "makes", "×", "launches", "× after atcfuse", "launches after atcfuse", "from"]
    lines = table(head, rows, range(3, 7)) if rows else []
    notes = [f"{code(one['name'])}: {prose(one['numerics'])}" for one in passes.acting if one["numerics"]]
    notes += [f"Nothing for {codes(passes.idle)}."] if passes.idle else []
    notes.append(prose(f"{passes.basis[0].upper()}{passes.basis[1:]}."))
    return [*lines, *(line for note in notes for line in ("", note))][0 if lines else 1 :]


def _pass(one: Entry) -> list[str]:
    return [
        code(one["name"]),
        prose(one["why"] or one["state"]),
        code(one["makes"]),
        count(one["times"]),
        count_change(one["launches_saved"]),
        count(one["times_after"]),
        count_change(one["launches_saved_after"]),
        prose(one["source"]),
    ]


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
