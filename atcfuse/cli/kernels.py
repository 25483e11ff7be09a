"""`atcfuse kernels`: list and show the fused operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atcfuse.cli import console
from atcfuse.diagnostics import UsageError, did_you_mean, error

if TYPE_CHECKING:
    from atcfuse.kernel import KernelSpec


@click.group("kernels", short_help="List and show the fused operators and their kernels.")
def command() -> None:
    """The fused operators and the kernels that make them."""


@command.command("list")
def list_kernels() -> int:
    """List every kernel with the operator it makes."""
    rows = [(spec.name, spec.op, spec.summary) for spec in _specs().values()]
    console.out(console.table(("kernel", "operator", "summary"), rows))
    return 0


@command.command("show")
@click.argument("name")
def show_kernel(name: str) -> int:
    """Show the declaration of the kernel NAME (or of the operator NAME), and where it lies."""
    specs = _specs()
    spec = specs.get(name) or next((s for s in specs.values() if s.op == name), None)
    if spec is None:
        hint = did_you_mean(name, [*specs, *(s.op for s in specs.values())]) or "`atcfuse kernels list` shows them"
        raise UsageError(error("ATF135", f"there is no kernel {name!r}", hint=hint))
    path = spec.folder / "kernel.yaml"
    console.note(str(path))
    console.out(path.read_text(encoding="utf-8"))
    return 0


def _specs() -> dict[str, KernelSpec]:
    from atcfuse.kernel import load_kernels
    from atcfuse.resources import data_folder

    return load_kernels(data_folder("kernels"))
