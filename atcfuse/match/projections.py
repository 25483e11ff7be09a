"""Whether a sum is the residual sum behind a linear projection, whose own kernel takes it in at no cost."""

from __future__ import annotations

from atcfuse.graph import views
from atcfuse.graph.index import Node, Scope

_PRODUCTS = frozenset({"MatMul", "Gemm"})
_SCALED = frozenset({"Mul", "Div"})
_DEPTH = 8
"""Nodes between a product and a sum: a bias, a gain, a factor, views, casts, another residual."""


def ends_projection(scope: Scope, value: str) -> bool:
    """Whether a value is a sum, as large as each of two summands, of which one is a product with a weight.

    What a projection may have behind it is looked through: a bias, a factor for each column, views and casts.
    """
    node = scope.producers.get(scope.source(value))
    if node is None or node.op != "Add":
        return False
    both = [operand for operand in node.inputs if _as_large(scope, operand, value)]
    return len(both) > 1 and any(_is_projected(scope, operand, _DEPTH) for operand in both)


def _is_projected(scope: Scope, value: str, depth: int) -> bool:
    node = scope.producers.get(scope.source(value))
    if node is None or depth == 0:
        return False
    if node.op in _PRODUCTS:
        weight = scope.fact(node.inputs[1]).shape
        return weight is not None and len(weight) == 2
    return any(_is_projected(scope, operand, depth - 1) for operand in _carried(scope, node, value))


def _carried(scope: Scope, node: Node, value: str) -> tuple[str, ...]:
    """The operands whose rows a node hands on."""
    if views.is_view(node) or node.op == "Cast":
        return node.inputs[:1]
    if node.op == "Add" or node.op in _SCALED:
        large = tuple(operand for operand in node.inputs if _as_large(scope, operand, value))
        return large if node.op == "Add" or len(large) == 1 else ()
    return ()


def _as_large(scope: Scope, operand: str, value: str) -> bool:
    shape = scope.fact(operand).shape
    return shape is not None and shape == scope.fact(value).shape
