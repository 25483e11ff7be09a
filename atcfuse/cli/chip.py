"""Options about the chip and its kernels, the same for every command that has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from atcfuse.cli import console
from atcfuse.cli.completion import among, chips, precision_modes, tile_levels
from atcfuse.diagnostics import info

if TYPE_CHECKING:
    from atcfuse.options import Options

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--soc",
        default="Ascend910B1",
        show_default=True,
        shell_complete=among(chips),
        help="ATC's --soc_version, or a SoC file.",
    ),
    click.option(
        "--precision-mode",
        default="force_fp16",
        show_default=True,
        shell_complete=among(precision_modes),
        help="The one that ATC is called with.",
    ),
    click.option("--occupancy", type=float, metavar="SHARE", help="Bound of L1 and UB for kernels.  [default: 0.8]"),
    click.option(
        "--tile-level",
        default="auto",
        show_default=True,
        shell_complete=among(tile_levels),
        help="Attention tiles: auto, small or large.",
    ),
)


def chip_options(command: Command) -> Command:
    """Adds `--soc`, `--precision-mode`, `--occupancy` and `--tile-level`: with a fused node they settle its kernel."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chip_settings(given: dict[str, Any], model: Path | None = None) -> dict[str, Any]:
    """Values for `Options` of these options, checked. Raises UsageError.

    Where `model` is one that `optimize` wrote, options that were not given are those of that run, as the report beside
    the model says.
    """
    from atcfuse.options import parse_tile_level
    from atcfuse.precision import parse_precision_mode

    chosen = given if model is None else {**given, **_recorded(model)}
    return {
        "soc": chosen["soc"],
        "precision_mode": parse_precision_mode(chosen["precision_mode"]),
        "occupancy": chosen["occupancy"],
        "tile_level": parse_tile_level(chosen["tile_level"]),
    }


def settled_chip(given: dict[str, Any], model: Path) -> Options:
    """These options alone, every figure checked; for `model` see `chip_settings`. Raises UsageError."""
    from atcfuse.options import Options, check_figures

    options = Options(**chip_settings(given, model))
    check_figures(options)
    return options


def _recorded(model: Path) -> dict[str, Any]:
    """What the report beside a model says of options that this command line leaves at their defaults, and says so."""
    from atcfuse.api import report_files
    from atcfuse.report import settings_of

    path = report_files(model)[0]
    context = click.get_current_context()
    found = {
        name: value
        for name, value in settings_of(path, model.name).items()
        if context.get_parameter_source(name) is ParameterSource.DEFAULT and value != context.params[name]
    }
    if found:
        shown = {n: f"{v:g}" if isinstance(v, float) else v for n, v in found.items()}
        words = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in shown.items())
        console.show([info("ATF147", f"for the chip and options of {path.name}: {words}")])
    return found
