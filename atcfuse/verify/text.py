"""A verification as text for a terminal and as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from atcfuse.lang import say, speaking, tell
from atcfuse.lang.width import aligned
from atcfuse.verify.compare import OutputError

if TYPE_CHECKING:
    from atcfuse.verify.core import Verification


def verification_text(v: Verification, lang: str | None = None) -> str:
    """The worst deviation of every output, one a line. Diagnostics are not repeated here."""
    with speaking(lang):
        return "\n".join(_lines(v))


def _lines(v: Verification) -> list[str]:
    lines = [say("{} on {}", _verdict(v), _sets(len(v.feeds)))]
    lines += [f"  {number}. {tell(name)}" for number, name in enumerate(v.feeds, 1)]
    if not v.outputs:
        return lines
    numbers = {name: str(i) for i, name in enumerate(v.feeds, 1)}
    header = (say("output"), "max|Δ|", say("relative"), say("limit"), say("set"), "")
    return [*lines, *aligned([header, *(_row(o, numbers) for o in v.worst())], "  ")]


def _verdict(v: Verification) -> str:
    if v.ok:
        return say("models agree")
    return say("models DIFFER") if v.outputs else say("models could not be compared")


def _sets(number: int) -> str:
    return say("{} input set", number) if number == 1 else say("{} input sets", number)


def _row(one: OutputError, numbers: dict[str, str]) -> tuple[str, ...]:
    status = say(one.status)
    verdict = say("{}: {}", status, tell(one.message)) if one.message else status
    limit = f"{one.limit:.1e}" if one.limit else say("exact")
    return one.name, f"{one.max_abs:.2e}", f"{one.max_rel:.2e}", limit, numbers.get(one.size_set, "?"), verdict


def verification_dict(v: Verification) -> dict[str, object]:
    """The verification as JSON-ready data: equal runs give equal bytes. Numbers that are not finite become null."""
    return {
        "atol": v.atol,
        "diagnostics": [d.as_dict() for d in v.diagnostics],
        "drift": _number(v.drift),
        "feeds": list(v.feeds),
        "ok": v.ok,
        "outputs": [_output(o) for o in v.worst()],
        "rtol": v.rtol,
    }


def _output(one: OutputError) -> dict[str, object]:
    return {
        "limit": _number(one.limit),
        "max_abs": _number(one.max_abs),
        "max_rel": _number(one.max_rel),
        "message": one.message,
        "name": one.name,
        "size_set": one.size_set,
        "status": one.status,
    }


def _number(value: float | None) -> float | None:
    # Three digits: the rest is rounding noise that would make reports differ for no reason.
    return None if value is None or not math.isfinite(value) else float(f"{value:.2e}")
