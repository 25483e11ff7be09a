"""Attention whose scores are a product of 16 bits and whose sums are of float32, spelled in float32 throughout.

PyTorch's export of scaled_dot_product_attention in half precision adds its mask in float32, and so softmax, the values
and all behind them become float32. There the queries and keys are converted instead of the scores, whose digits then
are not cut, and conversions of keys and values stand below their views, so that a cache is converted as it lies and no
repeated head is. As with the other moves, one after which no attention is fused is undone.
"""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.graph.constants import scalar
from atcfuse.graph.edit import Names, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.einsum import comes_from_softmax
from atcfuse.moves.rescale import leads_to_softmax
from atcfuse.moves.respelling import FLOATS, Several, Steps

WIDE = 1
"""Float32, by the number that ONNX has for it."""
NARROW = frozenset({10, 16})
"""Float16 and bfloat16 likewise."""
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand"})
"""Views that drop nothing, so that no more is converted below them."""
_BETWEEN = frozenset({"Add", "Sub", "Mul", "Div", "Where", "Cast", "Reshape", "Max", "Tanh", "IsNaN", "Softmax"})
"""What lies between scores and the product with the values."""
_FAR = 16
"""At most so many nodes lie between them, and so many views are passed."""


@dataclass(frozen=True)
class Widening(Several):
    """A Cast to float32: of the product that scores are, or of the values that the product `attended` takes."""

    scope: Scope
    cast: Node
    product: Node | None
    attended: Node | None

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that the move replaces."""
        return (self.cast,) if self.product is None else (self.cast, self.product)


def find(scope: Scope, node: Node) -> Widening | None:
    """The move of a Cast from 16 bits to float32, if it stands between the products of attention."""
    if node.op != "Cast" or node.attributes.get("to") != WIDE or scope.fact(node.input(0)).dtype not in NARROW:
        return None
    maker = scope.producers.get(node.inputs[0])
    if maker is not None and maker.op == "MatMul":
        if scope.escapes(node.inputs[0]) or len(scope.readers(node.inputs[0])) != 1:
            return None
        if not leads_to_softmax(scope, node.outputs[0]):
            return None
        results = [s.outputs[0] for s in sums(scope, node.outputs[0])]
        wide = bool(results) and all(scope.fact(value).dtype == WIDE for value in results)
        return Widening(scope, node, maker, None) if wide else None
    readers = scope.value_readers(node.outputs[0])
    if len(readers) != 1 or scope.escapes(node.outputs[0]) or _below(scope, node.inputs[0]) is None:
        return None
    attended = readers[0]
    fits = attended.op == "MatMul" and scope.source(attended.inputs[1]) == scope.source(node.outputs[0])
    return Widening(scope, node, None, attended) if fits and comes_from_softmax(scope, attended.inputs[0]) else None


def sums(scope: Scope, scores: str) -> list[Node]:
    """The products with the probabilities that softmax makes of scores."""
    reached = {scores}
    for _ in range(_FAR):
        readers = [reader for v in sorted(reached) for reader in scope.value_readers(v)]
        found = [r for r in readers if r.op == "MatMul"]
        if found:
            return found
        reached = {r.outputs[0] for r in readers if r.op in _BETWEEN}
    return []


def _below(scope: Scope, value: str) -> Node | None:
    """The node that makes a value, if it is a view, or a product with a number, of what can be converted instead."""
    node = scope.producer(value)
    if node is None or node.op in _VIEWS:
        return node
    return node if node.op in ("Mul", "Div") and _factor(scope, node) is not None else None


def _factor(scope: Scope, node: Node) -> int | None:
    """The operand that is the number, of one element, with which a node multiplies or by which it divides."""
    for at in (1, 0) if node.op == "Mul" else (1,):
        fact = scope.fact(node.inputs[at])
        plain = fact.size == 1 and (fact.rank or 0) <= (scope.fact(node.inputs[1 - at]).rank or 0)
        if plain and scalar(scope, node.inputs[at]) is not None:
            return at
    return None


def carry_out(move: Widening, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What a MatMul makes while no attention is fused, that operator, and what takes the place of the nodes."""
    steps, result = Steps(move.cast, names), move.cast.outputs[0]
    if move.product is not None:
        operands = [_widened(move.scope, steps, value) for value in move.product.inputs]
        steps.end(result, "MatMul", *operands)
        return (result,), "MatMul", Replacement(move.scope, move.members, tuple(steps.made))
    _widened(move.scope, steps, move.cast.inputs[0])
    steps.ends_in(result)
    made = move.attended.outputs if move.attended is not None else (result,)
    return tuple(made), "MatMul", Replacement(move.scope, move.members, tuple(steps.made))


def _widened(scope: Scope, steps: Steps, value: str, passed: int = 0) -> str:
    """A value in float32, converted as far below as views and factors let it."""
    node = _below(scope, value) if passed < _FAR else None
    if node is None:
        return steps.add("Cast", value, to=WIDE)
    at = None if node.op in _VIEWS else _factor(scope, node)
    if at is None:
        below = _widened(scope, steps, node.inputs[0], passed + 1)
        return steps.add(node.op, below, *node.inputs[1:], **dict(node.attributes))
    number = scalar(scope, node.inputs[at])
    below = _widened(scope, steps, node.inputs[1 - at], passed + 1)
    return steps.add(node.op, below, steps.number(number or 0.0, FLOATS[WIDE]))
