"""Products of attention written as Einsum, spelled as Transposes around a MatMul, which rules and views know.

Only an Einsum of two operands that is one batched product is spelled anew, and only where softmax is near. As with the
other moves, one after which no attention is fused is undone.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.rescale import leads_to_softmax
from atcfuse.moves.respelling import Respelling, with_axes

_PASSED = frozenset({"Cast", "Where", "Reshape", "Dropout", "Identity"})
_NEAR = 4
"""Softmax is at most so many nodes before the product with the values."""


@dataclass(frozen=True)
class Product(Respelling):
    """An Einsum that is a batched product, with its operands in the order of a MatMul.

    `left`, `right` and `result` are the axes of the operands and of the MatMul's result in the order in which the
    MatMul needs them and the Einsum gives them. The right operand serves `repeated` axes that the left alone has before
    its last two (heads that share keys): there it gets axes of length 1.
    """

    operands: tuple[str, str]
    left: tuple[int, ...]
    right: tuple[int, ...]
    result: tuple[int, ...]
    repeated: int


def find(scope: Scope, node: Node) -> Product | None:
    """The batched product that a node is, if it is one of attention."""
    equation = node.attributes.get("equation") if node.op == "Einsum" else None
    if not isinstance(equation, str) or len(node.inputs) != 2:
        return None
    terms, arrow, result = _spelled_out(scope, node, equation.replace(" ", "")).partition("->")
    parts = terms.split(",")
    if not arrow or len(parts) != 2 or not all(_is_plain(t) for t in (*parts, result)):
        return None
    if any(scope.fact(v).rank != len(t) for v, t in zip(node.inputs, parts, strict=True)):
        return None
    operands = list(zip(node.inputs, parts, strict=True))
    if not _agree(scope, operands):
        return None
    after = comes_from_softmax(scope, node.inputs[0]), comes_from_softmax(scope, node.inputs[1])
    if not any(after) and not leads_to_softmax(scope, node.outputs[0]):
        return None
    swapped = _of(scope, node, operands[::-1], result)
    found = _of(scope, node, operands, result)
    if after[0] and after[1]:
        return None
    if found is None or swapped is None:  # heads share keys, and one operand alone can be the left one
        only = found or swapped
        return only if only is not None and not after[only is not swapped] else None
    # The probabilities, or else the operand whose axis of its own comes first in the result, are on the left.
    return swapped if after[1] or (not after[0] and _moves(swapped.result) < _moves(found.result)) else found


def carry_out(move: Product, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What a MatMul makes while no attention is fused, that operator, and what takes the Einsum's place."""
    node, made = move.node, []  # type: Node, list[NewNode]
    inputs = []
    for value, order in zip(move.operands, (move.left, move.right), strict=True):
        turned = names.fresh(f"{value}/turned") if _moves(order) else value
        if turned != value:
            made.append(_transpose(move, value, turned, order, names))
        inputs.append(turned)
    if move.repeated:
        axes = tuple(range(len(move.right) - 2, len(move.right) - 2 + move.repeated))
        wide = names.fresh(f"{inputs[1]}/shared")
        name = names.fresh(f"{node.name}/Unsqueeze")
        made.append(with_axes("Unsqueeze", move.scope.model.opset, name, inputs[1], axes, wide, node.index))
        inputs[1] = wide
    output = node.outputs[0]
    product = names.fresh(f"{output}/product") if _moves(move.result) else output
    made.append(NewNode("MatMul", node.proto.name, tuple(inputs), (product,), like=node.index))
    if product != output:
        made.append(_transpose(move, product, output, move.result, names))
    return (product,), "MatMul", Replacement(move.scope, move.members, tuple(made))


def _transpose(move: Product, value: str, result: str, order: tuple[int, ...], names: Names) -> NewNode:
    name = names.fresh(f"{move.node.name}/Transpose")
    return NewNode("Transpose", name, (value,), (result,), (("perm", order),), like=move.node.index)


def _moves(order: tuple[int, ...]) -> bool:
    return order != tuple(range(len(order)))


def _agree(scope: Scope, operands: Sequence[tuple[str, str]]) -> bool:
    """Whether the axes that both operands have are provably as long: Einsum would repeat one of length 1."""
    (left, a), (right, b) = operands
    long, wide = scope.fact(left).shape or (), scope.fact(right).shape or ()
    return all(long[a.index(c)] == wide[b.index(c)] for c in a if c in b)


def _spelled_out(scope: Scope, node: Node, equation: str) -> str:
    """The equation with a letter for each axis of its ellipses, where all of them stand for equally many."""
    terms = equation.partition("->")[0].split(",")
    if "..." not in equation or len(terms) != len(node.inputs):
        return equation
    ranks = [scope.fact(v).rank for v in node.inputs]
    counts = {None if r is None else r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True)}
    count = counts.pop()
    letters = [c for c in string.ascii_letters if c not in equation]
    if counts or count is None or not 0 <= count <= len(letters) or not all("..." in t for t in terms):
        return equation
    return equation.replace("...", "".join(letters[:count]))


def _is_plain(term: str) -> bool:
    return term.isalpha() and len(set(term)) == len(term)


def _of(scope: Scope, node: Node, operands: Sequence[tuple[str, str]], result: str) -> Product | None:
    """The product with the operands in this order, or None where the equation says more or less."""
    (left, a), (right, b) = operands
    shared = [c for c in a if c in b and c in result]
    summed = [c for c in a if c in b and c not in result]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    if len(summed) != 1 or not rows or len(columns) != 1 or not shared:
        return None
    if sorted(result) != sorted((*shared, *rows, *columns)):
        return None
    shared.sort(key=result.index)
    rows.sort(key=(a if comes_from_softmax(scope, left) else result).index)  # scores and probabilities stay as they are
    given = [*shared, *rows, *columns]
    return Product(
        scope,
        node,
        (left, right),
        tuple(a.index(c) for c in (*shared, *rows, *summed)),
        tuple(b.index(c) for c in (*shared, *summed, *columns)),
        tuple(given.index(c) for c in result),
        len(rows) - 1,
    )


def comes_from_softmax(scope: Scope, value: str) -> bool:
    """Whether a value is a softmax, converted, reshaped or with rows set to zero at most."""
    reached = [value]
    for _ in range(_NEAR):
        makers = [m for m in (scope.producer(v) for v in reached) if m is not None]
        if any(m.op == "Softmax" for m in makers):
            return True
        reached = [v for m in makers if m.op in _PASSED for v in m.inputs if v]
    return False
