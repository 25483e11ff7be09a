"""Help in the reader's language. The texts of commands and options stay English; the formatter says them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

import click

from atcfuse import lang
from atcfuse.cli import console
from atcfuse.lang.width import display_width, fill

_EXTRA = re.compile(r"(.*?)(?:  |^)\[([^\[\]]*)\]", re.DOTALL)
_WIDEST_TERM = 30


class _Formatter(click.HelpFormatter):
    """Click's formatter in English; in another language every text is told, and lines are as wide as they look."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, prefix or f"{console.say('Usage:')} ")

    def write_heading(self, heading: str) -> None:
        if _english():
            return super().write_heading(heading)
        return self.write(f"{' ' * self.current_indent}{console.say(heading)}：\n")

    def write_text(self, text: str) -> None:
        if _english():
            return super().write_text(text)
        indent = " " * self.current_indent
        told = (fill(_told(paragraph), self.width - self.current_indent) for paragraph in paragraphs(text))
        return self.write("\n\n".join("\n".join(indent + line for line in lines) for lines in told) + "\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = _WIDEST_TERM, col_spacing: int = 2) -> None:
        if _english():
            return super().write_dl(rows, col_max, col_spacing)
        rows = list(rows)
        first = min(max(display_width(term) for term, _ in rows), col_max) + col_spacing
        indent = " " * self.current_indent
        for term, text in rows:
            lines = fill(_told(text), max(self.width - first - self.current_indent, 10))
            fits = display_width(term) <= first - col_spacing
            head = [f"{indent}{term}{' ' * (first - display_width(term))}{lines[0]}" if fits else f"{indent}{term}"]
            rest = lines[1:] if fits else lines
            self.write("\n".join([*head, *(f"{indent}{' ' * first}{line}" for line in rest)]).rstrip() + "\n")
        return None


class SpokenContext(click.Context):
    """A context whose help is in the reader's language."""

    formatter_class = _Formatter


class SpokenCommand(click.Command):
    """A command with such a context."""

    context_class = SpokenContext


class SpokenGroup(click.Group):
    """A group of such commands; what they do is told in full in another language, cut to a line in English."""

    context_class = SpokenContext
    command_class = SpokenCommand

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if _english():
            return super().format_commands(ctx, formatter)
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, _summary(command)) for name, command in commands if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        return None


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a help text, a line each."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())]


def _english() -> bool:
    return console.language() == lang.LANGUAGES[0]


def _summary(command: click.Command) -> str:
    return command.short_help or paragraphs(inspect.cleandoc(command.help or ""))[0]


def _told(text: str) -> str:
    """A text of the help; what click puts behind it in brackets (`[default: 10]`) is told by itself."""
    told = _exactly(text)
    behind = None if told != text else _EXTRA.fullmatch(text)
    if behind is None:
        return told
    return f"{_exactly(behind[1])}  [{'; '.join(map(_extra, behind[2].split('; ')))}]".lstrip()


def _exactly(text: str) -> str:
    return console.say(text.replace("{", "{{").replace("}", "}}"))


def _extra(text: str) -> str:
    word, _, value = text.partition(": ")
    if word == "default":
        return console.say("default: {}", value)
    return console.say("required") if text == "required" else text
