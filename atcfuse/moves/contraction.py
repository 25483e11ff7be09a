"""Projections written as Einsum, spelled as a MatMul of rows with a matrix, which rules know.

Keras projects [batch, positions, channels] with a weight of [channels, heads, head dim], and back with one of [heads,
head dim, channels]: axes that are summed, or made, side by side are one axis in memory. As with the other moves, one
that nothing takes up is undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from atcfuse.graph.constants import constant_tensor
from atcfuse.graph.edit import Names, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.respelling import Respelling, Steps


@dataclass(frozen=True)
class Contraction(Respelling):
    """An Einsum of rows and a constant: how many axes of the rows stay, the extents that are summed and those made."""

    rows: int
    summed: tuple[int, ...]
    made: tuple[int, ...]


def find(scope: Scope, node: Node) -> Contraction | None:
    """The projection of last axes by a constant that a node is."""
    equation = node.attributes.get("equation") if node.op == "Einsum" else None
    if not isinstance(equation, str) or len(node.inputs) != 2 or constant_tensor(scope, node.inputs[1]) is None:
        return None
    terms, _, result = equation.replace(" ", "").partition("->")
    left, _, right = terms.partition(",")
    shape, weight = (scope.fact(v).shape for v in node.inputs)
    if shape is None or weight is None or len(shape) != len(left) or len(weight) != len(right):
        return None
    count = len([letter for letter in left if letter in right])
    rows = len(left) - count
    if not rows or not 0 < count < len(right) or left[rows:] != right[:count] or result != left[:rows] + right[count:]:
        return None
    if not all(t.isalpha() and len(set(t)) == len(t) for t in (left, right, result)):
        return None
    extents = tuple(d for d in weight if isinstance(d, int) and d > 0)
    if len(extents) != len(weight) or tuple(shape[rows:]) != extents[:count]:
        return None
    return Contraction(scope, node, rows, extents[:count], extents[count:])


def carry_out(move: Contraction, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """The product, which a MatMul makes while nothing takes it in, that operator, and what takes the Einsum's place."""
    node, steps = move.node, Steps(move.node, names)
    value, weight = node.inputs
    rows = (0,) * move.rows  # as they are
    if len(move.summed) > 1:
        value = steps.add("Reshape", value, (*rows, prod(move.summed)))
    if len(move.summed) + len(move.made) > 2:
        weight = steps.add("Reshape", weight, (prod(move.summed), prod(move.made)))
    if len(move.made) == 1:
        steps.end(node.outputs[0], "MatMul", value, weight)
        return (node.outputs[0],), "MatMul", Replacement(move.scope, move.members, tuple(steps.made))
    product = steps.add("MatMul", value, weight)
    steps.end(node.outputs[0], "Reshape", product, (*rows, *move.made))
    return (product,), "MatMul", Replacement(move.scope, move.members, tuple(steps.made))
