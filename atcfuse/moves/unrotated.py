"""Norms of queries and keys that nothing rotates, followed by a rotation by no angle.

The kernel of rotations normalises vectors of both in one launch, and reads heads as they lie in packed rows. x·1 +
turned(x)·0 is x, and two rows of numbers are all it takes. As with other moves, one that nothing takes up is undone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atcfuse.graph.constants import constant_tensor
from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.schema import RESHAPES
from atcfuse.moves.respelling import FLOATS, Several, Steps

_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
_AXES = 4
_FAR = 8
"""At most so many views and factors lie between a norm and the product."""


@dataclass(frozen=True)
class Unrotated(Several):
    """The nodes that make queries and keys of [batch, heads, positions, width] behind their norms."""

    scope: Scope
    makers: tuple[Node, Node]
    width: int

    @property
    def replaced(self) -> tuple[Node, ...]:
        """Both."""
        return self.makers


def find(scope: Scope, node: Node) -> Unrotated | None:
    """The queries and keys of the product at a node, where softmax reads it and both are norms' results."""
    if node.op != "MatMul" or scope.fact(node.outputs[0]).rank != _AXES:
        return None
    queries, keys = (_normed(scope, node, value) for value in node.inputs)
    if queries is None or keys is None or queries.index == keys.index:
        return None
    facts = [scope.fact(maker.outputs[0]) for maker in (queries, keys)]
    width = facts[0].shape[-1] if facts[0].shape else None
    if (
        not isinstance(width, int)
        or width < 2
        or width % 2
        or any(f.shape is None or f.shape[-1] != width for f in facts)
    ):
        return None
    if facts[0].dtype not in FLOATS or facts[1].dtype != facts[0].dtype:
        return None
    return Unrotated(scope, (queries, keys), width)


def carry_out(move: Unrotated, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """The sums that both are while nothing takes the rotation in, and what takes the place of the nodes."""
    dtype = FLOATS[move.scope.fact(move.makers[0].outputs[0]).dtype]
    shared = Steps(move.makers[0], names)
    shape = (1,) * (_AXES - 1) + (move.width,)
    cos, sin = (shared.add("Constant", value=np.full(shape, number, dtype)) for number in (1, 0))
    made = list(shared.made)
    for maker in move.makers:
        made += _rotated(maker, names, move.width, cos, sin)
    return tuple(m.outputs[0] for m in move.makers), "Add", Replacement(move.scope, move.members, tuple(made))


def _rotated(maker: Node, names: Names, width: int, cos: str, sin: str) -> list[NewNode]:
    """The node, and x·cos + turned(x)·sin of what it makes."""
    steps, result = Steps(maker, names), maker.outputs[0]
    x = steps.add(maker.op, *maker.inputs, **maker.attributes)
    first = steps.add("Slice", x, (0,), (width // 2,), (-1,))
    second = steps.add("Slice", x, (width // 2,), (width,), (-1,))
    turned = steps.add("Concat", steps.add("Neg", second), first, axis=-1)
    steps.end(result, "Add", steps.add("Mul", x, cos), steps.add("Mul", turned, sin))
    return steps.made


def _normed(scope: Scope, reader: Node, value: str) -> Node | None:
    """The node that makes vectors of heads behind a norm, which a product reads through views and factors alone."""
    last: Node | None = None
    for _ in range(_FAR):
        maker = scope.producers.get(value)
        if maker is None or not scope.is_read_by_one(value, reader) or scope.fact(value).rank != _AXES:
            return None
        if maker.op in _NORMS or _is_scaled(scope, maker):
            return last or maker
        source = maker.inputs[0] if maker.op in ("Transpose", *RESHAPES) else _times_number(scope, maker)
        if source is None:
            return None
        last = (last or maker) if _keeps_vectors(maker) else None
        reader, value = maker, source
    return None


def _keeps_vectors(node: Node) -> bool:
    """Whether a node moves whole vectors about."""
    perm = node.attributes.get("perm")
    return node.op == "Transpose" and isinstance(perm, tuple) and perm[-1] == len(perm) - 1


def _times_number(scope: Scope, node: Node) -> str | None:
    """The value that a node multiplies by one number."""
    others = [v for v in node.inputs if scope.fact(v).splat is None]
    return others[0] if node.op in ("Mul", "Div") and len(node.inputs) == 2 and len(others) == 1 else None


def _is_scaled(scope: Scope, node: Node) -> bool:
    """Whether a node may end a norm that is spelled out: it takes a vector of constants, as long as a head."""
    if node.op not in ("Mul", "Add"):
        return False
    width = (scope.fact(node.outputs[0]).shape or (None,))[-1]
    return any(scope.fact(v).shape == (width,) and constant_tensor(scope, v) is not None for v in node.inputs)
