"""Causal masks: which masks of scores hide exactly the keys after the query, and when the kernel may do so itself.

A fused attention with `causal` leaves keys out as if their score were -inf. That is what the model computes where its
mask is filled with -inf; a finite fill is as good only if it lies far below every score and every row keeps a key,
because a row of nothing but fills attends to all keys alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from atcfuse.dims import Dim, proves_at_most
from atcfuse.graph.validity import implied
from atcfuse.match.bands import Band
from atcfuse.match.indexed import Bands
from atcfuse.match.values import Built

NONE, TOP_LEFT, BOTTOM_RIGHT = "none", "top_left", "bottom_right"

FLOAT, FLOAT16, BOOL = 1, 10, 9

LOWEST = {FLOAT: -1e30, FLOAT16: -65504.0}
"""By the scores' element type: exp of a score of at most this, less a score that a model computes, is 0."""

MAX_SHIFT = 1.0
"""What a mask may add to all scores that it keeps: softmax cancels it. PyTorch adds its mask of ones."""

FIRST_OPSET = 11
"""The meaning of a causal attention needs Range."""


def alignment(bands: Bands, operand: Any, scores: str, alone: bool, fill: float = -math.inf, keeps: int = 1) -> str:
    """How an operand of an attention masks causally: "top_left", "bottom_right", or "none" where it must stay.

    `operand` is a boolean mask, which keeps a score where it is `keeps` and else gives `fill`, or a tensor that is
    added to the scores, for which `fill` and `keeps` do not count. `scores` is the product of queries and keys;
    `alone` tells that nothing else masks, shifts or bounds them.
    """
    scope = bands.scope
    fact = scope.fact(scores)
    while isinstance(operand, Built) and len(operand.inputs) == 1:
        operand = operand.inputs[0]  # axes of batch and heads, on which a causal mask does not depend
    if not isinstance(operand, str) or fact.shape is None or scope.model.opset < FIRST_OPSET:
        return NONE
    band = bands.of(operand)
    kind = _triangle(band, fact.shape[-2:])
    if not isinstance(band, Band) or kind == NONE:
        return NONE
    if scope.fact(operand).dtype == BOOL:
        if bool(band.inside) != bool(keeps):
            return NONE
        least, shift = LOWEST.get(fact.dtype, -math.inf), 0.0
    else:
        # A float16 sum rounds, so that a large negative score and the fill need not stay far below the others.
        least = LOWEST[FLOAT] if scope.fact(operand).dtype == FLOAT else -math.inf
        fill, shift = float(band.outside), float(band.inside)
    if shift and not (alone and abs(shift) <= MAX_SHIFT):
        return NONE
    if fill == -math.inf:
        return kind
    return kind if alone and fill <= least and _rows_keep_a_key(kind, fact.shape[-2:]) else NONE


def _triangle(known: object, extents: Sequence[Dim]) -> str:
    """The alignment of a Band that is constant on both sides of a diagonal of the scores' last two axes."""
    if not isinstance(known, Band) or known.slopes[-2:] != (1, -1) or any(known.slopes[:-2]):
        return NONE
    queries, keys = extents
    rows, columns, start = implied((*known.shape[-2:], known.start), known.shape, extents)
    if (rows, columns) != (queries, keys) or start not in (0, keys - queries):
        return NONE
    return TOP_LEFT if start == 0 else BOTTOM_RIGHT


def _rows_keep_a_key(kind: str, extents: Sequence[Dim]) -> bool:
    queries, keys = extents
    return kind == TOP_LEFT or proves_at_most(queries, keys)
