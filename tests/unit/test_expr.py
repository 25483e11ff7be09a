"""The expression language: what it means, what it refuses, and that it never executes or crashes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atcfuse.diagnostics import AtcfuseError, Span
from atcfuse.dims import symbol
from atcfuse.expr import MAX_DEPTH, MAX_LENGTH, equal, evaluate, parse, proved

SPAN = Span("rules/x.yaml", 4, 10)
N = symbol("n")
M = symbol("m")


def value(text: str, **names: Any) -> Any:
    return evaluate(parse(text, SPAN), names, {"sqrt": math.sqrt, "length": len})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7), ("-2 ** 2", -4), ("7 // 2", 3), ("7 % 3", 1), ("6 / 3", 2), ("7 / 2", 3.5), ("2 ** -1", 0.5),
        ("1 < 2 <= 2", True), ("1 == 1.0", True), ("'a' in ['a', 'b']", True), ("3 not in [1, 2]", True),
        ("not 0", True), ("1 and 0", False), ("0 or 1", True), ("1 if 0 else 2", 2), ("[1, 2 + 1]", [1, 3]),
        ("sqrt(4)", 2.0), ("length([1, 2])", 2), ("+3", 3), ("1e-5", 1e-5),
    ],
)  # fmt: skip
def test_values(text: str, expected: Any) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n == n", True), ("n == n + 1", False), ("n == m", None), ("n + m == m + n", True), ("2 * n / 2 == n", True),
        ("n >= 0", True), ("n > 0", None), ("n + 1 > 0", True), ("n < 0", False), ("n * m // m", N), ("n / m", None),
        ("n == m or n == n", True), ("n == m and n != n", False), ("n == m and n == n", None), ("not (n == n)", False),
        ("x + 1", None), ("x == 1", None), ("x == 1 or 1", True), ("1 if x else 2", None), ("[n, 1] == [n, 1]", True),
        ("[n] == [n, 1]", False), ("[n, 1] == [m, 2]", False), ("'a' + 1", None), ("1 / 0", None), ("2 ** 1000", None),
    ],
)  # fmt: skip
def test_what_symbols_leave_open_is_unknown(text: str, expected: Any) -> None:
    assert value(text, n=N, m=M, x=None) == expected


def test_only_what_is_proved_counts() -> None:
    assert [proved(v) for v in (True, False, None, 1, 0, 0.5, "yes", N)] == [True, False, False, True] + [False] * 4


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')()", "(lambda: 1)()", "[x for x in y]", "{1: 2}", "{1}", "f'{x}'", "x := 1",
        "a[0]", "a @ b", "a & b", "~a", "a is b", "await x", "yield", "*a", "b'x'", "1j",
    ],
)  # fmt: skip
def test_what_is_not_part_of_the_language(text: str) -> None:
    with pytest.raises(AtcfuseError) as caught:
        value(text, a=1, b=2, x=3, y=[])
    assert caught.value.diagnostics[0].code in ("ATF210", "ATF212")


@pytest.mark.parametrize(
    "text", ["", "1 +", "(", "a b", "'", "\0", "1" * (MAX_LENGTH + 1), "-" * (MAX_DEPTH + 2) + "1"]
)
def test_what_cannot_be_read(text: str) -> None:
    with pytest.raises(AtcfuseError) as caught:
        parse(text, SPAN)
    assert caught.value.diagnostics[0].code == "ATF212"


def test_attributes_of_values_cannot_be_reached() -> None:
    with pytest.raises(AtcfuseError):
        value("q.__class__", q="text")


def test_mistakes_name_the_column() -> None:
    with pytest.raises(AtcfuseError) as caught:
        value("1 + missing")
    assert str(caught.value.diagnostics[0].span) == "rules/x.yaml:4:14"
    with pytest.raises(AtcfuseError, match="unknown function 'eval'"):
        value("eval('1')")


def test_a_function_called_wrongly_is_told() -> None:
    with pytest.raises(AtcfuseError, match="sqrt is called wrongly"):
        value("sqrt(1, 2)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 in [1, 2]", True),
        ("3 in [1, 2]", False),
        ("3 not in [1, 2]", True),
        ("'a' in 'cab'", True),
        ("2 in [n]", None),
        ("2 not in [n]", None),
        ("n in [1, n]", True),
        ("n in 't'", None),
        ("x in [1]", None),
    ],
)
def test_what_a_list_holds_must_be_proved(text: str, expected: bool | None) -> None:
    assert value(text, n=N, x=None) is expected


def test_names_and_calls() -> None:
    expr = parse("f(a, b) + c * g(1)", SPAN)
    assert (expr.names(), expr.calls()) == ({"a", "b", "c"}, {"f", "g"})


_ATOMS = st.sampled_from(["n", "m", "x", "1", "0", "2.5", "'t'", "[n, 1]", "sqrt(n)", "length([m])"])
_TEXTS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(
            inner,
            st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "and", "or", "in"]),
            inner,
        ).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda t: f"(not {t})"),
        inner.map(lambda t: f"(-{t})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
    ),
    max_leaves=8,
)


@given(_TEXTS, st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=300, deadline=None)
def test_what_is_known_symbolically_holds_for_every_size(text: str, n: int, m: int) -> None:
    try:
        symbolic, concrete = value(text, n=N, m=M, x=None), value(text, n=n, m=m, x=None)
    except AtcfuseError as problem:  # sqrt of a symbol
        assert problem.diagnostics[0].code == "ATF210"
        return
    except (OverflowError, TypeError):
        pytest.fail(f"{text} is not total")
    if isinstance(symbolic, bool) and concrete is not None:
        assert symbolic == proved(concrete) or symbolic == concrete


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_gives_a_value_or_a_coded_error(text: str) -> None:
    try:
        evaluate(parse(text, SPAN), {}, {})
    except AtcfuseError as problem:
        assert problem.diagnostics[0].code in ("ATF210", "ATF212")


@given(st.integers(), st.integers())
def test_equal_agrees_with_numbers(a: int, b: int) -> None:
    assert equal(a, b) is (a == b)
    assert equal([a, N], [b, N]) is (a == b)


@pytest.mark.parametrize(
    "text",
    [
        "9 ** 9 ** 9", "((9 ** 64) ** 64) ** 64", "(-8) ** 0.5", "... - 1", "... % B", "B // ...", "B / ...", "not ...", "-'a'", "1 in 'abc'", "[1] in 'abc'",
        "... == 1 or 0", "(B - 0.3) // 1", "B * 0.5", "(0.5 + B) % 2", "1e308 * 10 // 1", "length(1) if 0 else 10 ** 90", "... < 1",
    ],
)  # fmt: skip
def test_what_does_not_go_together_or_is_huge_is_unknown(text: str) -> None:
    assert value(text, B=N) is None


def test_numbers_and_lists_do_not_grow_from_name_to_name() -> None:
    number, items = value("10 ** 60"), value("[1, 1]")
    for _ in range(60):
        number, items = value("x * x", x=number), value("[x, x]", x=items)
    assert number is None
    assert str(items).count("None") <= 128
    assert value("x == x", x=value("[[1, 2], [3]]")) is True


@pytest.mark.parametrize("text", ["1if 1 else 2", "'\\d' == 1"])
def test_spellings_that_python_warns_of_are_refused_without_a_warning(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AtcfuseError, match="ATF212"):
        parse(text, SPAN)
    assert capsys.readouterr().err == ""
