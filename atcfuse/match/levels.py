"""Values that absorb: every element is zero or so large that a score added to it is lost.

(scores + a) + b equals scores + (a + b) in floating point only where one of the two adds nothing or swallows the rest;
masks of zeros and of a huge or infinite number do. Proved from how the mask is computed; unknown means no.
"""

from __future__ import annotations

import numpy as np

from atcfuse.graph.constants import constant
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.views import OPERATORS

HUGE = 1e30
"""A float32 beside which every score that is not a mask itself vanishes."""

MAX_DEPTH = 24
_FLOAT16, _INTEGRAL = 10, frozenset({2, 3, 4, 5, 6, 7, 9, 12, 13})


def absorbs(scope: Scope, value: str, depth: int = 0) -> bool:
    """Whether every element is provably 0 or at least `HUGE` in magnitude (infinite, for float16)."""
    value = scope.source(value)
    least = np.inf if scope.fact(value).dtype == _FLOAT16 else HUGE
    known = constant(scope, value)
    if known is not None:
        return known.dtype.kind == "f" and bool(np.all((known == 0) | (np.abs(known.astype(np.float64)) >= least)))
    node = scope.producer(value)
    if node is None or depth > MAX_DEPTH or scope.fact(value).dtype in _INTEGRAL:
        return False
    return _made_of(scope, node, depth + 1)


def _made_of(scope: Scope, node: Node, depth: int) -> bool:
    if node.op == "Where":
        return all(absorbs(scope, v, depth) for v in node.inputs[1:])
    if node.op in ("Concat", "Max", "Min"):
        return all(absorbs(scope, v, depth) for v in node.inputs)
    if node.op == "ScatterND" and node.attributes.get("reduction", "none") == "none":
        return absorbs(scope, node.inputs[0], depth) and absorbs(scope, node.inputs[2], depth)
    if node.op == "Mul":
        pairs = ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0]))
        return any(absorbs(scope, a, depth) and is_whole(scope, b, depth) for a, b in pairs)
    if node.op in OPERATORS or node.op in ("Neg", "Trilu", "GatherND", "GatherElements"):
        return absorbs(scope, node.inputs[0], depth)
    return False


def is_whole(scope: Scope, value: str, depth: int = 0) -> bool:
    """Whether every element is provably a whole number, whatever its element type."""
    value = scope.source(value)
    if scope.fact(value).dtype in _INTEGRAL:
        return True
    known = constant(scope, value)
    if known is not None:
        return bool(np.all(np.isfinite(known)) and np.all(known == np.round(known)))
    node = scope.producer(value)
    if node is None or depth > MAX_DEPTH:
        return False
    if node.op in ("Add", "Sub", "Mul"):
        return all(is_whole(scope, v, depth + 1) for v in node.inputs)
    if node.op in OPERATORS or node.op in ("Cast", "Neg"):
        return is_whole(scope, node.inputs[0], depth + 1)
    return False
