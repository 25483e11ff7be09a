"""Rows that are flattened for projections and dealt out with their heads at once, given their own shape between.

A simplifier makes one Reshape of two, that which deals out rows behind a Gemm and that which splits heads. Then no
value has the rows of the norm before, and where others read the norm too, it and its projections are no pair. Reshapes
are views: spelled apart they cost nothing. As with the other moves, one that nothing takes up is undone.
"""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.dims import Dim
from atcfuse.graph.constants import constant_tensor
from atcfuse.graph.edit import Names, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.schema import RESHAPES
from atcfuse.graph.traffic import VIEWS
from atcfuse.moves.respelling import Several, Steps


@dataclass(frozen=True)
class Flattened(Several):
    """A product of flattened rows, the Add of its bias where that is apart, and the shape that its rows had."""

    scope: Scope
    product: Node
    bias: Node | None
    target: tuple[int, ...]

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The product and the sum with its bias."""
        return (self.product,) if self.bias is None else (self.product, self.bias)


def find(scope: Scope, node: Node) -> Flattened | None:
    """The projection of flattened rows at a node, if views alone read it and none has the rows' own shape."""
    if node.op not in ("MatMul", "Gemm") or node.attributes.get("transA", 0) or scope.fact(node.input(1)).rank != 2:
        return None
    lead = _flattened(scope, node.input(0))
    bias = None if lead is None or node.op == "Gemm" else _bias(scope, node)
    result = (bias or node).outputs[0]
    made = scope.fact(result).shape
    if lead is None or made is None or len(made) != 2 or not isinstance(made[1], int) or scope.escapes(result):
        return None
    whole = (*lead, made[1])
    readers = scope.value_readers(result)
    if not readers or any(n.op not in VIEWS or scope.fact(n.outputs[0]).shape == whole for n in readers):
        return None
    target = tuple(d if isinstance(d, int) else -1 for d in whole)
    return Flattened(scope, node, bias, target) if target.count(-1) <= 1 and 0 not in target else None


def carry_out(move: Flattened, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What the product makes while nothing takes it in, its operator, and what takes the place of the nodes."""
    product, bias = move.product, move.bias
    last = bias or product
    steps = Steps(last, names)
    made = steps.add(product.op, *product.inputs, **product.attributes)
    rows = steps.add("Reshape", made, move.target)
    if bias is not None:
        rows = steps.add("Add", *(rows if v == product.outputs[0] else v for v in bias.inputs))
    steps.end(last.outputs[0], "Reshape", rows, (-1, move.target[-1]))
    return (made,), product.op, Replacement(move.scope, move.members, tuple(steps.made))


def _flattened(scope: Scope, value: str) -> tuple[Dim, ...] | None:
    """The leading axes that rows had which are one axis here, and that something else made; None for other rows."""
    node = scope.producers.get(value)
    if node is None or node.op not in RESHAPES or node.input(0) not in scope.producers:
        return None
    before, after = scope.fact(node.input(0)).shape, scope.fact(value).shape
    if before is None or after is None or len(after) != 2 or len(before) < 3 or before[-1] != after[-1]:
        return None
    return before[:-1]


def _bias(scope: Scope, product: Node) -> Node | None:
    """The Add of a constant vector that alone reads a product."""
    readers = scope.value_readers(product.outputs[0])
    if len(readers) != 1 or readers[0].op != "Add" or not scope.is_read_by_one(product.outputs[0], readers[0]):
        return None
    other = next((v for v in readers[0].inputs if v != product.outputs[0]), "")
    tensor = constant_tensor(scope, other) if other else None
    return readers[0] if tensor is not None and scope.fact(other).rank == 1 else None
