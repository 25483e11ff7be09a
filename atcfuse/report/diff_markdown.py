"""A difference of two reports as Markdown, made for a comment on a pull request."""

from __future__ import annotations

from atcfuse.report.compare import Diff, is_empty
from atcfuse.report.diff_groups import ChangeGroup, Counted, change_groups, counted_fusions, figure_rows, kept_lines
from atcfuse.report.gate import regressions
from atcfuse.report.markup import code, prose, section, span, table
from atcfuse.report.names import UNNAMED

_MARKS = {"~": "changed", "+": "new", "-": "gone"}


def diff_markdown(difference: Diff, allowed: float = 0.0) -> str:
    """The difference as Markdown; whatever a model names is inert text in it.

    What became worse is told first, but for figures that grew by no more than `allowed` percent.
    """
    sides = (difference["before"]["model"]["name"], difference["after"]["model"]["name"])
    lines = [f"## {' → '.join(code(name or UNNAMED) for name in dict.fromkeys(sides))}", ""]
    lines += [f"> **Not like with like**: {prose(caveat)}" for caveat in difference["caveats"]]
    if difference["caveats"]:
        lines.append("")
    if is_empty(difference):
        return "\n".join([*lines, "No difference."]) + "\n"
    lines += _headline(difference, allowed)
    lines += section("By rule", _rules(difference))
    lines += section("Lost fusions", _fusions(counted_fusions(difference["fusions"]["lost"])))
    lines += section("New fusions", _fusions(counted_fusions(difference["fusions"]["new"])))
    lines += section("Changed fusions", _changed(change_groups(difference["fusions"]["changed"])))
    lines += section("Kept", _kept(difference))
    lines += section("Plugins that ATC must find installed", _plugins(difference))
    return "\n".join(lines) + "\n"


def _headline(difference: Diff, allowed: float) -> list[str]:
    rows = figure_rows(difference, exact=True)
    head = [f"- **worse**: {prose(text)}" for text in regressions(difference, allowed)] or ["Nothing became worse."]
    return [*head, *(["", *table(["", "before", "after", "change"], _escaped(rows), (1, 2, 3))] if rows else [])]


def _escaped(rows: list[list[str]]) -> list[list[str]]:
    return [[prose(cell) for cell in row] for row in rows]


def _rules(difference: Diff) -> list[str]:
    rows = [
        [code(rule), *(str(change["switch"][side] or "") for side in ("before", "after"))]
        + [f"{change[side]:,}" for side in ("before", "after")]
        for rule, change in difference["rules"].items()
    ]
    return table(["rule", "switch before", "switch after", "before", "after"], rows, (3, 4)) if rows else []


def _fusions(groups: list[Counted]) -> list[str]:
    rows = [[code(g.rule), code(g.op), str(len(g.names)), span(g.names), prose(g.because)] for g in groups]
    return table(["rule", "fused operator", "×", "where", "why"], rows, (2,)) if rows else []


def _changed(groups: list[ChangeGroup]) -> list[str]:
    rows = [
        [code(g.rule), code(g.op), str(len(g.names)), span(g.names), ", ".join(code(c) for c in g.changes)]
        for g in groups
    ]
    return table(["rule", "fused operator", "×", "where", "what"], rows, (2,)) if rows else []


def _kept(difference: Diff) -> list[str]:
    rows = [[_MARKS[line.mark], prose(line.text), prose(line.where)] for line in kept_lines(difference["kept"])]
    return table(["", "reason", "where"], rows) if rows else []


def _plugins(difference: Diff) -> list[str]:
    plugins = difference["plugins"]
    return [f"- {word} {code(plugin)}" for word in ("new", "lost") for plugin in plugins[word]]
