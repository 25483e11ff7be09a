"""The command group, and the guard around it: whatever happens ends in a coded message and an exit code."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import NoReturn

import click

from atcfuse import __version__
from atcfuse.cli import console
from atcfuse.cli.helptext import SpokenContext, SpokenGroup
from atcfuse.diagnostics import AtcfuseError, Diagnostic, UsageError, did_you_mean, error

COMMANDS = (
    "optimize",
    "check",
    "explain",
    "verify",
    "diff",
    "report",
    "rules",
    "kernels",
    "switches",
    "restore",
    "completion",
)
LIBRARIES = ("onnx", "onnxruntime", "onnx-graphsurgeon", "numpy", "protobuf", "PyYAML")
TRACEBACK_VARIABLE = "ATCFUSE_TRACEBACK"
INTERRUPTED, TERMINATED, PIPE_CLOSED = 130, 143, 1


class _Commands(SpokenGroup):
    """Commands in the order of a session, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"atcfuse.cli.{cmd_name}").command
        command.context_class = SpokenContext
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if ctx.resilient_parsing:  # a shell asks for completions, and nobody reads a mistake
            return super().resolve_command(ctx, args)
        if name not in COMMANDS and not name.startswith("-"):
            hint = did_you_mean(name, COMMANDS) or f"the commands are {', '.join(COMMANDS)}"
            raise UsageError(error("ATF131", f"there is no command {name!r}", hint=hint))
        return super().resolve_command(ctx, args)


def _version(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    """Prints the version and those of the libraries that results depend on, none of them imported."""
    if not wanted or context.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    console.out(f"atcfuse {__version__}\n")
    for library in LIBRARIES:
        try:
            found = version(library)
        except PackageNotFoundError:
            found = console.say("not installed")
        console.out(f"  {library} {found}\n")
    context.exit()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed or a gate not met, 2 wrong usage.",
)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show versions.")
@console.lang_option
def cli() -> None:
    """Fuse the subgraphs of an ONNX model that one Ascend kernel can run, just before ATC."""


def main() -> NoReturn:
    """The console script."""
    signal.signal(signal.SIGTERM, _terminated)
    gc.disable()
    _leave(run(sys.argv[1:]))


def _leave(code: int) -> NoReturn:
    """Ends the process. What it built is not taken apart, which takes a large model longer than writing it."""
    if "joblib" in sys.modules or threading.active_count() > 1:  # workers are sent home at exit
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and gives its exit code. Only SystemExit of a signal handler passes through."""
    try:
        console.settle_language(arguments, os.environ)
        with console.progress(quiet=not {"-q", "--quiet"}.isdisjoint(arguments)):
            code = cli.main(args=list(arguments), prog_name="atcfuse", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except AtcfuseError as exc:
        console.show(exc.diagnostics)
        return exc.exit_code
    except click.ClickException as exc:
        console.show([_usage(exc)])
        return 2
    except (click.Abort, KeyboardInterrupt):
        console.note(console.say("interrupted; nothing was left half-written"))
        return INTERRUPTED
    except BrokenPipeError:
        # What click does while a command runs. Python flushes stdout once more at exit: nobody is left to read it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as exc:
        return _internal(exc)


def _terminated(signum: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(TERMINATED)


def _usage(exc: click.ClickException) -> Diagnostic:
    context = getattr(exc, "ctx", None)
    path = context.command_path if context else "atcfuse"
    message = exc.format_message().strip()
    return error("ATF131", message[:1].lower() + message[1:].rstrip("."), hint=f"`{path} --help` shows the usage")


def _internal(exc: Exception) -> int:
    notes = [f"{type(exc).__name__}: {exc}".splitlines()[0][:400]]
    hint = f"report it with the model and the command; {TRACEBACK_VARIABLE}=1 shows where it happened"
    if os.environ.get(TRACEBACK_VARIABLE, "") not in ("", "0"):
        import traceback

        console.note(traceback.format_exc().rstrip())
    message = "an internal error; this is a mistake in atcfuse, and nothing was written"
    console.show([error("ATF199", message, hint=hint, notes=notes)])
    return 1
