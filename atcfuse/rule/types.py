"""Types of values in rules, in ONNX's notation: `T`, `float16`, `T[B,S,H*D]`, `T[...,K]`, `const`, `const [1]`.
Any element type is `any`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from atcfuse.diagnostics import AtcfuseError, Span, error
from atcfuse.expr import Expr, parse, shifted

ELEMENT_TYPES = {
    "float": 1, "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "string": 8,
    "bool": 9, "float16": 10, "double": 11, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip
"""ONNX element types by name, with `TensorProto.DataType` numbers."""


@dataclass(frozen=True)
class TypeSpec:
    """What a value must be: an element type or type variable, dims, and whether its value must be known.

    `dims` None leaves the rank open; the item "..." stands for the same leading dims everywhere in a rule.
    """

    element: str
    dims: tuple[Expr | str, ...] | None
    const: bool
    span: Span


def parse_type(text: str, span: Span, variables: set[str]) -> TypeSpec:
    """Parses a type. Raises AtcfuseError ATF214 for anything else."""
    match = re.fullmatch(r"\s*(const\b)?\s*([A-Za-z_]\w*)?\s*(?:\[(.*)\])?\s*", text)
    if match is None or not text.strip():
        raise AtcfuseError(error("ATF214", f"cannot read the type {text!r}", span, _HINT))
    element = match[2] or "any"
    if element not in {*ELEMENT_TYPES, *variables, "any"}:
        raise AtcfuseError(error("ATF214", f"unknown element type {element!r}", span, _HINT))
    if match[3] is None:
        return TypeSpec(element, None, bool(match[1]), span)
    dims: list[Expr | str] = []
    for found in re.finditer(r"[^,]+", match[3]):
        here = shifted(span, match.start(3) + found.start() + len(found[0]) - len(found[0].lstrip()))
        if found[0].strip() == "..." and dims:
            raise AtcfuseError(error("ATF214", "`...` stands for leading dims and must come first", here))
        if found[0].strip():
            dims.append("..." if found[0].strip() == "..." else parse(found[0].strip(), here, "ATF214"))
    return TypeSpec(element, tuple(dims), bool(match[1]), span)


_HINT = "examples: T, float16, T[B,S,H*D], T[...,K], const, const [1], any"
