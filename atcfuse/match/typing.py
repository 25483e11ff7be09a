"""Types in rules against proved facts: element types, constness, dims that unify."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atcfuse.expr import Expr, equal, evaluate
from atcfuse.graph.constants import constant_tensor
from atcfuse.graph.facts import Fact
from atcfuse.graph.index import Scope
from atcfuse.match.values import Refusal
from atcfuse.rule.types import ELEMENT_TYPES, TypeSpec

_NAMES = {number: name for name, number in reversed(ELEMENT_TYPES.items())}


def type_name(dtype: int) -> str:
    """The ONNX name of an element type."""
    return _NAMES.get(dtype, f"type {dtype}" if dtype else "an unknown type")


def type_problem(
    scope: Scope,
    spec: TypeSpec,
    value: str,
    env: Mapping[str, Any],
    types: Mapping[str, tuple[int, ...]],
    functions: Any,
) -> tuple[dict[str, Any], Refusal | None]:
    """New bindings of dims and type variables, and what does not fit (None when all is proved)."""
    fact = scope.fact(value)
    bound: dict[str, Any] = {}
    problem = _element_problem(spec, fact, env, types, bound)
    if problem is None and spec.const and not is_known(scope, value, fact):
        problem = Refusal("ATF312", "expected a value that is known when the model is built", value)
    if problem is None and spec.dims is not None:
        problem = _dims_problem(spec, fact, env, functions, bound)
    return bound, problem


def is_known(scope: Scope, value: str, fact: Fact) -> bool:
    """Whether the value is provably constant (it need not have been read)."""
    return (
        fact.array is not None
        or isinstance(fact.splat, (int, float))
        or (fact.elements is not None and all(isinstance(e, int) for e in fact.elements))
        or constant_tensor(scope, value) is not None
    )


def _element_problem(
    spec: TypeSpec, fact: Fact, env: Mapping[str, Any], types: Mapping[str, tuple[int, ...]], bound: dict[str, Any]
) -> Refusal | None:
    if spec.element == "any":
        return None
    found = type_name(fact.dtype)
    if spec.element in ELEMENT_TYPES:
        fits = fact.dtype == ELEMENT_TYPES[spec.element]
        return None if fits else Refusal("ATF319", f"expected {spec.element}, found {found}")
    allowed = types.get(spec.element)
    if fact.dtype == 0 or (allowed is not None and fact.dtype not in allowed):
        names = " or ".join(type_name(t) for t in allowed or ())
        return Refusal("ATF319", f"expected {names or 'a known element type'}, found {found}")
    if env.get(spec.element, fact.dtype) != fact.dtype:
        return Refusal("ATF305", f"{found} where the rest of the pattern is {type_name(env[spec.element])}")
    bound[spec.element] = fact.dtype
    return None


def _dims_problem(
    spec: TypeSpec, fact: Fact, env: Mapping[str, Any], functions: Any, bound: dict[str, Any]
) -> Refusal | None:
    dims, shape = spec.dims or (), fact.shape
    if shape is None:
        return Refusal("ATF313", "the rank is not known")
    if spec.const and _is_one(dims):
        return None if fact.size == 1 else Refusal("ATF313", f"expected one element, found shape {_text(shape)}")
    leading = bool(dims) and dims[0] == "..."
    named = [d for d in dims if isinstance(d, Expr)]
    if len(shape) < len(named) or (not leading and len(shape) != len(named)):
        return Refusal("ATF313", f"expected rank {len(named)}{'+' if leading else ''}, found shape {_text(shape)}")
    if leading:
        head = tuple(shape[: len(shape) - len(named)])
        if env.get("...", head) != head:
            return Refusal("ATF313", f"leading dims {_text(head)} where another value has {_text(env['...'])}")
        bound["..."] = head
    for expr, size in zip(named, shape[len(shape) - len(named) :], strict=True):
        problem = _unify_dim(expr, size, {**env, **bound}, functions, bound)
        if problem is not None:
            return problem
    return None


def _is_one(dims: tuple[Expr | str, ...]) -> bool:
    return len(dims) == 1 and isinstance(dims[0], Expr) and dims[0].text == "1"


def _unify_dim(
    expr: Expr, size: Any, names: Mapping[str, Any], functions: Any, bound: dict[str, Any]
) -> Refusal | None:
    if expr.text.isidentifier() and expr.text not in names:
        bound[expr.text] = size
        return None
    expected = evaluate(expr, names, functions)
    if equal(expected, size) is True:
        return None
    return Refusal("ATF313", f"expected {expr.text} = {expected}, found {size}")


def _text(shape: tuple[Any, ...]) -> str:
    return "[" + ", ".join(str(d) for d in shape) + "]"
