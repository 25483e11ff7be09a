"""Values that absorb: every element is zero or so large that a score added to it is lost.

(scores + a) + b equals scores + (a + b) in floating point only where one of the two adds nothing or swallows the rest;
masks of zeros and of a huge or infinite number do. Proved from how the mask is computed; unknown means no. Masks of one
moderate number take digits away, but in float32 none that matter.
"""

from __future__ import annotations

import numpy as np

from atcfuse.graph.constants import constant
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.views import OPERATORS

HUGE = 1e30
"""A float32 beside which every score that is not a mask itself vanishes."""

MODERATE = 128.0
"""Numbers up to this shift scores without taking digits from them that float32 has."""

ORDINARY = 1e4
"""Constants below this are no masks."""

MAX_DEPTH = 24
MOST_PARTS = 4096
"""Values that one is followed back through where they only have to be ordinary, each looked at once."""
_UNBOUNDED = frozenset({1, 10, 11, 16})
"""Element types with infinities and room for `HUGE`; a cast to the others (float8) saturates."""
_BOOL, _FLOAT, _FLOAT16, _INTEGRAL = 9, 1, 10, frozenset({2, 3, 4, 5, 6, 7, 9, 12, 13})


_Told = dict[tuple[bool, str], bool]
"""What one question has found of values so far, whether they absorb (True) or are whole (False): each is asked once."""


def absorbs(scope: Scope, value: str) -> bool:
    """Whether every element is provably 0 or at least `HUGE` in magnitude (infinite, for float16)."""
    return _absorbs(scope, value, 0, {})


def is_whole(scope: Scope, value: str) -> bool:
    """Whether every element is provably a whole number, whatever its element type."""
    return _is_whole(scope, value, 0, {})


def _absorbs(scope: Scope, value: str, depth: int, told: _Told) -> bool:
    key = True, scope.source(value)
    if key not in told:
        told[key] = _found_absorbing(scope, key[1], depth, told)
    return told[key]


def _is_whole(scope: Scope, value: str, depth: int, told: _Told) -> bool:
    key = False, scope.source(value)
    if key not in told:
        told[key] = _found_whole(scope, key[1], depth, told)
    return told[key]


def _found_absorbing(scope: Scope, value: str, depth: int, told: _Told) -> bool:
    fact = scope.fact(value)
    least = np.inf if fact.dtype == _FLOAT16 else HUGE
    if isinstance(fact.splat, float):
        return fact.splat == 0 or abs(fact.splat) >= least
    known = constant(scope, value)
    if known is not None:
        return known.dtype.kind == "f" and bool(np.all((known == 0) | (np.abs(known.astype(np.float64)) >= least)))
    node = scope.producer(value)
    if node is None or depth > MAX_DEPTH or fact.dtype in _INTEGRAL:
        return False
    return _made_of(scope, node, depth + 1, told)


def is_step(scope: Scope, value: str) -> bool:
    """Whether every element is provably 0 or one and the same moderate float32, such as -100 of shifted windows.

    Added last or added to another summand first, it moves a score by no more than 2**-17: what float32 rounds anyway.
    """
    fact = scope.fact(value)
    known = constant(scope, value) if fact.dtype == _FLOAT else None
    if known is None or known.dtype.kind != "f" or not known.size:
        return False
    least, most = float(known.min()), float(known.max())
    return (
        -MODERATE <= least <= 0 <= most <= MODERATE
        and least * most == 0
        and bool(np.all((known == 0) | (known == least) | (known == most)))
    )


_INPUTS = {"Where": 3, "ScatterND": 3, "Mul": 2}
"""How many inputs an operator reads here; one that has fewer is malformed."""


def _made_of(scope: Scope, node: Node, depth: int, told: _Told) -> bool:
    if len(node.inputs) < _INPUTS.get(node.op, 1):
        return False
    if node.op == "Where":
        return _chosen(scope, node, depth, told)
    if node.op in ("Concat", "Max", "Min"):
        return all(_absorbs(scope, v, depth, told) for v in node.inputs)
    if node.op == "ScatterND" and node.attributes.get("reduction", "none") == "none":
        return _absorbs(scope, node.inputs[0], depth, told) and _absorbs(scope, node.inputs[2], depth, told)
    if node.op == "Mul":
        pairs = ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0]))
        return any(_absorbs(scope, a, depth, told) and _is_whole(scope, b, depth, told) for a, b in pairs)
    if node.op == "Cast" and node.attributes.get("to") not in _UNBOUNDED:
        return False
    if node.op in OPERATORS or node.op in ("Cast", "Neg", "Trilu", "GatherND", "GatherElements"):
        return _absorbs(scope, node.inputs[0], depth, told)
    return False


def _chosen(scope: Scope, node: Node, depth: int, told: _Told) -> bool:
    """Where(x, fill, x) leaves of x nothing but its zeros."""
    condition, chosen, other = node.inputs
    tested = scope.source(condition)
    while (cast := scope.producer(tested)) is not None and cast.op == "Cast" and cast.attributes.get("to") == _BOOL:
        tested = scope.source(cast.inputs[0])
    zeros = tested == scope.source(other) and tested != scope.source(condition)
    return _absorbs(scope, chosen, depth, told) and (zeros or _absorbs(scope, other, depth, told))


def _found_whole(scope: Scope, value: str, depth: int, told: _Told) -> bool:
    if scope.fact(value).dtype in _INTEGRAL:
        return True
    known = constant(scope, value)
    if known is not None:
        return bool(np.all(np.isfinite(known)) and np.all(known == np.round(known)))
    node = scope.producer(value)
    if node is None or depth > MAX_DEPTH or not node.inputs:
        return False
    if node.op in ("Add", "Sub", "Mul", "Einsum"):
        return all(_is_whole(scope, v, depth + 1, told) for v in node.inputs)
    if node.op in OPERATORS or node.op in ("Cast", "Neg"):
        return _is_whole(scope, node.inputs[0], depth + 1, told)
    return False


_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "com.microsoft::FusedMatMul"})
_COMPUTED = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Cast", "Where", "Concat", "Tanh", "Sigmoid", "Sin", "Cos"})
_PICKED = frozenset({"Gather", "GatherElements", "GatherND"})


def is_ordinary(scope: Scope, value: str, told: dict[str, bool] | None = None) -> bool:
    """Whether a value is computed from products and moderate constants alone: nothing in it is meant to mask.

    What a model multiplies may be anything in theory; like Q·Kᵀ itself it is taken to be no lowest number. `told` keeps
    the answers for further questions about the same scope.
    """
    told = {} if told is None else told
    first = scope.source(value)
    pending, seen = [first], {first}
    while pending:
        here = pending.pop()
        known = told.get(here)
        parts = () if known else None if known is False else _parts(scope, here)
        if parts is None or len(seen) > MOST_PARTS:
            told[first] = False
            return False
        fresh = dict.fromkeys(scope.source(part) for part in parts)
        pending += [part for part in fresh if part not in seen]
        seen.update(fresh)
    told.update(dict.fromkeys(seen, True))
    return True


def _sums_products(node: Node) -> bool:
    """Whether a node is an Einsum of several operands that sums over an axis of theirs."""
    equation = node.attributes.get("equation") if node.op == "Einsum" else None
    if not isinstance(equation, str) or len(node.inputs) < 2:
        return False
    terms, arrow, result = equation.partition("->")
    return bool(arrow) and any(c.isalpha() and c not in result for c in terms)


def _parts(scope: Scope, value: str) -> tuple[str, ...] | None:
    """The values of which all must be ordinary for this one to be so; None where it is not, or nothing tells."""
    fact, node = scope.fact(value), scope.producer(value)
    if isinstance(fact.splat, (int, float)):
        return () if abs(fact.splat) < ORDINARY else None
    known = constant(scope, value)
    if known is not None:
        moderate = known.dtype.kind != "f" or bool(np.all(np.abs(known.astype(np.float64)) < ORDINARY))
        return () if moderate else None
    if node is None or not node.inputs:
        return None
    if node.op in _PRODUCTS or _sums_products(node):
        return ()
    if node.op in OPERATORS or node.op in _PICKED:
        return node.inputs[:1]
    if node.op not in _COMPUTED or fact.dtype in _INTEGRAL:
        return None
    return tuple(v for v in node.inputs if scope.fact(v).dtype not in _INTEGRAL) or None
