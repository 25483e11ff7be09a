"""`atcfuse restore`."""

from __future__ import annotations

from pathlib import Path

import click

from atcfuse.cli import console


@click.command("restore", short_help="Turn fused nodes back into standard operators.")
@click.argument("optimized", type=console.FILE)
@click.option("-o", "--output", type=console.FILE, required=True, metavar="OUT.onnx", help="The restored model.")
@click.option("-q", "--quiet", is_flag=True, help="Print warnings and errors only.")
@console.output_options
def command(optimized: Path, output: Path, quiet: bool) -> int:
    """Write OPTIMIZED with every fused node replaced by the standard operators that give it its meaning."""
    from atcfuse.restore import restore_file

    restored = restore_file(optimized, output, console.copy_progress())
    console.show(restored.diagnostics, quiet=quiet)
    if not quiet:
        count = len(restored.nodes)
        one = "{}: {} fused node replaced by standard operators"
        many = "{}: {} fused nodes replaced by standard operators"
        console.out(console.say(one if count == 1 else many, output.name, count))
    return 0
