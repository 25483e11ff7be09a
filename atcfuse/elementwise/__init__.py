"""Expressions of `FusedElementwise` nodes: as data, as text, in ONNX operators and as vector instructions."""

from atcfuse.elementwise.expression import (
    BOOL,
    COLUMN,
    FULL,
    MAX_INPUTS,
    MAX_OUTPUTS,
    OPERATORS,
    REDUCTIONS,
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
from atcfuse.elementwise.footprint import MOST_ELEMENTS, row_bytes

__all__ = [
    "BOOL",
    "COLUMN",
    "FULL",
    "MAX_INPUTS",
    "MAX_OUTPUTS",
    "MOST_ELEMENTS",
    "OPERATORS",
    "REDUCTIONS",
    "ROW",
    "SCALAR",
    "Argument",
    "Expression",
    "Input",
    "Kind",
    "Operand",
    "Step",
    "parse_expression",
    "row_bytes",
]
