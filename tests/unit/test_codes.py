"""Diagnostic codes: every code used has a page, every page is of a code in use, all pages have the same form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import atcfuse
from atcfuse.diagnostics import all_codes, code_page
from atcfuse.hints import hint_for
from atcfuse.resources import data_folder

PACKAGE = Path(atcfuse.__file__).parent
SOURCES = [p for p in PACKAGE.rglob("*.py") if "codes" not in p.parts]
TEMPLATES = [p for p in data_folder("kernels").rglob("*") if p.suffix in (".j2", ".inc", ".yaml", ".h", ".hpp", ".cpp")]


def _used() -> set[str]:
    found: set[str] = set()
    for path in (*SOURCES, *TEMPLATES):
        found.update(re.findall(r"\bATF\d{3}\b", path.read_text(encoding="utf-8")))
    return found


def test_codes_in_use_are_the_codes_with_a_page() -> None:
    assert _used() == set(all_codes())


@pytest.mark.parametrize("code", all_codes())
def test_pages_have_one_form(code: str) -> None:
    page = code_page(code)
    assert page is not None
    assert re.fullmatch(
        rf"# {code}: [^\n]+\n\n\*\*Found\*\* .+?\n\n\*\*Expected\*\* .+?\n\n\*\*What to do\*\* .+?\n", page, re.DOTALL
    )


@pytest.mark.parametrize("code", [c for c in all_codes() if "ATF300" <= c <= "ATF329"])
def test_hints_of_refusals_are_a_line(code: str) -> None:
    assert 0 < len(hint_for(code)) <= 240
    assert "\n" not in hint_for(code)
