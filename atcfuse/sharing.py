"""Operands that layers compute again: fused nodes read the first of several equal values, and the others die.

Exporters cut the same mask for every layer and cast the same cosines. Where value numbers prove that two operands are
the same, the later one need not be computed when a fused node was its only reader. Nothing else of the model changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from atcfuse.graph.index import Scope
from atcfuse.graph.numbering import ValueNumbers
from atcfuse.match.values import Built, Value
from atcfuse.rewrite import Fusion
from atcfuse.select import close_a_cycle


def with_shared_operands(chosen: Sequence[Fusion]) -> list[Fusion]:
    """The fusions of one round, each reading the first of values that are the same."""
    by_scope: dict[int, list[Fusion]] = {}
    for fusion in chosen:
        by_scope.setdefault(id(fusion.match.scope), []).append(fusion)
    firsts = {key: _Firsts(fusions) for key, fusions in by_scope.items()}
    found = []
    for fusion in chosen:
        scope = fusion.match.scope
        begin = min(scope.positions[i] for i in fusion.match.members)
        inputs = tuple(firsts[id(scope)].of(value, begin) for value in fusion.inputs)
        found.append(fusion if inputs == fusion.inputs else dataclasses.replace(fusion, inputs=inputs))
    changed = any(new is not old for new, old in zip(found, chosen, strict=True))
    return list(chosen) if changed and close_a_cycle(found) else found


class _Firsts:
    """For the values of a scope the first one that is the same, where it is still there after the fusions."""

    def __init__(self, fusions: Sequence[Fusion]) -> None:
        scope = self._scope = fusions[0].match.scope
        self._numbers = ValueNumbers(scope, by_elements=True)
        self._left = _surviving(scope, fusions)
        self._firsts: dict[int | str, str] = {}
        for index in scope.order:
            for output in scope.nodes[index].outputs:
                if output in self._left and output not in scope.alias:
                    self._firsts.setdefault(self._numbers.key(output), output)

    def of(self, value: Value | Built | None, before: int) -> Value | Built | None:
        """The value to read instead, made before a position in the execution order; else the value itself."""
        if isinstance(value, Built):
            return dataclasses.replace(value, inputs=tuple(self._inner(item, before) for item in value.inputs))
        return None if value is None else self._first(value, before)

    def _inner(self, item: object, before: int) -> object:
        return self.of(item, before) if isinstance(item, (Value, Built)) else item

    def _first(self, value: Value, before: int) -> Value:
        scope = self._scope
        first = self._firsts.get(self._numbers.key(str(value)), str(value))
        maker = scope.producers.get(first)
        if first == value or maker is None or str(value) not in self._left:
            return value
        here, there = scope.fact(str(value)), scope.fact(first)
        same = here.shape is not None and (here.dtype, here.shape) == (there.dtype, there.shape)
        return Value(first) if same and scope.positions[maker.index] < before else value


def _surviving(scope: Scope, fusions: Sequence[Fusion]) -> set[str]:
    """The values that no fusion takes in and that are computed from nothing that vanishes."""
    matches = [f.match for f in fusions]
    taken = {member for match in matches for member in match.members}
    rewritten = {index for match in matches for index in match.shapes}
    made = {output for match in matches for output in match.outputs}
    gone = {output for i in taken for output in scope.nodes[i].outputs} - made
    left: set[str] = set()
    for node in (scope.nodes[index] for index in scope.order if index not in taken):
        if node.index in rewritten or gone.isdisjoint(node.inputs):
            left.update(output for output in node.outputs if output)
        else:
            gone.update(output for output in node.outputs if output)
    return left
