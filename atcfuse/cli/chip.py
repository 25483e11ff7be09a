"""Options about the chip and its kernels, the same for every command that has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from atcfuse.options import Options

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--soc", default="Ascend910B1", show_default=True, help="ATC's --soc_version, or a SoC file."),
    click.option("--precision-mode", default="force_fp16", show_default=True, help="The one that ATC is called with."),
    click.option("--occupancy", type=float, metavar="SHARE", help="Bound of L1 and UB for kernels.  [default: 0.8]"),
    click.option("--tile-level", default="auto", show_default=True, help="Attention tiles: auto, small or large."),
)


def chip_options(command: Command) -> Command:
    """Adds `--soc`, `--precision-mode`, `--occupancy` and `--tile-level`: with a fused node they settle its kernel."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chip_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Values for `Options` of these options, checked. Raises UsageError."""
    from atcfuse.options import parse_tile_level
    from atcfuse.precision import parse_precision_mode

    return {
        "soc": given["soc"],
        "precision_mode": parse_precision_mode(given["precision_mode"]),
        "occupancy": given["occupancy"],
        "tile_level": parse_tile_level(given["tile_level"]),
    }


def settled_chip(given: dict[str, Any]) -> Options:
    """These options alone, every figure checked. Raises UsageError."""
    from atcfuse.options import Options, check_figures

    options = Options(**chip_settings(given))
    check_figures(options)
    return options
