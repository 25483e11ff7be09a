"""An expression in standard ONNX operators, for the function that says what a fused node means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from atcfuse.elementwise.expression import (
    BOOL,
    CLIP_TO,
    FLOAT,
    OPERATORS,
    SOFTMAXES,
    Argument,
    Expression,
    Operand,
    Step,
)

_GELU = {"Gelu": "none", "GeluTanh": "tanh"}
_ATTRIBUTES = {
    **dict.fromkeys(("LeakyRelu", "Elu", "Celu", "ThresholdedRelu"), ("alpha",)),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
}
_CLIP_BY_INPUTS = 11
_AXES_INPUT_SINCE = {"ReduceSum": 13}


def function_lines(
    expression: Expression, types: Mapping[str, int], outputs: Mapping[str, int], opset: int
) -> list[str]:
    """The lines of the function's body.

    `types` and `outputs` are the element types that the node really has, by operand name: where ATC's precision mode
    narrows them, the computation itself stays in the types of the expression, as in the kernel.
    """
    lines: list[str] = []
    for index, given in enumerate(expression.inputs):
        name = f"x{index + 1}"
        if types[name] != given.dtype:
            lines.append(f"{name}_wide = Cast <to = {given.dtype}> ({name})")
    for index, step in enumerate(expression.steps):
        lines += _step_lines(expression, step, f"t{index + 1}", types, opset)
    for position, index in enumerate(expression.outputs):
        name, dtype = f"y{position + 1}", expression.steps[index].dtype
        made = "Identity" if outputs.get(name, dtype) == dtype else f"Cast <to = {outputs[name]}>"
        lines.append(f"{name} = {made} (t{index + 1})")
    return lines


def _step_lines(expression: Expression, step: Step, result: str, types: Mapping[str, int], opset: int) -> Sequence[str]:
    dtype = expression.argument_type(step)
    lines: list[str] = []
    names: list[str] = []
    for position, argument in enumerate(step.arguments):
        if isinstance(argument, Operand):
            name = str(argument)
            wide = argument.source == "x" and types[name] != expression.inputs[argument.index].dtype
            names.append(f"{name}_wide" if wide else name)
        else:
            names.append(f"{result}_c{position}")
    written = [n for n, a in zip(names, step.arguments, strict=True) if isinstance(a, Operand)]
    if step.op == "Cast":
        return [f"{result} = Cast <to = {step.dtype}> ({written[0]})"]
    if step.op in _GELU:
        return [f'{result} = Gelu <approximate = "{_GELU[step.op]}"> ({written[0]})']
    if step.op in _ATTRIBUTES:
        return [f"{result} = {step.op} <{_attributes(_ATTRIBUTES[step.op], step.arguments[1:])}> ({written[0]})"]
    if step.op == "IsInf":
        signs = (
            f"detect_{n} = {int(_number(v))}" for n, v in zip(("negative", "positive"), step.arguments[1:], strict=True)
        )
        return [f"{result} = IsInf <{', '.join(signs)}> ({written[0]})"]
    if step.op in SOFTMAXES:  # before opset 13 it is that of all axes from this one on
        return [f"{result} = {step.op} <axis = -{expression.columns}> ({written[0]})"]
    if OPERATORS[step.op].reduces:
        return _reduced(step.op, written[0], result, expression.columns, opset)
    if step.op == "Clip" and opset < _CLIP_BY_INPUTS:
        finite = ((k, v) for k, v in zip(("min", "max"), step.arguments[1:], strict=True) if math.isfinite(_number(v)))
        given = ", ".join(f"{k} = {_text(v)}" for k, v in finite)
        return [f"{result} = Clip{f' <{given}>' if given else ''} ({written[0]})"]
    for name, argument in zip(names, step.arguments, strict=True):
        if not isinstance(argument, Operand):
            lines += _constant(name, argument, dtype)
    op = "Clip" if step.op == CLIP_TO else step.op
    return [*lines, f"{result} = {op} ({', '.join(names)})"]


def _reduced(op: str, value: str, result: str, columns: int, opset: int) -> Sequence[str]:
    """Axes counted from the last one; they became an input at different opsets."""
    axes = ", ".join(str(axis) for axis in range(-columns, 0))
    if opset < _AXES_INPUT_SINCE.get(op, 18):
        return [f"{result} = {op} <axes = [{axes}], keepdims = 1> ({value})"]
    made = f"{result}_axes = Constant <value = int64[{columns}] {{{axes}}}> ()"
    return [made, f"{result} = {op} <keepdims = 1> ({value}, {result}_axes)"]


def _constant(name: str, value: float, dtype: int) -> list[str]:
    """A scalar; a 16-bit one is exact in float32 too, a boolean one is 0 or 1."""
    made = f"{name} = Constant <value = float {{{_text(value)}}}> ()"
    if dtype == FLOAT:
        return [made]
    return [made.replace(name, f"{name}f", 1), f"{name} = Cast <to = {dtype}> ({name}f)"]


def _attributes(names: Sequence[str], values: Sequence[Argument]) -> str:
    return ", ".join(f"{name} = {_text(value)}" for name, value in zip(names, values, strict=True))


def _number(value: Argument) -> float:
    assert not isinstance(value, Operand)
    return value


def _text(value: Argument) -> str:
    number = _number(value)
    if math.isinf(number):
        return "-inf" if number < 0 else "inf"
    return repr(float(number))


__all__ = ["BOOL", "function_lines"]
