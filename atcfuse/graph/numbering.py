"""Value numbers: two pure nodes with the same operator, attributes and inputs make one value."""

from __future__ import annotations

from atcfuse.graph.facts import INTEGRAL
from atcfuse.graph.index import Scope

_IMPURE = frozenset({
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout",
    "If", "Loop", "Scan",
})  # fmt: skip


class ValueNumbers:
    """Numbers all values of a scope, once, when first asked.

    With `by_elements`, integers of which every element is known count as the same value where these are, however they
    were computed.
    """

    def __init__(self, scope: Scope, by_elements: bool = False) -> None:
        self._scope, self._by_elements = scope, by_elements
        self._numbers: dict[str, int] | None = None

    def same(self, a: str, b: str) -> bool:
        """Whether two values are provably the same one."""
        return a == b or self.key(a) == self.key(b)

    def key(self, value: str) -> int | str:
        """What is equal for values that are provably the same one: a number, or the name of a value from outside."""
        if self._numbers is None:
            self._numbers = self._number()
        return self._numbers.get(value, value)

    def _number(self) -> dict[str, int]:
        numbers: dict[str, int] = {}
        table: dict[object, int] = {}
        nodes, alias, by_elements = self._scope.nodes, self._scope.alias, self._by_elements
        for index in self._scope.order:
            node = nodes[index]
            key: object = None
            if node.op not in _IMPURE and "::" not in node.op:
                inputs = [alias.get(name, name) for name in node.inputs] if alias else node.inputs
                key = node.op, node.written, *[numbers.get(name, name) for name in inputs]
            for position, output in enumerate(node.outputs):
                if output:
                    elements = self._elements(output) if by_elements else None
                    full = elements or ((position, key) if key is not None else output)
                    numbers[output] = table.setdefault(full, len(table))
        for name, root in alias.items():
            numbers[name] = numbers[root] if root in numbers else table.setdefault(root, len(table))
        return numbers

    def _elements(self, value: str) -> object:
        fact = self._scope.fact(value)
        if fact.dtype not in INTEGRAL or fact.shape is None or fact.elements is None:
            return None
        return "elements", fact.dtype, fact.shape, fact.elements
