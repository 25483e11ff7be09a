"""`atcfuse rules`: list, show, check and test rules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from atcfuse.cli import console
from atcfuse.cli.completion import among
from atcfuse.cli.completion import rules as names_of_rules
from atcfuse.cli.helptext import SpokenGroup
from atcfuse.diagnostics import Diagnostic, Span, UsageError, did_you_mean, error, info
from atcfuse.paths import exists

if TYPE_CHECKING:
    from atcfuse.kernel import KernelSpec
    from atcfuse.rule.model import Rule, RuleBook

_FOLDERS = click.option("--rules", type=console.FILE, multiple=True, metavar="DIR", help="A folder of your own rules.")


@click.group("rules", cls=SpokenGroup, short_help="List, show, check and test rules.")
@console.lang_option
def command() -> None:
    """The fusions, one YAML file each."""


@command.command("list")
@_FOLDERS
@console.lang_option
def list_rules(rules: tuple[Path, ...]) -> int:
    """List every rule with its switch, level, kernel and summary; then those that describe ATC's own passes."""
    book = _book(rules)
    say, tell = console.say, console.tell
    rows = [(rule.name, rule.switch, rule.level, _maker(rule), tell(rule.summary)) for rule in book.rules]
    console.out(console.table((say("rule"), say("switch"), say("level"), say("kernel"), say("summary")), rows))
    described = [(r.name, r.switch, ",".join(r.atc.chips), r.atc.operator, tell(r.summary)) for r in book.atc if r.atc]
    if described:
        console.out("")
        head = (say("pass of ATC, never applied"), say("switch"), say("chips"), say("makes"), say("summary"))
        console.out(console.table(head, described))
    return 0


@command.command("show")
@click.argument("name", shell_complete=among(names_of_rules))
@_FOLDERS
@console.lang_option
def show_rule(name: str, rules: tuple[Path, ...]) -> int:
    """Show the file of the rule NAME as it is, and where it lies; or the fragment NAME out of its file."""
    book = _book(rules)
    fragment = book.fragments.get(name)
    if fragment is not None and book.rule(name) is None:
        path = _file_of(fragment.span, rules)
        console.note(f"{path}:{fragment.span.line}")
        console.out(_document(path.read_text(encoding="utf-8"), fragment.span.line))
        return 0
    path = _file_of(_rule(book, name).span, rules)
    console.note(str(path))
    if fragment is not None:
        console.note(f"a fragment of this name is in {_file_of(fragment.span, rules)}:{fragment.span.line}")
    console.out(path.read_text(encoding="utf-8"))
    return 0


def _document(text: str, line: int) -> str:
    """The document of a YAML file that begins in a line, with the comment above it."""
    before, after = text.splitlines()[: line - 1], text.splitlines()[line - 1 :]
    comment = list(takewhile(lambda one: one.startswith("#"), reversed(before)))[::-1]
    return "\n".join([*comment, *takewhile(lambda one: not one.startswith("---"), after)])


@command.command("check")
@_FOLDERS
@console.lang_option
def check_rules(rules: tuple[Path, ...]) -> int:
    """Load all rules and report every mistake. Exits with 1 where there is one."""
    from atcfuse.graph.atc_ops import registered_operators
    from atcfuse.graph.schema import all_parameters
    from atcfuse.kernel import load_kernels
    from atcfuse.resolve import Operator
    from atcfuse.resources import data_folder
    from atcfuse.rule_check import rule_mistakes

    operators = dict.fromkeys(registered_operators(), Operator())
    operators |= {name: Operator(*known) for name, known in all_parameters().items()}
    found = rule_mistakes([data_folder("rules"), *rules], load_kernels(data_folder("kernels")), operators)
    console.show(found)
    if found:
        return 1
    book = _book(rules)
    console.show([_draft(rule) for rule in book.rules if rule.draft])
    said = "{} rules, {} rules about ATC's passes and {} fragments, no mistakes"
    console.out(console.say(said, len(book.rules), len(book.atc), len(book.fragments)))
    return 0


@command.command("test")
@click.argument("names", nargs=-1, shell_complete=among(names_of_rules))
@_FOLDERS
@console.lang_option
def test_rules(names: tuple[str, ...], rules: tuple[Path, ...]) -> int:
    """Run the examples of the rules NAMES, of all where none is named. Exits with 1 where one fails."""
    from atcfuse.kernel import load_kernels
    from atcfuse.report.figures import plural
    from atcfuse.resources import data_folder
    from atcfuse.rule_tests import run_examples

    book = _book(rules)
    for name in names:
        _rule(book, name)
    results = run_examples(book, load_kernels(data_folder("kernels")), names or None)
    for result in results:
        if not result.ok:
            console.out(console.say("FAILED {}: {}\n  {}", result.rule, result.title, console.tell(result.message)))
    failed = sum(not result.ok for result in results)
    ran = plural(len(results), "{} example", "{} examples")
    if failed:
        console.out(console.say("{}, {} failed", ran, failed))
    else:
        console.out(console.say("{}, all right", ran))
    return 1 if failed else 0


@command.command("new")
@click.argument("name")
@click.option("--from", "model", type=console.FILE, required=True, help="The model that has an example of the region.")
@click.option("--nodes", required=True, metavar="NAME,…", help="Its nodes, * and ? for many; or values that they make.")
@click.option("-o", "--output", type=console.FILE, metavar="FILE|DIR", help="The rule file.  [default: NAME.yaml]")
@click.option("--kernel", metavar="KERNEL", help="A kernel to describe in the draft.")
@_FOLDERS
@console.lang_option
def new_rule(
    name: str, model: Path, nodes: str, output: Path | None, kernel: str | None, rules: tuple[Path, ...]
) -> int:
    """Write a draft of the rule NAME from a region of a model: pattern, dims as letters, a small example.

    The draft passes `atcfuse rules check` and `atcfuse rules test`, and `atcfuse explain` shows where it matches. It
    replaces nothing until you write `kernel` and `replace` into it.
    """
    from atcfuse.api import settled
    from atcfuse.compiler import toolbox
    from atcfuse.files import Transaction
    from atcfuse.options import Options
    from atcfuse.skeleton import new_rule as made_from

    if not re.fullmatch(r"[A-Za-z_]\w{0,79}", name):
        hint = "letters, digits and _, beginning with a letter"
        raise UsageError(error("ATF177", f"{name!r} cannot be the name of a rule", hint=hint))
    target = _target(name, output)
    tools = toolbox(settled(Options(rules=rules), {}))
    names = [n for n in (part.strip() for part in nodes.split(",")) if n]
    spec = None if kernel is None else _kernel(kernel, tools.kernels)
    skeleton = made_from(name, model, names, tools, spec)
    with Transaction([model]) as transaction:
        stream = transaction.stage(target, parents=True)
        stream.write_text(skeleton.text, encoding="utf-8")
    console.show(skeleton.diagnostics)
    one, many = "{}: a draft that matches {} place in {}", "{}: a draft that matches {} places in {}"
    console.out(console.say(one if skeleton.places == 1 else many, target, skeleton.places, model.name))
    return 0


def _target(name: str, output: Path | None) -> Path:
    """The file to write; a rule that is there already is not overwritten."""
    target = Path(f"{name}.yaml") if output is None else output
    if target.suffix not in (".yaml", ".yml"):
        target = target / f"{name}.yaml"
    if exists(target):
        raise UsageError(error("ATF178", f"{target} exists", hint="choose another output with -o, or remove it first"))
    return target


def _kernel(name: str, kernels: Mapping[str, KernelSpec]) -> KernelSpec:
    if name not in kernels:
        hint = did_you_mean(name, kernels) or "`atcfuse kernels list` shows them"
        raise UsageError(error("ATF135", f"there is no kernel {name!r}", hint=hint))
    return kernels[name]


def _draft(rule: Rule) -> Diagnostic:
    message = f"{rule.name} is a draft: it tells where it matches and replaces nothing; missing: {rule.draft}"
    hint = "write `kernel` and `replace` instead of `draft`; `atcfuse kernels list` shows the kernels"
    return info("ATF223", message, rule.span, hint)


def _maker(rule: Rule) -> str:
    return rule.kernel or (console.say("(draft)") if rule.draft else console.say("(standard operators)"))


def _book(folders: Sequence[Path]) -> RuleBook:
    from atcfuse.autofuse import with_autofuse
    from atcfuse.library import library

    return with_autofuse(library(folders)[0])


def _rule(book: RuleBook, name: str) -> Rule:
    rule = book.rule(name) or book.atc_rule(name)
    if rule is None:
        known = [*book.fragments, *(r.name for r in (*book.rules, *book.atc))]
        hint = did_you_mean(name, known) or "`atcfuse rules list` shows the rules"
        raise UsageError(error("ATF134", f"there is no rule {name!r}", hint=hint))
    return rule


def _file_of(span: Span, folders: Sequence[Path]) -> Path:
    """The file of a rule or fragment: spans name it below the folder that it was loaded from."""
    from atcfuse.resources import data_folder

    candidates = (folder.parent / span.file for folder in (*reversed(folders), data_folder("rules")))
    return next(path for path in candidates if path.is_file())
