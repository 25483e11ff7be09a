"""A difference of two reports for the terminal."""

from __future__ import annotations

from atcfuse.report.compare import Diff, is_empty
from atcfuse.report.diff_groups import ChangeGroup, Counted, change_groups, counted_fusions, figure_rows, kept_lines
from atcfuse.report.figures import count
from atcfuse.report.layout import Page
from atcfuse.report.names import UNNAMED, shorten, span_text

NO_DIFFERENCE = "No difference."


def diff_text(difference: Diff, width: int = 80, color: bool = False) -> str:
    """The difference as text of at most `width` (at least 40) columns; escape sequences only with `color`."""
    page = Page(width, color)
    sides = (difference["before"]["model"]["name"], difference["after"]["model"]["name"])
    page.title(" → ".join(shorten(name or UNNAMED, page.width // 2 - 2) for name in dict.fromkeys(sides)))
    for caveat in difference["caveats"]:
        page.diagnostic("warning", f"not like with like: {caveat}")
    if is_empty(difference):
        page.bullet(NO_DIFFERENCE)
        return page.text()
    if difference["summary"]:
        page.lines.append("")
        page.table(["", "before", "after", "change"], figure_rows(difference))
    _fusions(page, "Lost fusions", "-", counted_fusions(difference["fusions"]["lost"]))
    _fusions(page, "New fusions", "+", counted_fusions(difference["fusions"]["new"]))
    _changed(page, change_groups(difference["fusions"]["changed"]))
    _rules(page, difference)
    _kept(page, difference)
    _plugins(page, difference)
    return page.text()


def _fusions(page: Page, title: str, mark: str, groups: list[Counted]) -> None:
    if not groups:
        return
    page.section(f"{title}: {count(sum(len(group.names) for group in groups))}")
    for group in groups:
        head = f"{group.label}:"
        page.bullet(f"{head} {span_text(group.names, page.room(2, head))}", mark)
        if group.because:
            page.detail(group.because)


def _changed(page: Page, groups: list[ChangeGroup]) -> None:
    if not groups:
        return
    page.section(f"Changed fusions: {count(sum(len(group.names) for group in groups))}")
    for group in groups:
        head = f"{group.label}:"
        page.bullet(f"{head} {span_text(group.names, page.room(2, head))}", "~")
        for change in group.changes:
            page.detail(change)


def _rules(page: Page, difference: Diff) -> None:
    if not difference["rules"]:
        return
    page.section("Fusions by rule")
    for rule, change in difference["rules"].items():
        off = ", switched off" if change["switch"]["after"] == "off" else ""
        page.bullet(f"{rule}: {change['before']:,} → {change['after']:,}{off}")


def _kept(page: Page, difference: Diff) -> None:
    lines = kept_lines(difference["kept"])
    if not lines:
        return
    page.section("Kept")
    for line in lines:
        page.bullet(f"{line.text} ({line.where})", line.mark)


def _plugins(page: Page, difference: Diff) -> None:
    plugins = difference["plugins"]
    if not (plugins["new"] or plugins["lost"]):
        return
    page.section("Plugins that ATC must find installed")
    for mark, key in (("+", "new"), ("-", "lost")):
        for plugin in plugins[key]:
            page.bullet(plugin, mark)
