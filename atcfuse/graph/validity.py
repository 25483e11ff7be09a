"""What the validity of a model says of extents: where tensors broadcast, a cut-off extent was not cut off.

A buffer of c rows and columns, sliced to a sequence, has min(n, c) of them. Where it meets scores of n keys the model
is only valid if n <= c, and with it everything else that was sliced from the buffer becomes plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from atcfuse.dims import Dim, Poly, Symbol, as_symbol, broadcast, maximum, minimum, proves_at_most


def implied(dims: Sequence[Dim], sizes: Sequence[Dim], against: Sequence[Dim]) -> tuple[Dim, ...]:
    """The dims, simplified by what follows from `sizes` (of a mask) broadcasting against extents, last axes aligned."""
    out = tuple(dims)
    for size, whole in zip(reversed(sizes), reversed(against), strict=False):
        limit = cut_off(size, whole)
        if limit is not None:
            out = tuple(_below(dim, whole, limit) for dim in out)
    return out


def cut_off(size: Dim, whole: Dim) -> int | None:
    """The c of a size min(whole, c), where c is a number other than 1, which would broadcast."""
    atom = as_symbol(size)
    if atom is None or atom.op != "min" or whole not in atom.args:
        return None
    limits = [arg for arg in atom.args if isinstance(arg, int)]
    return limits[0] if len(limits) == 1 and len(atom.args) == 2 and limits[0] >= 2 else None


def _below(dim: Dim, whole: Dim, limit: int) -> Dim:
    """The dim given that whole <= limit."""
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for factors, coefficient in dim.terms:
        term: Dim = coefficient
        for factor in factors:
            term = term * _factor_below(factor, whole, limit)
        total = total + term
    return total


def _factor_below(factor: Symbol, whole: Dim, limit: int) -> Dim:
    if factor.op not in ("min", "max", "broadcast"):
        return Poly((((factor,), 1),))
    args = [_below(arg, whole, limit) for arg in factor.args]
    if factor.op == "max":
        return reduce(maximum, args)
    if factor.op == "broadcast":
        return reduce(broadcast, args)
    small = any(proves_at_most(arg, whole) for arg in args)
    return reduce(minimum, [arg for arg in args if not (small and isinstance(arg, int) and arg >= limit)])
