"""Masks that are subtracted from attention's scores, spelled as sums, which is what rules know.

x - y is x + (-y) to the last bit, and -(c·m) is (-c)·m. As with the other moves, one after which no
attention is fused is undone.
"""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.graph.constants import scalar
from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.rescale import leads_to_softmax
from atcfuse.moves.respelling import Respelling


@dataclass(frozen=True)
class Subtraction(Respelling):
    """A Sub on the way from scores to softmax; `factor` is the operand of a Mul, if one makes what is subtracted."""

    factor: int | None = None


def find(scope: Scope, node: Node) -> Subtraction | None:
    """The subtraction of a mask from scores that a node is. A number for each row is none: softmax takes that away."""
    if node.op != "Sub" or len(node.inputs) != 2:
        return None
    scores, mask = (scope.fact(v).shape for v in node.inputs)
    if not scores or not mask or mask[-1] != scores[-1] or not leads_to_softmax(scope, node.outputs[0]):
        return None
    maker = scope.producer(node.inputs[1])
    if maker is None or maker.op != "Mul" or len(maker.inputs) != 2:
        return Subtraction(scope, node)
    numbers = [at for at, value in enumerate(maker.inputs) if scalar(scope, value) is not None]
    return Subtraction(scope, node, numbers[0] if numbers else None)


def carry_out(move: Subtraction, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What an Add makes while no attention is fused, that operator, and what takes the place of the Sub."""
    scope, node = move.scope, move.node
    subtracted = node.inputs[1]
    negative = names.fresh(f"{subtracted}/negative")
    product = scope.producer(subtracted)
    if product is None or move.factor is None:
        made = [NewNode("Neg", names.fresh(f"{node.name}/Neg"), (subtracted,), (negative,))]
    else:
        factor = names.fresh(f"{product.inputs[move.factor]}/negative")
        inputs = tuple(factor if at == move.factor else value for at, value in enumerate(product.inputs))
        made = [
            NewNode("Neg", names.fresh(f"{node.name}/Neg"), (product.inputs[move.factor],), (factor,)),
            NewNode("Mul", names.fresh(f"{product.name}/negative"), inputs, (negative,), like=product.index),
        ]
    total = NewNode("Add", node.proto.name, (node.inputs[0], negative), node.outputs, like=node.index)
    return node.outputs, "Add", Replacement(scope, move.members, (*made, total))
