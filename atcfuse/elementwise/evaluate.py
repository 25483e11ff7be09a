"""Expressions evaluated with numpy in float64: an oracle that shares nothing with the lowering."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from atcfuse.elementwise.expression import BOOL, CLIP_TO, COLUMN, FLOAT16, OPERATORS, Expression, Operand, Step

Array = np.ndarray[Any, np.dtype[Any]]


_SENSITIVE = frozenset({"Floor", "Ceil", "Round", "Sign", "ThresholdedRelu", "Sin", "Cos"})


def evaluate(expression: Expression, inputs: Sequence[Array]) -> list[Array]:
    """The outputs, numbers as float64, of the shape to which all inputs broadcast, columns with 1 for their own axes.

    Casts to float16 round, and so do float16 results where they are compared, as they would in the model.
    """
    results: list[Array] = []
    with np.errstate(all="ignore"):
        for step in expression.steps:
            values = [_value(expression, step, a, inputs, results) for a in step.arguments]
            results.append(_computed(expression, step, values))
    shape = np.broadcast_shapes(*(x.shape for x in inputs))
    narrow = (*shape[: len(shape) - expression.columns], *(1,) * expression.columns)
    made = zip(expression.outputs, expression.output_kinds, strict=True)
    return [np.broadcast_to(results[i], narrow if kind == COLUMN else shape) for i, kind in made]


def _computed(expression: Expression, step: Step, values: Sequence[Any]) -> Array:
    if step.op == "Cast":
        return _cast(step, values[0])
    if OPERATORS[step.op].rows:
        return _OF_ROWS[step.op](values[0], tuple(range(-expression.columns, 0)))
    return _FUNCTIONS[step.op](*values)


def _value(
    expression: Expression, step: Step, argument: Operand | float, inputs: Sequence[Array], results: Sequence[Array]
) -> Any:
    if not isinstance(argument, Operand):
        return bool(argument) if expression.argument_type(step) == BOOL else np.float64(argument)
    value: Array = (inputs if argument.source == "x" else results)[argument.index]
    if (step.dtype == BOOL or step.op in _SENSITIVE) and expression.dtype(argument) == FLOAT16:
        return _half(value)
    return value


def _half(value: Array) -> Array:
    return np.asarray(value.astype(np.float16), np.float64)


def _cast(step: Step, value: Array) -> Array:
    if step.dtype == BOOL:
        return np.not_equal(value, 0)
    if step.dtype == FLOAT16:
        return _half(value)
    return np.asarray(value, np.float64)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _hard_sigmoid(x: Array, alpha: float = 1 / 6, beta: float = 0.5) -> Array:
    return np.clip(alpha * x + beta, 0, 1)


def _is_inf(x: Array, negative: float, positive: float) -> Array:
    return np.asarray(np.where(x < 0, negative, positive).astype(bool) & np.isinf(x))


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _sum(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(x.sum(axis=axes, keepdims=True))


def _log_softmax(x: Array, axes: tuple[int, ...]) -> Array:
    x = x - x.max(axis=axes, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=axes, keepdims=True)))


_OF_ROWS: Mapping[str, Callable[[Array, tuple[int, ...]], Array]] = {
    "ReduceSum": _sum,
    "ReduceMean": lambda x, axes: np.asarray(x.mean(axis=axes, keepdims=True)),
    "ReduceMax": lambda x, axes: np.asarray(x.max(axis=axes, keepdims=True)),
    "ReduceMin": lambda x, axes: np.asarray(x.min(axis=axes, keepdims=True)),
    "ReduceSumSquare": lambda x, axes: _sum(x * x, axes),
    "ReduceL1": lambda x, axes: _sum(np.abs(x), axes),
    "Softmax": lambda x, axes: np.exp(_log_softmax(x, axes)),
    "LogSoftmax": _log_softmax,
    "ReduceL2": lambda x, axes: np.sqrt(_sum(x * x, axes)),
}
_FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Min": lambda *xs: reduce(np.minimum, xs),
    "Max": lambda *xs: reduce(np.maximum, xs),
    "Sum": lambda *xs: reduce(np.add, xs),
    CLIP_TO: lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "Neg": np.negative,
    "Abs": np.abs,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Exp": np.exp,
    "Log": np.log,
    "Erf": _erf,
    "Tanh": np.tanh,
    "Sin": np.sin,
    "Cos": np.cos,
    "Sigmoid": _sigmoid,
    "Relu": lambda x: np.maximum(x, 0),
    "Softplus": _softplus,
    "Mish": lambda x: x * np.tanh(_softplus(x)),
    "HardSwish": lambda x: x * _hard_sigmoid(x),
    "HardSigmoid": _hard_sigmoid,
    "Gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "GeluTanh": _gelu_tanh,
    "Pow": np.float_power,  # np.power takes a root for an exponent of one half, which differs at -inf
    "LeakyRelu": lambda x, alpha: np.where(x < 0, alpha * x, x),
    "Elu": lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x),
    "Clip": np.clip,
    "PRelu": lambda x, slope: np.where(x < 0, slope * x, x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Selu": lambda x, alpha, gamma: gamma * np.where(x < 0, alpha * np.expm1(x), x),
    "Celu": lambda x, alpha: np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha)),
    "ThresholdedRelu": lambda x, alpha: np.where(x > alpha, x, 0.0),
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sign": np.sign,
    "IsNaN": np.isnan,
    "IsInf": _is_inf,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Not": np.logical_not,
    "Where": np.where,
}
