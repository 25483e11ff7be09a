"""`atcfuse report`: a report file in another form."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from atcfuse.cli import console

FORMATS = ("text", "markdown", "html", "sarif", "junit", "code-quality", "fusion-result")


@click.command("report", short_help="Show a report file in another form.")
@click.argument("report", type=console.FILE)
@click.option("--format", "style", type=click.Choice(FORMATS), default="text", show_default=True)
@console.output_options
def command(report: Path, style: str) -> int:
    """Show REPORT, a .report.json file, for people, for code review (SARIF, JUnit, GitLab) or as ATC counts passes."""
    from atcfuse.report import read_report

    console.out(_form(style)(read_report(report)))
    return 0


def _form(style: str) -> Callable[[Mapping[str, Any]], str]:
    from atcfuse.report import findings, to_markdown, to_text
    from atcfuse.report.fusion_result import to_fusion_result
    from atcfuse.report.html import to_html

    in_place = {"sarif": findings.sarif, "junit": findings.junit, "code-quality": findings.code_quality}
    if style in in_place:
        return lambda document: in_place[style](document["model"]["name"] or "model.onnx", findings.of_report(document))
    language = console.language()
    forms: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "text": lambda document: to_text(document, console.width(), console.colored(sys.stdout), language),
        "markdown": lambda document: to_markdown(document, language),
        "html": lambda document: to_html(document, language),
        "fusion-result": to_fusion_result,
    }
    return forms[style]
