"""Operator signatures: which parameter stands where at an opset, and what an absent one means."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import onnx.defs

from atcfuse.graph.index import Node, Scope, attribute_value

COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min", "And", "Or", "Xor", "Equal", "Sum", "Mean"})
"""Operators whose two operands may be exchanged."""

RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators that keep every element in its place in memory."""

MEANINGLESS = {
    "Reshape": frozenset({"allowzero"}),
    "LayerNormalization": frozenset({"stash_type"}),
    "RMSNormalization": frozenset({"stash_type"}),
    "SimplifiedLayerNormalization": frozenset({"stash_type"}),
    "Cast": frozenset({"saturate", "round_mode"}),
    "ReduceMean": frozenset({"noop_with_empty_axes"}),
    "Dropout": frozenset({"seed"}),
}
"""Attributes that a pattern may leave open although they are not at their default: they do not touch meaning there.

`allowzero` matters only with a zero in the target, which the inferred shape already settles; `stash_type` because
kernels keep float32 inside; `saturate` only for float8.
"""


@dataclass(frozen=True)
class Signature:
    """Input names and attribute defaults of an operator at an opset."""

    inputs: tuple[str, ...]
    defaults: dict[str, Any]


_FOREIGN = {
    "SimplifiedLayerNormalization": Signature(("X", "scale"), {"axis": -1, "epsilon": 1e-5}),
    "com.microsoft::FusedMatMul": Signature(
        ("A", "B"), {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0}
    ),
}
"""Signatures of onnxruntime's operators that rules mention; one of them it puts into ONNX's own domain."""


@lru_cache(maxsize=1024)
def signature(op: str, opset: int) -> Signature | None:
    """The signature of an operator at an opset, None for operators that are not known there."""
    if "::" in op or op in _FOREIGN:
        return _FOREIGN.get(op)
    try:
        schema = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None
    defaults = {name: attribute_value(a.default_value) for name, a in schema.attributes.items() if a.default_value.name}
    return Signature(tuple(i.name for i in schema.inputs), defaults)


@lru_cache(maxsize=1)
def all_parameters() -> dict[str, tuple[frozenset[str], int]]:
    """By operator of ONNX's domain, onnxruntime's too: attributes and inputs at any opset, and the most inputs."""
    found: dict[str, tuple[frozenset[str], int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain:
            continue
        names, most = found.get(schema.name, (frozenset(), 0))
        inputs = (i.name for i in schema.inputs)
        found[schema.name] = names.union(schema.attributes, inputs), max(most, schema.max_input)
    for op, known in _FOREIGN.items():
        if "::" not in op:
            found[op] = frozenset({*known.inputs, *known.defaults, *MEANINGLESS.get(op, ())}), len(known.inputs)
    return found


def parameter(scope: Scope, node: Node, name: str) -> Any:
    """A parameter by name, whether this opset has it as attribute or as input: its value, default, or None."""
    if name in node.attributes:
        return node.attributes[name]
    known = signature(node.op, scope.model.opset)
    if known is None:
        return None
    if name in known.inputs:
        source = node.input(known.inputs.index(name))
        return scope.fact(source).elements if source else None
    return known.defaults.get(name)


def input_position(scope: Scope, node: Node, name: str) -> int | None:
    """The input that carries the parameter at this opset, or None where it is an attribute."""
    known = signature(node.op, scope.model.opset)
    return known.inputs.index(name) if known is not None and name in known.inputs else None


def unexpected_attributes(scope: Scope, node: Node, mentioned: set[str]) -> list[str]:
    """Attributes that are neither mentioned nor at their default for the node's opset nor without meaning."""
    odd = [name for name in node.attributes if name not in mentioned]
    if not odd:
        return []
    known = signature(node.op, scope.model.opset)
    defaults = known.defaults if known else {}
    free = MEANINGLESS.get(node.op, frozenset())
    return [name for name in odd if name not in free and node.attributes[name] != defaults.get(name)]
