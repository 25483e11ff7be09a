"""LayerNorms of heads, each cut out and normalised by itself (StableLM), as one LayerNorm of all of them.

The scales of the heads become the rows of one, which the converter puts together. As with the other moves, one after
which nothing takes the norm in is undone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atcfuse.graph.constants import scalar
from atcfuse.graph.edit import Names, Replacement
from atcfuse.graph.fixed import is_given
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.respelling import FLOATS, Several, Steps

_HEADS_FORWARD = (0, 2, 1, 3)


@dataclass(frozen=True)
class Apart(Several):
    """The `norms` of heads in order, the Split of a Transpose that cuts these out, and the Concat behind them."""

    scope: Scope
    end: Node
    norms: tuple[Node, ...]
    split: Node
    transpose: Node

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that the move replaces. The Transpose stays where it is read elsewhere."""
        own = () if _is_read_elsewhere(self.scope, self.transpose, self.split) else (self.transpose,)
        return (self.end, *self.norms, self.split, *own)


def find(scope: Scope, node: Node) -> Apart | None:
    """The norms of heads that a Concat puts together again."""
    if node.op != "Concat" or node.attributes.get("axis") not in (1, -3) or len(node.inputs) < 2:
        return None
    norms = [scope.producers.get(value) for value in node.inputs]
    if any(n is None or n.op != "LayerNormalization" or _is_read_elsewhere(scope, n, node) for n in norms):
        return None
    found = tuple(n for n in norms if n is not None)
    split = scope.producers.get(found[0].input(0))
    if split is None or split.op != "Split" or split.attributes.get("axis", 0) not in (1, -3):
        return None
    transpose = scope.producers.get(split.input(0))
    if transpose is None or transpose.op != "Transpose" or transpose.attributes.get("perm") != _HEADS_FORWARD:
        return None
    move = Apart(scope, node, found, split, transpose)
    return move if _is_one_norm(move) else None


def _is_one_norm(move: Apart) -> bool:
    """Whether each head is one part of the Split, in order, and all are normalised alike but for the scale."""
    scope, norms = move.scope, move.norms
    if tuple(move.split.outputs) != tuple(n.input(0) for n in norms):
        return False
    shape, dtype = scope.fact(move.transpose.input(0)).shape, scope.fact(move.transpose.input(0)).dtype
    if shape is None or len(shape) != 4 or shape[2] != len(norms) or not isinstance(shape[3], int):
        return False
    if (
        dtype not in FLOATS
        or len({(n.attributes.get("epsilon"), n.attributes.get("stash_type", 1)) for n in norms}) > 1
    ):
        return False
    parts = move.split.outputs
    if any(scope.escapes(o) or len(scope.consumers.get(o, ())) != 1 for o in parts):
        return False
    if any((scope.fact(o).shape or ())[1:2] != (1,) for o in parts):
        return False
    return all(_is_of_last_axis(n) and _has_own_scale(scope, n, shape[3], dtype) for n in norms)


def _is_of_last_axis(norm: Node) -> bool:
    return norm.attributes.get("axis", -1) in (-1, 3) and not any(norm.outputs[1:])


def _has_own_scale(scope: Scope, norm: Node, size: int, dtype: int) -> bool:
    """Whether the scale of a norm is a constant vector as long as a head, and its shift is none."""
    scale, shift = scope.fact(norm.input(1)), norm.input(2)
    if not is_given(scope, scope.source(norm.input(1))) or (scale.dtype, scale.shape) != (dtype, (size,)):
        return False
    return not shift or scalar(scope, shift) == 0


def _is_read_elsewhere(scope: Scope, node: Node, reader: Node) -> bool:
    made = node.outputs[0]
    return scope.escapes(made) or any(r.index != reader.index for r in scope.consumers.get(made, ()))


def carry_out(move: Apart, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What the norm makes while nothing takes it in, that operator, and what takes the nodes' place."""
    scope, first, steps = move.scope, move.norms[0], Steps(move.end, names)
    fact = scope.fact(move.transpose.input(0))
    size = (fact.shape or (0,))[-1]
    assert isinstance(size, int)  # `find` has seen to it
    ones = steps.add("Constant", value=np.ones(size, FLOATS[fact.dtype]))
    kept = {k: v for k, v in first.attributes.items() if k in ("epsilon", "stash_type")}
    unit = steps.add("LayerNormalization", move.transpose.inputs[0], ones, axis=-1, **kept)
    scales = steps.add("Concat", *(n.inputs[1] for n in move.norms), axis=0)
    rows = steps.add("Reshape", scales, (len(move.norms), size))
    scaled = steps.add("Mul", unit, rows)
    steps.end(move.end.outputs[0], "Transpose", scaled, perm=_HEADS_FORWARD)
    return (unit,), "LayerNormalization", Replacement(scope, move.members, tuple(steps.made))
