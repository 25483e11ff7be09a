"""What ATC would refuse or silently misread in a model, found without ATC.

The rules follow the order of ATC's own ONNX parser: file, imports, keys of the operators, names, constants, graph. They
read the protobuf only, never a tensor's external data, and take time linear in the number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onnx import AttributeProto, ModelProto, NodeProto, defs

from atcfuse.graph import atc_ops
from atcfuse.graph.atc_scopes import Finding, Scope, captured_by, label, scopes
from atcfuse.graph.atc_tensors import ExternalFiles, constant_findings, external_findings, input_findings

__all__ = ["Finding", "ModelProto", "atc_findings"]

LARGEST_FILE = 2**31 - 1

_STANDARD = ("", atc_ops.STANDARD_DOMAIN)
# ATC takes these operator types for its own, whatever the domain.
_RESERVED = ("Input", "FileConstant")
_BRANCHES = {"then_branch", "else_branch"}
_BROKEN = "the model is broken: run onnx.checker and export it again"
_SETTABLE = {
    AttributeProto.FLOAT,
    AttributeProto.INT,
    AttributeProto.STRING,
    AttributeProto.FLOATS,
    AttributeProto.INTS,
    AttributeProto.STRINGS,
}


@dataclass(frozen=True)
class _Imports:
    """The model's opset imports as ATC keeps them (the last one of a domain counts) and its local functions."""

    versions: dict[str, int]
    functions: frozenset[tuple[str, str]]
    dialect_hint: str


def atc_findings(model: ModelProto, model_dir: Path | None = None, file_bytes: int | None = None) -> list[Finding]:
    """Everything in `model` that ATC would refuse or misread, and what it needs to be told, in the parser's order.

    `model` has its external data left on disk. `model_dir` is the folder of the model file, in which external files
    are looked up (their sizes only); without it they are not checked. `file_bytes` is the size of the .onnx file.
    """
    found = list(_file_findings(model, file_bytes))
    if not model.HasField("graph"):
        return found
    visited = list(scopes(model))
    imports = _read_imports(model, visited)
    files = ExternalFiles(model_dir)
    found += _import_findings(model)
    for scope in visited:
        found += _boundary_findings(scope)
        for node in scope.graph.node:
            found += _node_findings(node, imports)
        found += _name_findings(scope)
        found += _absent_value_findings(scope)
        found += constant_findings(scope)
        found += external_findings(scope, files)
        found += input_findings(scope)
    return found


def _file_findings(model: ModelProto, file_bytes: int | None) -> Iterator[Finding]:
    if file_bytes is not None and file_bytes > LARGEST_FILE:
        message = f"the .onnx file has {file_bytes} bytes, ATC reads at most {LARGEST_FILE}"
        hint = "store the weights as external data: onnx.save_model(model, path, save_as_external_data=True)"
        yield Finding("ATF434", "error", message, "", "", hint, "E13015")
    if not model.HasField("graph"):
        yield Finding("ATF430", "error", "the model has no graph", "", "", "export the model again", "E16004")


def _read_imports(model: ModelProto, visited: list[Scope]) -> _Imports:
    versions = {entry.domain: entry.version for entry in model.opset_import}
    functions = frozenset((function.domain, function.name) for function in model.functions)
    used = {node.domain for scope in visited for node in scope.graph.node}
    unused = sorted(domain for domain in versions if domain not in used and domain not in _STANDARD)
    return _Imports(versions, functions, _dialect_hint(versions, unused))


def _dialect_hint(versions: dict[str, int], unused: list[str]) -> str:
    if not versions:
        return "add the opset_import with which the model was exported"
    if unused and len(versions) - len(unused) == 1:
        return f"remove the unused opset_import of {_quoted(unused)}, or let `atcfuse optimize` write the `atc` dialect"
    return "`atcfuse optimize` writes the `atc` dialect, in which every node names its domain"


def _quoted(names: list[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _import_findings(model: ModelProto) -> Iterator[Finding]:
    versions: dict[str, int] = {}
    for entry in model.opset_import:
        before = versions.setdefault(entry.domain, entry.version)
        if before != entry.version:
            message = f'the domain "{entry.domain}" is imported with versions {before} and {entry.version}'
            hint = "keep one opset_import a domain; ATC takes the last"
            yield Finding("ATF409", "warning", message, "", "", hint)


def _boundary_findings(scope: Scope) -> Iterator[Finding]:
    """Graphs without inputs or outputs, and outputs that nothing makes."""
    graph = scope.graph
    if not scope.is_branch and not graph.input:
        hint = "give the graph an input; a graph of constants has nothing to run"
        yield Finding("ATF430", "error", "the graph has no inputs", "", "", hint, "E16001")
    if not graph.output:
        hint = "declare what the model returns as graph outputs"
        yield Finding("ATF430", "error", "the graph has no outputs", "", "", hint, "E16001")
    made = {name for node in graph.node for name in node.output} | {tensor.name for tensor in graph.initializer}
    # What a sparse initializer makes is missing too, but has a finding of its own.
    made |= scope.inputs | {sparse.values.name for sparse in graph.sparse_initializer}
    for output in graph.output:
        if output.name not in made:
            message = "a graph output that no node, initializer or input makes"
            hint = "remove the output, or name the value that it stands for"
            yield Finding("ATF431", "error", message, output.name, "", hint, "E19999")
    for node in graph.node:
        if not made.issuperset(name for name in (*node.input, *captured_by(node)) if name):
            message = "a node reads a value that nothing in its graph makes: ATC leaves that input unconnected"
            hint = "a branch inside a branch must read only what the outer branch itself reads; fold one of the Ifs"
            yield Finding("ATF439", "error", message, label(node), "", hint if scope.is_branch else _BROKEN)


def _node_findings(node: NodeProto, imports: _Imports) -> Iterator[Finding]:
    """How ATC would look the node's operator up, and what its own code for control flow asks of it."""
    if node.op_type == "Constant":
        return
    if node.op_type in _RESERVED:
        message = f"operator type {node.op_type}: ATC takes it for a type of its own, whatever the domain"
        yield Finding("ATF408", "error", message, label(node), node.op_type, "rename the operator")
        return
    if node.op_type == "If" and {attribute.name for attribute in node.attribute} != _BRANCHES:
        message = "an If must have the attributes then_branch and else_branch and no other"
        yield Finding("ATF415", "error", message, label(node), "If", "remove the other attributes", "E19999")
    domain, refusal = _domain_read(node, imports)
    if refusal is not None:
        yield refusal
    version = imports.versions.get(domain)
    if version is None and domain in _STANDARD:
        version = next((imports.versions[name] for name in _STANDARD if name in imports.versions), None)
    if version is not None:
        yield from _operator_findings(node, domain, version, imports)


def _domain_read(node: NodeProto, imports: _Imports) -> tuple[str, Finding | None]:
    """The domain in which ATC looks the node up, and its refusal where it finds none."""
    versions = imports.versions
    if node.domain:
        if node.domain in versions:
            return node.domain, None
        message = f'nodes in the domain "{node.domain}", which the model does not import'
        hint = f'add an opset_import of "{node.domain}"'
        if node.domain in _STANDARD and "" in versions:
            hint = 'ATC tells "" and "ai.onnx" apart: import "ai.onnx" instead of "", and name it in every node'
        return node.domain, Finding("ATF402", "error", message, label(node), "", hint, "E19999")
    if len(versions) == 1:
        return next(iter(versions)), None
    names = _quoted(list(versions))
    what = f"imports {len(versions)} domains ({names})" if versions else "imports no opset"
    message = f"nodes without a domain in a model that {what}; ATC wants exactly one then"
    return "", Finding("ATF401", "error", message, label(node), "", imports.dialect_hint, "E16005")


def _operator_findings(node: NodeProto, domain: str, version: int, imports: _Imports) -> Iterator[Finding]:
    """Why ATC has no plugin under the node's key; nothing where it has one."""
    op = node.op_type
    opsets = atc_ops.registered_opsets(domain, op)
    if version in opsets:
        yield from _shift_findings(node, domain)
        return
    key = atc_ops.plugin_key(domain, version, op)
    standard = domain in _STANDARD
    flat = standard and (atc_ops.FUSED_DOMAIN, op) in imports.functions
    if flat or node.domain == atc_ops.FUSED_DOMAIN:
        yield from _fused_findings(node, key)
    elif imports.functions & {(domain, op), (node.domain, op)}:
        message = f"{key} is a function of the model; ATC drops the functions, and the operator has no plugin"
        hint = "inline the functions: onnx.inliner.inline_local_functions(model)"
        yield Finding("ATF413", "error", message, label(node), op, hint, "E13010")
    elif not standard and not node.domain:
        message = f'"{domain}" is the only opset_import, so ATC looks nodes without a domain up in it'
        hint = 'import "" with the version of the standard operators, or name the domain "ai.onnx" in every node'
        yield Finding("ATF407", "error", message, label(node), "", hint, "E13010")
    elif opsets:
        yield _other_opset(node, key, version, opsets, standard)
    else:
        yield _unknown_operator(node, domain, key)


def _shift_findings(node: NodeProto, domain: str) -> Iterator[Finding]:
    """A norm of which ATC's plugin wants an operand that the standard lets out."""
    if node.op_type == "LayerNormalization" and domain in _STANDARD and not "".join(node.input[2:3]):
        message = "LayerNormalization without a shift: ATC's plugin puts a constant where the parser wants an input"
        hint = "`atcfuse optimize` makes a fused operator of it; or give it a shift of zeros"
        yield Finding("ATF440", "warning", message, label(node), node.op_type, hint)


def _unknown_operator(node: NodeProto, domain: str, key: str) -> Finding:
    """ATC has no plugin for this operator at any opset."""
    op = node.op_type
    standard = domain in _STANDARD
    if standard and any(attribute.type == AttributeProto.GRAPH for attribute in node.attribute):
        message = f"no plugin for {key}; of the operators with bodies ATC takes If alone"
        return Finding("ATF414", "error", message, label(node), op, atc_ops.advice(op), "E13010")
    if standard and defs.has(op):
        return Finding("ATF404", "error", f"no plugin for {key}", label(node), op, atc_ops.advice(op), "E13010")
    if atc_ops.is_foreign(domain, op):
        hint = atc_ops.foreign_advice(domain, op)
        return Finding("ATF405", "error", f"no plugin for {key}", label(node), op, hint, "E13010")
    message = f"custom operator {key}: ATC refuses it unless a plugin for this key is installed"
    hint = "install its plugin beside CANN before running ATC (ASCEND_CUSTOM_OPP_PATH)"
    return Finding("ATF406", "warning", message, label(node), op, hint, "E13010")


def _other_opset(node: NodeProto, key: str, version: int, opsets: frozenset[int], standard: bool) -> Finding:
    """The operator has a plugin, but not for this opset."""
    oldest, newest = atc_ops.OLDEST_OPSET, atc_ops.NEWEST_OPSET
    nearest = newest if version > newest else oldest
    if standard and not oldest <= version <= newest and nearest in opsets:
        message = f"opset {version}: ATC has plugins of the standard operators for opsets {oldest} to {newest}"
        hint = f"export the model with opset {newest - 1} or {newest}, or convert it with onnx.version_converter"
        return Finding("ATF410", "error", message, label(node), "", hint, "E13010")
    message = f"no plugin for {key}, only for opset {atc_ops.ranges(opsets)}"
    hint = atc_ops.advice_at_opset(node.op_type)
    return Finding("ATF403", "error", message, label(node), node.op_type, hint, "E13010")


def _fused_findings(node: NodeProto, key: str) -> Iterator[Finding]:
    message = f"fused nodes need the plugin of {key}"
    hint = "build and install the .kernels project that `atcfuse optimize` wrote beside the model"
    yield Finding("ATF411", "info", message, label(node), node.op_type, hint)
    for attribute in node.attribute:
        if attribute.type not in _SETTABLE:
            kind = AttributeProto.AttributeType.Name(attribute.type)
            message = f"attribute `{attribute.name}` of {key} has the kind {kind}, which no custom operator can have"
            hint = "pass it as an input, or as INT, FLOAT, STRING or a list of these"
            yield Finding("ATF412", "error", message, label(node), node.op_type, hint)


def _name_findings(scope: Scope) -> Iterator[Finding]:
    """Node names that ATC finds twice. Unnamed nodes are named here as ATC names them."""
    rename = "`atcfuse optimize` gives every node a name of its own"
    explicit = {node.name for node in scope.graph.node}
    seen: set[str] = set()
    number = scope.first_unnamed
    for node in scope.graph.node:
        name = node.name or f"{node.op_type}_{number}"
        if not node.name:
            number += 1
            message = "nodes without a name: ATC names them by operator and position, <operator>_<number>"
            yield Finding("ATF416", "warning", message, label(node), "", rename)
            if name in explicit or name in scope.inputs:
                message = "a node or input has the name that ATC gives to an unnamed node"
                yield Finding("ATF419", "error", message, name, "", rename, "E13009")
        elif name in scope.inputs:
            message = "a node has the name of a graph input, which is a node to ATC"
            yield Finding("ATF418", "error", message, name, "", rename, "E13009")
        elif name in seen:
            yield Finding("ATF417", "error", "several nodes have the same name", name, "", rename, "E13009")
        seen.add(name)


def _absent_value_findings(scope: Scope) -> Iterator[Finding]:
    """Absent inputs, which ATC tells from absent outputs and captured values by nothing but their empty name."""
    absent_output = any("" in node.output for node in scope.graph.node)
    for node in scope.graph.node:
        if "" not in node.input:
            continue
        if absent_output:
            message = "absent inputs beside absent outputs: ATC probably connects the two, both having an empty name"
            hint = "give the outputs that nobody reads a name"
            yield Finding("ATF432", "error", message, label(node), "", hint)
        elif scope.is_branch:
            message = "absent inputs inside an If branch: ATC probably takes the empty name for a captured value"
            hint = "give the operator its default value as an input, or fold the If before the export"
            yield Finding("ATF432", "error", message, label(node), "", hint)
        elif not node.input[-1]:
            hint = "leave trailing absent inputs out"
            yield Finding("ATF433", "info", "absent inputs at the end of an input list", label(node), "", hint)
