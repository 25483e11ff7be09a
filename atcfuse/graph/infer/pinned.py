"""Extents that a model declares as open and then fixes: a Reshape to a length that was traced as a number.

Exporters trace the length of a sequence as a number in some places and as a dim in others (nn.MultiheadAttention's
keys). Reshape keeps the number of elements, so where (sequence, batch, 32) becomes (11, 4*batch, 8), the sequence is 11
in every run that succeeds, or the tensor is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from atcfuse.dims import Dim, Poly, divide, product, symbol, symbols

if TYPE_CHECKING:
    from atcfuse.graph.facts import Fact
    from atcfuse.graph.index import Node, Scope

Pins = Mapping[str, int]
"""The number that an extent has, by the name of its symbol."""


def pinned(scope: Scope, parameters: Iterable[str]) -> Pins:
    """The parameters that Reshapes of a main graph, with its facts, leave one number for; those at odds are left out.

    Only nodes that an output is computed from count: a runtime need not run the others.
    """
    names = set(parameters)
    found: dict[str, set[int]] = {}
    for node in scope.by_op.get("Reshape", ()) if names else ():
        source, target = scope.fact(node.inputs[0]), scope.fact(node.input(1))
        for name, number in _solved(source.shape, target.elements, names):
            if _is_needed(scope, node):
                found.setdefault(name, set()).add(number)
    return {name: numbers.pop() for name, numbers in found.items() if len(numbers) == 1}


def _is_needed(scope: Scope, node: Node) -> bool:
    """Whether an output of the graph is computed from what the node makes."""
    waiting, seen = [node], {node.index}
    while waiting:
        made = waiting.pop().outputs
        if any(scope.is_output(name) for name in made):
            return True
        for reader in (r for name in made for r in scope.readers(name)):
            if reader.index not in seen:
                seen.add(reader.index)
                waiting.append(reader)
    return False


def _solved(
    shape: tuple[Dim, ...] | None, target: tuple[Dim, ...] | None, names: set[str]
) -> Iterable[tuple[str, int]]:
    """The name and number of a parameter, where size of shape and target differ in nothing else."""
    if not shape or not target or not any(isinstance(d, Poly) for d in shape):
        return
    if not all(d > 0 if isinstance(d, int) else d in shape or _counts(d, names) for d in target):
        return
    size, other = product(shape), product(target)
    for atom in symbols(size) - symbols(other):
        rest = divide(size, symbol(atom.name)) if atom.name in names else None
        number = None if rest is None or atom in symbols(rest) else divide(other, rest)
        if isinstance(number, int) and number > 0:
            yield atom.name, number


def _counts(dim: Dim, names: set[str]) -> bool:
    """Whether a computed extent is made of extents that inputs declare, and so is neither -1 nor a 0 that copies."""
    return isinstance(dim, Poly) and all(c > 0 for _, c in dim.terms) and all(s.name in names for s in symbols(dim))


def of_inputs(known: Mapping[str, Fact], declared: Mapping[str, Sequence[str]]) -> Pins:
    """What was found before: numbers in known shapes of inputs that declare a name (`dim_param`) there."""
    pins: dict[str, int] = {}
    for name, texts in declared.items():
        shape = known[name].shape if name in known else None
        pins.update((text, now) for text, now in zip(texts, shape or (), strict=False) if text and isinstance(now, int))
    return pins


def with_pins(dim: Dim, pins: Pins) -> Dim:
    """The dim with the numbers of pinned symbols."""
    if isinstance(dim, int) or not pins:
        return dim
    total: Dim = 0
    for atoms, coefficient in dim.terms:
        total = total + coefficient * product(pins.get(s.name, Poly((((s,), 1),))) for s in atoms)
    return total
