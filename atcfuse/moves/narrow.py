"""Queries and keys of 16 bits that are converted to float32 for their product alone, as GPT-J and GPT-Neo have it.

The product is the same to the last bit where the operands' views are taken of what is converted and the Cast stands
right before the product. The rule knows that: scores are float32 in the kernel, whatever queries and keys are. As with
the other moves, one after which no attention is fused is undone.
"""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.views import is_view
from atcfuse.moves.rescale import leads_to_softmax
from atcfuse.moves.respelling import Respelling, Steps
from atcfuse.moves.widen import NARROW, WIDE, sums

_FAR = 16
"""At most so many views lie between the Cast and the product."""


@dataclass(frozen=True)
class Narrowing(Respelling):
    """A product of queries and keys of float32: for each the Cast from 16 bits and the views of it, the last first."""

    casts: tuple[Node, ...]
    views: tuple[tuple[Node, ...], ...]


def find(scope: Scope, node: Node) -> Narrowing | None:
    """The product that a node is, if its operands are views of what was converted, and what is summed up is not."""
    if node.op != "MatMul" or len(node.inputs) != 2 or scope.fact(node.outputs[0]).dtype != WIDE:
        return None
    if not leads_to_softmax(scope, node.outputs[0]):
        return None
    found = [_converted(scope, value) for value in node.inputs]
    operands = [f for f in found if f is not None]
    if len(operands) != len(found) or not any(views for _, views in operands):
        return None
    results = [s.outputs[0] for s in sums(scope, node.outputs[0])]
    types = {scope.fact(v).dtype for v in (*(cast.inputs[0] for cast, _ in operands), *results)}
    if not results or len(types) != 1:
        return None
    return Narrowing(scope, node, tuple(cast for cast, _ in operands), tuple(views for _, views in operands))


def _converted(scope: Scope, value: str) -> tuple[Node, tuple[Node, ...]] | None:
    """The Cast from 16 bits that a value is a view of, and the views, the last first."""
    views: list[Node] = []
    while len(views) < _FAR:
        node = scope.producer(value)
        if node is None:
            return None
        if node.op == "Cast":
            return (node, tuple(views)) if scope.fact(node.input(0)).dtype in NARROW else None
        if not is_view(node) or len(node.outputs) != 1:
            return None
        views.append(node)
        value = node.input(0)
    return None


def carry_out(move: Narrowing, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What a MatMul makes while no attention is fused, that operator, and what takes its place."""
    steps, operands = Steps(move.node, names), []
    for cast, views in zip(move.casts, move.views, strict=True):
        value = cast.inputs[0]
        for view in reversed(views):
            value = steps.add(view.op, value, *view.inputs[1:], **dict(view.attributes))
        operands.append(steps.add("Cast", value, to=WIDE))
    steps.end(move.node.outputs[0], "MatMul", *operands)
    return move.node.outputs, "MatMul", Replacement(move.scope, move.members, tuple(steps.made), _shapes(move))


def _shapes(move: Narrowing) -> dict[int, tuple[NewNode, ...]]:
    """What reads the shape of a Cast that nothing else reads any more takes that of its operand."""
    found: dict[int, tuple[NewNode, ...]] = {}
    for cast in move.casts:
        value = cast.outputs[0]
        if move.scope.escapes(value) or len(move.scope.value_readers(value)) != 1:
            continue
        for n in move.scope.consumers[value]:
            if n.op == "Shape":
                attributes = tuple(n.attributes.items())
                found[n.index] = (NewNode("Shape", n.proto.name, cast.inputs, n.outputs, attributes, like=n.index),)
    return found
