"""The fusion of element-wise operators as reports, switches and options know it: a rule whose pattern is a program."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import lru_cache

from atcfuse.diagnostics import Span
from atcfuse.expr import Expr
from atcfuse.rule.model import Rule, RuleBook

_SPAN = Span("kernels/elementwise/kernel.yaml", 1, 1)

RULE = Rule(
    name="elementwise",
    switch="FusedElementwiseFusionPass",
    switch_kind="UBFusion",
    summary="Element-wise operators that no other rule took become FusedElementwise nodes, one op type an expression.",
    why="Intermediate results stay in the unified buffer, and one launch takes the place of many.",
    limits="Results have one shape or are one value a row of it; operands are broadcast along neighbouring axes.",
    level="elementwise",
    opset=(7, 23),
    kernel="elementwise",
    types={},
    inputs={},
    steps=(),
    context=(),
    outputs=(),
    where=(),
    let=(),
    replace=Expr("FusedElementwise()", ast.parse("FusedElementwise()", mode="eval").body, _SPAN),
    anchor="",
    fuses=(),
    keeps=(),
    span=_SPAN,
)


@lru_cache(maxsize=4)
def with_autofuse(book: RuleBook) -> RuleBook:
    """The rules and, after them, the grouping of element-wise operators."""
    return replace(book, rules=(*book.rules, RULE))
