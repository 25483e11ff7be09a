"""The CI gate: has a model become worse than its baseline report allows?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from atcfuse.diagnostics import Diagnostic, UsageError, error, warning
from atcfuse.report.compare import Diff, diff
from atcfuse.report.document import Report
from atcfuse.report.figures import count, exact_bytes, percent
from atcfuse.report.names import UNNAMED, shorten

_LOST_SHOWN = 20
_NAME_COLUMNS = 80
_GATED = {"launches_after": ("ATF535", "launches", count), "ddr_bytes_after": ("ATF536", "DDR bytes", exact_bytes)}
_HINT = "see `atcfuse diff` for all changes; when this one is wanted, check in the new report as the baseline"


def gate(current: Report, baseline: Report, max_regression_pct: float) -> list[Diagnostic]:
    """What is worse in `current` than in `baseline`; the gate is met when no diagnostic is an error.

    Errors: launches (ATF535) or DDR bytes (ATF536) after fusion above the baseline's by more than `max_regression_pct`
    percent, a rule with fewer fusions (ATF537, at any percentage; the lost ones by name) but for those whose nodes went
    into one fusion of another rule. Warnings: the reports are not
    like with like (ATF538), a figure is missing and so was not compared (ATF539). Raises UsageError ATF540 when
    `max_regression_pct` is no percentage.
    """
    if not math.isfinite(max_regression_pct) or max_regression_pct < 0:
        hint = "give the percentage that may be lost, 0 or more"
        raise UsageError(error("ATF540", f"--max-regression {max_regression_pct} is not a percentage", hint=hint))
    difference = diff(baseline, current)
    return [*_worse(difference, max_regression_pct), *_unlike(difference), *_missing(current, baseline)]


def over_budget(current: Report, budgets: Mapping[str, int | None]) -> list[Diagnostic]:
    """ATF541 for each figure after fusion above its budget; `budgets` by summary key, None for no budget."""
    found = []
    for key, budget in budgets.items():
        if budget is None:
            continue
        _, what, shown = _GATED[key]
        figure = current["summary"].get(key)
        if figure is None:
            message = f"{what} after fusion were not estimated; the budget is {shown(budget)}"
            found.append(error("ATF541", message, hint="set unknown dims with --assume"))
        elif figure > budget:
            message = f"{what} after fusion: {shown(figure)}, the budget is {shown(budget)}"
            found.append(error("ATF541", message, hint="`atcfuse report FILE` shows what was kept and why"))
    return found


def regressions(difference: Diff, max_regression_pct: float = 0.0) -> list[str]:
    """What became worse in a difference, one sentence each: the errors of `gate`."""
    return [diagnostic.message for diagnostic in _worse(difference, max_regression_pct)]


def _worse(difference: Diff, allowed: float) -> list[Diagnostic]:
    taken_over = Counter(f["rule"] for f in difference["fusions"]["lost"] if "taken_over" in f)
    rules = difference["rules"].items()
    fewer = [_fewer(rule, c, difference) for rule, c in rules if c["after"] + taken_over[rule] < c["before"]]
    notes = [] if fewer else _lost_notes(difference["fusions"]["lost"])
    found = []
    for key, (code, what, shown) in _GATED.items():
        change = difference["summary"].get(key, {})
        old, new = change.get("before"), change.get("after")
        if old is None or new is None or not _exceeds(old, new, allowed):
            continue
        step = percent(old, new)
        message = f"{what} after fusion: {shown(new)}, the baseline has {shown(old)}: {step}, allowed +{allowed:g}%"
        if not step:
            message = f"{what} after fusion: {shown(new)}, the baseline has {shown(old)}: allowed +{allowed:g}%"
        found.append(error(code, message, hint=_HINT, notes=notes))
    return found + fewer


def _exceeds(before: int, after: int, allowed: float) -> bool:
    """Exact in integers; the percentage is taken as it is written."""
    return (after - before) * 100 > Fraction(repr(allowed)) * before


def _fewer(rule: str, change: Mapping[str, Any], difference: Diff) -> Diagnostic:
    lost = [f for f in difference["fusions"]["lost"] if f["rule"] == rule and "taken_over" not in f]
    name, now, before = shorten(rule, _NAME_COLUMNS), change["after"], change["before"]
    message = f"rule {name}: {now:,} fusions, the baseline has {before:,}"
    if now == 1:
        message = f"rule {name}: 1 fusion, the baseline has {before:,}"
    return error("ATF537", message, hint=_HINT, notes=_lost_notes(lost))


def _lost_notes(lost: list[Mapping[str, Any]]) -> list[str]:
    notes = [lost_line(fusion) for fusion in lost[:_LOST_SHOWN]]
    return [*notes, f"and {len(lost) - _LOST_SHOWN:,} more"] if len(lost) > _LOST_SHOWN else notes


def lost_line(fusion: Mapping[str, Any]) -> str:
    """A lost fusion in one line, with the reason where it is known."""
    because = fusion.get("because", {})
    why = " ".join(filter(None, (because.get("code"), because.get("reason"))))
    name = shorten(fusion["name"] or UNNAMED, _NAME_COLUMNS)
    shown = f"lost: {shorten(fusion['op'], _NAME_COLUMNS)} {name}"
    return f"{shown}: {shorten(why, 4 * _NAME_COLUMNS)}" if why else shown


def _unlike(difference: Diff) -> list[Diagnostic]:
    if not difference["caveats"]:
        return []
    message = "the baseline is of a run under other conditions, so its figures do not compare like with like"
    hint = "make the baseline again with the same model opset, --assume, --soc and options of kernels"
    return [warning("ATF538", message, hint=hint, notes=[shorten(text, 200) for text in difference["caveats"]])]


def _missing(current: Report, baseline: Report) -> list[Diagnostic]:
    found = []
    for key, (_, what, _) in _GATED.items():
        sides = [name for name, r in (("this run", current), ("the baseline", baseline)) if r["summary"][key] is None]
        if sides:
            message = f"{what} after fusion were not estimated in {' and '.join(sides)}, so they were not compared"
            found.append(warning("ATF539", message, hint="set unknown dims with --assume"))
    return found
