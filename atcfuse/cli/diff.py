"""`atcfuse diff`: what changed between two reports or models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from atcfuse.cli import console
from atcfuse.diagnostics import UsageError, error


@click.command("diff", short_help="Tell what changed between two reports or models.")
@click.argument("before", type=console.FILE)
@click.argument("after", type=console.FILE)
@click.option("--format", "style", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True)
@click.option("--fail-on", type=click.Choice(["regression"]), help="Exit with 1 where AFTER is worse.")
@click.option("--max-regression", type=float, default=0.0, show_default=True, help="Percent that may be lost.")
@click.option("--max-launches", type=click.IntRange(0), help="Exit with 1 where AFTER has more launches.")
@click.option("--max-ddr-bytes", type=click.IntRange(0), help="Exit with 1 where AFTER moves more DDR bytes.")
@console.output_options
def command(
    before: Path,
    after: Path,
    style: str,
    fail_on: str | None,
    max_regression: float,
    max_launches: int | None,
    max_ddr_bytes: int | None,
) -> int:
    """Tell what changed from BEFORE to AFTER: reports, or models, which are fused in memory with default options.

    Where AFTER is the fusion_result.json that ATC writes, tell what ATC's own passes did on top of what BEFORE says.
    """
    from atcfuse.report import diff, diff_json, diff_markdown, diff_text, gate, over_budget
    from atcfuse.report.atc_result import is_atc_result

    if is_atc_result(before) or is_atc_result(after):
        return _with_atc(before, after, style, fail_on, budgets=(max_launches, max_ddr_bytes))
    old, new = _report(before), _report(after)
    difference = diff(old, new)
    if style == "json":
        console.out(diff_json(difference))
    elif style == "markdown":
        console.out(diff_markdown(difference, max_regression, console.language()))
    else:
        page = console.width(), console.colored(sys.stdout)
        console.out(diff_text(difference, *page, lang=console.language()))
    found = over_budget(new, {"launches_after": max_launches, "ddr_bytes_after": max_ddr_bytes})
    if fail_on is not None:
        found += gate(new, old, max_regression)
    console.show(found)
    return 1 if any(d.severity == "error" for d in found) else 0


def _with_atc(
    before: Path, after: Path, style: str, fail_on: str | None, budgets: tuple[int | None, int | None]
) -> int:
    """What ATC's file says, against a report or against an earlier such file."""
    from atcfuse.report import diff_json
    from atcfuse.report.atc_compare import atc_diff, atc_gate, result_diff
    from atcfuse.report.atc_render import atc_diff_markdown, atc_diff_text
    from atcfuse.report.atc_result import is_atc_result, read_atc_result

    both = is_atc_result(before) and is_atc_result(after)
    if not is_atc_result(after):
        raise UsageError(error("ATF552", "ATC's fusion_result.json stands first", hint="give the report first"))
    if budgets != (None, None) or (both and fail_on is not None):
        hint = "leave them out; --fail-on regression works with a report and ATC's file"
        raise UsageError(
            error("ATF552", "fusion_result.json has no launches and bytes to hold budgets against", hint=hint)
        )
    result = read_atc_result(after)
    difference = result_diff(read_atc_result(before), result) if both else atc_diff(_report(before), result)
    if style == "json":
        console.out(diff_json(difference))
    elif style == "markdown":
        console.out(atc_diff_markdown(difference, console.language()))
    else:
        page = console.width(), console.colored(sys.stdout), console.language()
        console.out(atc_diff_text(difference, *page))
    found = atc_gate(difference) if fail_on is not None else []
    console.show(found)
    return 1 if found else 0


def _report(path: Path) -> dict[str, Any]:
    """The report in a JSON file, or that of a model."""
    from atcfuse.report import read_report

    if path.suffix == ".json" or _starts_like_json(path):
        return read_report(path)
    from atcfuse.api import optimize

    return optimize(path).report


def _starts_like_json(path: Path) -> bool:
    from atcfuse.paths import head_of, is_file

    return is_file(path) and head_of(path, 64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
