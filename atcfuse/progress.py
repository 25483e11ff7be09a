"""How far long work is: what works says it, and who shows it to people listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Listener = Callable[[str, int, int], None]
"""Called with what is done, how much of it is, and how much there is in all (0 where that is not known)."""

Item = TypeVar("Item")
_listener: ContextVar[Listener | None] = ContextVar("atcfuse_progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Calls the listener for all work in this thread while the block runs."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def reached(phase: str, done: int = 0, total: int = 0) -> None:
    """Says that the work is at this point; free where nobody listens."""
    listener = _listener.get()
    if listener is not None:
        listener(phase, done, total)


def counted(phase: str, items: Sequence[Item]) -> Iterator[Item]:
    """The items one by one, each told before it is worked on."""
    for number, item in enumerate(items, 1):
        reached(phase, number, len(items))
        yield item
