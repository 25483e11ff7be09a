"""Calls of the fused functions replaced by the functions' own nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from atcfuse.diagnostics import AtcfuseError, error
from atcfuse.graph.dialect import FUSED_DOMAIN
from atcfuse.graph.index import STANDARD, opset_of
from atcfuse.graph.walk import blocks

Functions = Mapping[tuple[str, str], FunctionProto]


def inline_fused(model: ModelProto) -> list[str]:
    """Replaces every fused node of a `portable` model by its meaning, in place; the names of the nodes replaced.

    The function's nodes take the call's place in their own order; their names and those of their values begin with the
    call's name. The functions and their opset import go, everything else stays. Raises AtcfuseError ATF140 for a fused
    node without a function, ATF141 for a function that cannot be inlined.
    """
    functions = {(f.name, f.overload): f for f in model.functions if f.domain == FUSED_DOMAIN}
    graphs = [block.graph for block in blocks(model) if block.graph is not None and block.owner != "function"]
    taken = _names(graphs)
    inlined: list[str] = []
    # Bodies before the graphs around them, whose nodes are written anew with everything in them.
    for graph in reversed(graphs):
        if not any(node.domain == FUSED_DOMAIN for node in graph.node):
            continue
        nodes: list[NodeProto] = []
        for node in graph.node:
            if node.domain == FUSED_DOMAIN:
                inlined.append(node.name)
                nodes += _expanded(node, _function(node, functions, opset_of(model.opset_import)), taken)
            else:
                nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)
    _drop_functions(model)
    return inlined


def inlined_copy(model: ModelProto) -> ModelProto:
    """A copy of a `portable` model with every fused node replaced by its meaning. Raises what `inline_fused` does."""
    copy = ModelProto()
    copy.CopyFrom(model)
    inline_fused(copy)
    return copy


def _names(graphs: list[GraphProto]) -> set[str]:
    """Every name of a node or value, so that new ones collide with none."""
    taken: set[str] = set()
    for graph in graphs:
        taken.update(value.name for value in graph.input)
        taken.update(tensor.name for tensor in graph.initializer)
        taken.update(sparse.values.name for sparse in graph.sparse_initializer)
        for node in graph.node:
            taken.add(node.name)
            taken.update(node.output)
    return taken


def _function(node: NodeProto, functions: Functions, opset: int) -> FunctionProto:
    function = functions.get((node.op_type, node.overload))
    shown = f"the fused node {node.name!r} ({node.op_type})"
    if function is None:
        hint = "optimize the original model again; a tool that saved this model dropped its functions"
        raise AtcfuseError(error("ATF140", f"{shown} has no function that says what it means", hint=hint))
    foreign = next((n.op_type for n in function.node if n.domain not in STANDARD), None)
    if foreign is not None:
        raise AtcfuseError(error("ATF141", f"the function of {shown} calls {foreign}, which is no standard operator"))
    version = opset_of(function.opset_import)
    if version != opset:
        message = f"the function of {shown} is written for opset {version}, the model for {opset}"
        raise AtcfuseError(error("ATF141", message, hint="convert the original's opset, then optimize it again"))
    return function


def _expanded(call: NodeProto, function: FunctionProto, taken: set[str]) -> Iterator[NodeProto]:
    """The function's nodes with the call's values in place of the formal ones."""
    values = dict.fromkeys(function.input, "")
    values.update(zip(function.input, call.input, strict=False))
    for formal, actual in zip(function.output, call.output, strict=False):
        if actual:
            values[formal] = actual
    passed = {attribute.name: attribute for attribute in call.attribute}
    # A formal output that the body also reads, or that the call leaves out, is a value like any other.
    for node in function.node:
        made = NodeProto()
        made.CopyFrom(node)
        made.name = _fresh(f"{call.name}/{node.name or node.op_type}", taken)
        _substitute(made, values, call.name, taken)
        _pass_attributes(made, passed)
        yield made


def _fresh(wanted: str, taken: set[str]) -> str:
    name, count = wanted, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name


def _substitute(node: NodeProto, values: dict[str, str], prefix: str, taken: set[str]) -> None:
    """Renames what a node reads and makes; new values get names as they are made."""
    for at, name in enumerate(node.input):
        node.input[at] = values.get(name, name)
    for graph in _bodies(node):
        _substitute_captured(graph, values)
    for at, name in enumerate(node.output):
        if name and name not in values:
            values[name] = _fresh(f"{prefix}/{name}", taken)
        node.output[at] = values.get(name, name)


def _bodies(node: NodeProto) -> list[GraphProto]:
    return [body for a in node.attribute for body in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)]


def _substitute_captured(graph: GraphProto, values: Mapping[str, str]) -> None:
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    own.update(name for node in graph.node for name in node.output)
    outer = {old: new for old, new in values.items() if old not in own}
    for node in graph.node:
        for at, name in enumerate(node.input):
            node.input[at] = outer.get(name, name)
        for body in _bodies(node):
            _substitute_captured(body, outer)
    for value in graph.output:
        value.name = outer.get(value.name, value.name)


def _pass_attributes(node: NodeProto, passed: Mapping[str, AttributeProto]) -> None:
    """Attributes that refer to one of the call take its value; those that the call leaves out are left out."""
    for at in range(len(node.attribute) - 1, -1, -1):
        attribute = node.attribute[at]
        if not attribute.ref_attr_name:
            continue
        given = passed.get(attribute.ref_attr_name)
        if given is None:
            del node.attribute[at]
            continue
        name = attribute.name
        attribute.CopyFrom(given)
        attribute.name = name


def _drop_functions(model: ModelProto) -> None:
    for at in range(len(model.functions) - 1, -1, -1):
        if model.functions[at].domain == FUSED_DOMAIN:
            del model.functions[at]
    for at in range(len(model.opset_import) - 1, -1, -1):
        if model.opset_import[at].domain == FUSED_DOMAIN:
            del model.opset_import[at]
