"""Why a node fused, or why it did not: the report's entries about it, and the rules that begin nearest to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atcfuse import autofuse
from atcfuse.compiler import optimize_proto
from atcfuse.diagnostics import UsageError, did_you_mean, error
from atcfuse.graph.dialect import to_dialect
from atcfuse.graph.index import Model, Node, Scope
from atcfuse.graph.store import load
from atcfuse.kernel import DOMAIN
from atcfuse.match.heads import Heads
from atcfuse.rule.model import Rule, RuleBook
from atcfuse.rule.terms import Alternative, Call, Choice, Step, Term
from atcfuse.run import Toolbox

SCHEMA = "atcfuse.explain/1"

Entry = Mapping[str, Any]

NEAREST = 3
REACH = 2000
"""Nodes looked at around a node for the rules that begin near it."""


@dataclass(frozen=True)
class Near:
    """A kept anchor or a fused node some steps away, across which values flow either way."""

    steps: int
    entry: Entry


@dataclass(frozen=True)
class NodeExplanation:
    """What is known of one node: the fusions it is part of, the reasons kept for it, what lies near it.

    `readers` are the rules that mention its operator anywhere, whether or not they begin at it.
    """

    name: str
    op: str
    fusions: tuple[Entry, ...]
    kept: tuple[Entry, ...]
    readers: tuple[str, ...]
    near: tuple[Near, ...]

    @property
    def status(self) -> str:
        """`optimized` (a fused node), `fused`, `kept` (a rule begins), `untouched` (rules know it) or `uncovered`."""
        if self.op.startswith(f"{DOMAIN}::"):
            return "optimized"
        if self.fusions:
            return "fused"
        if self.kept:
            return "kept"
        return "untouched" if self.readers else "uncovered"

    def as_dict(self) -> dict[str, Any]:
        """The explanation as JSON."""
        near = [{"steps": n.steps, "entry": dict(n.entry)} for n in self.near]
        return {
            "schema": SCHEMA,
            "node": self.name,
            "op": self.op,
            "status": self.status,
            "fusions": [dict(f) for f in self.fusions],
            "kept": [dict(k) for k in self.kept],
            "rules": list(self.readers),
            "near": near,
        }


def with_rule_alone(tools: Toolbox, name: str) -> Toolbox:
    """The tools with one rule only, so that what other rules fuse hides nothing. Raises UsageError ATF134."""
    rule = tools.book.rule(name)
    if rule is None:
        hint = did_you_mean(name, [r.name for r in tools.book.rules]) or "`atcfuse rules list` shows the rules"
        raise UsageError(error("ATF134", f"there is no rule {name!r}", hint=hint))
    return replace(tools, book=RuleBook((rule,), tools.book.fragments))


def explain_model(path: Path, tools: Toolbox) -> dict[str, Any]:
    """The report of a model file, which is only read. Raises AtcfuseError."""
    return optimize_proto(load(path), tools, path, path.name).report


def explain_node(path: Path, name: str, tools: Toolbox) -> NodeExplanation:
    """What is known of the node of that name, of the fused node, or of the node that makes the value of that name.

    Raises UsageError ATF133 where there is none.
    """
    report = explain_model(path, replace(tools, stages=True))
    proto = load(path)
    to_dialect(proto, "portable")
    scopes = list(Model(proto, path).scopes())
    made = tuple(f for f in report["fusions"] if f["name"] == name)
    if made:
        op = f"{DOMAIN}::{made[0]['op']}" if made[0].get("earlier") else made[0]["op"]
        return NodeExplanation(name, op, made, (), (), ())
    scope, node = _find(scopes, name)
    fusions = tuple(f for f in report["fusions"] if node.name in f["nodes"])
    kept = tuple(k for k in report["kept"] if k["anchor"] == node.name)
    readers = tuple(rule.name for rule in tools.book.rules if node.op in operators_of(rule, tools.book))
    near = () if fusions or kept else tuple(_nearest(scope, node, report))
    return NodeExplanation(node.name, node.op, fusions, kept, readers, near)


def _find(scopes: Iterable[Scope], name: str) -> tuple[Scope, Node]:
    by_value: tuple[Scope, Node] | None = None
    names: list[str] = []
    for scope in scopes:
        for node in scope.nodes:
            if node.name == name:
                return scope, node
            names.append(node.name)
        if by_value is None and name in scope.producers:
            by_value = scope, scope.producers[name]
    if by_value is not None:
        return by_value
    hint = did_you_mean(name, names) or "`atcfuse explain MODEL` lists the nodes that were kept"
    raise UsageError(error("ATF133", f"the model has no node {name!r}", hint=hint))


def _nearest(scope: Scope, node: Node, report: Mapping[str, Any]) -> Iterator[Near]:
    """The kept anchors and fused nodes around a node, breadth first, one entry each."""
    entries: dict[str, Entry] = {k["anchor"]: k for k in report["kept"]}
    entries.update((member, fusion) for fusion in report["fusions"] for member in fusion["nodes"])
    seen, front, steps, told = {node.index}, [node], 0, []  # type: set[int], list[Node], int, list[Entry]
    while front and len(seen) < REACH and len(told) < NEAREST:
        steps += 1
        reached: list[Node] = []
        for here in front:
            for other in _neighbours(scope, here):
                if other.index not in seen:
                    seen.add(other.index)
                    reached.append(other)
        for other in sorted(reached, key=lambda n: scope.positions[n.index]):
            entry = entries.get(other.name)
            if entry is not None and entry not in told and len(told) < NEAREST:
                told.append(entry)
                yield Near(steps, entry)
        front = reached


def _neighbours(scope: Scope, node: Node) -> Iterator[Node]:
    for name in node.inputs:
        if name in scope.producers:
            yield scope.producers[name]
    for name in node.outputs:
        yield from scope.readers(name)


def operators_of(rule: Rule, book: RuleBook) -> frozenset[str]:
    """Every operator that a rule mentions, its fragments included; `domain::Type` for other domains."""
    if rule is autofuse.RULE:
        return autofuse.NAMES
    found: set[str] = set()
    seen: set[str] = set()
    pending: list[Term] = [step.term for step in (*rule.steps, *rule.context)]
    while pending:
        term = pending.pop()
        if isinstance(term, Choice):
            pending += _terms(term.alternatives)
        elif isinstance(term, Call):
            pending += term.args
            fragment = book.fragments.get(term.head)
            if term.is_operator:
                found.add(term.op)
            elif fragment is not None and fragment.name not in seen:
                seen.add(fragment.name)
                pending += _terms(fragment.alternatives)
    return frozenset(found)


def beginnings(rule: Rule, book: RuleBook) -> str:
    """The operators at which a rule may begin, as text; "" where that may be any."""
    step = rule.step(rule.anchor)
    heads = None if step is None else Heads(book).of(step.term)
    return ", ".join(sorted(heads or ()))


def _terms(alternatives: Iterable[Alternative]) -> list[Term]:
    return [t for a in alternatives for t in (a.result, *_step_terms(a.steps))]


def _step_terms(steps: Iterable[Step]) -> Iterator[Term]:
    return (step.term for step in steps)


__all__ = [
    "SCHEMA",
    "Near",
    "NodeExplanation",
    "beginnings",
    "explain_model",
    "explain_node",
    "operators_of",
    "with_rule_alone",
]
