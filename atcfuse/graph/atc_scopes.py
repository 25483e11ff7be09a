"""The graphs of a model as ATC's ONNX parser visits them, and what a rule has to say about one of their nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from atcfuse.diagnostics import Severity


@dataclass(frozen=True)
class Finding:
    """One place where ATC would refuse or misread the model.

    `node` names the place: a node, or the tensor or value concerned; "" for the model as a whole. `atc_error` is the
    number of the error that ATC would print, "" where it prints none or the number is not known. Findings that differ
    in nothing but the place have one cause and are shown as one diagnostic.
    """

    code: str
    severity: Severity
    message: str
    node: str = ""
    op: str = ""
    hint: str = ""
    atc_error: str = ""


@dataclass(frozen=True)
class Scope:
    """A graph that ATC parses: the main graph, or a branch of an If.

    `inputs` are the values that become nodes of their own, named like the value: the graph's inputs without
    initializers and, in a branch, the outer values which ATC adds as inputs. `first_unnamed` is the number that ATC
    gives the first unnamed node of this graph.
    """

    graph: GraphProto
    inputs: frozenset[str]
    is_branch: bool
    first_unnamed: int


def scopes(model: ModelProto) -> Iterator[Scope]:
    """The graphs ATC parses, breadth first as it does. The bodies of Loop and Scan are never looked at by ATC."""
    pending: deque[tuple[GraphProto, frozenset[str], bool]] = deque([(model.graph, frozenset(), False)])
    unnamed = 0
    while pending:
        graph, captured, is_branch = pending.popleft()
        initializers = {tensor.name for tensor in graph.initializer}
        inputs = frozenset(value.name for value in graph.input) - initializers | captured
        yield Scope(graph, inputs, is_branch, unnamed)
        for node in graph.node:
            unnamed += not node.name
            captured = captured_by(node)
            pending.extend((branch, captured, True) for branch in _branches(node))


def captured_by(node: NodeProto) -> frozenset[str]:
    """The outer values that ATC adds to the inputs of both branches, and of the If itself: what either reads."""
    empty: frozenset[str] = frozenset()
    return empty.union(*(_captured(branch) for branch in _branches(node)))


def _branches(node: NodeProto) -> list[GraphProto]:
    if node.op_type != "If":
        return []
    return [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]


def _captured(branch: GraphProto) -> frozenset[str]:
    """The values that ATC takes for captured: read by a node of the branch itself and made by nothing in it."""
    read = {name for node in branch.node for name in node.input}
    made = {name for node in branch.node for name in node.output}
    return frozenset(read - made - {tensor.name for tensor in branch.initializer})


def label(node: NodeProto) -> str:
    """The node's name; for an unnamed one its operator and first output."""
    return node.name or f"{node.op_type} -> {next((name for name in node.output if name), '')}"


def constants(scope: Scope) -> Iterator[tuple[str, TensorProto]]:
    """The tensors that ATC's constant parser reads, with their names: initializers, then `value` of Constant nodes."""
    for tensor in scope.graph.initializer:
        yield tensor.name, tensor
    for node in scope.graph.node:
        if node.op_type != "Constant":
            continue
        for attribute in node.attribute:
            if attribute.name == "value":
                yield label(node), attribute.t
