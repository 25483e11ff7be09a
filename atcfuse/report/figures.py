"""Figures as people read them. A figure that is None was not estimated, and is shown so, never as zero."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TypeAlias

from atcfuse.lang import say

Figure: TypeAlias = int | None
Time: TypeAlias = float | Sequence[float] | None

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def count(number: Figure) -> str:
    """A number of things with thousands separated, `1,270`."""
    return say("not estimated") if number is None else f"{number:,}"


def human_bytes(number: Figure) -> str:
    """Bytes in the unit that leaves one to four digits before the point, `1.16 GiB`."""
    if number is None:
        return say("not estimated")
    size, unit = abs(number), 0
    while size >= 1024 ** (unit + 1) and unit + 1 < len(_UNITS):
        unit += 1
    sign = "-" if number < 0 else ""
    return f"{sign}{size} B" if unit == 0 else f"{sign}{size / 1024**unit:.2f} {_UNITS[unit]}"


def exact_bytes(number: Figure) -> str:
    """Bytes in both forms, `1.16 GiB (1,250,000,000 B)`; one form below a KiB."""
    if number is None or abs(number) < 1024:
        return human_bytes(number)
    return f"{human_bytes(number)} ({number:,} B)"


def microseconds(time: Time) -> str:
    """A time or a range of times in microseconds, `12.5 µs` or `12.5 to 15.0 µs`."""
    if time is None:
        return say("not estimated")
    return f"{interval([f'{end:,.1f}' for end in ([time] if isinstance(time, (int, float)) else time)])} µs"


def interval(ends: Sequence[str]) -> str:
    """One number, or the two ends of a range, `12.5 to 15.0`."""
    return say("{} to {}", *ends) if len(ends) == 2 else ends[0]


def percent(before: Figure, after: Figure) -> str:
    """The change in percent of `before`, signed; "" where there is none to tell."""
    if before is None or after is None or (before == 0 and after != 0):
        return ""
    return "0%" if before == after else f"{float(Fraction(after - before, before) * 100):+.1f}%"


def change(saved: Figure, shown: str) -> str:
    """What a saving, `shown` without its sign, does to the figure it is about: `-5` for 5 saved, `+5` for 5 more."""
    if saved is None:
        return say("not estimated")
    return shown if saved == 0 else f"{'-' if saved > 0 else '+'}{shown}"


def count_change(saved: Figure) -> str:
    """The change that saving a number of things makes, `-60`."""
    return change(saved, count(abs(saved or 0)))


def bytes_change(saved: Figure) -> str:
    """The change that saving bytes makes, `-1.16 GiB`."""
    return change(saved, human_bytes(abs(saved or 0)))


def total(figures: Iterable[Figure]) -> Figure:
    """The sum, or None when a part of it was not estimated."""
    known = list(figures)
    return None if None in known else sum(number for number in known if number is not None)


def time_total(times: Iterable[Time]) -> Time:
    """The sum of times and ranges of times as a range, or None when a part of it was not estimated."""
    low = high = 0.0
    for time in times:
        if time is None:
            return None
        first, last = (time, time) if isinstance(time, (int, float)) else time
        low, high = low + first, high + last
    return [low, high]


def plural(number: int, one: str, many: str) -> str:
    """A number of things, from a template for one of them and one for any other number: `1 fusion`, `12 fusions`."""
    return say(one if number == 1 else many, f"{number:,}")
