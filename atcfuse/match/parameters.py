"""Attributes and constants of nodes against those of a pattern."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from atcfuse.graph.index import Node, Scope


def same_parameter(scope: Scope, node: Node, name: str, expected: Any, found: Any) -> bool:
    """Whether a parameter found on a node is the one a pattern expects; axes are compared modulo the rank."""
    if name in ("axis", "axes"):
        rank = scope.fact(node.input(0)).rank
        wanted = expected if isinstance(expected, tuple) else (expected,)
        have = found if isinstance(found, (tuple, list)) else (found,)
        return _axes(wanted, rank) == _axes(have, rank) and None not in have
    if isinstance(expected, float) and isinstance(found, float):
        return close(found, expected)
    return bool(expected == (tuple(found) if isinstance(found, list) else found))


def _axes(axes: Sequence[Any], rank: int | None) -> tuple[Any, ...]:
    return tuple(a + rank if isinstance(a, int) and a < 0 and rank is not None else a for a in axes)


def close(a: float, b: float) -> bool:
    """Whether two constants are the same number up to float16 or float32 storage of either."""
    if math.isinf(a) or math.isinf(b) or math.isnan(a):
        return a == b
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)
