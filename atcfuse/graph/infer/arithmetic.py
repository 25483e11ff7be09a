"""What operators do to single elements: on dims for integers, on numpy arrays for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from atcfuse.dims import (
    Dim,
    Poly,
    divide,
    floor_divide,
    is_nonnegative,
    is_positive,
    maximum,
    minimum,
    modulo,
    product,
)

OnDims = Callable[..., "Dim | None"]
OnArrays = Callable[..., np.ndarray]

RANGES = {
    2: (0, 2**8 - 1),
    3: (-(2**7), 2**7 - 1),
    4: (0, 2**16 - 1),
    5: (-(2**15), 2**15 - 1),
    6: (-(2**31), 2**31 - 1),
    7: (-(2**63), 2**63 - 1),
    9: (0, 1),
    12: (0, 2**32 - 1),
    13: (0, 2**64 - 1),
}
"""The numbers that each integer element type (and bool) can hold."""

SYMBOLIC = frozenset({6, 7, 9, 12, 13})
"""Element types wide enough that an expression of extents does not overflow them."""

LARGE = 2**31
"""A coefficient of this size means that an exporter's "infinity" was computed with, not an extent."""

MAX_EXACT = 2**53
"""Runtimes compute powers and reductions of integers in double precision."""


def representable(value: Dim | None, dtype: int) -> Dim | None:
    """The value where the element type holds it for certain, None where it may wrap around."""
    if isinstance(value, Poly):
        fits = dtype in SYMBOLIC and all(abs(c) < LARGE for _, c in value.terms)
        return value if fits and (dtype not in (12, 13) or is_nonnegative(value)) else None
    if value is None:
        return None
    low, high = RANGES[dtype]
    return value if low <= value <= high else None


def _quotient(a: Dim, b: Dim) -> Dim | None:
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            return None
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    exact = divide(a, b)
    if exact is not None:
        return exact
    return floor_divide(a, b) if is_nonnegative(a) and is_nonnegative(b) else None


def _power(a: Dim, b: Dim) -> Dim | None:
    if isinstance(b, Poly) or not 0 <= b <= 8:
        return None
    power = product([a] * b)
    return None if isinstance(power, int) and abs(power) > MAX_EXACT else power


def _absolute(a: Dim) -> Dim | None:
    if isinstance(a, int):
        return abs(a)
    return a if is_nonnegative(a) else -a if is_nonnegative(-a) else None


def _equal(a: Dim, b: Dim) -> Dim | None:
    difference = a - b
    if isinstance(difference, int):
        return int(difference == 0)
    return 0 if is_positive(difference) or is_positive(-difference) else None


def _less(a: Dim, b: Dim) -> Dim | None:
    return 1 if is_positive(b - a) else 0 if is_nonnegative(a - b) else None


def _less_or_equal(a: Dim, b: Dim) -> Dim | None:
    return 1 if is_nonnegative(b - a) else 0 if is_positive(a - b) else None


def _and(a: Dim, b: Dim) -> Dim | None:
    if a == 0 or b == 0:
        return 0
    return b if a == 1 else a if b in (1, a) else None


def _or(a: Dim, b: Dim) -> Dim | None:
    if a == 1 or b == 1:
        return 1
    return b if a == 0 else a if b in (0, a) else None


def _xor(a: Dim, b: Dim) -> Dim | None:
    if a == b:
        return 0
    return b if a == 0 else a if b == 0 else 1 - b if a == 1 else 1 - a if b == 1 else None


def _sign(a: Dim) -> Dim | None:
    if isinstance(a, int):
        return (a > 0) - (a < 0)
    return 1 if is_positive(a) else -1 if is_positive(-a) else None


def _divide_arrays(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        ratio: np.ndarray = np.divide(a, b)
        return ratio
    floored: np.ndarray = np.floor_divide(a, b)
    quotient: np.ndarray = floored + ((a % b != 0) & ((a < 0) != (b < 0)))
    return quotient


def _power_arrays(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # numpy refuses negative integer exponents of integers.
    powers: np.ndarray = np.power(a.astype(np.float64) if a.dtype.kind in "iu" else a, b)
    return powers


def _erf(a: np.ndarray) -> np.ndarray:
    return np.array([math.erf(x) for x in a.ravel().tolist()]).reshape(a.shape)


BINARY: dict[str, tuple[OnDims, OnArrays | None]] = {
    "Add": (lambda a, b: a + b, np.add),
    "Sub": (lambda a, b: a - b, np.subtract),
    "Mul": (lambda a, b: a * b, np.multiply),
    "Div": (_quotient, _divide_arrays),
    "Pow": (_power, _power_arrays),
    "BitwiseAnd": (lambda a, b: None, np.bitwise_and),
    "BitwiseOr": (lambda a, b: None, np.bitwise_or),
    "BitwiseXor": (lambda a, b: None, np.bitwise_xor),
    "BitShift": (lambda a, b: None, None),
}

COMPARISONS: dict[str, tuple[OnDims, OnArrays]] = {
    "Equal": (_equal, np.equal),
    "Less": (_less, np.less),
    "Greater": (lambda a, b: _less(b, a), np.greater),
    "LessOrEqual": (_less_or_equal, np.less_equal),
    "GreaterOrEqual": (lambda a, b: _less_or_equal(b, a), np.greater_equal),
    "And": (_and, np.logical_and),
    "Or": (_or, np.logical_or),
    "Xor": (_xor, np.logical_xor),
}

VARIADIC: dict[str, tuple[OnDims | None, OnArrays | None]] = {
    "Min": (minimum, np.minimum),
    "Max": (maximum, np.maximum),
    "Sum": (lambda a, b: a + b, np.add),
    "Mean": (None, None),
}

UNARY: dict[str, tuple[OnDims | None, OnArrays | None]] = {
    "Neg": (lambda a: -a, np.negative),
    "Abs": (_absolute, np.abs),
    "Sign": (_sign, np.sign),
    "Sqrt": (None, np.sqrt),
    "Reciprocal": (None, np.reciprocal),
    "Exp": (None, np.exp),
    "Log": (None, np.log),
    "Floor": (None, np.floor),
    "Ceil": (None, np.ceil),
    "Round": (None, np.rint),
    "Erf": (None, _erf),
    "Tanh": (None, np.tanh),
    "Sin": (None, np.sin),
    "Cos": (None, np.cos),
    "Relu": (lambda a: maximum(a, 0), lambda a: np.maximum(a, 0)),
    "BitwiseNot": (lambda a: None, np.invert),
}


def remainder(a: Dim, b: Dim) -> Dim | None:
    return None if b == 0 else modulo(a, b)


def truncated_remainder(a: Dim, b: Dim) -> Dim | None:
    return modulo(a, b) if b != 0 and is_nonnegative(a) and is_nonnegative(b) else None


def choose(condition: Dim, a: Dim, b: Dim) -> Dim | None:
    if isinstance(condition, int):
        return a if condition else b
    return a if a == b else None


def to_bool(element: Dim) -> Dim | None:
    if isinstance(element, int):
        return int(element != 0)
    return 1 if is_positive(element) or is_positive(-element) else None
