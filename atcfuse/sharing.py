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
    taken = {(id(f.match.scope), member) for f in chosen for member in f.match.members}
    known: dict[int, _Firsts] = {}
    found = []
    for fusion in chosen:
        scope = fusion.match.scope
        if id(scope) not in known:
            known[id(scope)] = _Firsts(scope, {member for owner, member in taken if owner == id(scope)})
        first = min(scope.positions[i] for i in fusion.match.members)
        inputs = tuple(known[id(scope)].of(value, first) for value in fusion.inputs)
        found.append(fusion if inputs == fusion.inputs else dataclasses.replace(fusion, inputs=inputs))
    return list(chosen) if close_a_cycle(found) else found


class _Firsts:
    """For the values of a scope the first one that is the same and that no fusion takes in."""

    def __init__(self, scope: Scope, taken: set[int]) -> None:
        self._scope = scope
        self._numbers = ValueNumbers(scope, by_elements=True)
        self._firsts: dict[int | str, str] = {}
        left = [scope.nodes[index] for index in scope.order if index not in taken]
        self._left = {output for node in left for output in node.outputs if output}
        for output in (o for node in left for o in node.outputs if o and o not in scope.alias):
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
