"""What a user can do about a reason for keeping a subgraph, as the code's page says it."""

from __future__ import annotations

from functools import lru_cache

from atcfuse.diagnostics import code_page


@lru_cache(maxsize=256)
def hint_for(code: str) -> str:
    """The first paragraph of advice of a code's page in one line, "" where the page gives none."""
    page = code_page(code) or ""
    _, found, advice = page.partition("**What to do**")
    return " ".join(advice.strip().partition("\n\n")[0].split()) if found else ""
