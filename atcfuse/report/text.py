"""A report for the terminal: the answer first, then what fused, what was kept, and what to know about both."""

from __future__ import annotations

from atcfuse.lang import say, speaking, tell
from atcfuse.report.atc_passes import atc_passes, saved_texts
from atcfuse.report.document import Report
from atcfuse.report.figures import (
    Time,
    count,
    count_change,
    human_bytes,
    plural,
)
from atcfuse.report.groups import (
    IDLE_NAMED,
    Entry,
    FusionGroup,
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
    traffic,
)
from atcfuse.report.layout import Page
from atcfuse.report.names import UNNAMED, listed_names, pairs, shorten, span_text

_PLACES_SHOWN = 3
_OP_COLUMNS = 28
_LINE_NAME = 60


def to_line(report: Report, lang: str | None = None) -> str:
    """The report in one line without a line end: model, launches and DDR bytes, fusions and kept."""
    with speaking(lang):
        name = shorten(report["model"]["name"] or UNNAMED, _LINE_NAME)
        fused = plural(len(report["fusions"]), "{} fusion", "{} fusions")
        return say("{}: {}, {}, {} kept", name, headline(report), fused, f"{len(report['kept']):,}")


def to_text(report: Report, width: int = 80, color: bool = False, lang: str | None = None) -> str:
    """The report as text of at most `width` (at least 40) columns; escape sequences only with `color`."""
    page = Page(width, color)
    with speaking(lang):
        _headline(page, report)
        _fusions(page, report)
        _atc(page, report)
        _kept(page, report)
        _plugins(page, report)
        _assumptions(page, report)
        _switches(page, report)
        _diagnostics(page, report)
        _files(page, report)
    return page.text()


def diagnostic_line(entry: Entry) -> str:
    """A diagnostic of a report in one line."""
    where = f"{entry['span']}: " if entry.get("span") else ""
    return f"{where}{say(entry['severity'])}: {entry['code']}: {tell(entry['message'])}"


def _headline(page: Page, report: Report) -> None:
    page.title(say("{}: {}", shorten(report["model"]["name"] or UNNAMED, page.width // 2), headline(report)))
    page.detail(listed(facts(report)), depth=1)
    page.lines.append("")
    page.table(*headline_table(report, human_bytes))
    before, after = report["summary"]["ddr_bytes_before"], report["summary"]["ddr_bytes_after"]
    if before is not None or after is not None:
        columns = ("before", "after_atc", "after_both") if knows_atc(report) else ("before", "after")
        shown = " → ".join(count(report["summary"].get(f"ddr_bytes_{column}")) for column in columns)
        page.detail(say("DDR exactly: {} bytes", shown), depth=1)
    for line in filter(None, (columns_line(report), elsewhere_line(report), basis_line(report))):
        page.detail(line, depth=1)


def _fusions(page: Page, report: Report) -> None:
    page.section(say("Fusions: {}", count(len(report["fusions"]))))
    rules = rule_groups(report)
    if not report["fusions"]:
        page.bullet(say("nothing fused"))
    for rule in rules:
        if rule.groups:
            _rule(page, rule)
    told = [rule for rule in rules if not rule.groups and (rule.matched or rule.switch == "off")]
    for rule in told:
        why = say("switched off") if rule.switch == "off" else say("none fused")
        matched = [plural(rule.matched, "{} match", "{} matches")] if rule.matched else []
        page.detail(say("{}: {}", rule.rule, listed([*matched, why])), depth=1)
    idle = idle_rules(rules)
    if len(idle) > IDLE_NAMED:
        page.detail(say("nothing for {} other rules; `atcfuse rules list` shows all", len(idle)), depth=1)
    elif idle:
        page.detail(say("nothing for {}", ", ".join(idle)), depth=1)


def _rule(page: Page, rule: RuleGroup) -> None:
    saved = _saved(rule, rule.time_saved())
    more = rule.matched is not None and rule.matched > rule.count
    made = plural(rule.count, "{} fusion", "{} fusions")
    if more:
        made = say("{} of {}", made, plural(rule.matched or 0, "{} match", "{} matches"))
    page.bullet(say("{}: {}; {}", rule.rule, made, saved))
    for group in rule.groups:
        title = group_title(group)
        page.bullet(f"{title}  {span_text(group.names, page.room(2, title, ''))}", depth=2)
        first, nodes = group.first, plural(len(group.first["nodes"]), "{} node", "{} nodes")
        replaced = say("each replaces {}", nodes) if len(group.fusions) > 1 else say("replaces {}", nodes)
        page.detail(say("{}; {}", replaced, _saved(group, first.get("time_us_saved"))), depth=3)
        if traffic(first):
            page.detail(traffic(first), depth=3)
        for remark in first.get("remarks") or ():
            page.detail(say("remark: {}", tell(remark)), depth=3)
        if group.settings:
            page.detail(listed_names(group.settings), depth=3)


def group_title(group: FusionGroup) -> str:
    """`FusedAttention ×12`, or the operator alone for one fusion."""
    op = shorten(group.first["op"], _OP_COLUMNS)
    return op if len(group.fusions) == 1 else f"{op} ×{len(group.fusions)}"


def _saved(group: FusionGroup | RuleGroup, known: Time) -> str:
    """What is saved: against ATC's own passes first where that is known, then as exported."""
    exported, against = saved_texts(group, each=isinstance(group, FusionGroup))
    launches, moved, time = exported
    told = say("launches {}, DDR {}", launches, moved)
    if known is not None:
        told = say("launches {}, DDR {}, {} saved", launches, moved, time)
    if not against:
        return told
    if against == exported:
        return say("{}, against ATC alone too", told)
    return say("against ATC alone launches {}, DDR {}, {} saved; as exported {}", *against, told)


def _atc(page: Page, report: Report) -> None:
    passes = atc_passes(report)
    if passes is None:
        return
    page.section(say("ATC's own passes, estimated"))
    for one in passes.acting:
        counts = f"×{one['times']:,}", count_change(one["launches_saved"])
        after = f"×{one['times_after']:,}", count_change(one["launches_saved_after"])
        said = "{} makes {}: {}, launches {}; after atcfuse {}, launches {}"
        page.bullet(say(said, one["name"], one["makes"], *counts, *after))
        if one["numerics"]:
            page.detail(say("remark: {}", tell(one["numerics"])))
    for one in passes.off:
        page.bullet(say("{}: {}", one["name"], tell(one["why"])))
    if passes.idle:
        page.detail(say("nothing for {}", listed_names(passes.idle)), depth=1)
    page.detail(tell(passes.basis), depth=1)


def _kept(page: Page, report: Report) -> None:
    if not report["kept"]:
        return
    page.section(say("Kept: {}", count(len(report["kept"]))))
    for group in kept_groups(report["kept"]):
        head = f"{group.first['code']} ×{len(group.entries)} {', '.join(group.rules)}"
        page.bullet(say("{}: {}", head, reason_of(group)))
        places = group.anchors
        shown = ", ".join(shorten(place or UNNAMED, page.room(3)) for place in places[:_PLACES_SHOWN])
        more = len(places) - _PLACES_SHOWN
        page.detail(say("at {} and {} more", shown, f"{more:,}") if more > 0 else say("at {}", shown))
        if group.first["hint"]:
            page.detail(say("help: {}", tell(group.first["hint"])))


def _plugins(page: Page, report: Report) -> None:
    if not report["plugins"]:
        return
    page.section(say("Plugins that ATC must find installed"))
    for plugin in report["plugins"]:
        page.bullet(f"{plugin['key']} ({plugin_source(plugin)})")


def _assumptions(page: Page, report: Report) -> None:
    dims = report["summary"]["assumed_dims"]
    if not dims:
        return
    page.section(say("Assumed dims"))
    page.bullet(listed_names(pairs(dims)))
    page.detail(say("figures hold for these; set them with --assume"), depth=1)


def _switches(page: Page, report: Report) -> None:
    off = [switch for switch in report["switches"] if switch["state"] == "off"]
    if not off:
        return
    page.section(say("Switched off"))
    for switch in off:
        name = f"{switch['name']} ({switch['kind']})"
        page.bullet(say("{}: {}", name, tell(switch["why"])) if switch["why"] else name)


def _diagnostics(page: Page, report: Report) -> None:
    found = all_diagnostics(report)
    if not found:
        return
    page.section(say("Diagnostics: {}", count(len(found))))
    for entry in found:
        page.diagnostic(entry["severity"], diagnostic_line(entry))
        for note in entry.get("notes", ()):
            page.detail(say("note: {}", tell(note)))
        if entry.get("hint"):
            page.detail(say("help: {}", tell(entry["hint"])))


def _files(page: Page, report: Report) -> None:
    shown = {name: ", ".join(p) if isinstance(p, list) else p for name, p in report["files"].items()}
    written = {name: path for name, path in shown.items() if isinstance(path, str)}
    if not written:
        return
    page.section(say("Files"))
    known = {"kernels": say("kernels"), "model": say("model"), "page": say("page"), "report": say("report")}
    for name in sorted(written):
        page.bullet(say("{}: {}", known.get(name, name), written[name]))
