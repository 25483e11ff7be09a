"""The optimized model as the order in which its launches stand: fused nodes, and what is left between them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

from atcfuse.graph.index import Model, Node, Scope
from atcfuse.graph.traffic import KindsOf


def launched(model: Model, kinds_of: KindsOf) -> Iterator[Node]:
    """Every launch in the order of the model, those of a nested body in place of the node that has the body.

    A fused node is among them wherever it stands, so that each can be found.
    """
    return _launched(model.main, kinds_of)


def _launched(scope: Scope, kinds_of: KindsOf) -> Iterator[Node]:
    kind = kinds_of(scope)
    bodies: dict[int, list[Scope]] = {}
    for owner, body in scope.bodies:
        bodies.setdefault(owner.index, []).append(body)
    for index in scope.order:
        if index in bodies:
            for body in bodies[index]:
                yield from _launched(body, kinds_of)
        elif kind[index] == "launch":
            yield scope.nodes[index]


def in_order(
    model: Model, kinds_of: KindsOf, fusions: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The fusions of a report in the order of the model, each with the launches `left_before` it, by operator.

    Second: the launches after the last one. A fusion whose node is not found, comes last.
    """
    waiting: dict[str, deque[dict[str, Any]]] = {}
    for fusion in fusions:
        waiting.setdefault(fusion["name"], deque()).append(fusion)
    ordered: list[dict[str, Any]] = []
    left: Counter[str] = Counter()
    for node in launched(model, kinds_of):
        if waiting.get(node.name):
            ordered.append({**waiting[node.name].popleft(), "left_before": _by_operator(left)})
            left = Counter()
        else:
            left[node.op] += 1
    lost = [{**fusion, "left_before": {}} for group in waiting.values() for fusion in group]
    return ordered + lost, _by_operator(left)


def _by_operator(found: Counter[str]) -> dict[str, int]:
    return dict(sorted(found.items()))
