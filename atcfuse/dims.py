"""Dimensions as exact integer polynomials over symbols.

A dimension is a plain `int` or a `Poly`; arithmetic between the two is written with Python's own operators and gives an
`int` again whenever the symbols cancel. A symbol of a tensor's shape is at least 0 and may be 0 (an empty cache); a
symbol that stands for an unknown integer *value* may be negative (`signed`). What polynomials cannot say (floor
division, minimum, maximum, the result of broadcasting) is an opaque symbol named by its canonical arguments, so that
two equal computations get equal names; `evaluate` computes them for concrete sizes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Union

Dim = Union[int, "Poly"]

MAX_TERMS, MAX_DEGREE, MAX_NAME, MAX_DEPTH = 64, 24, 200, 100
"""Past these an expression becomes one symbol, so that no model can make polynomials or names grow without end."""


@dataclass(frozen=True, eq=False)
class Symbol:
    """An unknown integer; `op` and `args` define an opaque one (see `OPAQUE`), nested `depth` deep.

    Results are cached over models, so a name must always come with the same `signed`.
    """

    name: str
    signed: bool = False
    op: str = ""
    args: tuple[Dim, ...] = ()
    depth: int = 0

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and self.name == other.name and self.signed == other.signed

    def __lt__(self, other: Symbol) -> bool:
        return self.name < other.name


Monomial = tuple[Symbol, ...]


class Poly:
    """A non-constant polynomial: sorted terms of (monomial, non-zero integer coefficient). Immutable."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Poly) and self._hash == other._hash and self.terms == other.terms)

    def __add__(self, other: Dim) -> Dim:
        return _add(self, other)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return Poly(tuple((mono, -coefficient) for mono, coefficient in self.terms))

    def __sub__(self, other: Dim) -> Dim:
        return _add(self, -other)

    def __rsub__(self, other: Dim) -> Dim:
        return _add(-self, other)

    def __mul__(self, other: Dim) -> Dim:
        return _multiply(self, other)

    __rmul__ = __mul__

    def __str__(self) -> str:
        text = ""
        for mono, coefficient in reversed(self.terms):
            factors = [s.name for s in mono]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            text += f" {sign} {'*'.join(factors)}" if text else ("-" if coefficient < 0 else "") + "*".join(factors)
        return text

    __repr__ = __str__


def symbol(name: str, signed: bool = False) -> Poly:
    """The polynomial that is one named unknown."""
    return Poly((((Symbol(name, signed),), 1),))


def parse_dim_param(text: str) -> Dim:
    """A `dim_param`: names and numbers joined by + - * ("past + seq"), or else one opaque, quoted name."""
    parts = re.split(r"\s*([-+*])\s*", text.strip())
    if not all(re.fullmatch(r"[A-Za-z_]\w*|\d+", part) for part in parts[::2]):
        return symbol(repr(text))  # quoted, so that it cannot be mistaken for an opaque symbol
    total: Dim = 0
    sign, product = 1, _atom(parts[0])
    for operator, part in zip(parts[1::2], parts[2::2], strict=True):
        if operator == "*":
            product = product * _atom(part)
            continue
        total, sign, product = total + sign * product, (1 if operator == "+" else -1), _atom(part)
    return total + sign * product


def _atom(text: str) -> Dim:
    return int(text) if text.isdigit() else symbol(text)


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, Poly):
        return dim.terms
    return (((), dim),) if dim else ()


def _graded(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    # Graded lexicographic: the order must survive multiplication, or long division would not end.
    return len(term[0]), term[0]


def _build(terms: Mapping[Monomial, int]) -> Dim:
    kept = sorted(((mono, c) for mono, c in terms.items() if c), key=_graded)
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return Poly(tuple(kept))


@lru_cache(maxsize=65536)
def _add(a: Dim, b: Dim) -> Dim:
    out = dict(_terms(a))
    for mono, c in _terms(b):
        out[mono] = out.get(mono, 0) + c
    if len(out) > MAX_TERMS:
        return opaque("sum", tuple(sorted((a, b), key=str)), signed=not (is_nonnegative(a) and is_nonnegative(b)))
    return _build(out)


@lru_cache(maxsize=65536)
def _multiply(a: Dim, b: Dim) -> Dim:
    out: dict[Monomial, int] = {}
    left, right = _terms(a), _terms(b)
    if len(left) * len(right) > MAX_TERMS or (left and right and len(left[-1][0]) + len(right[-1][0]) > MAX_DEGREE):
        return opaque("product", tuple(sorted((a, b), key=str)), signed=not (is_nonnegative(a) and is_nonnegative(b)))
    for mono_a, ca in left:
        for mono_b, cb in right:
            mono = tuple(sorted(mono_a + mono_b))
            out[mono] = out.get(mono, 0) + ca * cb
    return _build(out)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of all dims, 1 for none."""
    out: Dim = 1
    for dim in dims:
        out = out * dim
    return out


@lru_cache(maxsize=65536)
def divide(a: Dim, b: Dim) -> Dim | None:
    """The exact quotient a / b as a polynomial, or None where b does not provably divide a (or is 0)."""
    if b == 0:
        return None
    if a == b:
        return 1
    if isinstance(a, int) and isinstance(b, int):
        return a // b if a % b == 0 else None
    rest = dict(_terms(a))
    quotient: dict[Monomial, int] = {}
    lead_mono, lead_c = _terms(b)[-1]
    while rest:
        mono = max(rest, key=lambda m: (len(m), m))
        left = _without(mono, lead_mono)
        if left is None or rest[mono] % lead_c:
            return None
        c = rest[mono] // lead_c
        quotient[left] = quotient.get(left, 0) + c
        for other, oc in _terms(b):
            key = tuple(sorted(left + other))
            rest[key] = rest.get(key, 0) - c * oc
            if not rest[key]:
                del rest[key]
        if len(quotient) > MAX_TERMS or len(rest) > 4 * MAX_TERMS:
            return None
    return _build(quotient)


def _without(mono: Monomial, factors: Monomial) -> Monomial | None:
    left = list(mono)
    for factor in factors:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def is_nonnegative(dim: Dim) -> bool:
    """Whether dim >= 0 is certain for every value that its symbols may take."""
    if isinstance(dim, int):
        return dim >= 0
    if _are_counts(dim):
        return True
    least = _least(dim)
    return least >= 0 if isinstance(least, int) else least is not dim and _are_counts(least)


def _are_counts(dim: Poly) -> bool:
    return all(c > 0 and not any(s.signed for s in mono) for mono, c in dim.terms)


def _least(dim: Poly) -> Dim:
    """What dim is at least: minima with a number are at most that, and so many floors at most what was divided."""
    least: Dim = dim
    for mono, c in dim.terms:
        symbol_ = mono[0] if len(mono) == 1 and c < 0 else None
        if symbol_ is None or symbol_.op not in ("min", "floordiv"):
            continue
        own = Poly(((mono, c),))
        whole, by = symbol_.args
        limits = [arg for arg in symbol_.args if isinstance(arg, int)]
        if symbol_.op == "min" and limits:
            least = least - own + c * min(limits)
        elif symbol_.op == "floordiv" and isinstance(by, int) and by > 0 and c % by == 0:
            least = least - own + c // by * whole
    return least


@lru_cache(maxsize=65536)
def proves_at_most(a: Dim, b: Dim) -> bool:
    """Whether a <= b is certain."""
    if is_nonnegative(b - a):
        return True
    if isinstance(a, Poly) and len(a.terms) == 1 and a.terms[0][1] == 1 and len(a.terms[0][0]) == 1:
        s = a.terms[0][0][0]
        return s.op == "min" and any(proves_at_most(arg, b) for arg in s.args)
    return False


def split_constant(dim: Dim) -> tuple[Dim, int]:
    """The dim without its constant term, and that term."""
    if isinstance(dim, int):
        return 0, dim
    constant = next((c for mono, c in dim.terms if not mono), 0)
    return dim - constant, constant


def is_positive(dim: Dim) -> bool:
    """Whether dim >= 1 is certain."""
    return is_nonnegative(dim - 1)


def opaque(op: str, args: tuple[Dim, ...], signed: bool) -> Poly:
    """The symbol that stands for an operation polynomials cannot express."""
    name = f"{op}({', '.join(str(a) for a in args)})"
    if len(name) > MAX_NAME:
        name = f"{op}({hashlib.sha256(name.encode()).hexdigest()[:24]})"
    depth = 1 + max((s.depth for a in args for mono, _ in _terms(a) for s in mono), default=0)
    made = Symbol(name, signed, op, args, depth) if depth <= MAX_DEPTH else Symbol(name, signed)
    return Poly((((made,), 1),))


def floor_divide(a: Dim, b: Dim) -> Dim:
    """floor(a / b). What b divides exactly is taken out first, so floor((n - 8) / 8) is floor(n / 8) - 1.

    Divisions of divisions are one: floor((floor(n / 5) + 1) / 2) is floor((n + 5) / 10).
    """
    if isinstance(a, int) and isinstance(b, int) and b:
        return a // b
    exact = divide(a, b)
    if exact is not None:
        return exact
    offset = _build({mono: c for mono, c in _terms(a) if not mono})
    inner = as_symbol(a - offset)
    if inner is not None and inner.op == "floordiv" and _is_count(b) and _is_count(inner.args[1]):
        return floor_divide(inner.args[0] + offset * inner.args[1], inner.args[1] * b)
    if not isinstance(b, int) or b <= 0:
        return opaque("floordiv", (a, b), signed=not (is_nonnegative(a) and is_nonnegative(b)))
    whole = _build({mono: c // b for mono, c in _terms(a)})
    rest = _build({mono: c % b for mono, c in _terms(a)})
    if isinstance(rest, int):
        return whole
    return whole + opaque("floordiv", (rest, b), signed=not is_nonnegative(rest))


def _is_count(dim: Dim) -> bool:
    return isinstance(dim, int) and dim > 0


def modulo(a: Dim, b: Dim) -> Dim:
    """a mod b with the sign of b, as Python and ONNX Mod on integers define it."""
    if isinstance(a, int) and isinstance(b, int) and b:
        return a % b
    return a - b * floor_divide(a, b)


def minimum(a: Dim, b: Dim) -> Dim:
    """min(a, b), decided where one is provably at most the other."""
    if proves_at_most(a, b):
        return a
    if proves_at_most(b, a):
        return b
    low, high = sorted((a, b), key=str)
    return opaque("min", (low, high), signed=not (is_nonnegative(a) and is_nonnegative(b)))


def maximum(a: Dim, b: Dim) -> Dim:
    """max(a, b), decided where one is provably at least the other."""
    if proves_at_most(a, b):
        return b
    if proves_at_most(b, a):
        return a
    for value, other in ((a, b), (b, a)):
        rest, constant = split_constant(value)
        if other == 0 and constant > 0 and is_nonnegative(-rest):
            return constant - minimum(-rest, constant)  # which is said in one way, as what Slice leaves is
    low, high = sorted((a, b), key=str)
    return opaque("max", (low, high), signed=not (is_nonnegative(a) or is_nonnegative(b)))


def last(a: Dim, n: Dim) -> Dim:
    """How many of a elements the slice [-n:] keeps: min(n, a), but all of them where n is 0 (-0 is the start)."""
    if proves_at_most(a, n):
        return a
    if is_positive(n):
        return minimum(n, a)
    return opaque("last", (a, n), signed=not (is_nonnegative(a) and is_nonnegative(n)))


def broadcast(a: Dim, b: Dim) -> Dim:
    """The extent that broadcasting a against b gives in a valid model."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int):
        return a
    if isinstance(b, int):
        return b
    if is_never_one(a) and is_never_one(b):  # then they are equal
        return min(a, b, key=lambda d: (len(str(d)), str(d)))
    members = sorted({*_members(a), *_members(b)}, key=str)
    if len(members) > MAX_TERMS:
        return opaque("broadcast", (a, b), signed=False)
    kept = [m for m in members if not any(_gives_way(m, other) for other in members)]
    return kept[0] if len(kept) == 1 else opaque("broadcast", tuple(kept), signed=False)


def is_never_one(dim: Dim) -> bool:
    """Whether dim is a multiple of a number above one, and so does not broadcast."""
    return gcd(*(coefficient for _, coefficient in _terms(dim))) > 1


def _members(dim: Dim) -> tuple[Dim, ...]:
    atom = as_symbol(dim)
    return atom.args if atom and atom.op == "broadcast" else (dim,)


def _gives_way(dim: Dim, other: Dim) -> bool:
    """Whether broadcasting dim against other gives other: dim is it or 1, and 0 only where other is.

    Both are extents, at least 0: max(0, n) against n is n.
    """
    atom = as_symbol(dim)
    if atom is None or other not in atom.args:
        return False
    if atom.op == "min":
        return all(arg == other or is_positive(arg) for arg in atom.args)
    if atom.op == "max":
        return all(arg == other or (isinstance(arg, int) and arg <= 0) for arg in atom.args)
    if atom.op == "last":
        whole, n = atom.args
        return other == whole or proves_at_most(n, whole) or is_positive(whole)
    return False


def as_symbol(dim: Dim) -> Symbol | None:
    """The symbol that dim is, or None where it is a number or a compound polynomial."""
    if isinstance(dim, Poly) and len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1:
        return dim.terms[0][0][0]
    return None


def symbols(dim: Dim) -> set[Symbol]:
    """Every symbol in dim, opaque ones and the symbols of their arguments included."""
    found: set[Symbol] = set()
    stack = [dim]
    while stack:
        for mono, _ in _terms(stack.pop()):
            for s in mono:
                if s not in found:
                    found.add(s)
                    stack.extend(s.args)
    return found


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The number that dim is when every plain symbol has the given size. Raises KeyError for a missing one."""
    return _evaluate(dim, sizes, {})


def _evaluate(dim: Dim, sizes: Mapping[str, int], known: dict[str, int]) -> int:
    total = 0
    for mono, coefficient in _terms(dim):
        for s in mono:
            if s.name not in known:
                known[s.name] = _evaluate_symbol(s, sizes, known)
            coefficient *= known[s.name]
        total += coefficient
    return total


def _evaluate_symbol(s: Symbol, sizes: Mapping[str, int], known: dict[str, int]) -> int:
    if s.name in sizes or not s.op:
        return sizes[s.name]
    return OPAQUE[s.op](*(_evaluate(a, sizes, known) for a in s.args))


OPAQUE: dict[str, Callable[..., int]] = {
    "floordiv": lambda a, b: a // b if b else 0,
    "min": min,
    "max": max,
    "last": lambda a, n: min(a, n) if n else a,
    "broadcast": lambda *dims: 0 if 0 in dims else max(dims),
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
}
"""What each operation of an opaque symbol computes."""
