"""No name of a model becomes markup, a link or a control sequence in any rendering, however hostile or long."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from atcfuse.report import diff, diff_markdown, diff_text, gate, read_report, to_line, to_markdown, to_text

BERT = read_report(Path(__file__).parents[1] / "golden" / "report" / "bert.json")

EVIL = [
    "a|b",
    "`",
    "``x`",
    "a\nb\r\n| c |",
    "<script>alert(1)</script>",
    "<!--",
    "</code></td>",
    "&lt;b&gt;",
    "[x](javascript:alert(1))",
    "![x](http://e.vil/i.png)",
    "http://e.vil www.e.vil a@e.vil @everyone #1 GH-1",
    "\\|",
    "a\\",
    "**b** _c_ ~~d~~ $e$",
    "\x1b[31mred\x07",
    "\u202egnp.exe",
    "# h",
    "- i",
    "```",
    "---",
    "| --- |",
    "\x00",
    "\ud800",
    "层/注意力",
    "",
]
PIECE = st.sampled_from(EVIL) | st.text(st.characters(exclude_categories=()), max_size=40)
NAME = st.lists(PIECE, max_size=4).map("".join) | st.builds(lambda piece: (piece * 10_000)[:10_000], PIECE)
_FIXED = {"schema", "code", "severity", "switch", "state"}


def poisoned(value: Any, names: list[str], key: str = "") -> Any:
    """The document with the names in the place of every string and every free key."""
    if isinstance(value, dict):
        free = key in ("choices", "attributes", "assumed_dims", "rules")
        return {(f"{names[0]}{k}" if free else k): poisoned(item, names, k) for k, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item, names[i % len(names) :] + names[: i % len(names)], key) for i, item in enumerate(value)]
    return names[0] if isinstance(value, str) and key not in _FIXED else value


HOSTILE = st.lists(NAME, min_size=1, max_size=3).map(lambda names: poisoned(BERT, names))


def assert_inert(markdown: str, headings: set[str]) -> None:
    """Nothing in the text is markup but what the renderer put there."""
    assert all(line.isprintable() for line in markdown.split("\n"))
    assert set(re.findall("<[^>]*>?", markdown)) <= {"<code>", "</code>"}
    assert not re.sub(r"&#\d+;", "", markdown).count("&")
    width = 0
    for line in markdown.split("\n"):
        if line.startswith("|"):
            width = width or line.count("|")
            assert line.count("|") == width, "a cell more or less"
            assert line.endswith(" |")
        else:
            assert "|" not in line
            width = 0
        if line.startswith("#"):
            assert line.startswith("## ") or line.removeprefix("### ") in headings
        words = re.sub("`[^`]*`|<code>[^<]*</code>", "", line)
        assert not re.search(r"[`@\[\]~$\\]|://|www\.|\w#", words), words


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HOSTILE)
@example(poisoned(BERT, [("``x`" * 2_500)]))
@example(poisoned(BERT, [("`" * 10_000)]))
@example(poisoned(BERT, [("\U0010fffd" * 10_000)]))
@example(poisoned(BERT, [("x <" * 3_000)]))
def test_no_name_becomes_markup(report):
    markdown = to_markdown(report)
    assert_inert(markdown, set(re.findall("^### (.*)$", to_markdown(BERT), re.M)))
    assert len(markdown) < 40_000


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HOSTILE)
def test_a_markdown_parser_sees_the_same_structure(report):
    parser = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable(["table", "strikethrough"])
    inline = [child for token in parser.parse(to_markdown(report)) for child in token.children or ()]
    kinds = {token.type for token in inline}
    assert kinds <= {"text", "code_inline", "html_inline", "softbreak"}
    assert {t.content for t in inline if t.type == "html_inline"} <= {"<code>", "</code>"}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HOSTILE, st.integers(0, 130))
def test_no_name_breaks_the_terminal(report, width):
    lines = to_text(report, width).split("\n")
    assert all(line.isprintable() for line in lines)
    wide = max(sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line) for line in lines)
    assert wide <= max(width, 40)
    assert to_line(report).isprintable()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HOSTILE, HOSTILE)
def test_no_name_becomes_markup_or_breaks_the_terminal(before, after):
    difference = diff(before, after)
    headings = {
        *("By rule", "Lost fusions", "New fusions", "Changed fusions", "Kept"),
        "Plugins that ATC must find installed",
    }
    assert_inert(diff_markdown(difference), headings)
    assert all(line.isprintable() and len(line) <= 80 for line in diff_text(difference, 80).split("\n"))
    for diagnostic in gate(after, before, 0):
        assert all(line.isprintable() and len(line) < 1000 for line in diagnostic.lines())
