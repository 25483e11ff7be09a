"""Values that no graph input reaches: made of constants alone, known when the model is built however they are spelled.

Exporters leave tables such as relative positions and masks of shifted windows as chains of hundreds of nodes. ATC
computes these on the host. Here they are found in one walk a scope, and computed only when somebody asks for them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from atcfuse.graph.facts import Fact

if TYPE_CHECKING:
    from atcfuse.graph.index import Node, Scope

MAX_STEPS = 4096
"""A value with more nodes before it is not computed."""

MAX_COMPUTED = 1 << 21
"""Nor is one of which any step, operands included, has more elements than this."""

_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
_KINDS = {1: "f", 10: "f", 11: "f", 2: "u", 3: "i", 4: "u", 5: "i", 6: "i", 7: "i", 9: "b", 12: "u", 13: "u"}


def fixed(scope: Scope) -> frozenset[str]:
    """The values of a scope that its nodes make of constants alone, by pure operators of ONNX without bodies."""
    known = scope.fixed
    if known is None:
        found: set[str] = set()
        given: dict[str, bool] = {"": True}
        for index in scope.order:
            node = scope.nodes[index]
            for name in node.inputs:
                if name in found:
                    continue
                if name not in given:
                    given[name] = is_given(scope, name)
                if not given[name]:
                    break
            else:
                if _is_pure(node):
                    found.update(filter(None, node.outputs))
        known = scope.fixed = frozenset(found)
    return known


def _is_pure(node: Node) -> bool:
    if "::" in node.op or node.op in _RANDOM or node.op == "Optional":
        return False
    graphs = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    return not any(a.type in graphs for a in node.proto.attribute)


def is_given(scope: Scope, name: str) -> bool:
    """Whether a value is a constant by itself: an initializer, or proved to the last element."""
    at: Scope | None = scope
    while at is not None and not at.defines(name):
        at = at.parent
    return at is not None and (name in at.initializers or at.fact(name).array is not None)


def computed(scope: Scope, name: str) -> np.ndarray | None:
    """The numbers of a fixed value, or None where it is none, too large, or of an operator that cannot be computed."""
    if name not in fixed(scope):
        return None
    if name not in scope.computed:
        scope.computed[name] = _computed(scope, name)
    return scope.computed[name]


def _computed(scope: Scope, name: str) -> np.ndarray | None:
    steps = _steps(scope, name)
    if steps is None:
        return None
    nodes, tensors = steps
    graph = helper.make_graph(nodes, "fixed", [], [helper.make_empty_tensor_value_info(name)], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", scope.model.opset)])
    try:
        from onnx.reference import ReferenceEvaluator

        with np.errstate(all="ignore"):
            results: Any = ReferenceEvaluator(model).run(None, {})
    except Exception:  # an operator or a type that the evaluator lacks, a malformed node: no value is known
        return None
    result = results[0]
    fact = scope.fact(name)
    fits = isinstance(result, np.ndarray) and result.shape == fact.shape and _KINDS.get(fact.dtype) == result.dtype.kind
    return result if fits else None


def _steps(scope: Scope, name: str) -> tuple[list[NodeProto], list[TensorProto]] | None:
    """The nodes that make a value, in order, and their constant operands."""
    wanted, members = [name], set[int]()
    tensors: dict[str, TensorProto] = {}
    while wanted:
        value = wanted.pop()
        if not value or value in tensors:
            continue
        fact = scope.fact(value)
        if not _is_small(fact):
            return None
        node = scope.producers.get(value)
        if node is None or value not in fixed(scope) or fact.array is not None:
            tensor = _tensor(scope, value, fact)
            if tensor is None:
                return None
            tensors[value] = tensor
        elif node.index not in members:
            members.add(node.index)
            wanted += node.inputs
        if len(members) > MAX_STEPS:
            return None
    ordered = sorted(members, key=scope.positions.__getitem__)
    nodes = []
    for index in ordered:
        proto = NodeProto()
        proto.CopyFrom(scope.nodes[index].proto)
        proto.domain = ""
        nodes.append(proto)
    return nodes, list(tensors.values())


def _is_small(fact: Fact) -> bool:
    shape = fact.shape
    if shape is None or fact.dtype not in _KINDS:
        return False
    return all(type(d) is int for d in shape) and math.prod(d for d in shape if type(d) is int) <= MAX_COMPUTED


def _tensor(scope: Scope, name: str, fact: Fact) -> TensorProto | None:
    """A constant operand by its name. External tensors stay on disk and have no value here."""
    if fact.array is not None:
        return numpy_helper.from_array(np.ascontiguousarray(fact.array), name)
    at: Scope | None = scope
    while at is not None and not at.defines(name):
        at = at.parent
    found = None if at is None else at.initializers.get(name)
    return None if found is None or found.data_location == TensorProto.EXTERNAL else found
