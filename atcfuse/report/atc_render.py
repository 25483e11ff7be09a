"""What ATC did on top, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atcfuse.report.figures import plural
from atcfuse.report.layout import Page
from atcfuse.report.markup import code, codes, prose, section, table
from atcfuse.report.names import UNNAMED, shorten

NO_CHANGE = "ATC's passes matched and took effect as often as before."
_NAMES_ONLY = "ATC's file counts passes and names no nodes; what is expected is an estimate"
_TITLES = {
    "on_fused": "Took effect where atcfuse may fuse",
    "switched_off": "Took effect although switched off",
    "more": "More often than expected",
    "fewer": "Less often than expected",
    "as_expected": "As expected",
    "undescribed": "Not described in rules/atc, so nothing was expected",
    "own": "Switches of atcfuse, not passes of ATC",
    "changed": "Changed",
}
_MARKS = {"on_fused": "-", "switched_off": "-", "more": "~", "fewer": "~", "changed": "~"}


def atc_diff_text(difference: Mapping[str, Any], width: int = 80, color: bool = False) -> str:
    """The document as text of at most `width` (at least 40) columns; escape sequences only with `color`."""
    page = Page(width, color)
    page.title(_title(difference))
    page.bullet(_head(difference))
    for caveat in difference["caveats"]:
        page.diagnostic("warning", f"not like with like: {caveat}")
    for verdict, title in _TITLES.items():
        rows = [row for row in difference["passes"] if row["verdict"] == verdict]
        if rows:
            page.section(f"{title}: {len(rows)}")
        for row in rows:
            makes = f" makes {', '.join(row['makes'])}" if row.get("makes") else ""
            page.bullet(f"{row['name']}{makes}: {_counted(row)}", _MARKS.get(verdict, ""))
    return page.text()


def atc_diff_markdown(difference: Mapping[str, Any]) -> str:
    """The document as Markdown; whatever a file names is inert text in it."""
    lines = [f"## {prose(_title(difference))}", "", prose(_head(difference))]
    for caveat in difference["caveats"]:
        lines += ["", f"> **Not like with like**: {prose(caveat)}"]
    for verdict, title in _TITLES.items():
        rows = [row for row in difference["passes"] if row["verdict"] == verdict]
        if rows:
            cells = [[code(row["name"]), codes(row.get("makes", ())), prose(_counted(row))] for row in rows]
            lines += section(title, table(["pass", "makes", "counts"], cells))
    return "\n".join(lines) + "\n"


def _title(difference: Mapping[str, Any]) -> str:
    before = difference["before"]
    if before is None:
        return "What ATC did, before and after"
    return f"What ATC did on top of {shorten(before['model']['name'] or UNNAMED, 60)}"


def _head(difference: Mapping[str, Any]) -> str:
    if difference["before"] is None:
        return (
            f"{plural(len(difference['passes']), '{} pass', '{} passes')} changed"
            if difference["passes"]
            else NO_CHANGE
        )
    effect = sum(row["effect_times"] > 0 for row in difference["passes"])
    graphs = plural(difference["graphs"], "{} graph", "{} graphs")
    return f"{plural(effect, '{} pass', '{} passes')} took effect in {graphs}. {_NAMES_ONLY}."


def _counted(row: Mapping[str, Any]) -> str:
    if row["verdict"] == "changed":
        old, new = row["before"], row["after"]
        parts = [("took effect", "effect_times"), ("matched", "match_times")]
        return ", ".join(f"{word} {old[key]:,} → {new[key]:,}" for word, key in parts if old[key] != new[key])
    text = f"took effect {row['effect_times']:,}×"
    if row["match_times"] != row["effect_times"]:
        text += f" of {plural(row['match_times'], '{} match', '{} matches')}"
    if row["expected"] is None:
        return text
    text += f", expected {row['expected']:,}×"
    if row["exported"] == row["expected"]:
        return text
    text += f", in the model as exported {row['exported']:,}×"
    if row["verdict"] != "on_fused":
        return text
    most = min(row["effect_times"], row["exported"]) - row["expected"]
    return f"{text}; up to {most:,} of them may be of nodes that atcfuse fuses"
