"""Factors on attention scores, moved to where the fused operator can take them.

A factor of its own for each head (cosine attention) belongs to the queries just as well, and a factor on the sum of
scores and a bias (relative positions) to both summands. Then the scores that reach softmax are a product, scaled by one
number, and biased. One after which no attention is fused is undone.
"""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.graph.constants import scalar
from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.match.levels import absorbs, is_ordinary
from atcfuse.moves.respelling import Several

_ON_THE_WAY = frozenset({"Add", "Sub", "Mul", "Div", "Where", "Cast", "Reshape", "Max", "Tanh", "Identity"})
_FAR = 12
"""Softmax is at most so many nodes away."""


@dataclass(frozen=True)
class Rescaling(Several):
    """A factor that may move: from `scale` to the queries of `product`, or to both operands of `total`."""

    scope: Scope
    scale: Node
    product: Node
    total: Node | None = None

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that the move replaces."""
        return (self.scale, self.product if self.total is None else self.total)


def find(scope: Scope, node: Node) -> Rescaling | None:
    """The move of the factor that a node multiplies with or divides by, if it is one on scores."""
    if node.op not in ("Mul", "Div") or len(node.inputs) != 2:
        return None
    for at in (0, 1) if node.op == "Mul" else (0,):
        maker = scope.producers.get(node.inputs[at])
        if maker is None or len(maker.inputs) != 2 or not scope.is_read_by_one(node.inputs[at], node):
            continue
        found = _of_heads(scope, node, maker, at) if maker.op == "MatMul" else _of_sum(scope, node, maker, at)
        if found is not None and leads_to_softmax(scope, node.outputs[0]):
            return found
    return None


def carry_out(move: Rescaling, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What an operator makes while no attention is fused, that operator, and what takes the place of the nodes."""
    scale, scores = move.scale, move.scale.outputs[0]
    made: tuple[NewNode, ...]
    if move.total is None:
        queries = names.fresh(f"{move.product.inputs[0]}/scaled")
        first = _scaled(move, move.product.inputs[0], queries, scale.proto.name)
        inputs = (queries, move.product.inputs[1])
        made = (first, NewNode("MatMul", move.product.proto.name, inputs, (scores,), like=move.product.index))
        return (scores,), "MatMul", Replacement(move.scope, move.members, made)
    parts = [names.fresh(f"{value}/scaled") for value in move.total.inputs]
    own = (scale.proto.name, names.fresh(scale.name))
    scaled = [_scaled(move, v, p, n) for v, p, n in zip(move.total.inputs, parts, own, strict=True)]
    made = (*scaled, NewNode("Add", move.total.proto.name, tuple(parts), (scores,), like=move.total.index))
    # An Einsum may become a MatMul of another value by a move of its own.
    op, value = ("Add", scores) if move.product.op == "Einsum" else ("MatMul", move.product.outputs[0])
    return (value,), op, Replacement(move.scope, move.members, made)


def _scaled(move: Rescaling, value: str, result: str, name: str) -> NewNode:
    """The node that scales, on another value."""
    before = move.product.outputs[0] if move.total is None else move.total.outputs[0]
    inputs = tuple(value if v == before else v for v in move.scale.inputs)
    return NewNode(move.scale.op, name, inputs, (result,), like=move.scale.index)


def _of_heads(scope: Scope, node: Node, product: Node, at: int) -> Rescaling | None:
    """A factor [.., heads, 1, 1] on a product of operands that have as many axes."""
    factor, scores = scope.fact(node.inputs[1 - at]).shape, scope.fact(product.outputs[0]).shape
    queries = scope.fact(product.input(0)).shape
    if node.op != "Mul" or factor is None or scores is None or queries is None or len(queries) != len(scores):
        return None
    if not 3 <= len(factor) <= len(scores) or factor[-2:] != (1, 1) or all(d == 1 for d in factor):
        return None
    fits = all(d in (1, s) for d, s in zip(reversed(factor), reversed(queries), strict=False))
    return Rescaling(scope, node, product) if fits else None


def _of_sum(scope: Scope, node: Node, total: Node, at: int) -> Rescaling | None:
    """A number no greater than 1 on the sum of a product and something else.

    A mask of -1e4 or -1e9 is not moved: in rows where it is added to all scores, what it leaves of their digits would
    differ.
    """
    number = scalar(scope, node.inputs[1 - at])
    if total.op != "Add" or len(total.inputs) != 2 or number is None or scope.fact(node.inputs[1 - at]).size != 1:
        return None
    if not (0 < number <= 1 if node.op == "Mul" else 1 <= number < float("inf")):
        return None
    for value, other in (total.inputs, total.inputs[::-1]):
        product = scope.producers.get(value)
        if (
            product is None
            or product.op not in ("MatMul", "Einsum")
            or not product.inputs[1:]
            or not scope.is_read_by_one(value, total)
        ):
            continue
        if is_ordinary(scope, other) or absorbs(scope, other):
            return Rescaling(scope, node, product, total)
    return None


def leads_to_softmax(scope: Scope, value: str) -> bool:
    """Whether a value comes to a Softmax, one reader after the other."""
    for _ in range(_FAR):
        readers = scope.value_readers(value)
        if len(readers) != 1 or scope.escapes(value):
            return False
        if readers[0].op == "Softmax":
            return True
        if readers[0].op not in _ON_THE_WAY:
            return False
        value = readers[0].outputs[0]
    return False
