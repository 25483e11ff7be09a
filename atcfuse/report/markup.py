"""GitHub-flavoured Markdown in which no text of a model can become markup, a link or a mention."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from atcfuse.report.names import UNNAMED, shorten, span_of

NAME_LIMIT = 64
PROSE_LIMIT = 400

_SPAN = re.compile(r"`([^`\s][^`]*)`")
_IN_SPAN = re.compile(r"[^`|<>&\\]+")
_PLAIN = re.compile(r"[\w.,;()'\"%+=?…×→µ–—-]+:?|/")
_OPENING, _CLOSING = "\"'(", "\"'),.;:"
_CHINESE = re.compile("([\u2018-\u201d\u3001-\u3015\u4e00-\u9fff\uff01-\uff5e]+)")
"""Characters and punctuation of Chinese text, none of which is markup."""

_MARKUP = re.compile(r"(?i)www\.|^\W*_|_\W*$|__")


def code(text: str, limit: int = NAME_LIMIT) -> str:
    """Text of a model as inline code of at most `limit` characters.

    A code span shows all that is in it as it is, but for backticks, and table cells still split at `|` within one; text
    with such characters is written in a `code` element, every special character as a numeric reference.
    """
    shown = shorten(text, limit)
    if not shown.strip():
        return UNNAMED
    if _IN_SPAN.fullmatch(shown):
        return f"`{shown}`"
    return f"<code>{''.join(c if c.isalnum() or c == ' ' else f'&#{ord(c)};' for c in shown)}</code>"


def prose(text: str, limit: int = PROSE_LIMIT) -> str:
    """A sentence that may name things of a model: plain words stay, whatever else becomes inline code.

    Backticks in the sentence keep their meaning. So no word can be markup, an entity, a link, a mention or a number of
    an issue. A text of special characters is shortened further, as each is written as up to ten.
    """
    parts = _SPAN.split(shorten(text, limit))
    shown = "".join(code(part) if i % 2 else _words(part) for i, part in enumerate(parts))
    if len(shown) > 2 * limit and limit > NAME_LIMIT:
        return prose(text, max(limit // 2, NAME_LIMIT))
    return shown.replace("``", "` `")  # two spans side by side would be read as one


def _words(text: str) -> str:
    return " ".join(_parts(word) if word else "" for word in text.split(" "))


def _parts(word: str) -> str:
    """A word without spaces: Chinese as it is, what stands between it word by word."""
    parts = _CHINESE.split(word)
    return "".join(part if i % 2 or not part else _word(part) for i, part in enumerate(parts))


def _word(word: str) -> str:
    """A plain word as it is; of any other the core as code, the quotes and commas around it outside."""
    if _PLAIN.fullmatch(word) and not _MARKUP.search(word):
        return word
    core = word.lstrip(_OPENING).rstrip(_CLOSING)
    before, _, after = word.partition(core) if core else (word, "", "")
    return f"{before}{code(core) if core else ''}{after}"


def codes(texts: Iterable[str]) -> str:
    """Inline codes, separated by commas."""
    return ", ".join(code(text) for text in texts)


def span(names: Sequence[str]) -> str:
    """What stands for the names of equal things, the first and the last of several."""
    return (", " if len(names) == 2 else " … ").join(code(end) for end in span_of(names))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """A table of cells that are Markdown already; the columns `right` are aligned to the right."""
    numbers = set(right)
    rule = ["---:" if i in numbers else "---" for i in range(len(head))]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


def section(title: str, lines: Sequence[str]) -> list[str]:
    """A heading and its lines, or nothing where there are none."""
    return ["", f"### {title}", "", *lines] if lines else []
