"""Rules of level `constant`: new weights computed from the old ones, in front of standard operators.

They read the tensors that their formulas name, external ones too, and no others. Formulas are computed in float64 and
stored in the element type of the result; nothing is changed in place, so a weight that others read stays what it is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atcfuse.expr import Expr, dotted
from atcfuse.graph.constants import NUMPY_TYPES, full_constant
from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.facts import INTEGRAL
from atcfuse.graph.index import Node
from atcfuse.match.find import Match
from atcfuse.match.typing import type_name
from atcfuse.match.values import Refusal, Value
from atcfuse.rule.model import Rebuilt

Array = np.ndarray[Any, np.dtype[np.float64]]

_ROUNDING = {10: 2.0**-10, 1: 2.0**-23, 11: 2.0**-52}
"""How far stored weights may be off, against the largest of their slice: what rounding a normal number costs."""


class Unfoldable(Exception):
    """Why a formula has no value: said to the user as the reason of a refusal."""


@dataclass(frozen=True)
class Folding:
    """A match of a rule of level `constant` with its new tensors, by the rule's names for them."""

    match: Match
    tensors: Mapping[str, np.ndarray]

    @property
    def op(self) -> str:
        """The operator that is left."""
        rebuilt = self.match.rule.rebuilt
        return "" if rebuilt is None else next(node.op for node in reversed(rebuilt.nodes) if node.op)


def fold(match: Match) -> Folding | Refusal:
    """The tensors that a match asks for, or why they cannot stand for what it replaces (ATF346)."""
    rebuilt = match.rule.rebuilt
    assert rebuilt is not None  # the caller only asks for rules that rebuild a node
    dtype = match.scope.fact(match.outputs[0]).dtype
    formulas = _Formulas(match)
    try:
        for name, expr in match.rule.tensors:
            formulas.add(name, expr)
        wanted = [name for name, _ in match.rule.tensors if name in rebuilt.names]
        return Folding(match, {name: _stored(formulas.tensor(name), dtype, name) for name in wanted})
    except Unfoldable as problem:
        return Refusal("ATF346", str(problem), match.anchor.name, len(match.members))


def replacement(folding: Folding, names: Names) -> tuple[Replacement, str]:
    """The replacement that carries a folding out, and the name of the node that stays."""
    match, scope = folding.match, folding.match.scope
    rebuilt = match.rule.rebuilt
    assert rebuilt is not None
    node = _alike(match, rebuilt)
    tensors = {names.fresh(f"{node.name}/{name}"): array for name, array in folding.tensors.items()}
    named = dict(zip(folding.tensors, tensors, strict=True))
    made = _made(match, rebuilt, named, names)
    return Replacement(scope, match.members, tuple(made), {}, tensors), node.name


def _made(match: Match, rebuilt: Rebuilt, named: Mapping[str, str], names: Names) -> list[NewNode]:
    """The node that a rule rebuilds, behind those that it reads."""
    node = _alike(match, rebuilt)
    made: list[NewNode] = []
    inputs: list[str] = []
    for read in rebuilt.inputs:
        if isinstance(read, str):
            inputs.append(named.get(read) or _value(match.env.get(read)))
            continue
        made += _made(match, read, named, names)
        inputs.append(made[-1].outputs[0])
    outputs = match.outputs if rebuilt.output else (names.fresh(f"{node.outputs[0]}/folded"),)
    attributes = tuple(node.attributes.items()) if rebuilt.like else ()
    if not rebuilt.op and _has_no_node(match, rebuilt):
        return [*made[:-1], replace(made[-1], outputs=outputs)]
    if not rebuilt.op:
        inputs += node.inputs[1:]
    while inputs and not inputs[-1]:
        inputs.pop()
    op = rebuilt.op or node.op
    return [*made, NewNode(op, node.proto.name, tuple(inputs), outputs, attributes, like=node.index)]


def _has_no_node(match: Match, rebuilt: Rebuilt) -> bool:
    """Whether the step that a node is to be like is bound to what another step makes: an alternative without a node."""
    own = match.env[rebuilt.like]
    return any(match.env.get(name) == own for s in match.rule.steps for name in s.names if name != rebuilt.like)


def _alike(match: Match, rebuilt: Rebuilt) -> Node:
    """The node whose name, attributes and metadata the new one keeps; that of the anchor where it is like none."""
    return match.scope.producers[str(match.env[rebuilt.like])] if rebuilt.like else match.anchor


def _value(bound: Any) -> str:
    return str(bound) if isinstance(bound, Value) else ""


def _stored(array: Array, dtype: int, name: str) -> np.ndarray:
    """The tensor in an element type, where that keeps it."""
    kind = NUMPY_TYPES.get(dtype)
    if kind is None or dtype not in _ROUNDING:
        raise Unfoldable(f"{name} cannot be stored as {type_name(dtype)}")
    if not np.isfinite(array).all():
        raise Unfoldable(f"{name} would not be finite")
    with np.errstate(over="ignore", under="ignore"):
        stored = array.astype(kind)
    if not np.isfinite(stored).all():
        raise Unfoldable(f"{name} would be too large for {type_name(dtype)}")
    off = np.abs(stored.astype(np.float64) - array)
    for axis in range(min(array.ndim, 2)) if array.ndim > 1 else (None,):
        others = None if axis is None else tuple(a for a in range(array.ndim) if a != axis)
        most, largest = off.max(axis=others, initial=0.0), np.abs(array).max(axis=others, initial=0.0)
        if (most > _ROUNDING[dtype] * largest).any():
            raise Unfoldable(f"{name} would be too small for {type_name(dtype)}")
    return np.ascontiguousarray(stored)


class _Formulas:
    """The tensors of a rule, computed in float64 in the order in which they are written."""

    def __init__(self, match: Match) -> None:
        self._match = match
        self._known: dict[str, Array | float | None] = {}

    def add(self, name: str, expr: Expr) -> None:
        with np.errstate(all="ignore"):  # what is not finite is found where it is stored
            self._known[name] = self._of(expr.tree)

    def tensor(self, name: str) -> Array:
        found = self._known[name]
        if not isinstance(found, np.ndarray):
            raise Unfoldable(f"{name} is no tensor")
        return found

    def _of(self, node: ast.expr) -> Array | float | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return float(node.value)
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._number(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            left, right = self._number(node.left), self._number(node.right)
            _refuse_enlarging(left, right)
            combined: Array | float = _ARITHMETIC[type(node.op)](left, right)
            return combined
        if isinstance(node, ast.Call) and dotted(node.func) in _FUNCTIONS:
            result: Array | float = _FUNCTIONS[dotted(node.func)](*(self._of(a) for a in node.args))
            return result
        raise Unfoldable("the formula has a part that tensors do not know")

    def _number(self, node: ast.expr) -> Array | float:
        found = self._of(node)
        if found is None:
            raise Unfoldable(f"{ast.unparse(node)} is absent")
        return found

    def _named(self, name: str) -> Array | float | None:
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> Array | float | None:
        bound = self._match.env.get(name)
        if bound is None or isinstance(bound, (int, float)):
            return None if bound is None else float(bound)
        found = full_constant(self._match.scope, str(bound)) if isinstance(bound, Value) else None
        if found is None:
            raise Unfoldable(f'the value of {name} ("{bound}") cannot be read')
        if self._match.scope.fact(str(bound)).dtype in INTEGRAL:
            raise Unfoldable(f"{name} is not a floating-point tensor")
        return found.astype(np.float64)


def _refuse_enlarging(left: Array | float, right: Array | float) -> None:
    """Tensors of a formula have one shape, or one of them may be spread over the other."""
    a, b = np.shape(left), np.shape(right)
    try:
        fits = np.broadcast_shapes(a, b) in (a, b)
    except ValueError:
        fits = False
    if not fits:
        raise Unfoldable(f"tensors of shapes {list(a)} and {list(b)} do not go together")


_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
}


def _sqrt(value: Any) -> Any:
    return np.sqrt(_array(value))


def _or_zero(value: Any) -> Any:
    return 0.0 if value is None else value


def _by_output(vector: Any, weight: Any) -> Array:
    """A number for each output channel, laid along the first axis of a Conv's weight [M, C / group, …]."""
    numbers, like = _array(vector), _array(weight)
    if numbers.shape != like.shape[:1]:
        raise Unfoldable(f"{numbers.size} channels for a weight of shape {list(like.shape)}")
    spread: Array = numbers.reshape(-1, *(1,) * (like.ndim - 1))
    return spread


def _by_output_in_groups(vector: Any, weight: Any, group: Any) -> Array:
    """A number for each output channel, laid along a ConvTranspose's weight [C, M / group, …]."""
    numbers, like, groups = _array(vector), _array(weight), int(group)
    if like.ndim < 2 or groups < 1 or like.shape[0] % groups or numbers.shape != (like.shape[1] * groups,):
        raise Unfoldable(f"{numbers.size} channels for a weight of shape {list(like.shape)} in {groups} groups")
    rows: Array = np.repeat(numbers.reshape(groups, -1), like.shape[0] // groups, axis=0)
    spread: Array = rows.reshape(*like.shape[:2], *(1,) * (like.ndim - 2))
    return spread


def _per_channel(value: Any, channels: Any, rank: Any) -> Array:
    """One number a channel, of what is multiplied with or added to [N, C, …]: [C, 1, …], [1, C, 1, …] or one number."""
    numbers, count = _array(value), int(channels)
    if numbers.size == 1 and numbers.ndim <= int(rank):
        return np.full(count, numbers.reshape(()))
    shape = (1,) * (int(rank) - numbers.ndim) + numbers.shape
    if shape != (1, count, *(1,) * (int(rank) - 2)):
        raise Unfoldable(f"a constant of shape {list(numbers.shape)} is not one number a channel")
    return numbers.reshape(count)


def _per_column(value: Any) -> Array:
    """One number a column, of what is multiplied with or added to [.., N]."""
    numbers = _array(value)
    if numbers.ndim < 1 or numbers.size != numbers.shape[-1]:
        raise Unfoldable(f"a constant of shape {list(numbers.shape)} is not one number a column")
    return numbers.reshape(-1)


def _array(value: Any) -> Array:
    if value is None:
        raise Unfoldable("an absent tensor is needed")
    return np.asarray(value, dtype=np.float64)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "sqrt": _sqrt,
    "or_zero": _or_zero,
    "by_output": _by_output,
    "by_output_in_groups": _by_output_in_groups,
    "per_channel": _per_channel,
    "per_column": _per_column,
}
