"""A difference of two reports for the terminal."""

from __future__ import annotations

from atcfuse.lang import say, speaking, tell
from atcfuse.report.compare import Diff, is_empty
from atcfuse.report.diff_groups import ChangeGroup, Counted, change_groups, counted_fusions, figure_rows, kept_lines
from atcfuse.report.figures import count
from atcfuse.report.groups import listed
from atcfuse.report.layout import Page
from atcfuse.report.names import UNNAMED, shorten, span_text


def diff_text(difference: Diff, width: int = 80, color: bool = False, lang: str | None = None) -> str:
    """The difference as text of at most `width` (at least 40) columns; escape sequences only with `color`."""
    page = Page(width, color)
    with speaking(lang):
        _fill(page, difference)
    return page.text()


def _fill(page: Page, difference: Diff) -> None:
    sides = (difference["before"]["model"]["name"], difference["after"]["model"]["name"])
    page.title(" → ".join(shorten(name or UNNAMED, page.width // 2 - 2) for name in dict.fromkeys(sides)))
    for caveat in difference["caveats"]:
        page.diagnostic("warning", say("not like with like: {}", tell(caveat)))
    if is_empty(difference):
        page.bullet(say("No difference."))
        return
    if difference["summary"]:
        page.lines.append("")
        page.table(["", say("before"), say("after"), say("change")], figure_rows(difference))
    _fusions(page, say("Lost fusions"), "-", counted_fusions(difference["fusions"]["lost"]))
    _fusions(page, say("New fusions"), "+", counted_fusions(difference["fusions"]["new"]))
    _changed(page, change_groups(difference["fusions"]["changed"]))
    _rules(page, difference)
    _kept(page, difference)
    _plugins(page, difference)


def _fusions(page: Page, title: str, mark: str, groups: list[Counted]) -> None:
    if not groups:
        return
    page.section(say("{}: {}", title, count(sum(len(group.names) for group in groups))))
    for group in groups:
        head = f"{group.label}:"
        page.bullet(f"{head} {span_text(group.names, page.room(2, head))}", mark)
        if group.because:
            page.detail(group.because)


def _changed(page: Page, groups: list[ChangeGroup]) -> None:
    if not groups:
        return
    page.section(say("{}: {}", say("Changed fusions"), count(sum(len(group.names) for group in groups))))
    for group in groups:
        head = f"{group.label}:"
        page.bullet(f"{head} {span_text(group.names, page.room(2, head))}", "~")
        for change in group.changes:
            page.detail(change)


def _rules(page: Page, difference: Diff) -> None:
    if not difference["rules"]:
        return
    page.section(say("Fusions by rule"))
    for rule, change in difference["rules"].items():
        step = f"{change['before']:,} → {change['after']:,}"
        off = [say("switched off")] if change["switch"]["after"] == "off" else []
        page.bullet(say("{}: {}", rule, listed([step, *off])))


def _kept(page: Page, difference: Diff) -> None:
    lines = kept_lines(difference["kept"])
    if not lines:
        return
    page.section(say("Kept"))
    for line in lines:
        page.bullet(say("{} ({})", line.text, line.where), line.mark)


def _plugins(page: Page, difference: Diff) -> None:
    plugins = difference["plugins"]
    if not (plugins["new"] or plugins["lost"]):
        return
    page.section(say("Plugins that ATC must find installed"))
    for mark, key in (("+", "new"), ("-", "lost")):
        for plugin in plugins[key]:
            page.bullet(plugin, mark)
