"""Every mistake in a set of rule files at once, where loading them stops at the first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from atcfuse.diagnostics import AtcfuseError, Diagnostic
from atcfuse.kernel import KernelSpec
from atcfuse.loader import load_rules, read_atc, read_fragment, read_rule, rule_files
from atcfuse.resolve import Known, Operator, mistakes
from atcfuse.rule.model import Fragment, Rule, RuleBook
from atcfuse.strict_yaml import read_documents


def rule_mistakes(
    folders: Iterable[Path], kernels: Mapping[str, KernelSpec], operators: Mapping[str, Operator]
) -> list[Diagnostic]:
    """Every mistake in the names of rules and fragments, or else the first of each that cannot be read.

    Names are looked up only once every document can be read, since a broken fragment would make its users look wrong.
    """
    folders = list(folders)
    found: dict[Diagnostic, None] = {}
    rules: list[Rule] = []
    fragments: dict[str, Fragment] = {}
    for folder in folders:
        for path in rule_files(folder):
            _collect(path, f"{folder.name}/{path.relative_to(folder).as_posix()}", rules, fragments, found)
    if not found:
        book = RuleBook(tuple(r for r in rules if r.atc is None), fragments, tuple(r for r in rules if r.atc))
        found.update(dict.fromkeys(mistakes(Known(book, kernels, operators))))
    if not found:
        try:
            load_rules(folders, kernels)
        except AtcfuseError as exc:
            found.update(dict.fromkeys(exc.diagnostics))
    return list(found)


def _collect(
    path: Path, shown: str, rules: list[Rule], fragments: dict[str, Fragment], found: dict[Diagnostic, None]
) -> None:
    try:
        documents = read_documents(path, shown)
    except AtcfuseError as exc:
        found.update(dict.fromkeys(exc.diagnostics))
        return
    for document in documents:
        try:
            keys = {name for name, _, _ in document.items()}
            if "fragment" in keys:
                fragment = read_fragment(document)
                fragments[fragment.name] = fragment
            else:
                rules.append(read_atc(document) if "atc" in keys else read_rule(document))
        except AtcfuseError as exc:
            found.update(dict.fromkeys(exc.diagnostics))
