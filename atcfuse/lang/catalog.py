"""A catalog: English templates and what they are in another language.

Catalogs are the gettext files `<language>/*.po`. A msgid is a template as the sources have it, with `{}` for what is
put in and `{{` for a brace. A msgstr has as many `{}`, or `{0}`, `{1}` where their order differs; `{:t}` stands for a
value that is a message itself and is translated too, `{:w}` for one that is a single word (no other message matches).
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path

RENDERERS = "render"
"""The file with what renderers say: templates such as `{}: {}`, which every message would match."""

_CODED = re.compile(r"(ATF\d{3}) (.*)", re.DOTALL)
_FEW_LETTERS = 9
_ONE_WORD = r"""(\S+|'[^']*'|"[^"]*"|\([^()]*\)|\[[^\[\]]*\])"""
"""What a value may be where a template is little more than its values, as `{} is {}`: not any sentence matches that."""

_PLACE = re.compile(r"\{(\d?)(:[tw])?\}")
_HOLE = re.compile(r"\{\}")
_WORD = re.compile(r"[A-Za-z]+")
_DEEPEST = 12
"""Messages within messages that are translated; no message of atcfuse is nested as deep."""


class Pattern:
    """A template with values: what it matches, and how it is said. `weight` is how much of it is no value."""

    def __init__(self, key: str, said: str) -> None:
        self.parts = [part.replace("{{", "{").replace("}}", "}") for part in _HOLE.split(key)]
        self.said = said
        self.weight = sum(map(len, self.parts))

    @cached_property
    def matches(self) -> re.Pattern[str]:
        """The messages that it makes; compiled when one may be among them."""
        short = not self.parts[0] and sum(map(str.isalpha, "".join(self.parts))) < _FEW_LETTERS
        places = enumerate(_PLACE.findall(self.said))
        words = {int(place or i) for i, (place, spec) in places if spec == ":w"}
        holes = [_ONE_WORD if short or i in words else "(.*?)" for i in range(len(self.parts) - 1)]
        texts = itertools.zip_longest(map(re.escape, self.parts), holes, fillvalue="")
        return re.compile("".join(itertools.chain.from_iterable(texts)), re.DOTALL)


class Catalog:
    """`plain` has every template by its msgid; `told` those of finished messages."""

    def __init__(self, language: str, plain: Mapping[str, str], told: Mapping[str, str]) -> None:
        self.language = language
        self.plain = plain
        self._with_values = {key: said for key, said in told.items() if "{}" in key}

    @cached_property
    def patterns(self) -> Mapping[str, Sequence[Pattern]]:
        """The templates with values, by a word that each of their messages has."""
        return _indexed(self._with_values)

    @cached_property
    def advice(self) -> Mapping[str, str]:
        """What pages of codes say, and hints repeat."""
        return _advice(self.language)

    def tell(self, message: str) -> str:
        """A finished English message; as it is where no template makes it."""
        return self._told(message, 0) or message

    def known(self, message: str) -> bool:
        """Whether a finished message is one of the catalog's."""
        return self._told(message, 0) is not None

    @lru_cache(maxsize=4096)  # noqa: B019 - there is one catalog a language, for as long as the program runs
    def _told(self, message: str, depth: int) -> str | None:
        if depth > _DEEPEST:
            return None
        whole = self.plain.get(_escaped(message))
        if whole is not None:
            return whole.format()
        if message in self.advice:
            return self.advice[message]
        words = {"", *_WORD.findall(message)}
        found = [p for word in words for p in self.patterns.get(word, ())]
        matches = [(p, match.groups()) for p in found if (match := p.matches.fullmatch(message)) is not None]
        if not matches:
            return self._in_parts(message, depth)
        best, values = max(matches, key=lambda found: found[0].weight)
        return best.said.format(*(_Value(text, self, depth) for text in values))

    def _in_parts(self, message: str, depth: int) -> str | None:
        """A message behind a code or a name, `name: message`, or several of them one after the other."""
        coded = _CODED.fullmatch(message)
        if coded is not None:
            reason = self._told(coded[2], depth + 1)
            return None if reason is None else f"{coded[1]} {reason}"
        for joint, said in (("; ", "；"), (": ", "：")):
            head, found, tail = message.partition(joint)
            before, behind = (self._told(part, depth + 1) if found else None for part in (head, tail))
            if behind is not None or (before is not None and joint == "; "):
                return f"{before or head}{said}{behind or tail}"
        return None


class _Value(str):
    """What a template's place holds; the format `t` translates it, `w` shows it as it is."""

    catalog: Catalog
    depth: int

    def __new__(cls, text: str, catalog: Catalog, depth: int) -> _Value:
        """The text, with the catalog that is asked about it."""
        value = super().__new__(cls, text)
        value.catalog, value.depth = catalog, depth
        return value

    def __format__(self, spec: str) -> str:
        if spec != "t":
            return str(self)
        return self.catalog._told(str(self), self.depth + 1) or str(self)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


@cache
def catalog(language: str) -> Catalog:
    """The catalog of a language, read once."""
    plain: dict[str, str] = {}
    told: dict[str, str] = {}
    for path in sorted((Path(__file__).parent / language).glob("*.po")):
        entries = dict(read(path.read_text(encoding="utf-8")))
        plain.update(entries)
        if path.stem != RENDERERS:
            told.update(entries)
    return Catalog(language, plain, told)


def _advice(language: str) -> dict[str, str]:
    """What the pages of codes say in both languages: titles, and the advice that hints repeat in one line."""
    pages = Path(__file__).parents[1] / "codes"
    found: dict[str, str] = {}
    for said in sorted((pages / language).glob("*.md")):
        english, other = (_parts_of(path.read_text(encoding="utf-8")) for path in (pages / said.name, said))
        found.update(zip(english, other, strict=True))
    return found


def _parts_of(page: str) -> tuple[str, str]:
    """A page's title without the code, and the first paragraph of its last section, each as one line."""
    title = page.partition("\n")[0].partition(": ")[2]
    advice = page.rpartition("\n\n**")[2].partition("**")[2]
    return title, " ".join(advice.strip().partition("\n\n")[0].split())


def read(text: str) -> Iterator[tuple[str, str]]:
    """The pairs (msgid, msgstr) of a gettext file; its header, whose msgid is empty, is left out."""
    texts: dict[str, str] = {}
    place = ""
    for line in (*text.splitlines(), 'msgid ""'):
        keyword, _, rest = line.strip().partition(" ")
        if keyword == "msgid":
            if texts.get("msgid"):
                yield texts["msgid"], texts.get("msgstr", "")
            texts = {}
        if keyword in ("msgid", "msgstr"):
            place, texts[keyword] = keyword, _unquoted(rest)
        elif keyword.startswith('"'):
            texts[place] += _unquoted(line.strip())


def _unquoted(text: str) -> str:
    return str(json.loads(text)) if "\\" in text else text[1:-1]


def _indexed(templates: Mapping[str, str]) -> dict[str, list[Pattern]]:
    """The patterns by the rarest word that is in every message of theirs; by "" where there is none."""
    words = {key: _certain_words(key) for key in templates}
    often = Counter(word for found in words.values() for word in found)
    index: dict[str, list[Pattern]] = {}
    for key, said in templates.items():
        rarest = min(words[key], key=lambda word: (often[word], word), default="")
        index.setdefault(rarest, []).append(Pattern(key, said))
    return index


def _certain_words(key: str) -> set[str]:
    """Whole words of a template: what touches a place for a value may be a part of one."""
    found: set[str] = set()
    for text in _HOLE.split(key):
        words = list(_WORD.finditer(text))
        found.update(w[0] for w in words if w.start() > 0 and w.end() < len(text))
    edges = _HOLE.split(key)
    found.update(w[0] for w in _WORD.finditer(edges[0]) if w.end() < len(edges[0]))
    found.update(w[0] for w in _WORD.finditer(edges[-1]) if w.start() > 0)
    return found
