"""The nodes of a model that a new rule is to describe, and what goes into and comes out of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from atcfuse.diagnostics import UsageError, did_you_mean, error
from atcfuse.graph.facts import INTEGERS
from atcfuse.graph.index import Model, Node, Scope

MAX_NODES = 100


@dataclass(frozen=True)
class Region:
    """Nodes of one scope in topological order, without no-ops, constants and integer arithmetic.

    `inputs` are the values that come from outside (constants among them), `outputs` those that are read outside.
    """

    scope: Scope
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def region_of(model: Model, names: Sequence[str]) -> Region:
    """The region of the nodes with these names (or of the values that they make); `*` and `?` stand for many.

    Raises UsageError: ATF170 for a name that is not there, ATF171 for nodes that cannot be one pattern.
    """
    chosen = _chosen(model, names)
    scopes = {id(scope): scope for scope, _ in chosen}
    if len(scopes) > 1:
        paths = ", ".join(sorted(s.path for s in scopes.values()))
        raise UsageError(
            error("ATF171", f"the nodes lie in several graphs ({paths})", hint="choose nodes of one graph")
        )
    (scope,) = scopes.values()
    picked = {node.index: node for _, node in chosen if _computes(scope, node)}
    nodes = tuple(picked[i] for i in scope.order if i in picked)
    if not nodes:
        raise UsageError(error("ATF171", "the nodes only hold constants, no-ops or shape arithmetic"))
    if len(nodes) > MAX_NODES:
        raise UsageError(error("ATF171", f"{len(nodes)} nodes are too many for one rule; at most {MAX_NODES}"))
    _refuse_loose(scope, nodes)
    _refuse_holes(scope, nodes)
    made = {o for n in nodes for o in n.outputs}
    read = dict.fromkeys(scope.source(i) for n in nodes for i in n.inputs if i)
    return Region(scope, nodes, tuple(v for v in read if v not in made), _outputs(scope, nodes))


def _chosen(model: Model, names: Sequence[str]) -> list[tuple[Scope, Node]]:
    every = [(scope, node) for scope in model.scopes() for node in scope.nodes]
    found: list[tuple[Scope, Node]] = []
    for name in names:
        same = [(s, n) for s, n in every if name in (n.name, *n.outputs)]
        same = same or [(s, n) for s, n in every if fnmatchcase(n.name, name)]
        if not same:
            hint = did_you_mean(name, [n.name for _, n in every]) or "names of nodes as the report gives them"
            raise UsageError(error("ATF170", f"the model has no node {name!r}", hint=hint))
        found += same
    return found


def _computes(scope: Scope, node: Node) -> bool:
    """Whether a node belongs into a pattern: no-ops are looked through, shapes and constants are known by value."""
    made = [o for o in node.outputs if o]
    if node.op == "Constant" or all(o in scope.alias for o in made):
        return False
    return not all(scope.fact(o).dtype in INTEGERS for o in made)


def _outputs(scope: Scope, nodes: Iterable[Node]) -> tuple[str, ...]:
    inside = {n.index for n in nodes}
    found = []
    for node in nodes:
        for value in node.outputs:
            readers = _readers(scope, value)
            if value and (not readers or any(r.index not in inside for r in readers) or _leaves(scope, value)):
                found.append(value)
    return tuple(found)


def _leaves(scope: Scope, value: str) -> bool:
    repeated = (v for v, source in scope.alias.items() if source == value)
    return any(scope.escapes(v) for v in (value, *repeated))


def _readers(scope: Scope, value: str) -> list[Node]:
    """The nodes that read a value or a repetition of it, no-ops and Shape left out."""
    names = [value, *(v for v, source in scope.alias.items() if source == value)] if value else []
    found = [r for name in names for r in scope.readers(name)]
    return [r for r in found if r.op != "Shape" and not all(o in scope.alias for o in r.outputs)]


def _refuse_loose(scope: Scope, nodes: Sequence[Node]) -> None:
    """Every node must hang together with the others through values that they make or read."""
    groups: list[tuple[set[str], list[Node]]] = []
    for node in nodes:
        values = {scope.source(v) for v in (*node.inputs, *node.outputs) if v and not _is_constant(scope, v)}
        touching = [g for g in groups if g[0] & values]
        merged = (values.union(*(g[0] for g in touching)), [n for g in touching for n in g[1]] + [node])
        groups = [g for g in groups if g not in touching] + [merged]
    if len(groups) > 1:
        first, second = groups[0][1][0].name, groups[1][1][0].name
        hint = "list the nodes between them too, or write a rule for each"
        raise UsageError(error("ATF171", f"no value connects {first!r} with {second!r}", hint=hint))


def _is_constant(scope: Scope, value: str) -> bool:
    return scope.tensor(value) is not None or scope.fact(value).is_constant


def _refuse_holes(scope: Scope, nodes: Sequence[Node]) -> None:
    """No path may leave the region and come back: such nodes cannot become one."""
    inside = {n.index for n in nodes}
    last = max(scope.positions[n.index] for n in nodes)
    pending = [(r, r) for n in nodes for o in n.outputs for r in _readers(scope, o) if r.index not in inside]
    seen: set[int] = set()
    while pending:
        node, left_by = pending.pop()
        if node.index in inside:
            hint = "list it as well, or end the region before it"
            raise UsageError(error("ATF171", f"{left_by.name!r} lies between nodes of the region", hint=hint))
        if node.index in seen or scope.positions[node.index] > last or not _computes(scope, node):
            continue
        seen.add(node.index)
        pending += [(r, left_by) for o in node.outputs for r in _readers(scope, o)]
