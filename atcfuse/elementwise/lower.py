"""Expressions as vector instructions on tiles in the unified buffer.

Where a model rounds on purpose (a Cast, or a comparison of 16-bit results) the kernel rounds too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from atcfuse.elementwise.builder import Builder, operands, scalar_name
from atcfuse.elementwise.expression import (
    BFLOAT16,
    BOOL,
    CLIP_TO,
    FLOAT16,
    INTEGERS,
    REDUCTIONS,
    SOFTMAXES,
    Argument,
    Expression,
    Operand,
    Step,
)
from atcfuse.elementwise.functions import FUNCTIONS, SELECTIVE, SENSITIVE
from atcfuse.elementwise.numbers import c_number, is_power_of_two
from atcfuse.elementwise.registers import SPREAD, Program, Register, assigned

_HUGE = 1e4
_BOUNDED = frozenset({"Sigmoid", "Tanh", "Erf", "Sin", "Cos", "HardSigmoid", "Softmax"})
_EXACT = frozenset(
    {"Neg", "Abs", "Relu", "Min", "Max", "Where", "Clip", CLIP_TO, "Cast", "ReduceMax", "ReduceMin", *SELECTIVE}
)
"""Operators whose result has no more digits than their operands."""
_COMPARES = {"Equal": "EQ", "Greater": "GT", "GreaterOrEqual": "GE", "Less": "LT", "LessOrEqual": "LE"}
_MIRRORED = {"EQ": "EQ", "GT": "LT", "GE": "LE", "LT": "GT", "LE": "GE"}
_BINARY = {"Add": "Add", "Sub": "Sub", "Mul": "Mul", "Div": "Div", "Min": "Min", "Max": "Max"}
_SEVERAL = {"Min": "Min", "Max": "Max", "Sum": "Add"}
_WITH_SCALAR = {"Add": "Adds", "Mul": "Muls", "Min": "Mins", "Max": "Maxs"}
_OVER_ROWS = {"ReduceMax": "MaxRows", "ReduceMin": "MinRows"}


def lower(expression: Expression, types: Sequence[int], outputs: Sequence[int], family: str) -> Program:
    """The program for inputs and outputs of these element types (as ATC's precision mode leaves them) on a family."""
    b = Builder(expression, tuple(types), tuple(outputs), family)
    for index, step in enumerate(expression.steps):
        target = Operand("t", index)
        _note(b, target, step)
        with b.on(b.side_of(target)):
            made = _MASKS[step.op](b, step) if step.op in _MASKS else _step(b, step)
            (b.masks if step.op in _MASKS else b.planes)[b.side, target] = made
    for position, index in enumerate(expression.outputs):
        value = Operand("t", index)
        with b.on(b.side_of(value)):
            b.store(position, value)
    return assigned(b.code)


def _note(b: Builder, target: Operand, step: Step) -> None:
    values = operands(step.arguments)
    constants = [a for a in step.arguments if not isinstance(a, Operand)]
    large = any(_HUGE <= abs(c) < math.inf for c in constants)
    b.huge[target] = step.op not in _BOUNDED and (large or any(b.huge.get(v, False) for v in values))
    # Inputs have the digits of their type; a cast to a narrower type rounds by itself.
    narrow = step.dtype in (FLOAT16, BFLOAT16)
    b.exact[target] = not narrow or (
        step.op in _EXACT and all(b.exact.get(v, True) for v in values if b.expression.dtype(v) != BOOL)
    )


def _step(b: Builder, step: Step) -> Register:
    op, arguments = step.op, step.arguments
    if op in _BINARY and len(arguments) == 2:
        return _binary(b, op, *arguments)
    if op in _SEVERAL:
        return _several(b, _SEVERAL[op], arguments)
    if op == CLIP_TO:
        clipped, low, high = arguments
        return _beside(b, "Min", _beside(b, "Max", b.as_plane(clipped), low), high)
    if op == "PRelu":
        return _prelu(b, *arguments)
    if op == "Where":
        return _where(b, *arguments)
    if op == "Cast":
        return _cast(b, step)
    if op in ("And", "Or", "Xor", "Not"):
        return _logical(b, op, arguments)
    (value, *constants) = arguments
    if op in REDUCTIONS:
        assert isinstance(value, Operand)
        return _reduce(b, op, value)
    if op in SOFTMAXES:
        return _softmax(b, op, b.as_plane(value))
    numbers = [c for c in constants if not isinstance(c, Operand)]
    x = _as_in_model(b, value) if op in SENSITIVE else b.as_plane(value)
    return FUNCTIONS[op](b, x, *numbers)


def _as_in_model(b: Builder, value: Argument) -> Register:
    """A value as the model has it, on a plane."""
    rounded = b.rounded_operand(value)
    return rounded if isinstance(rounded, Register) else b.as_plane(value)


def _prelu(b: Builder, value: Argument, slope: Argument) -> Register:
    """A slope counts below zero alone, so one that is infinite or NaN leaves other elements as they are."""
    x, number = b.as_plane(value), b.number(slope)
    if number is not None:
        return b.scaled("LeakyRelu", x, number)
    return b.select(None, b.compare("LT", x, "0.0f"), b.call("Mul", x, b.as_plane(slope)), x)


def _binary(b: Builder, op: str, one: Argument, other: Argument) -> Register:
    left, right = b.number(one), b.number(other)
    if right is not None and left is None:
        x = b.as_plane(one)
        if op in _WITH_SCALAR:
            return b.scaled(_WITH_SCALAR[op], x, right)
        if op == "Sub":
            return b.scaled("Adds", x, f"-({right})")
        if op == "Div" and not isinstance(other, Operand) and is_power_of_two(other):
            return b.scaled("Muls", x, c_number(1 / other))
    if left is not None and right is None:
        x = b.as_plane(other)
        if op in _WITH_SCALAR:
            return b.scaled(_WITH_SCALAR[op], x, left)
        if op == "Sub":
            return b.scaled("Adds", b.scaled("Muls", x, "-1.0f"), left)
    return b.call(_BINARY[op], b.as_plane(one), b.as_plane(other))


def _several(b: Builder, op: str, arguments: Sequence[Argument]) -> Register:
    """Of three values and more, one after the other."""
    x = b.as_plane(arguments[0])
    for argument in arguments[1:]:
        x = _beside(b, op, x, argument)
    return x


def _beside(b: Builder, op: str, x: Register, argument: Argument) -> Register:
    number = b.number(argument)
    return b.call(op, x, b.as_plane(argument)) if number is None else b.scaled(_WITH_SCALAR[op], x, number)


def _where(b: Builder, condition: Argument, yes: Argument, no: Argument) -> Register:
    assert isinstance(condition, Operand)
    bits = b.bits(condition)
    number = b.number(no)
    chosen = b.number(yes)
    if chosen is not None:
        plane = b.fill(chosen)
        return b.select(plane, bits, plane, number if number is not None else b.as_plane(no))
    return b.select(None, bits, b.as_plane(yes), number if number is not None else b.as_plane(no))


def _compare(b: Builder, step: Step) -> Register:
    mode = _COMPARES[step.op]
    one, other = (b.rounded_operand(x) for x in step.arguments)
    if isinstance(one, str) and isinstance(other, str):
        one = b.as_plane(step.arguments[0])
    if isinstance(one, str):
        one, other, mode = other, one, _MIRRORED[mode]
    assert isinstance(one, Register)
    return b.compare(mode, one, other)


def _is_nan(b: Builder, step: Step) -> Register:
    x = _as_in_model(b, step.arguments[0])
    return b.compare("NE", x, x)


def _is_inf(b: Builder, step: Step) -> Register:
    value, negative, positive = step.arguments
    x = _as_in_model(b, value)
    if negative and positive:
        return b.compare("EQ", b.call("Abs", x), c_number(math.inf))
    return b.compare("EQ", x, c_number(math.inf if positive else -math.inf))


_MASKS = {**dict.fromkeys(_COMPARES, _compare), "IsNaN": _is_nan, "IsInf": _is_inf}
"""Steps whose results are bits."""


def _cast(b: Builder, step: Step) -> Register:
    (value,) = step.arguments
    assert isinstance(value, Operand)
    source = b.expression.dtype(value)
    if step.dtype == BOOL and source != BOOL:
        return b.ones(b.compare("NE", _as_in_model(b, value), "0.0f"))
    plane, huge = b.plane(value), source in INTEGERS or b.huge.get(value, False)
    if source in (FLOAT16, BFLOAT16) and step.dtype != source and not b.exact.get(value, True):
        plane = b.rounded(plane, source, huge)
    if step.dtype in (FLOAT16, BFLOAT16) and source not in (BOOL, step.dtype):
        plane = b.rounded(plane, step.dtype, huge)
    return plane


def _logical(b: Builder, op: str, arguments: Sequence[Argument]) -> Register:
    planes = [b.as_plane(a) for a in arguments]
    if op == "Not":
        return b.scaled("Adds", b.scaled("Muls", planes[0], "-1.0f"), "1.0f")
    if op == "Xor":
        return b.call("Abs", b.call("Sub", *planes))
    return b.call("Min" if op == "And" else "Max", *planes)


def _softmax(b: Builder, op: str, x: Register) -> Register:
    """Of every row, whatever its largest exponent is; a row of -inf alone becomes NaN, as softmax has it."""
    x = b.call("Sub", x, _spread(b, _over_rows(b, "MaxRows", x)))
    e = b.call("Exp", x)
    total = _over_rows(b, "SumRows", e)
    if op == "Softmax":
        return b.call("Div", e, _spread(b, total))
    with b.on("column"):
        total = b.call("Ln", total)
    return b.call("Sub", x, _spread(b, total))


def _over_rows(b: Builder, helper: str, x: Register) -> Register:
    with b.on("column"):
        return b.emit(helper, f"{helper}({{d}}, {{0}})", x)


def _spread(b: Builder, column: Register) -> Register:
    return b.emit(SPREAD, f"{SPREAD}({{d}}, {{0}})", column)


def _reduce(b: Builder, op: str, value: Operand) -> Register:
    """A reduction of every row, from the whole plane to a column."""
    with b.on("full"):
        x = b.plane(value)
        if op in ("ReduceSumSquare", "ReduceL2"):
            x = b.call("Mul", x, x)
        elif op == "ReduceL1":
            x = b.call("Abs", x)
    column = _over_rows(b, _OVER_ROWS.get(op, "SumRows"), x)
    if op == "ReduceMean":
        return b.scaled("Muls", column, "perColumn")
    return b.call("Sqrt", column) if op == "ReduceL2" else column


__all__ = ["Program", "lower", "scalar_name"]
