"""Printing: results to stdout, diagnostics and progress to stderr, colour where it is wanted."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

import click

from atcfuse.diagnostics import Diagnostic

Color = Literal["auto", "always", "never"]
Command = TypeVar("Command", bound=Callable[..., Any])

FILE = click.Path(path_type=Path)
"""A path argument; the commands check it themselves, so that every mistake has a code."""

_COLORS = {"error": "red", "warning": "yellow", "info": "cyan"}
_WIDEST = 120
_PIPED = 100
_choice: Color = "auto"


def color_option(command: Command) -> Command:
    """Adds `--color auto|always|never`, which holds for both streams until the program ends."""
    option = click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        expose_value=False,
        callback=_set_color,
        help="Colours in the text output.",
    )
    return option(command)


def _set_color(ctx: click.Context, param: click.Parameter, value: Color) -> Color:
    global _choice
    _choice = value
    return value


def colored(stream: TextIO) -> bool:
    """Whether text for the stream is painted."""
    if _choice != "auto":
        return _choice == "always"
    return stream.isatty() and not os.environ.get("NO_COLOR")


def width() -> int:
    """Columns of a line on stdout; a fixed number where it is no terminal, so that files come out the same."""
    return min(shutil.get_terminal_size().columns, _WIDEST) if sys.stdout.isatty() else _PIPED


def out(text: str) -> None:
    """A result, to stdout; one line end at its end."""
    click.echo(text.rstrip("\n"), color=True)


def note(text: str) -> None:
    """Progress, to stderr."""
    click.echo(text, err=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns to the left, as wide as their longest cell."""
    from atcfuse.report.names import display_width, printable

    cells = [tuple(printable(cell) for cell in row) for row in (head, *rows)]
    widths = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(cell + " " * (w - display_width(cell)) for cell, w in zip(row, widths, strict=True)) for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def show(diagnostics: Iterable[Diagnostic], *, quiet: bool = False) -> None:
    """Diagnostics, to stderr; `quiet` leaves out what is only information."""
    painted = colored(sys.stderr)
    for diagnostic in diagnostics:
        if quiet and diagnostic.severity == "info":
            continue
        first, *rest = diagnostic.lines()
        if painted:
            severity = click.style(diagnostic.severity, fg=_COLORS[diagnostic.severity])
            first = first.replace(diagnostic.severity, severity, 1)
        click.echo("\n".join([first, *rest]), err=True, color=True)


def copy_progress() -> Callable[[Path, int, int], None] | None:
    """Shows how far the copy of a weight file is, on a terminal; None elsewhere."""
    if not sys.stderr.isatty():
        return None

    def shown(path: Path, done: int, total: int) -> None:
        percent = 100 * done // max(total, 1)
        click.echo(f"\rcopying {path.name}: {percent}%", err=True, nl=done >= total)

    return shown
