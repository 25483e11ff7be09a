"""Norms of queries and keys that nothing rotates, followed by a rotation by no angle.

The kernel of rotations normalises vectors of both in one launch, and reads heads as they lie in packed rows. x·1 +
turned(x)·0 is x, and two rows of numbers are all it takes. As with other moves, one that nothing takes up is undone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """Nodes that make queries and keys, [batch, heads, positions, width], behind norms, a pair for each stream."""

    scope: Scope
    pairs: tuple[tuple[Node, Node], ...]
    width: int

    @property
    def replaced(self) -> tuple[Node, ...]:
        """All of them."""
        return tuple(maker for pair in self.pairs for maker in pair)


def find(scope: Scope, node: Node) -> Unrotated | None:
    """The queries and keys of the product at a node, where all are norms' results and nothing else reads them."""
    if node.op != "MatMul" or scope.fact(node.outputs[0]).rank != _AXES:
        return None
    queries, keys = (_normed(scope, node, node.input(at)) for at in (0, 1))
    if queries is None or keys is None or len(queries) != len(keys):
        return None
    makers = (*queries, *keys)
    facts = [scope.fact(maker.outputs[0]) for maker in makers]
    widths = {fact.shape[-1] if fact.shape else None for fact in facts}
    width = widths.pop()
    if widths or not isinstance(width, int) or width < 2 or width % 2:
        return None
    if facts[0].dtype not in FLOATS or len({fact.dtype for fact in facts}) > 1:
        return None
    if len({maker.index for maker in makers}) < len(makers):
        return None
    return Unrotated(scope, tuple(zip(queries, keys, strict=True)), width)


def carry_out(move: Unrotated, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """The sums that all are while nothing takes the rotation in, and what takes the place of the nodes."""
    first = move.pairs[0][0]
    dtype = FLOATS[move.scope.fact(first.outputs[0]).dtype]
    shared = Steps(first, names)
    shape = (1,) * (_AXES - 1) + (move.width,)
    cos, sin = (shared.add("Constant", value=np.full(shape, number, dtype)) for number in (1, 0))
    made = list(shared.made)
    for maker in move.replaced:
        made += _rotated(maker, names, move.width, cos, sin)
    return tuple(m.outputs[0] for m in move.replaced), "Add", Replacement(move.scope, move.members, tuple(made))


def _rotated(maker: Node, names: Names, width: int, cos: str, sin: str) -> list[NewNode]:
    """The node, and x·cos + turned(x)·sin of what it makes."""
    x, attributes = names.fresh(f"{maker.outputs[0]}/given"), tuple(maker.attributes.items())
    own = NewNode(maker.op, maker.proto.name, maker.inputs, (x,), attributes, like=maker.index)
    steps = Steps(maker, names, [own], idle=True)
    first = steps.add("Slice", x, (0,), (width // 2,), (-1,))
    second = steps.add("Slice", x, (width // 2,), (width,), (-1,))
    turned = steps.add("Concat", steps.add("Neg", second), first, axis=-1)
    steps.add("Add", steps.add("Mul", x, cos), steps.add("Mul", turned, sin))
    return [*steps.made[:-1], replace(steps.made[-1], outputs=(maker.outputs[0],))]


def _normed(scope: Scope, reader: Node, value: str, streams: bool = True) -> tuple[Node, ...] | None:
    """The nodes that make vectors of heads behind norms, which a product reads through views and factors alone.

    It is one, or with `streams` one for each that a Concat puts together.
    """
    last: Node | None = None
    for _ in range(_FAR):
        maker = scope.producers.get(value)
        if maker is None or not scope.is_read_by_one(value, reader) or scope.fact(value).rank != _AXES:
            return None
        if maker.op in _NORMS or _is_scaled(scope, maker):
            return (last or maker,)
        if maker.op == "Concat":
            return _of_streams(scope, maker) if streams else None
        source = maker.input(0) if maker.op in ("Transpose", *RESHAPES) else _times_number(scope, maker)
        if source is None:
            return None
        last = (last or maker) if _keeps_vectors(maker) else None
        reader, value = maker, source
    return None


def _of_streams(scope: Scope, joined: Node) -> tuple[Node, ...] | None:
    """The nodes that make the vectors of a Concat's streams; None where it joins vectors, or not all are norms'."""
    if joined.attributes.get("axis", 0) in (-1, _AXES - 1):
        return None
    found = [_normed(scope, joined, value, streams=False) for value in joined.inputs]
    nodes = tuple(one for some in found for one in some or ())
    return nodes if len(nodes) == len(joined.inputs) else None


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
