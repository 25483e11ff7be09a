"""The language that is being rendered in, and saying things in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from atcfuse.lang.choice import LANGUAGES

if TYPE_CHECKING:
    from atcfuse.lang.catalog import Catalog

_current: ContextVar[str] = ContextVar("atcfuse_language", default=LANGUAGES[0])


def language() -> str:
    """The language of the rendering that is under way, English outside of any."""
    return _current.get()


@contextmanager
def speaking(lang: str | None) -> Iterator[None]:
    """Renders in a language while the block runs, in this thread alone; None keeps the one that is spoken."""
    token = _current.set(language() if lang is None else lang)
    try:
        yield
    finally:
        _current.reset(token)


def say(template: str, *values: object) -> str:
    """A template of a renderer, `"{} fused, {} kept"`, in the language spoken, with its values in place."""
    known = None if language() == LANGUAGES[0] else _catalog().plain.get(template)
    return (template if known is None else known).format(*values)


def tell(message: str) -> str:
    """A finished English message in the language spoken; as it is where the catalog does not know it."""
    return message if language() == LANGUAGES[0] or not message else _catalog().tell(message)


def _catalog() -> Catalog:
    from atcfuse.lang.catalog import catalog  # late: English needs none

    return catalog(language())
