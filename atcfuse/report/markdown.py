"""A report as GitHub-flavoured Markdown, for a pull request and its diff."""

from __future__ import annotations

from atcfuse.lang import say, speaking, tell
from atcfuse.report.atc_passes import atc_passes, saved_texts
from atcfuse.report.document import Report
from atcfuse.report.figures import count, count_change, exact_bytes
from atcfuse.report.groups import (
    IDLE_NAMED,
    Entry,
    FusionGroup,
    KeptGroup,
    RuleGroup,
    all_diagnostics,
    basis_line,
    columns_line,
    elsewhere_line,
    facts,
    headline,
    headline_table,
    idle_rules,
    kept_groups,
    knows_atc,
    listed,
    plugin_source,
    reason_of,
    rule_groups,
    sentence,
)
from atcfuse.report.markup import code, codes, prose, section, span, table
from atcfuse.report.names import UNNAMED, pairs

_PLACES_SHOWN = 3


def to_markdown(report: Report, lang: str | None = None) -> str:
    """The report as Markdown; whatever a model names is inert text in it."""
    with speaking(lang):
        title = say("{}: {}", code(report["model"]["name"] or UNNAMED), headline(report))
        lines = [f"## {title}", "", *_headline(report)]
        lines += section(say("By rule"), _by_rule(report))
        lines += section(say("Fusions"), _fusions(report))
        lines += section(say("ATC's own passes, estimated"), _atc(report))
        lines += section(say("Kept"), _kept(report))
        lines += section(say("Plugins that ATC must find installed"), _plugins(report))
        lines += section(say("Assumptions"), _assumptions(report))
        lines += section(say("Switched off"), _switches(report))
        lines += section(say("Diagnostics"), _diagnostics(report))
    return "\n".join(lines) + "\n"


def _headline(report: Report) -> list[str]:
    head, rows = headline_table(report, exact_bytes)
    lines = [*table(head, rows, range(1, len(head))), "", listed(prose(fact) for fact in facts(report))]
    for said in filter(None, (columns_line(report), elsewhere_line(report), basis_line(report))):
        lines += ["", prose(sentence(said))]
    return lines


def _by_rule(report: Report) -> list[str]:
    rows = []
    atc = knows_atc(report)
    rules = rule_groups(report)
    idle = idle_rules(rules)
    for rule in (r for r in rules if r.rule not in idle):
        matched = "" if rule.matched is None else count(rule.matched)
        saved = _saved(rule, atc) if rule.groups else [""] * len(_saved_head(atc))
        rows.append([code(rule.rule), prose(say(rule.switch)), matched, count(rule.count), *saved])
    head = [say("rule"), say("switch"), say("matched"), say("fused"), *_saved_head(atc)]
    lines = table(head, rows, range(2, len(head))) if rows else []
    if not idle:
        return lines
    many = say("Nothing for {} other rules; `atcfuse rules list` shows all.", len(idle))
    return [*lines, *([""] if lines else []), many if len(idle) > IDLE_NAMED else say("Nothing for {}.", codes(idle))]


def _saved_head(atc: bool, each: bool = False) -> list[str]:
    head = [say("launches"), say("DDR bytes"), say("time saved")]
    if each:
        head = [say("launches each"), say("DDR each"), say("saves each")]
    sides = (say("against ATC"), say("as exported"))
    return [say("{} ({})", title, side) for side in sides for title in head] if atc else head


def _saved(group: FusionGroup | RuleGroup, atc: bool) -> list[str]:
    """Launches, DDR and time; against ATC's own passes first where the report knows those."""
    exported, against = saved_texts(group, each=isinstance(group, FusionGroup))
    return [*(against or ["-"] * len(exported)), *exported] if atc else exported


def _fusions(report: Report) -> list[str]:
    atc = knows_atc(report)
    rows = [_fusion(group, atc) for rule in rule_groups(report) for group in rule.groups]
    about = [say("fused operator"), "×", say("where"), say("replaces")]
    head = [*about, *_saved_head(atc, each=True), say("how")]
    return table(head, rows, (1, *range(3, len(head) - 1))) if rows else [say("Nothing fused.")]


def _fusion(group: FusionGroup, atc: bool) -> list[str]:
    first, times = group.first, len(group.fusions)
    each = _saved(group, atc)
    return [code(first["op"]), str(times), span(group.names), str(len(first["nodes"])), *each, codes(group.settings)]


def _atc(report: Report) -> list[str]:
    passes = atc_passes(report)
    if passes is None:
        return []
    rows = [_pass(one) for one in (*passes.acting, *passes.off)]
    head = [say("pass"), say("state"), say("makes"), "×", say("launches")]
    head += [say("× after atcfuse"), say("launches after atcfuse"), say("from")]
    lines = table(head, rows, range(3, 7)) if rows else []
    notes = [say("{}: {}", code(p["name"]), prose(tell(p["numerics"]))) for p in passes.acting if p["numerics"]]
    notes += [say("Nothing for {}.", codes(passes.idle))] if passes.idle else []
    notes.append(prose(sentence(tell(passes.basis))))
    return [*lines, *(line for note in notes for line in ("", note))][0 if lines else 1 :]


def _pass(one: Entry) -> list[str]:
    return [
        code(one["name"]),
        prose(tell(one["why"]) or say(one["state"])),
        code(one["makes"]),
        count(one["times"]),
        count_change(one["launches_saved"]),
        count(one["times_after"]),
        count_change(one["launches_saved_after"]),
        prose(tell(one["source"])),
    ]


def _kept(report: Report) -> list[str]:
    rows = [_kept_row(group) for group in kept_groups(report["kept"])]
    head = [say("code"), "×", say("rule"), say("reason"), say("where"), say("what to do")]
    return table(head, rows, (1,)) if rows else []


def _kept_row(group: KeptGroup) -> list[str]:
    anchors = group.anchors
    more = len(anchors) - _PLACES_SHOWN
    where = codes(anchors[:_PLACES_SHOWN])
    where = say("{} and {} more", where, f"{more:,}") if more > 0 else where
    hint = prose(tell(group.first["hint"] or ""))
    return [
        prose(group.first["code"]),
        str(len(group.entries)),
        codes(group.rules),
        prose(reason_of(group)),
        where,
        hint,
    ]


def _plugins(report: Report) -> list[str]:
    return [say("- {} for {}", code(p["key"]), prose(plugin_source(p))) for p in report["plugins"]]


def _assumptions(report: Report) -> list[str]:
    dims = report["summary"]["assumed_dims"]
    return [say("Figures hold for {}; set them with `--assume`.", codes(pairs(dims)))] if dims else []


def _switches(report: Report) -> list[str]:
    rows = [
        [code(switch["name"]), prose(switch["kind"]), prose(tell(switch["why"] or ""))]
        for switch in report["switches"]
        if switch["state"] == "off"
    ]
    return table([say("switch"), say("kind"), say("why")], rows) if rows else []


def _diagnostics(report: Report) -> list[str]:
    rows = [_diagnostic(entry) for entry in all_diagnostics(report)]
    head = [say("severity"), say("code"), say("where"), say("message"), say("notes")]
    return table(head, rows) if rows else []


def _diagnostic(entry: Entry) -> list[str]:
    notes = filter(None, [*entry.get("notes", ()), entry.get("hint")])
    texts = [say(entry["severity"]), entry["code"], entry.get("span") or "", tell(entry["message"])]
    return [*map(prose, texts), say("; ").join(prose(tell(note)) for note in notes)]
