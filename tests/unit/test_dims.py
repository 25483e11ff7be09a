"""Dims are exact: whatever an expression simplifies to, it has the value that its parts have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atcfuse.graph import dims
from atcfuse.graph.dims import Dim, Poly, evaluate, parse_dim_param, symbol

NAMES = ("a", "b", "c")
SIGNED = symbol("v", signed=True)
SIZES = st.fixed_dictionaries({**dict.fromkeys(NAMES, st.integers(0, 6)), "v": st.integers(-6, 6)})

atoms: st.SearchStrategy[Dim] = st.one_of(st.integers(-4, 8), st.sampled_from([*map(symbol, NAMES), SIGNED]))


def _combined(inner: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    operations: list[Callable[[Dim, Dim], Dim]] = [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        dims.minimum,
        dims.maximum,
        lambda a, b: dims.floor_divide(a, b if isinstance(b, int) and b else 3),
    ]
    return st.builds(lambda f, a, b: f(a, b), st.sampled_from(operations), inner, inner)


expressions = st.recursive(atoms, _combined, max_leaves=6)


def _value(dim: Dim, sizes: dict[str, int]) -> int:
    return evaluate(dim, sizes)


@given(expressions, expressions, SIZES)
def test_arithmetic_agrees_with_numbers(a: Dim, b: Dim, sizes: dict[str, int]) -> None:
    x, y = _value(a, sizes), _value(b, sizes)
    assert _value(a + b, sizes) == x + y
    assert _value(a - b, sizes) == x - y
    assert _value(a * b, sizes) == x * y
    assert _value(dims.minimum(a, b), sizes) == min(x, y)
    assert _value(dims.maximum(a, b), sizes) == max(x, y)
    if y:
        assert _value(dims.floor_divide(a, b), sizes) == x // y
        assert _value(dims.modulo(a, b), sizes) == x % y


@given(expressions, expressions, SIZES)
def test_what_is_proved_is_so(a: Dim, b: Dim, sizes: dict[str, int]) -> None:
    x, y = _value(a, sizes), _value(b, sizes)
    if a == b:
        assert x == y
    if dims.is_nonnegative(a):
        assert x >= 0
    if dims.is_positive(a):
        assert x >= 1
    if dims.proves_at_most(a, b):
        assert x <= y


@given(expressions, expressions)
def test_products_divide_exactly(a: Dim, b: Dim) -> None:
    if b != 0 and (isinstance(b, int) or not any(s.op for s in dims.symbols(b))):
        assert dims.divide(a * b, b) == a


@given(expressions, expressions, SIZES)
def test_a_quotient_times_its_divisor_is_the_dividend(a: Dim, b: Dim, sizes: dict[str, int]) -> None:
    quotient = dims.divide(a, b)
    if quotient is not None:
        assert _value(quotient * b, sizes) == _value(a, sizes)


extents = st.recursive(
    st.one_of(st.integers(0, 5), st.sampled_from(list(map(symbol, NAMES)))),
    lambda inner: st.builds(
        lambda f, a, b: f(a, b), st.sampled_from([dims.minimum, dims.broadcast, dims.last, dims.maximum]), inner, inner
    ),
    max_leaves=5,
)


@given(extents, extents, SIZES)
def test_broadcasting_gives_the_extent_of_a_valid_model(a: Dim, b: Dim, sizes: dict[str, int]) -> None:
    if not all(_is_valid(s, sizes) for d in (a, b) for s in dims.symbols(d)):
        return
    x, y = _value(a, sizes), _value(b, sizes)
    if x == y or 1 in (x, y):
        assert _value(dims.broadcast(a, b), sizes) == (y if x == 1 else x)


def _is_valid(atom: dims.Symbol, sizes: dict[str, int]) -> bool:
    return atom.op != "broadcast" or len({evaluate(a, sizes) for a in atom.args} - {1}) <= 1


@given(extents, extents, SIZES)
def test_last_is_the_length_of_a_slice_from_the_end(a: Dim, n: Dim, sizes: dict[str, int]) -> None:
    elements = list(range(_value(a, sizes)))
    assert _value(dims.last(a, n), sizes) == len(elements[-_value(n, sizes) :])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch", "batch"),
        ("past + seq", "seq + past"),
        ("2*n", "2*n"),
        ("a*b - 1", "a*b - 1"),
        ("floor(s/2)", "'floor(s/2)'"),
        ("min(a, b)", "'min(a, b)'"),
        ("", "''"),
    ],
)
def test_names_of_extents(text: str, expected: str) -> None:
    assert str(parse_dim_param(text)) == expected


def test_floors_of_floors_are_one_floor() -> None:
    n = symbol("n")
    assert dims.floor_divide(dims.floor_divide(n, 2), 3) == dims.floor_divide(n, 6)
    assert dims.floor_divide(n - 8, 8) == dims.floor_divide(n, 8) - 1


def test_a_minimum_that_may_be_zero_does_not_give_way() -> None:
    x, y = symbol("x"), symbol("y")
    assert dims.broadcast(x, dims.minimum(x, 512)) == x
    assert dims.broadcast(x, dims.minimum(x, y)) != x
    assert dims.broadcast(x, dims.last(x + y, x)) == x
    assert dims.broadcast(x, dims.last(y, x)) != x


def test_expressions_cannot_grow_without_end() -> None:
    grown: Dim = symbol("n") + 1
    for i in range(60):
        grown = grown * grown + symbol(f"m{i}")
        assert len(str(grown)) < 20_000
    deep: Dim = symbol("n")
    for i in range(400):
        deep = dims.maximum(dims.minimum(deep, symbol(f"p{i}")), dims.floor_divide(deep, 2))
    assert isinstance(deep, Poly)
    assert len(str(deep)) < 500


def test_a_missing_size_is_an_error() -> None:
    with pytest.raises(KeyError):
        evaluate(symbol("n") + 1, {})
