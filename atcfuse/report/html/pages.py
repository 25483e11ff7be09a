"""What the page tells of rules and codes: their own texts, so that no link leads out of the file."""

from __future__ import annotations

import re
from typing import Any

from atcfuse.diagnostics import code_page
from atcfuse.lang import language, tell
from atcfuse.report.document import Report
from atcfuse.report.names import printable

_PIECE = re.compile(r"\*\*([^*]+)\*\*|`([^`]+)`")
Piece = tuple[str, str]
"""A kind, `text`, `strong` or `code`, and what it holds."""


def rule_pages(report: Report) -> list[dict[str, Any]]:
    """The rules of a report that explain themselves, by name; none in reports of earlier versions."""
    found = []
    for name, entry in sorted(report["rules"].items()):
        texts = [tell(str(entry.get(key) or "")) for key in ("summary", "why", "limits")]
        if texts[0]:
            summary, why, limits = (pieces(printable(text)) for text in texts)
            found.append({"rule": printable(name), "summary": summary, "why": why, "limits": limits})
    return found


def page_of_code(code: str) -> dict[str, Any]:
    """The page of a code: its title, and blocks of `kind` p, li or pre with `pieces` of text, strong and code."""
    page = code_page(code, language()) or code_page(code)
    if page is None:
        return {"title": "", "blocks": []}
    title, _, body = page.partition("\n")
    return {"title": title.partition(": ")[2], "blocks": _blocks(body.strip())}


def _blocks(body: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for i, part in enumerate(re.split(r"^```.*$", body, flags=re.MULTILINE)):
        if i % 2:
            found.append({"kind": "pre", "pieces": [("text", part.strip("\n"))]})
        else:
            found += [_block(text) for text in re.split(r"\n\s*\n|\n(?=- )", part) if text.strip()]
    return found


def _block(text: str) -> dict[str, Any]:
    joined = " ".join(text.split())
    kind = "li" if joined.startswith("- ") else "p"
    return {"kind": kind, "pieces": pieces(joined[2:] if kind == "li" else joined)}


def pieces(text: str) -> list[Piece]:
    """A line of Markdown as plain text, strong text and code."""
    found: list[Piece] = []
    at = 0
    for match in _PIECE.finditer(text):
        found.append(("text", text[at : match.start()]))
        found.append(("strong", match[1]) if match[1] else ("code", match[2]))
        at = match.end()
    return [piece for piece in [*found, ("text", text[at:])] if piece[1]]
