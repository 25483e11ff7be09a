"""`atcfuse completion`: the script that lets a shell complete commands, options and names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from atcfuse.cli import console

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_ATCFUSE_COMPLETE"
"""The variable by which the shell asks the program for completions."""

Names = Callable[[click.Context, click.Parameter, str], list[str]]


@click.command("completion", short_help="Print the script that makes a shell complete atcfuse.")
@click.argument("shell", type=click.Choice(SHELLS))
@console.lang_option
def command(shell: str) -> int:
    """Print the script that makes SHELL complete commands, options, rules, kernels, chips and codes.

    For bash put `eval "$(atcfuse completion bash)"` into ~/.bashrc, for zsh `eval "$(atcfuse completion zsh)"` into
    ~/.zshrc; for fish run `atcfuse completion fish > ~/.config/fish/completions/atcfuse.fish`.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None  # click has all of SHELLS
    root = click.get_current_context().find_root().command
    console.out(found(root, {}, "atcfuse", VARIABLE).source())
    return 0


def among(names: Callable[[], list[str]]) -> Names:
    """Completes an option or argument with those names that begin with what is typed; `names` is called only then."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def subjects(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes what `explain` takes: a code where it begins like one, else a file."""
    from click.shell_completion import CompletionItem

    from atcfuse.diagnostics import all_codes

    codes = [CompletionItem(code) for code in all_codes() if incomplete and code.startswith(incomplete.upper())]
    return codes or [CompletionItem(incomplete, type="file")]


def chips() -> list[str]:
    """The chips that atcfuse has a SoC file of."""
    from atcfuse.device import device_names

    return list(device_names())


def rules() -> list[str]:
    """The names of the rules that come with atcfuse, those about ATC's passes last."""
    from atcfuse.autofuse import with_autofuse
    from atcfuse.library import library

    book = with_autofuse(library()[0])
    return [rule.name for rule in (*book.rules, *book.atc)]


def kernels() -> list[str]:
    """The names of the kernels."""
    from atcfuse.resources import data_folder

    return sorted(path.parent.name for path in data_folder("kernels").glob("*/kernel.yaml"))


def precision_modes() -> list[str]:
    """The precision modes of ATC."""
    from atcfuse.precision import MODES

    return sorted(MODES)


def dialects() -> list[str]:
    """The dialects of an optimized model."""
    from atcfuse.options import DIALECTS

    return list(DIALECTS)


def tile_levels() -> list[str]:
    """The tile levels of attention."""
    from atcfuse.options import TILE_LEVELS

    return list(TILE_LEVELS)
