"""`atcfuse check`: the pre-flight."""

from __future__ import annotations

from pathlib import Path

import click

from atcfuse.cli import console


@click.command("check", short_help="Tell what ATC would refuse, before ATC does.")
@click.argument("model", type=console.FILE)
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json", "sarif", "junit", "code-quality"]),
    default="text",
    show_default=True,
    help="sarif, junit and code-quality (GitLab) are for code review.",
)
@console.output_options
def command(model: Path, style: str) -> int:
    """Tell what ATC would refuse or misread in MODEL. Exits with 1 where there is an error."""
    from atcfuse.check import check, check_json, check_text, counts
    from atcfuse.graph.store import load
    from atcfuse.report import findings

    found = check(load(model), model.parent, model.stat().st_size)
    in_place = {"sarif": findings.sarif, "junit": findings.junit, "code-quality": findings.code_quality}
    if style in in_place:
        console.out(in_place[style](model.name, findings.of_diagnostics(found)))
    else:
        console.out(check_json(model.name, found) if style == "json" else check_text(found, console.language()))
    return 1 if counts(found)["errors"] else 0
