"""Products of attention whose result is transposed, spelled as products of the transposed operands the other way round.

(A·B)ᵀ is Bᵀ·Aᵀ. tf2onnx writes an Einsum like that where its first operand is the keys, as Keras has it. As with the
other moves, one after which no attention is fused is undone.
"""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.graph.edit import Names, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.einsum import comes_from_softmax
from atcfuse.moves.rescale import leads_to_softmax
from atcfuse.moves.respelling import Several, Steps


@dataclass(frozen=True)
class Swap(Several):
    """A product that a Transpose alone reads, which exchanges its last two axes."""

    scope: Scope
    turn: Node
    product: Node

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that the move replaces."""
        return (self.turn, self.product)


def find(scope: Scope, node: Node) -> Swap | None:
    """The transposed product that a node ends, if it is one of attention."""
    product = scope.producers.get(node.input(0)) if node.op == "Transpose" else None
    if product is None or product.op != "MatMul" or len(product.inputs) != 2:
        return None
    rank = scope.fact(node.inputs[0]).rank or 0
    if rank < 2 or node.attributes.get("perm") != _exchanged(rank):
        return None
    if scope.escapes(node.inputs[0]) or len(scope.readers(node.inputs[0])) != 1:
        return None
    if any((scope.fact(value).rank or 0) < 2 for value in product.inputs):
        return None
    operands = [_straight(scope, value) or value for value in product.inputs]
    near = leads_to_softmax(scope, node.outputs[0]) or any(comes_from_softmax(scope, v) for v in operands)
    return Swap(scope, node, product) if near else None


def _exchanged(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _straight(scope: Scope, value: str) -> str | None:
    """What a Transpose exchanges the last two axes of to make a value."""
    node = scope.producer(value)
    if node is None or node.op != "Transpose" or node.attributes.get("perm") != _exchanged(scope.fact(value).rank or 0):
        return None
    return node.inputs[0]


def carry_out(move: Swap, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What a MatMul makes while no attention is fused, that operator, and what takes the place of the nodes."""
    steps, result = Steps(move.turn, names), move.turn.outputs[0]
    turned = [
        _straight(move.scope, value) or steps.add("Transpose", value, perm=_exchanged(move.scope.fact(value).rank or 0))
        for value in reversed(move.product.inputs)
    ]
    steps.end(result, "MatMul", *turned)
    return (result,), "MatMul", Replacement(move.scope, move.members, tuple(steps.made))
