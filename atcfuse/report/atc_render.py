"""What ATC did on top, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atcfuse.lang import say, speaking, tell
from atcfuse.report.figures import plural
from atcfuse.report.groups import listed
from atcfuse.report.layout import Page
from atcfuse.report.markup import code, codes, prose, section, table
from atcfuse.report.names import UNNAMED, shorten

_MARKS = {"on_fused": "-", "switched_off": "-", "more": "~", "fewer": "~", "changed": "~"}


def atc_diff_text(difference: Mapping[str, Any], width: int = 80, color: bool = False, lang: str | None = None) -> str:
    """The document as text of at most `width` (at least 40) columns; escape sequences only with `color`."""
    page = Page(width, color)
    with speaking(lang):
        _fill(page, difference)
    return page.text()


def _fill(page: Page, difference: Mapping[str, Any]) -> None:
    page.title(_title(difference))
    page.bullet(_head(difference))
    for caveat in difference["caveats"]:
        page.diagnostic("warning", say("not like with like: {}", tell(caveat)))
    for verdict, title in _titles().items():
        rows = [row for row in difference["passes"] if row["verdict"] == verdict]
        if rows:
            page.section(say("{}: {}", title, len(rows)))
        for row in rows:
            makes = ", ".join(row.get("makes") or ())
            name = say("{} makes {}", row["name"], makes) if makes else row["name"]
            page.bullet(say("{}: {}", name, _counted(row)), _MARKS.get(verdict, ""))


def atc_diff_markdown(difference: Mapping[str, Any], lang: str | None = None) -> str:
    """The document as Markdown; whatever a file names is inert text in it."""
    with speaking(lang):
        return "\n".join(_lines(difference)) + "\n"


def _lines(difference: Mapping[str, Any]) -> list[str]:
    lines = [f"## {prose(_title(difference))}", "", prose(_head(difference))]
    for caveat in difference["caveats"]:
        lines += ["", say("> **Not like with like**: {}", prose(tell(caveat)))]
    for verdict, title in _titles().items():
        rows = [row for row in difference["passes"] if row["verdict"] == verdict]
        if rows:
            cells = [[code(row["name"]), codes(row.get("makes", ())), prose(_counted(row))] for row in rows]
            lines += section(title, table([say("pass"), say("makes"), say("counts")], cells))
    return lines


def _titles() -> dict[str, str]:
    """Titles by verdict, what matters most first."""
    return {
        "on_fused": say("Took effect where atcfuse may fuse"),
        "switched_off": say("Took effect although switched off"),
        "more": say("More often than expected"),
        "fewer": say("Less often than expected"),
        "as_expected": say("As expected"),
        "undescribed": say("Not described in rules/atc, so nothing was expected"),
        "own": say("Switches of atcfuse, not passes of ATC"),
        "changed": say("Changed"),
    }


def _title(difference: Mapping[str, Any]) -> str:
    before = difference["before"]
    if before is None:
        return say("What ATC did, before and after")
    return say("What ATC did on top of {}", shorten(before["model"]["name"] or UNNAMED, 60))


def _head(difference: Mapping[str, Any]) -> str:
    if difference["before"] is None:
        if not difference["passes"]:
            return say("ATC's passes matched and took effect as often as before.")
        return say("{} changed", plural(len(difference["passes"]), "{} pass", "{} passes"))
    effect = plural(sum(row["effect_times"] > 0 for row in difference["passes"]), "{} pass", "{} passes")
    graphs = plural(difference["graphs"], "{} graph", "{} graphs")
    names_only = say("ATC's file counts passes and names no nodes; what is expected is an estimate")
    return say("{} took effect in {}. {}.", effect, graphs, names_only)


def _counted(row: Mapping[str, Any]) -> str:
    if row["verdict"] == "changed":
        old, new = row["before"], row["after"]
        parts = [(say("took effect"), "effect_times"), (say("matched"), "match_times")]
        return listed(f"{word} {old[key]:,} → {new[key]:,}" for word, key in parts if old[key] != new[key])
    text = say("took effect {}×", f"{row['effect_times']:,}")
    if row["match_times"] != row["effect_times"]:
        text = say("{} of {}", text, plural(row["match_times"], "{} match", "{} matches"))
    if row["expected"] is None:
        return text
    text = say("{}, expected {}×", text, f"{row['expected']:,}")
    if row["exported"] == row["expected"]:
        return text
    text = say("{}, in the model as exported {}×", text, f"{row['exported']:,}")
    if row["verdict"] != "on_fused":
        return text
    most = min(row["effect_times"], row["exported"]) - row["expected"]
    return say("{}; up to {} of them may be of nodes that atcfuse fuses", text, f"{most:,}")
