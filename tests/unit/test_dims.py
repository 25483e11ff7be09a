"""Polynomials of dims against plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from atcfuse import dims
from atcfuse.dims import Dim, symbol

NAMES = ("a", "b", "c")
SIZES = st.fixed_dictionaries({name: st.integers(0, 6) for name in NAMES})
LEAVES = st.one_of(st.integers(-4, 8), st.sampled_from([symbol(n) for n in NAMES]))
BINARY: dict[str, tuple[Callable[[Dim, Dim], Dim], Callable[[int, int], int]]] = {
    "+": (lambda a, b: a + b, lambda a, b: a + b),
    "-": (lambda a, b: a - b, lambda a, b: a - b),
    "*": (lambda a, b: a * b, lambda a, b: a * b),
    "min": (dims.minimum, min),
    "max": (dims.maximum, max),
}
Pair = tuple[Dim, Callable[[dict[str, int]], int]]


def _leaf(dim: Dim) -> Pair:
    return dim, lambda sizes: dims.evaluate(dim, sizes)


def _combined(operation: str, left: Pair, right: Pair) -> Pair:
    symbolic, concrete = BINARY[operation]
    return symbolic(left[0], right[0]), lambda sizes: concrete(left[1](sizes), right[1](sizes))


def _divided(left: Pair, divisor: int) -> Pair:
    return dims.floor_divide(left[0], divisor), lambda sizes: left[1](sizes) // divisor


def _remainder(left: Pair, divisor: int) -> Pair:
    return dims.modulo(left[0], divisor), lambda sizes: left[1](sizes) % divisor


PAIRS = st.recursive(
    LEAVES.map(_leaf),
    lambda inner: st.one_of(
        st.builds(_combined, st.sampled_from(sorted(BINARY)), inner, inner),
        st.builds(_divided, inner, st.integers(1, 5)),
        st.builds(_remainder, inner, st.integers(1, 5)),
    ),
    max_leaves=8,
)


@given(PAIRS, SIZES)
@settings(max_examples=400, deadline=None)
def test_expressions_evaluate_as_numbers_do(pair: Pair, sizes: dict[str, int]) -> None:
    assert dims.evaluate(pair[0], sizes) == pair[1](sizes)


@given(PAIRS, PAIRS, SIZES)
@settings(max_examples=400, deadline=None)
def test_what_is_proved_holds(left: Pair, right: Pair, sizes: dict[str, int]) -> None:
    a, b = left[1](sizes), right[1](sizes)
    if left[0] == right[0]:
        assert a == b
    if dims.proves_at_most(left[0], right[0]):
        assert a <= b
    if dims.is_nonnegative(left[0]):
        assert a >= 0
    if dims.is_positive(left[0]):
        assert a >= 1
    quotient = dims.divide(left[0], right[0])
    if quotient is not None:
        assert dims.evaluate(quotient, sizes) * b == a


@given(PAIRS, PAIRS)
@settings(max_examples=200, deadline=None)
def test_products_divide_again(left: Pair, right: Pair) -> None:
    product = left[0] * right[0]
    if right[0] != 0 and isinstance(right[0], int | dims.Poly) and not isinstance(product, int):
        assert dims.divide(product, right[0]) == left[0]


@given(st.lists(LEAVES, max_size=4), SIZES)
def test_products(factors: list[Dim], sizes: dict[str, int]) -> None:
    expected = 1
    for factor in factors:
        expected *= dims.evaluate(factor, sizes)
    assert dims.evaluate(dims.product(factors), sizes) == expected


@given(st.sampled_from(NAMES), st.sampled_from(NAMES), SIZES)
def test_broadcasting_gives_the_extent_of_a_valid_model(a: str, b: str, sizes: dict[str, int]) -> None:
    one, other = sizes[a], sizes[b]
    if one == other or 1 in (one, other):
        found = dims.evaluate(dims.broadcast(symbol(a), symbol(b)), sizes)
        assert found == (other if one == 1 else one)


def test_equal_computations_are_equal() -> None:
    a, b = symbol("a"), symbol("b")
    assert (a + b) * (a - b) == a * a - b * b
    assert dims.floor_divide(8 * a + 4, 8) == a
    assert dims.floor_divide(dims.floor_divide(a, 5) + 1, 2) == dims.floor_divide(a + 5, 10)
    assert dims.broadcast(a - 1, dims.maximum(a - 1, 0)) == a - 1
    assert dims.broadcast(a - 1, dims.maximum(a - 1, b)) != a - 1
    assert dims.minimum(a, b) == dims.minimum(b, a)
    assert dims.divide(a * b + a, b + 1) == a
    assert dims.divide(a + 1, b) is None
    assert dims.divide(a, 0) is None


def test_dim_params_are_read() -> None:
    assert dims.parse_dim_param("2*batch") == 2 * symbol("batch")
    assert dims.symbols(dims.parse_dim_param("past + seq")) == dims.symbols(symbol("past") + symbol("seq"))


def test_what_a_slice_from_the_end_leaves_is_said_in_one_way() -> None:
    n = symbol("n")
    assert dims.maximum(1 - n, 0) == 1 - dims.minimum(n, 1)
    assert 1 - dims.minimum(1, dims.maximum(1 - n, 0)) == dims.minimum(n, 1)
    assert dims.is_nonnegative(64 - dims.minimum(n, 64))
    assert not dims.is_nonnegative(63 - dims.minimum(n, 64))
    assert not dims.is_nonnegative(64 - n)
