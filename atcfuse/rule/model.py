"""Rules and fragments as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal as OneOf

from atcfuse.diagnostics import Span
from atcfuse.expr import Expr
from atcfuse.rule.terms import Alternative, Call, Condition, Step, subterms
from atcfuse.rule.types import TypeSpec

CHIPS = ("310B", "310P", "910", "910B")
"""The chips that a pass of ATC may be described for, by the short names of CANN's platform files."""

Level = OneOf["constant", "operator", "elementwise", "pattern", "graph"]


@dataclass(frozen=True)
class Input:
    """A value that comes from outside the pattern; an optional one may be absent."""

    name: str
    type: TypeSpec
    optional: bool


@dataclass(frozen=True)
class Fragment:
    """A reusable sub-pattern: the first parameter of a call receives the value that the fragment was found on.

    Parameters receive values, exports are what a call may capture by keyword: values, numbers or labels.
    """

    name: str
    params: tuple[str, ...]
    exports: Mapping[str, str]
    inputs: Mapping[str, Input]
    alternatives: tuple[Alternative, ...]
    summary: str
    span: Span


@dataclass(frozen=True)
class Example:
    """A small model in ONNX's text form and what must become of it."""

    title: str
    graph: str
    gives: tuple[str, ...]
    because: str
    opset: int
    span: Span


@dataclass(frozen=True)
class Output:
    """A root of the rule; `if_used` becomes an output of the fused node only when it is read outside."""

    name: str
    step: str
    if_used: bool
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True)
class AtcPass:
    """What a rule that describes one of ATC's own passes says beside its pattern.

    `operator` is the GE operator that the pass makes, `chips` are those that the pass is documented for, `source` says
    by what. `after` names rules of which the match must take in a result, `joins` rules of which it may; no other
    pass's result is touched. `vector_passes` are the vector instructions that an element of the result goes through,
    where they are not the sum of the parts. `numerics` tells how results change, "" where they do not.
    """

    operator: str
    chips: tuple[str, ...]
    source: str
    numerics: str
    after: tuple[str, ...]
    joins: tuple[str, ...]
    vector_passes: int | None


IDENTITY = "Identity"
"""What is left where a launch did nothing: a view, and the names of values stay."""


@dataclass(frozen=True)
class Rebuilt:
    """A standard node that a rule of level `constant` makes: `like` is the step whose attributes it keeps, "" for none.

    An Identity is like none: in its place stood launches that did nothing. A node without an `op` is that of the step
    `like` once more, reading the one input instead of its first; where that step is bound to no node of its own, there
    is none. Inputs name values of the match or `tensors` of the rule, or are nodes themselves, whose `output` is "".
    """

    output: str
    op: str
    inputs: tuple[str | Rebuilt, ...]
    like: str
    span: Span

    @property
    def nodes(self) -> tuple[Rebuilt, ...]:
        """All nodes that are made, each behind those that it reads."""
        return (*(n for i in self.inputs if isinstance(i, Rebuilt) for n in i.nodes), self)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the nodes read."""
        return tuple(i for node in self.nodes for i in node.inputs if isinstance(i, str))


@dataclass(frozen=True)
class Rule:
    """One fusion. `replace` is the call that makes the fused node for the listed outputs.

    `anchor` names the step that matching starts from: wherever it occurs, the rule either matches or says why not.
    A rule with `atc` describes a pass of ATC: it has no kernel and is never applied. A rule of level `constant` has no
    kernel and no `replace`, but `rebuilt`, a standard node that reads new `tensors`. A `draft` (the text says what is
    missing) has none of them: it tells where it matches and replaces nothing. `places` tells where some values stand,
    `aliases` are other names that people know the rule by.
    """

    name: str
    switch: str
    switch_kind: OneOf["GraphFusion", "UBFusion"]
    summary: str
    why: str
    limits: str
    level: Level
    opset: tuple[int, int]
    kernel: str
    types: Mapping[str, tuple[int, ...]]
    inputs: Mapping[str, Input]
    steps: tuple[Step, ...]
    context: tuple[Step, ...]
    outputs: tuple[Output, ...]
    where: tuple[Condition, ...]
    let: tuple[tuple[str, Expr], ...]
    replace: Expr | None
    anchor: str
    fuses: tuple[Example, ...]
    keeps: tuple[Example, ...]
    span: Span
    tensors: tuple[tuple[str, Expr], ...] = ()
    rebuilt: Rebuilt | None = None
    draft: str = ""
    atc: AtcPass | None = None
    places: Mapping[str, Span] = field(default_factory=dict, compare=False, repr=False)
    aliases: tuple[str, ...] = ()

    @property
    def removes(self) -> bool:
        """Whether it takes launches away that do nothing, so that no-ops are what it looks for."""
        return self.rebuilt is not None and self.rebuilt.op == IDENTITY

    def step(self, name: str) -> Step | None:
        """The step that makes the named value."""
        return next((s for s in self.steps if name in s.names), None)


@dataclass(frozen=True, eq=False)
class RuleBook:
    """All rules in file order and the fragments they use; `atc` describe ATC's own passes and are never applied.

    A book is equal to itself only, so that what is worked out of it can be kept by it.
    """

    rules: tuple[Rule, ...]
    fragments: Mapping[str, Fragment]
    atc: tuple[Rule, ...] = ()

    @cached_property
    def fusing(self) -> RuleBook:
        """The book without rules that take launches away, which look for nothing else and come last."""
        return replace(self, rules=tuple(rule for rule in self.rules if not rule.removes))

    @cached_property
    def of_operators(self) -> RuleBook:
        """The rules of level `operator`, and the fragments if any of them calls one."""
        rules = tuple(rule for rule in self.rules if rule.level == "operator")
        heads = {t.head for rule in rules for step in rule.steps for t in subterms(step.term) if isinstance(t, Call)}
        return RuleBook(rules, self.fragments if heads & self.fragments.keys() else {})

    @cached_property
    def removing(self) -> RuleBook:
        """The rules that take launches away, which need no fragments."""
        return RuleBook(tuple(rule for rule in self.rules if rule.removes), {})

    def rule(self, name: str) -> Rule | None:
        """The rule of that name, else the first with that alias: a copy of a rule may keep its aliases."""
        named = (r for r in self.rules if r.name == name)
        return next(named, None) or next((r for r in self.rules if name in r.aliases), None)

    def canonical(self, names: Iterable[str]) -> frozenset[str]:
        """The names of rules in place of their aliases; what names no rule stays."""
        found = {name: self.rule(name) for name in names}
        return frozenset(name if rule is None else rule.name for name, rule in found.items())

    def atc_rule(self, name: str) -> Rule | None:
        """The rule of that name that describes one of ATC's passes."""
        return next((r for r in self.atc if r.name == name), None)
