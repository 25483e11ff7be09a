"""Expressions of `FusedElementwise` nodes: as data, as text, in ONNX operators and as vector instructions."""

from atcfuse.elementwise.expression import (
    BOOL,
    COLUMN,
    FULL,
    MAX_INPUTS,
    MAX_OUTPUTS,
    OPERATORS,
    ROW,
    SCALAR,
    Argument,
    Expression,
    Input,
    Kind,
    Operand,
    Step,
    parse_expression,
)

__all__ = [
    "BOOL",
    "COLUMN",
    "FULL",
    "MAX_INPUTS",
    "MAX_OUTPUTS",
    "OPERATORS",
    "ROW",
    "SCALAR",
    "Argument",
    "Expression",
    "Input",
    "Kind",
    "Operand",
    "Step",
    "parse_expression",
]
