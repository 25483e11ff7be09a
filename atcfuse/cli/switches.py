"""`atcfuse switches`: what a fusion switch file says, and the same for ATC."""

from __future__ import annotations

import json
from pathlib import Path

import click

from atcfuse.cli import console


@click.command("switches", short_help="Show what a fusion switch file turns on and off.")
@click.argument("file", type=console.FILE)
@click.option("--for-atc", type=console.FILE, metavar="OUT.json", help="Write the strict JSON that ATC accepts.")
@click.option("--rules", type=console.FILE, multiple=True, metavar="DIR", help="A folder of your own rules.")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
@console.output_options
def command(file: Path, for_atc: Path | None, rules: tuple[Path, ...], style: str) -> int:
    """Show the state of every fusion that FILE decides on: atcfuse's own first, then ATC's."""
    from atcfuse.compiler import toolbox
    from atcfuse.files import Transaction
    from atcfuse.options import Options
    from atcfuse.switches import describe

    tools = toolbox(Options(switch_file=file, rules=rules))
    console.show(tools.switches.diagnostics)
    if for_atc is not None:
        with Transaction([file]) as transaction:
            transaction.write(for_atc, tools.switches.for_atc())
    states = describe(tools.switches, {r.switch: r.switch_kind for r in tools.book.rules})
    if style == "json":
        console.out(json.dumps([state._asdict() for state in states], indent=2, sort_keys=True))
    else:
        say = console.say
        rows = [(s.name, s.kind, say(s.state), console.tell(s.why)) for s in states]
        console.out(console.table((say("fusion"), say("kind"), say("state"), say("why")), rows))
    return 0
