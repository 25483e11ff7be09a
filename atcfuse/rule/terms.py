"""Pattern terms in ONNX's own call notation, as `Softmax(logits, axis=-1)` or `scaled(x, by=factor)`.

A capitalised call is an ONNX operator (`com.microsoft.BiasGelu(x, b)` one of another domain), a lower-case call a
fragment or a built-in, a bare name a value, a number or text a literal.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Union

from atcfuse.diagnostics import AtcfuseError, Span, error
from atcfuse.expr import Expr, dotted, parse
from atcfuse.rule.types import TypeSpec


@dataclass(frozen=True)
class Ref:
    """A value by name: an input, a fragment's parameter, or the result of another step."""

    name: str
    span: Span


@dataclass(frozen=True)
class Literal:
    """A constant that must be there: a number, text, or a list of numbers."""

    value: float | int | str | tuple[float | int, ...]
    span: Span


@dataclass(frozen=True)
class Call:
    """An operator, a fragment or a built-in applied to terms; `inherits` marks a trailing `...`.

    `places` tells where each keyword stands.
    """

    head: str
    args: tuple[Term, ...]
    keywords: tuple[tuple[str, Ref | Literal], ...]
    span: Span
    inherits: bool = False
    places: Mapping[str, Span] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def is_operator(self) -> bool:
        """Whether this calls an ONNX operator rather than a fragment."""
        return self.head.rpartition(".")[2][:1].isupper()

    @cached_property
    def op(self) -> str:
        """The operator as the index spells it, `domain::Type` for other domains."""
        domain, _, name = self.head.rpartition(".")
        return f"{domain}::{name}" if domain else name


@dataclass(frozen=True)
class Choice:
    """Labelled alternatives written in place; the label taken is read by `chosen(name)`."""

    name: str
    alternatives: tuple[Alternative, ...]
    span: Span


Term = Union[Ref, Literal, Call, Choice]


@dataclass(frozen=True)
class Condition:
    """A condition that must be proved, and the reason to give when it is not."""

    test: Expr
    reason: str


@dataclass(frozen=True)
class Step:
    """A named value (or several: one node's outputs) and the term it must match."""

    names: tuple[str, ...]
    term: Term
    type: TypeSpec | None
    span: Span


@dataclass(frozen=True)
class Alternative:
    """One labelled spelling of a fragment: `result` is matched at the fragment's value, `steps` name parts of it."""

    label: str
    steps: tuple[Step, ...]
    result: Term
    type: TypeSpec | None
    let: tuple[tuple[str, Expr], ...]
    where: tuple[Condition, ...]
    span: Span


def parse_term(text: str, span: Span) -> Term:
    """Parses a pattern term. Raises AtcfuseError ATF208 with the place of the mistake."""
    whole = parse(text, span, code="ATF208")
    return _term(whole.tree, whole)


def _term(node: ast.expr, whole: Expr) -> Term:
    here = whole.place(node)
    if isinstance(node, ast.Name):
        return Ref(node.id, here)
    if isinstance(node, ast.Call):
        return _call(node, whole)
    return Literal(_literal(node, here), here)


def _literal(node: ast.expr, here: Span) -> float | int | str | tuple[float | int, ...]:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str)):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand, here)
        if isinstance(value, (int, float)):
            return -value
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [_literal(e, here) for e in node.elts]
        if all(isinstance(v, (int, float)) for v in values):
            return tuple(v for v in values if isinstance(v, (int, float)))
    hint = "a pattern is made of Operator(…), fragment(…), names and literals; arithmetic belongs under `let`"
    raise AtcfuseError(error("ATF208", "not a pattern term", here, hint))


def _call(node: ast.Call, whole: Expr) -> Call:
    here = whole.place(node)
    head = dotted(node.func)
    if not head:
        raise AtcfuseError(error("ATF208", "a call needs the name of an operator or fragment", here))
    args, inherits = list(node.args), False
    if args and isinstance(args[-1], ast.Constant) and args[-1].value is ...:
        args.pop()
        inherits = True
    keywords: list[tuple[str, Ref | Literal]] = []
    places: dict[str, Span] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise AtcfuseError(error("ATF208", "`**` cannot be used in a pattern", whole.place(keyword)))
        value = _term(keyword.value, whole)
        if not isinstance(value, (Ref, Literal)):
            hint = f"capture it ({keyword.arg}=name) and state the condition under `where`"
            raise AtcfuseError(error("ATF208", f"{keyword.arg}= takes a literal or a name", value.span, hint))
        keywords.append((keyword.arg, value))
        places[keyword.arg] = whole.place(keyword)
    return Call(head, tuple(_term(a, whole) for a in args), tuple(keywords), here, inherits, places)


def subterms(term: Term) -> list[Term]:
    """The term and everything in it, outermost first."""
    found, stack = [], [term]  # type: list[Term], list[Term]
    while stack:
        here = stack.pop()
        found.append(here)
        if isinstance(here, Call):
            stack.extend(reversed(here.args))
        elif isinstance(here, Choice):
            stack.extend(a.result for a in reversed(here.alternatives))
    return found


def names_in(term: Term) -> set[str]:
    """Names that the term reads or captures."""
    names: set[str] = set()
    for part in subterms(term):
        if isinstance(part, Ref):
            names.add(part.name)
        elif isinstance(part, Call):
            names.update(value.name for _, value in part.keywords if isinstance(value, Ref))
    return names
