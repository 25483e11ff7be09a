"""Scores chosen by arithmetic, s·m + (1 - m)·c with m of zeros and ones, spelled as Where, which is what rules know.

For finite scores this is where(m, s, c) to the last bit: one of the summands is zero. Early GPT and GPT-2 write their
causal mask like this, and tf2onnx what Keras chooses of probabilities, with a mask and its Not that were converted. As
with the other moves, one after which no attention is fused is undone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from atcfuse.graph.constants import constant, scalar
from atcfuse.graph.edit import Names, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.views import is_view
from atcfuse.moves.einsum import comes_from_softmax
from atcfuse.moves.rescale import leads_to_softmax
from atcfuse.moves.respelling import FLOATS, Respelling, Steps

_BOOL = 9
_FAR = 16
"""So many views lie between the numbers and where they choose, at most."""


@dataclass(frozen=True)
class Selection(Respelling):
    """An Add or Sub that gives `scores`, or probabilities, where `mask` is 1, and `fill` where it is 0."""

    scores: str
    mask: str
    fill: float


def find(scope: Scope, node: Node) -> Selection | None:
    """The choice that a node makes, if it is one among attention's scores, or among its probabilities."""
    if node.op not in ("Add", "Sub") or len(node.inputs) != 2 or scope.fact(node.outputs[0]).dtype not in FLOATS:
        return None
    of_scores = leads_to_softmax(scope, node.outputs[0])
    left, right = node.inputs
    for chosen, rest in ((left, right), (right, left))[: 2 if node.op == "Add" else 1]:
        for scores, mask in _factors(scope, chosen):
            if not _same_extent(scope, scores, node) or not (of_scores or comes_from_softmax(scope, scores)):
                continue
            fill = _fill(scope, rest, mask) if of_scores else None
            if fill is None:
                fill = _fill_of_others(scope, rest, mask)
            if fill is not None and _is_zero_or_one(scope, mask):
                return Selection(scope, node, scores, mask, fill if node.op == "Add" else -fill)
    return None


def _factors(scope: Scope, value: str) -> Iterator[tuple[str, str]]:
    """The operands of a product, either way round."""
    node = scope.producer(value)
    if node is not None and node.op == "Mul" and len(node.inputs) == 2:
        yield node.inputs[0], node.inputs[1]
        yield node.inputs[1], node.inputs[0]


def _same_extent(scope: Scope, scores: str, node: Node) -> bool:
    """Whether the scores have the shape of the result, and so are what is chosen from."""
    shape = scope.fact(scores).shape
    return bool(shape) and shape == scope.fact(node.outputs[0]).shape


def _fill(scope: Scope, value: str, mask: str) -> float | None:
    """The number c, where a value is (1 - mask)·c."""
    for number, other in _factors(scope, value):
        fill, difference = scalar(scope, number), scope.producer(other)
        if fill is None or difference is None or difference.op != "Sub" or not np.isfinite(fill):
            continue
        one, less = difference.inputs
        if scalar(scope, one) == 1 and scope.source(less) == scope.source(mask):
            return fill
    return _folded_fill(constant(scope, value), constant(scope, mask))


def _fill_of_others(scope: Scope, value: str, mask: str) -> float | None:
    """The number c, where a value is c times a converted Not of the mask that was converted."""
    kept = scope.producer(mask)
    for number, other in _factors(scope, value):
        fill, converted = scalar(scope, number), scope.producer(other)
        negation = scope.producer(converted.inputs[0]) if converted is not None and converted.op == "Cast" else None
        if fill is None or not np.isfinite(fill) or negation is None or negation.op != "Not" or kept is None:
            continue
        if kept.op == "Cast" and scope.source(kept.inputs[0]) == scope.source(negation.inputs[0]):
            return fill
    return None


def _folded_fill(values: np.ndarray | None, mask: np.ndarray | None) -> float | None:
    """The same where both are constants already."""
    if values is None or mask is None or values.shape != mask.shape or mask.all() or not np.isfinite(values).all():
        return None
    fill = values[mask == 0].flat[0]
    return float(fill) if (values == np.where(mask == 0, fill, 0)).all() else None


def _is_zero_or_one(scope: Scope, value: str) -> bool:
    """Whether every element is provably 0 or 1: of a constant, or of a Bool that was converted."""
    for _ in range(_FAR):
        numbers = constant(scope, value)
        if numbers is not None:
            return bool(np.isin(numbers, (0, 1)).all())
        node = scope.producer(value)
        if node is None or not node.inputs:
            return False
        if node.op == "Cast" and scope.fact(node.inputs[0]).dtype == _BOOL:
            return True
        if not is_view(node) and node.op != "Cast":
            return False
        value = node.inputs[0]
    return False


def carry_out(move: Selection, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What a Where makes while no attention is fused, that operator, and what takes the place of the node."""
    steps, scope = Steps(move.node, names), move.scope
    fill = steps.number(move.fill, FLOATS[scope.fact(move.scores).dtype])
    maker = scope.producer(move.mask)
    if maker is not None and maker.op == "Cast" and scope.fact(maker.inputs[0]).dtype == _BOOL:
        mask = maker.inputs[0]
    else:
        mask = steps.add("Cast", move.mask, to=_BOOL)
    steps.end(move.node.outputs[0], "Where", mask, move.scores, fill)
    return move.node.outputs, "Where", Replacement(scope, move.members, tuple(steps.made))
