"""Every text that atcfuse shows to people, found in the sources: what a catalog of another language must have.

A template is written as catalogs have it: `{}` for a value, `{{` for a brace. What the sources say is found by its form,
any literal that reads like words, so that no message needs a marker; what is no message is excluded here by name.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import yaml

import atcfuse
from atcfuse.cli.helptext import paragraphs
from atcfuse.resources import data_folder
from atcfuse.verify.compare import Status

PACKAGE = Path(atcfuse.__file__).parent

NO_MESSAGES = {
    "elementwise/lower.py": "C++ of kernels",
    "rule/json_schema.py": "descriptions in rules/schema.json",
    "report/findings.py": "SARIF, JUnit and code quality, the same in any language",
    "hints.py": "the heading that is looked for in a page",
    "__init__.py": "an AttributeError of Python's own form",
    "lang/catalog.py": "formats of catalogs",
}
_IN_FILES = {
    "skeleton/write.py": r"^(rule|switch|summary|why|limits|level|anchor|draft): |^\s*#|^    |^  \{\}: ",
    "artifacts.py": r"^Written by atcfuse",
    "graph/text.py": r"ir_version",
    "api/memory.py": r"^<iframe|^expected a ModelProto",
    "graph/edit.py": r"^the replacements close",
    "verify/drift.py": r"^import sys",
    "cli/app.py": r"^atcfuse \{\}\n$",
    "elementwise/expression.py": r"^columns \{\}$|^rows \{\}$|^out \{\}$",
    "files/staging.py": r"^not a path inside",
    "verify/files.py": r"^Object arrays$",
}
"""Literals that become parts of files that atcfuse writes, or of errors of its programmers."""

_WORDS = re.compile(r"[A-Za-z]+[,;:]? [A-Za-z`\"(]|[A-Za-z]{3,}:? \{\}|\{\} [a-z]{2,}")
_NO_WORDS = re.compile(r"^#include| = [A-Z]\w* [(<]|^[BNSD ()]+$|^(error|warning|info)$")
"""ONNX's text form, layouts, severities."""
_SPOKEN = frozenset(("say", "plural"))
_WITH_PLACE = frozenset(("Refusal", "refuse"))
_TOLD = frozenset(("error", "warning", "info", "Diagnostic", "fail", *_WITH_PLACE))


@functools.cache
def renderer_templates() -> set[str]:
    """Templates that renderers `say`; they are looked up as they are, and never found in a finished message."""
    found: set[str] = set(_data_words())
    for path in _modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _name(node) in _SPOKEN:
                found.update(a for argument in node.args for a in _alternatives(argument, plain=True) if a.strip("{}"))
    for page in PACKAGE.rglob("*.j2"):
        for one, other in re.findall(r"""say\((?:"([^"]*)"|'([^']*)')""", page.read_text(encoding="utf-8")):
            found.add(one or other)
    return found


def _data_words() -> Iterator[str]:
    """Words that are data: severities, states, kinds of files."""
    yield from ("error", "warning", "info", "on", "off", "model", "report", "kernels", "Options", "Commands", "Usage:")
    yield from get_args(Status)


@functools.cache
def messages() -> dict[str, str]:
    """Templates of finished messages, each with the file that it is in."""
    found: dict[str, str] = {}
    for path in _modules():
        name = path.relative_to(PACKAGE).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        excluded = re.compile(_IN_FILES.get(name, r"(?!)"))
        for template in itertools.chain(_literals(tree), _helps(tree, name)):
            if not excluded.search(template) and not _NO_WORDS.search(template):
                found.setdefault(template, name)
    for template, name in _data():
        found.setdefault(template, name)
    return found


def _modules() -> list[Path]:
    return [p for p in sorted(PACKAGE.rglob("*.py")) if p.relative_to(PACKAGE).as_posix() not in NO_MESSAGES]


def _literals(tree: ast.Module) -> Iterator[str]:
    """Literals that read like words, and whatever is given to a diagnostic or a refusal."""
    skipped = _docstrings(tree)
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop(0)
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Call) and _name(node) in _SPOKEN:
            pending += [n for a in node.args for n in ast.walk(a) if isinstance(n, ast.Call)]
            continue
        if isinstance(node, ast.Call) and _name(node) in _TOLD:
            arguments = node.args[1:2] if _name(node) in _WITH_PLACE else node.args[1:]
            yield from (t for argument in arguments for t in _alternatives(argument) if re.search("[a-z]{3}", t))
        if isinstance(node, (ast.JoinedStr, ast.BinOp, ast.Constant)):
            yield from (t for t in _alternatives(node) if _WORDS.search(t))
        pending += list(_below(node))


def _below(node: ast.AST) -> Iterator[ast.AST]:
    """Children that are no part of the template a node is."""
    if not isinstance(node, ast.JoinedStr):
        yield from ast.iter_child_nodes(node)
        return
    for value in node.values:
        if isinstance(value, ast.FormattedValue):
            if isinstance(value.value, (ast.IfExp, ast.BoolOp, ast.JoinedStr)):
                yield from (c for c in ast.iter_child_nodes(value.value) if isinstance(c, ast.Call))
            else:
                yield value.value


def _alternatives(node: ast.AST, plain: bool = False) -> list[str]:
    """The templates that an expression may give; `{}` for what is not written there."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value if plain or _is_format(node.value) else _escaped(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(parts) for parts in itertools.product(*(_part(v) for v in node.values))]
    if isinstance(node, ast.IfExp):
        return sorted({*_alternatives(node.body, plain), *_alternatives(node.orelse, plain)})
    if isinstance(node, ast.BoolOp):
        return sorted({a for value in node.values for a in _alternatives(value, plain)})
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [a + b for a in _alternatives(node.left, plain) for b in _alternatives(node.right, plain)]
    return ["{}"]


def _part(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant):
        return [_escaped(str(node.value))]
    assert isinstance(node, ast.FormattedValue)
    value = node.value
    if node.conversion == -1 and node.format_spec is None and isinstance(value, (ast.IfExp, ast.BoolOp, ast.JoinedStr)):
        return _alternatives(value)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) and isinstance(value.left, ast.Constant):
        return [str(value.left.value), ""]
    return ["{}"]


def _is_format(text: str) -> bool:
    """Whether a literal is a template itself, such as one that is put into a variable before it is said."""
    return "{}" in text and not re.search(r"[{}]", text.replace("{}", ""))


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _docstrings(tree: ast.Module) -> set[int]:
    found = set()
    for node in ast.walk(tree):
        for statement in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                found.add(id(statement.value))
    return found


def _helps(tree: ast.Module, name: str) -> Iterator[str]:
    """Docstrings of commands, by paragraph, and the help texts of options."""
    if not name.startswith("cli/"):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(isinstance(d, ast.Call) for d in node.decorator_list):
            yield from map(_escaped, paragraphs(inspect.cleandoc(ast.get_docstring(node) or "")))
        if (
            isinstance(node, ast.keyword)
            and node.arg in ("help", "short_help")
            and isinstance(node.value, ast.Constant)
        ):
            yield _escaped(node.value.value)


def _data() -> Iterator[tuple[str, str]]:
    """What rule, kernel and SoC files say."""
    for path in sorted([*data_folder("rules").rglob("*.yaml"), *data_folder("kernels").rglob("kernel.yaml")]):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            for text in _said(document or {}):
                yield _escaped(" ".join(text.split())), path.parent.name + "/" + path.name
    for path in sorted((PACKAGE / "soc").glob("Ascend*.yaml")):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        yield _escaped(document["summary"]), "soc.yaml"
        yield from ((_escaped(figure["why"]), "soc.yaml") for figure in document["figures"].values() if "why" in figure)


def _said(document: dict[str, Any]) -> Iterator[str]:
    if "fragment" not in document:
        yield from (document[key] for key in ("summary", "why", "limits", "numerics", "source") if key in document)
    pending: list[Any] = [{k: v for k, v in document.items() if k != "examples"}]
    while pending:
        here = pending.pop()
        if isinstance(here, list):
            pending += here
        elif isinstance(here, dict):
            for key in ("where", "requires"):
                yield from (here.get(key) or {}).values()
            pending += [value for key, value in here.items() if key not in ("where", "requires")]
