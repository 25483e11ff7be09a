"""Printing: results to stdout, diagnostics and progress to stderr, colour and language as they are wanted."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

import click

from atcfuse import lang
from atcfuse.diagnostics import Diagnostic, UsageError, did_you_mean, error

Color = Literal["auto", "always", "never"]
Command = TypeVar("Command", bound=Callable[..., Any])

FILE = click.Path(path_type=Path)
"""A path argument; the commands check it themselves, so that every mistake has a code."""

_COLORS = {"error": "red", "warning": "yellow", "info": "cyan"}
_WIDEST = 120
_PIPED = 100
_PATIENCE, _PAUSE = 0.5, 0.1
"""Seconds that work may take before progress is shown, and between two changes of it."""
_shown = False
_choice: Color = "auto"
_language = lang.LANGUAGES[0]


def output_options(command: Command) -> Command:
    """Adds `--color auto|always|never`, which holds for both streams until the program ends, and `--lang`."""
    option = click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        expose_value=False,
        callback=_set_color,
        help="Colours in the text output.",
    )
    return option(lang_option(command))


def lang_option(command: Command) -> Command:
    """Adds `--lang en|zh`, which holds until the program ends."""
    option = click.option(
        "--lang",
        metavar="en|zh",
        expose_value=False,
        is_eager=True,
        callback=_set_language,
        shell_complete=lambda ctx, param, incomplete: [x for x in lang.LANGUAGES if x.startswith(incomplete)],
        help="Language of reports and messages.  [default: from LANG]",
    )
    return option(command)


def _set_language(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None and not ctx.resilient_parsing:
        speak(value, "--lang")


def speak(value: str, origin: str) -> None:
    """Settles the language of what is printed. Raises UsageError ATF149 for one that atcfuse does not speak."""
    global _language
    if value not in lang.LANGUAGES:
        hint = did_you_mean(value, lang.LANGUAGES) or f"one of {', '.join(lang.LANGUAGES)}"
        raise UsageError(error("ATF149", f"{origin} {value!r} is not a language of atcfuse", hint=hint))
    _language = value


def settle_language(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """The language before the command line is read, for help and mistakes: of the last `--lang`, else of `environ`.

    Raises UsageError for a wrong `ATCFUSE_LANG`; a wrong `--lang` is told when the command line is read.
    """
    speak(lang.LANGUAGES[0], "")
    given = [right for left, right in pairwise(arguments) if left == "--lang"]
    given += [argument.removeprefix("--lang=") for argument in arguments if argument.startswith("--lang=")]
    known = [value for value in given if value in lang.LANGUAGES]
    if known:
        speak(known[-1], "--lang")
    elif not given:
        speak(lang.from_environment(environ), lang.VARIABLE)


def language() -> str:
    """The language of what is printed."""
    return _language


def say(template: str, *values: object) -> str:
    """A template in the language of what is printed, see `atcfuse.lang.say`."""
    with lang.speaking(_language):
        return lang.say(template, *values)


def tell(message: str) -> str:
    """A finished message in the language of what is printed, see `atcfuse.lang.tell`."""
    with lang.speaking(_language):
        return lang.tell(message)


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
    erase_progress()
    click.echo(text.rstrip("\n"), color=True)


def note(text: str) -> None:
    """A remark, to stderr."""
    erase_progress()
    click.echo(text, err=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns to the left, as wide as their longest cell; on a terminal no wider than that."""
    from atcfuse.lang.width import aligned, folded
    from atcfuse.report.names import printable

    first, *others = [tuple(printable(cell) for cell in row) for row in (head, *rows)]
    terminal = sys.stdout.isatty()
    return "\n".join(folded(first, others, width()) if terminal else aligned([first, *others]))


def show(diagnostics: Iterable[Diagnostic], *, quiet: bool = False) -> None:
    """Diagnostics, to stderr; `quiet` leaves out what is only information."""
    painted = colored(sys.stderr)
    erase_progress()
    for diagnostic in diagnostics:
        if quiet and diagnostic.severity == "info":
            continue
        with lang.speaking(_language):
            first, *rest = diagnostic.lines()
            severity = lang.say(diagnostic.severity)
        if painted:
            first = first.replace(severity, click.style(severity, fg=_COLORS[diagnostic.severity]), 1)
        click.echo("\n".join([first, *rest]), err=True, color=True)


@contextmanager
def progress(quiet: bool) -> Iterator[None]:
    """Shows what long work is at, in one line of stderr that goes away; on a terminal only, and not when `quiet`."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from atcfuse.progress import listening

    try:
        with listening(_listener()):
            yield
    finally:
        erase_progress()


def _listener() -> Callable[[str, int, int], None]:
    """Shows a phase of work and its counts, once that has taken a while, and not too often."""
    began = last = time.monotonic()

    def listen(phase: str, done: int, total: int) -> None:
        global _shown
        nonlocal last
        now = time.monotonic()
        if now - began < _PATIENCE or now - last < _PAUSE:
            return
        last = now
        counts = f"{done}/{total}" if total else str(done or "")
        text = say("{}: {}", tell(phase), counts) if counts else tell(phase)
        click.echo(f"\r\x1b[K{text}", err=True, nl=False, color=True)
        _shown = True

    return listen


def erase_progress() -> None:
    """Takes the line of progress away, before anything else is printed."""
    global _shown
    if _shown:
        click.echo("\r\x1b[K", err=True, nl=False, color=True)
        _shown = False


def copy_progress() -> Callable[[Path, int, int], None] | None:
    """Shows how far the copy of a weight file is, on a terminal; None elsewhere."""
    if not sys.stderr.isatty():
        return None

    def shown(path: Path, done: int, total: int) -> None:
        percent = 100 * done // max(total, 1)
        click.echo(f"\r\x1b[K{say('copying {}: {}%', path.name, percent)}", err=True, nl=done >= total)

    return shown
