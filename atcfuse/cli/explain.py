"""`atcfuse explain`: why subgraphs fused or stayed, and what a code means."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atcfuse.cli import console
from atcfuse.cli.chip import chip_options, chip_settings
from atcfuse.cli.completion import among, subjects
from atcfuse.cli.completion import rules as names_of_rules
from atcfuse.diagnostics import UsageError, all_codes, code_page, did_you_mean, error

if TYPE_CHECKING:
    from atcfuse.run import Toolbox


@click.command("explain", short_help="Tell why subgraphs fused or stayed, or what a code means.")
@click.argument("subject", metavar="MODEL|ATFnnn", shell_complete=subjects)
@click.option("--node", metavar="NAME", help="One node, by its name or that of a value it makes.")
@click.option(
    "--rule", metavar="NAME", shell_complete=among(names_of_rules), help="One rule, as if there were no other."
)
@chip_options
@click.option("--assume", default="", metavar="NAME=SIZE,…", help="Sizes of dynamic dims, for the figures.")
@click.option("--fusion-switch-file", "switch_file", type=console.FILE, help="The file that ATC gets too.")
@click.option("--rules", type=console.FILE, multiple=True, metavar="DIR", help="A folder of your own rules.")
@click.option("--no-kernels", is_flag=True, help="As optimize --no-kernels: fuse also what has no kernel or loses.")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
@console.output_options
def command(subject: str, node: str | None, rule: str | None, style: str, **given: Any) -> int:
    """Tell why each subgraph of MODEL that a rule could begin at was kept, or print the page of the code ATFnnn."""
    if re.fullmatch(r"(?i)ATF\d+", subject):
        console.out(_page(subject.upper()))
        return 0
    from atcfuse.cli import describe
    from atcfuse.explain import beginnings, explain_model, explain_node

    path = Path(subject)
    tools = _tools(path, rule, given)
    document = explain_model(path, tools) if node is None else explain_node(path, node, tools).as_dict()
    if style == "json":
        from atcfuse.report import to_json

        console.out(to_json(document))
    else:
        render = describe.kept_text if node is None else describe.node_text
        console.out(render(document, console.width(), console.colored(sys.stdout), console.language()))
        if rule is not None and node is None and not document["fusions"] and not document["kept"]:
            found = beginnings(tools.book.rules[0], tools.book)
            nowhere = console.say("nowhere in this model is what {} begins at", rule)
            console.out(f"  {console.say('{}: {}', nowhere, found) if found else nowhere}")
    return 0


def _page(code: str) -> str:
    page = code_page(code, console.language())
    if page is None:
        hint = (
            did_you_mean(code, all_codes()) or f"codes begin with ATF and have three digits, such as {all_codes()[0]}"
        )
        raise UsageError(error("ATF132", f"there is no code {code}", hint=hint))
    return page


def _tools(path: Path, rule: str | None, given: dict[str, Any]) -> Toolbox:
    from atcfuse.api import settled
    from atcfuse.compiler import toolbox
    from atcfuse.explain import with_rule_alone
    from atcfuse.options import Options, parse_assumed

    options = Options(
        switch_file=given["switch_file"],
        rules=given["rules"],
        assume=parse_assumed(given["assume"]),
        kernels=not given["no_kernels"],
        **chip_settings(given, path),
    )
    tools = toolbox(settled(options, {}))
    return tools if rule is None else with_rule_alone(tools, rule)
