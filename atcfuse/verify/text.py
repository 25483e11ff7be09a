"""A verification as text for a terminal and as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from atcfuse.verify.compare import OutputError

if TYPE_CHECKING:
    from atcfuse.verify.core import Verification


def verification_text(v: Verification) -> str:
    """The worst deviation of every output, one a line. Diagnostics are not repeated here."""
    verdict = "agree" if v.ok else "DIFFER" if v.outputs else "could not be compared"
    lines = [f"models {verdict} on {len(v.feeds)} input set{'s' * (len(v.feeds) != 1)}"]
    lines += [f"  {number}. {name}" for number, name in enumerate(v.feeds, 1)]
    if not v.outputs:
        return "\n".join(lines)
    numbers = {name: str(i) for i, name in enumerate(v.feeds, 1)}
    header = ("output", "max|Δ|", "relative", "limit", "set", "")
    rows = [header, *(_row(o, numbers) for o in v.worst())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    for row in rows:
        lines.append("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
    return "\n".join(lines)


def _row(one: OutputError, numbers: dict[str, str]) -> tuple[str, ...]:
    verdict = one.status + (f": {one.message}" if one.message else "")
    limit = f"{one.limit:.1e}" if one.limit else "exact"
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
