"""`atcfuse restore`."""

from __future__ import annotations

from pathlib import Path

import click

from atcfuse.cli import console


@click.command("restore", short_help="Turn fused nodes back into standard operators.")
@click.argument("optimized", type=console.FILE)
@click.option("-o", "--output", type=console.FILE, required=True, metavar="OUT.onnx", help="The restored model.")
@click.option("-q", "--quiet", is_flag=True, help="Print warnings and errors only.")
@console.color_option
def command(optimized: Path, output: Path, quiet: bool) -> int:
    """Write OPTIMIZED with every fused node replaced by the standard operators that give it its meaning."""
    from atcfuse.restore import restore_file

    restored = restore_file(optimized, output, console.copy_progress())
    console.show(restored.diagnostics, quiet=quiet)
    if not quiet:
        count = len(restored.nodes)
        console.out(f"{output.name}: {count} fused node{'' if count == 1 else 's'} replaced by standard operators")
    return 0
