"""A difference of two reports as Markdown, made for a comment on a pull request."""

from __future__ import annotations

from atcfuse.lang import say, speaking, tell
from atcfuse.report.compare import Diff, is_empty
from atcfuse.report.diff_groups import ChangeGroup, Counted, change_groups, counted_fusions, figure_rows, kept_lines
from atcfuse.report.gate import regressions
from atcfuse.report.markup import code, prose, section, span, table
from atcfuse.report.names import UNNAMED


def diff_markdown(difference: Diff, allowed: float = 0.0, lang: str | None = None) -> str:
    """The difference as Markdown; whatever a model names is inert text in it.

    What became worse is told first, but for figures that grew by no more than `allowed` percent.
    """
    with speaking(lang):
        return "\n".join(_lines(difference, allowed)) + "\n"


def _lines(difference: Diff, allowed: float) -> list[str]:
    sides = (difference["before"]["model"]["name"], difference["after"]["model"]["name"])
    lines = [f"## {' → '.join(code(name or UNNAMED) for name in dict.fromkeys(sides))}", ""]
    lines += [say("> **Not like with like**: {}", prose(tell(caveat))) for caveat in difference["caveats"]]
    if difference["caveats"]:
        lines.append("")
    if is_empty(difference):
        return [*lines, say("No difference.")]
    lines += _headline(difference, allowed)
    lines += section(say("By rule"), _rules(difference))
    lines += section(say("Lost fusions"), _fusions(counted_fusions(difference["fusions"]["lost"])))
    lines += section(say("New fusions"), _fusions(counted_fusions(difference["fusions"]["new"])))
    lines += section(say("Changed fusions"), _changed(change_groups(difference["fusions"]["changed"])))
    lines += section(say("Kept"), _kept(difference))
    return lines + section(say("Plugins that ATC must find installed"), _plugins(difference))


def _headline(difference: Diff, allowed: float) -> list[str]:
    rows = figure_rows(difference, exact=True)
    head = [say("- **worse**: {}", prose(tell(text))) for text in regressions(difference, allowed)]
    head = head or [say("Nothing became worse.")]
    return [
        *head,
        *(["", *table(["", say("before"), say("after"), say("change")], _escaped(rows), (1, 2, 3))] if rows else []),
    ]


def _escaped(rows: list[list[str]]) -> list[list[str]]:
    return [[prose(cell) for cell in row] for row in rows]


def _rules(difference: Diff) -> list[str]:
    rows = [
        [code(rule), *(say(change["switch"][side] or "") for side in ("before", "after"))]
        + [f"{change[side]:,}" for side in ("before", "after")]
        for rule, change in difference["rules"].items()
    ]
    head = [say("rule"), say("switch before"), say("switch after"), say("before"), say("after")]
    return table(head, rows, (3, 4)) if rows else []


def _fusions(groups: list[Counted]) -> list[str]:
    rows = [[code(g.rule), code(g.op), str(len(g.names)), span(g.names), prose(g.because)] for g in groups]
    return table([*_about(), say("why")], rows, (2,)) if rows else []


def _changed(groups: list[ChangeGroup]) -> list[str]:
    rows = [
        [code(g.rule), code(g.op), str(len(g.names)), span(g.names), ", ".join(code(c) for c in g.changes)]
        for g in groups
    ]
    return table([*_about(), say("what")], rows, (2,)) if rows else []


def _about() -> list[str]:
    return [say("rule"), say("fused operator"), "×", say("where")]


def _kept(difference: Diff) -> list[str]:
    marks = {"~": say("changed"), "+": say("new"), "-": say("gone")}
    rows = [[marks[line.mark], prose(line.text), prose(line.where)] for line in kept_lines(difference["kept"])]
    return table(["", say("reason"), say("where")], rows) if rows else []


def _plugins(difference: Diff) -> list[str]:
    plugins = difference["plugins"]
    new, lost = ([code(plugin) for plugin in plugins[word]] for word in ("new", "lost"))
    return [*(say("- new {}", plugin) for plugin in new), *(say("- lost {}", plugin) for plugin in lost)]
