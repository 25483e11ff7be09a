"""`atcfuse rules`: list, show, check and test rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from atcfuse.cli import console
from atcfuse.diagnostics import UsageError, did_you_mean, error

if TYPE_CHECKING:
    from atcfuse.rule.model import Rule, RuleBook

_FOLDERS = click.option("--rules", type=console.FILE, multiple=True, metavar="DIR", help="A folder of your own rules.")


@click.group("rules", short_help="List, show, check and test rules.")
def command() -> None:
    """The fusions, one YAML file each."""


@command.command("list")
@_FOLDERS
def list_rules(rules: tuple[Path, ...]) -> int:
    """List every rule with its switch, level, kernel and summary."""
    found = _book(rules).rules
    rows = [(rule.name, rule.switch, rule.level, rule.kernel, rule.summary) for rule in found]
    console.out(console.table(("rule", "switch", "level", "kernel", "summary"), rows))
    return 0


@command.command("show")
@click.argument("name")
@_FOLDERS
def show_rule(name: str, rules: tuple[Path, ...]) -> int:
    """Show the file of the rule NAME as it is, and where it lies."""
    rule = _rule(_book(rules), name)
    path = _file_of(rule, rules)
    console.note(str(path))
    console.out(path.read_text(encoding="utf-8"))
    return 0


@command.command("check")
@_FOLDERS
def check_rules(rules: tuple[Path, ...]) -> int:
    """Load all rules and report every mistake. Exits with 1 where there is one."""
    from atcfuse.kernel import load_kernels
    from atcfuse.resources import data_folder
    from atcfuse.rule_check import rule_mistakes

    found = rule_mistakes([data_folder("rules"), *rules], load_kernels(data_folder("kernels")))
    console.show(found)
    if found:
        return 1
    book = _book(rules)
    console.out(f"{len(book.rules)} rules and {len(book.fragments)} fragments, no mistakes")
    return 0


@command.command("test")
@click.argument("names", nargs=-1)
@_FOLDERS
def test_rules(names: tuple[str, ...], rules: tuple[Path, ...]) -> int:
    """Run the examples of the rules NAMES, of all where none is named. Exits with 1 where one fails."""
    from atcfuse.kernel import load_kernels
    from atcfuse.resources import data_folder
    from atcfuse.rule_tests import run_examples

    book = _book(rules)
    for name in names:
        _rule(book, name)
    results = run_examples(book, load_kernels(data_folder("kernels")), names or None)
    for result in results:
        if not result.ok:
            console.out(f"FAILED {result.rule}: {result.title}\n  {result.message}")
    failed = sum(not result.ok for result in results)
    console.out(f"{len(results)} examples, {failed} failed" if failed else f"{len(results)} examples, all right")
    return 1 if failed else 0


def _book(folders: Sequence[Path]) -> RuleBook:
    from atcfuse.autofuse import with_autofuse
    from atcfuse.kernel import load_kernels
    from atcfuse.loader import load_rules
    from atcfuse.resources import data_folder

    return with_autofuse(load_rules([data_folder("rules"), *folders], load_kernels(data_folder("kernels"))))


def _rule(book: RuleBook, name: str) -> Rule:
    rule = book.rule(name)
    if rule is None:
        hint = did_you_mean(name, [r.name for r in book.rules]) or "`atcfuse rules list` shows the rules"
        raise UsageError(error("ATF134", f"there is no rule {name!r}", hint=hint))
    return rule


def _file_of(rule: Rule, folders: Sequence[Path]) -> Path:
    """The file of a rule: spans name it below the folder that it was loaded from."""
    from atcfuse.resources import data_folder

    candidates = (folder.parent / rule.span.file for folder in (*reversed(folders), data_folder("rules")))
    return next(path for path in candidates if path.is_file())
