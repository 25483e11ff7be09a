"""The expressions of rule and kernel files: a small, total, side-effect-free subset of Python's syntax.

Names, numbers, text, lists, arithmetic, comparison, `and` / `or` / `not`, and calls of a fixed table of pure
functions. Everything is parsed with `ast` and interpreted here; nothing is ever executed. Truth has three values: a
comparison that cannot be decided is `None`, `and`, `or` and `not` follow Kleene, and a condition holds only when it is
proved True.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any, NamedTuple

from atcfuse.diagnostics import AtcfuseError, Span, TextSpan, error
from atcfuse.dims import Poly, divide, floor_divide, is_positive, modulo, proves_at_most

_PARSING = Lock()
"""Filters of warnings are global, and some versions of CPython count the depth of trees for all threads together."""
MAX_LENGTH = 2000
MAX_DEPTH = 40
MAX_BITS = 256
"""Whole numbers of more bits are unknown: no size comes near, and powers of powers would fill the memory."""
MAX_PARTS = 300
"""Lists with more in them, however nested, are unknown: `[x, x]` of itself doubles with every name."""

Function = Callable[..., Any]


class Undefined(Exception):
    """An operation on unknown or absent operands; the evaluator turns it into the unknown value None."""


@dataclass(frozen=True)
class Expr:
    """A checked expression with its text and the place it stands at."""

    text: str
    tree: ast.expr
    span: Span

    def place(self, node: ast.AST) -> Span:
        """Where a node of the tree stands in its file."""
        return place(self.span, self.text, node)

    def names(self) -> frozenset[str]:
        """Names that the expression reads, called functions excluded."""
        return self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        called = {id(n.func) for n in self._nodes if isinstance(n, ast.Call)}
        return frozenset(n.id for n in self._nodes if isinstance(n, ast.Name) and id(n) not in called)

    @property
    def _nodes(self) -> tuple[ast.AST, ...]:
        return _walked(self.tree).nodes

    @cached_property
    def argument_names(self) -> frozenset[str]:
        """Names in the positional arguments of an expression that is a call."""
        return frozenset(n.id for a in getattr(self.tree, "args", ()) for n in ast.walk(a) if isinstance(n, ast.Name))

    def calls(self) -> set[str]:
        """Names of the functions (and, capitalised, operators) that the expression calls."""
        found = {n.func for n in self._nodes if isinstance(n, ast.Call)}
        return {f.id for f in found if isinstance(f, ast.Name)}


def parse(text: str, span: Span, code: str = "ATF212") -> Expr:
    """Parses and checks an expression. Raises AtcfuseError (`code`) with the column of what is not allowed."""
    if len(text) > MAX_LENGTH:
        raise AtcfuseError(error(code, f"expression longer than {MAX_LENGTH} characters", span))
    try:
        tree = _parsed(text.strip())
    except (SyntaxWarning, DeprecationWarning, SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        row, column = getattr(problem, "lineno", None) or 1, getattr(problem, "offset", None) or 0
        here = shifted(span, _characters_before(text, row) + max(column - 1, 0))
        hint = "write names, numbers, calls and arithmetic as in Python"
        raise AtcfuseError(error(code, f"cannot read {text.strip()!r}: {_reason(problem)}", here, hint)) from None
    mistake = _walked(tree).mistake
    if mistake is not None:
        node, what, hint = mistake
        raise AtcfuseError(error(code, what, place(span, text, node), hint))
    return Expr(text.strip(), tree, shifted(span, len(text) - len(text.lstrip())) if text[:1].isspace() else span)


def _reason(problem: BaseException) -> str:
    return str(getattr(problem, "msg", "")) or "too deeply nested"


def shifted(span: Span, offset: int) -> Span:
    """The place so many characters into the text at a span, where its line is known."""
    if isinstance(span, TextSpan):
        return span.at(max(offset, 0))
    return Span(span.file, span.line, span.column + max(offset, 0)) if span.line else span


def place(span: Span, text: str, node: ast.AST) -> Span:
    """Where a node of a parsed text stands; `text` is as it was parsed, the span that of its beginning."""
    row, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    line = text.strip().split("\n")[row - 1] if row > 1 or not text.isascii() else ""
    inside = len(line.encode()[:column].decode(errors="ignore")) if line and not line.isascii() else column
    return shifted(span, _characters_before(text, row) + inside)


def _characters_before(text: str, row: int) -> int:
    """How many characters of a text stand before a line of it, blanks at its beginning not counted as lines."""
    lead = len(text) - len(text.lstrip())
    return lead + (sum(len(line) + 1 for line in text.strip().split("\n")[: row - 1]) if row > 1 else 0)


_LEAVES = frozenset({
    ast.Load, ast.Constant, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.USub, ast.UAdd,
    ast.Not, ast.And, ast.Or, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn,
})  # fmt: skip
_ALLOWED = _LEAVES | {
    ast.Name, ast.List, ast.Tuple, ast.Call, ast.keyword, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp,
    ast.Attribute,
}  # fmt: skip


@lru_cache(maxsize=2048)
def _parsed(text: str) -> ast.expr:
    """The tree of a text, never changed: rules repeat each other's expressions. Raises what `ast.parse` raises."""
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("error")  # `1if` and other spellings that Python is about to give up
        return ast.parse(text, mode="eval").body


class _Walk(NamedTuple):
    """The nodes of a tree but for operators and contexts; the first mistake in it and a hint, after which it ends."""

    nodes: tuple[ast.AST, ...]
    mistake: tuple[ast.AST, str, str] | None


@lru_cache(maxsize=2048)
def _walked(tree: ast.expr) -> _Walk:
    found: list[ast.AST] = []
    stack: list[tuple[ast.AST, int]] = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        kind = type(node)
        if depth > MAX_DEPTH:
            return _Walk(tuple(found), (node, f"expression nested more than {MAX_DEPTH} deep", ""))
        if kind not in _ALLOWED:
            hint = "allowed are names, numbers, text, lists, arithmetic, comparison, and/or/not and calls"
            what = f"{kind.__name__} is not part of the expression language"
            return _Walk(tuple(found), (node, what, hint))
        if isinstance(node, ast.Constant) and not isinstance(node.value, (int, float, str, type(...), type(None))):
            return _Walk(tuple(found), (node, f"{node.value!r} is not a number or text", ""))
        if kind not in _LEAVES:
            found.append(node)
            stack += [(child, depth + 1) for child in ast.iter_child_nodes(node)]
    return _Walk(tuple(found), None)


def dotted(node: ast.expr) -> str:
    """The name that a Name or a chain of Attributes spells, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


def evaluate(expr: Expr, names: Mapping[str, Any], functions: Mapping[str, Function]) -> Any:
    """The value of an expression; None where it is not known. Raises AtcfuseError for an unknown name or function."""
    return _Evaluator(expr, names, functions).value(expr.tree)


def proved(value: Any) -> bool:
    """Whether a condition's value is provably true."""
    return value is True or (isinstance(value, int) and not isinstance(value, bool) and value != 0)


def _truth(value: Any) -> bool | None:
    """Whether a number is other than 0; None where that is open, and for everything that is no number."""
    if value is None or isinstance(value, (int, float)):
        return None if value is None else value != 0
    if isinstance(value, (str, list, tuple)):
        return None
    found = _never_equal(value, 0)
    return None if found is None else not found


_ORDER: dict[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
}  # fmt: skip


class _Evaluator:
    def __init__(self, expr: Expr, names: Mapping[str, Any], functions: Mapping[str, Function]) -> None:
        self.expr, self.names, self.functions = expr, names, functions

    def value(self, node: ast.expr) -> Any:
        kind = type(node)
        if kind is ast.Name:
            return self._name(node)  # type: ignore[arg-type]
        if kind is ast.Constant:
            return node.value  # type: ignore[attr-defined]
        method = _METHODS.get(kind)
        if method is None:
            raise self.fail(node, f"{kind.__name__} cannot be used here")
        try:
            return method(self, node)
        except _NO_ANSWER:
            return None

    def fail(self, node: ast.expr, message: str, hint: str = "") -> AtcfuseError:
        return AtcfuseError(error("ATF210", message, self.expr.place(node), hint))

    def _name(self, node: ast.Name) -> Any:
        if node.id not in self.names:
            raise self.fail(node, f"unknown name {node.id!r} in {self.expr.text!r}")
        return self.names[node.id]

    def _list(self, node: ast.List | ast.Tuple) -> Any:
        return _bounded([self.value(e) for e in node.elts])

    def _ifexp(self, node: ast.IfExp) -> Any:
        test = _truth(self.value(node.test))
        return None if test is None else self.value(node.body if test else node.orelse)

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        operand = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            truth = _truth(operand)
            return None if truth is None else not truth
        if operand is None or isinstance(operand, (str, list, tuple)):
            return None
        return -operand if isinstance(node.op, ast.USub) else operand

    def _boolop(self, node: ast.BoolOp) -> bool | None:
        stop = isinstance(node.op, ast.Or)
        unknown = False
        for part in node.values:
            truth = _truth(self.value(part))
            if truth is None:
                unknown = True
            elif truth == stop:
                return stop
        return None if unknown else not stop

    def _binop(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        if left is None or right is None:
            return None
        return _bounded(_binary(node.op, left, right))

    def _compare(self, node: ast.Compare) -> bool | None:
        left, outcome = self.value(node.left), True
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node)
            decided = _compared(op, left, right)
            if decided is None:
                return None
            outcome = outcome and decided
            left = right
        return outcome

    def _call(self, node: ast.Call) -> Any:
        name = dotted(node.func)
        function = self.functions.get(name)
        if function is None:
            raise self.fail(node, f"unknown function {name!r} in {self.expr.text!r}")
        args = [self.value(a) for a in node.args]
        keywords = {k.arg: self.value(k.value) for k in node.keywords if k.arg}
        try:
            return _bounded(function(*args, **keywords))
        except IndexError:
            return None
        except TypeError as problem:
            raise self.fail(node, f"{name} is called wrongly: {problem}") from None


_NUMBERS = (int, float, Poly)
_NO_ANSWER = (Undefined, ArithmeticError, TypeError, ValueError)
"""What is raised where operands are of kinds that do not go together: the value is unknown then."""


def _bounded(value: Any) -> Any:
    """The value, where a program can work with it; Undefined for complex numbers, huge ones and huge lists."""
    huge = isinstance(value, int) and value.bit_length() > MAX_BITS
    if huge or isinstance(value, complex) or (isinstance(value, list) and _parts(value) > MAX_PARTS):
        raise Undefined
    return value


def _parts(value: list[Any]) -> int:
    """How many values and lists a list holds, each counted wherever it stands; the lists in it are small already."""
    return sum(1 + _parts(item) if isinstance(item, list) else 1 for item in value)


_METHODS: Mapping[type, Callable[[_Evaluator, Any], Any]] = {
    ast.List: _Evaluator._list,
    ast.Tuple: _Evaluator._list,
    ast.IfExp: _Evaluator._ifexp,
    ast.UnaryOp: _Evaluator._unaryop,
    ast.BoolOp: _Evaluator._boolop,
    ast.BinOp: _Evaluator._binop,
    ast.Compare: _Evaluator._compare,
    ast.Call: _Evaluator._call,
}


def _binary(op: ast.operator, left: Any, right: Any) -> Any:
    if not isinstance(left, _NUMBERS) or not isinstance(right, _NUMBERS):
        raise Undefined
    symbolic = isinstance(left, Poly) or isinstance(right, Poly)
    if symbolic and (isinstance(left, float) or isinstance(right, float)):
        raise Undefined  # the coefficients of a dim are whole numbers
    plain = _ARITHMETIC.get(type(op))
    if plain is not None:
        return plain(left, right)
    if isinstance(op, ast.Pow):
        if not isinstance(left, (int, float)) or not isinstance(right, (int, float)) or abs(right) > 64:
            raise Undefined
        return left**right
    if isinstance(left, float) or isinstance(right, float):
        return _float_division(op, left, right)
    if isinstance(op, ast.Div):
        exact = divide(left, right)
        if exact is None and isinstance(left, int) and isinstance(right, int):
            return left / right
        return exact
    return floor_divide(left, right) if isinstance(op, ast.FloorDiv) else modulo(left, right)


def _float_division(op: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(op, ast.Div):
        return left / right
    return math.floor(left / right) if isinstance(op, ast.FloorDiv) else left % right


def _compared(op: ast.cmpop, left: Any, right: Any) -> bool | None:
    if isinstance(op, (ast.In, ast.NotIn)):
        found = _contained(left, right)
        return found if found is None else found == isinstance(op, ast.In)
    if left is None or right is None:
        return None
    if isinstance(op, (ast.Eq, ast.NotEq)):
        same = equal(left, right)
        return same if same is None or isinstance(op, ast.Eq) else not same
    return _ordered(op, left, right)


def _contained(left: Any, right: Any) -> bool | None:
    """Whether `left` is an element of a list or a part of a text; None where symbols leave it open."""
    if isinstance(right, str):
        return left in right if isinstance(left, str) else None
    if left is None or not isinstance(right, (list, tuple)):
        return None
    answers = [None if one is None else equal(left, one) for one in right]
    return True if True in answers else None if None in answers else False


def equal(left: Any, right: Any) -> bool | None:
    """Whether two values are equal; None where symbols leave it open."""
    if isinstance(left, (int, float, str, bool)) and isinstance(right, (int, float, str, bool)):
        return left == right
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        if len(left) != len(right):
            return False
        parts = [equal(a, b) for a, b in zip(left, right, strict=True)]
        return False if False in parts else None if None in parts else True
    if left == right:
        return True
    return _never_equal(left, right)


def _never_equal(left: Any, right: Any) -> bool | None:
    if isinstance(left, (str, list, tuple)) or isinstance(right, (str, list, tuple)):
        return None
    return False if is_positive(left - right) or is_positive(right - left) else None


def _ordered(op: ast.cmpop, left: Any, right: Any) -> bool | None:
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return bool(_ORDER[type(op)](left, right))
    if isinstance(left, (str, list, float)) or isinstance(right, (str, list, float)):
        return None
    if isinstance(op, (ast.Gt, ast.GtE)):
        left, right = right, left
        op = ast.Lt() if isinstance(op, ast.Gt) else ast.LtE()
    if isinstance(op, ast.LtE):
        return True if proves_at_most(left, right) else False if is_positive(left - right) else None
    return True if is_positive(right - left) else False if proves_at_most(right, left) else None
