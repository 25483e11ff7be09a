"""The dialects of an optimized model, and the repairs that the two for ATC need.

`portable` is what ONNX's tools read: standard operators in the empty domain, fused ones in `atcfuse`. ATC's parser
reads a node's domain literally, and refuses nodes of the empty domain as soon as two domains are imported (E16005). So
`atc` writes `ai.onnx` out on every standard node, and `atc-flat` puts all nodes into the empty domain, the fused
functions kept but unreferenced. Function bodies have imports of their own, ATC never reads them, and onnxruntime wants
the empty domain in them: they stay as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Literal

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

from atcfuse.diagnostics import Diagnostic, info, warning
from atcfuse.graph.index import STANDARD
from atcfuse.graph.walk import Block, blocks

Dialect = Literal["atc", "atc-flat", "portable"]

DIALECTS: tuple[Dialect, ...] = ("atc", "atc-flat", "portable")
FUSED_DOMAIN = "atcfuse"
FUSED_VERSION = 1
OVERLOAD_IR = 10
"""The first IR version in which functions and nodes have an overload."""

_SHOWN = 5


def to_dialect(model: ModelProto, dialect: Dialect) -> list[Diagnostic]:
    """Turns a model of any dialect into another, in place; a second time changes nothing.

    Only domains and their imports change, and for ATC what it would misread: unnamed nodes, nodes that share a name or
    have that of a graph input, `Constant` nodes without `value`, and outputs left out beside inputs left out. Each kind
    of repair is one counted diagnostic (ATF600 to ATF603, ATF606). Back in the empty domain, a node's `domain` field is
    left out.
    """
    standard = "ai.onnx" if dialect == "atc" else ""
    fused = "" if dialect == "atc-flat" else FUSED_DOMAIN
    functions = _fused_functions(model)
    scopes = [block for block in blocks(model) if block.owner != "function"]
    uses_fused = bool(functions)
    for block in scopes:
        for node in block.nodes:
            domain = node.domain
            if domain == FUSED_DOMAIN or (functions and domain in STANDARD and _is_fused(node, functions)):
                uses_fused = True
                _set_domain(node, fused)
            elif domain != standard and domain in STANDARD:
                _set_domain(node, standard)
    diagnostics = _set_standard_import(model, standard)
    _set_fused_import(model, fused, uses_fused)
    require_overload_ir(model)
    if dialect == "portable":
        return diagnostics
    read_by_atc = [block for block in scopes if block.owner == "main"]
    repairs = _repair_names(read_by_atc) + _repair_constants(read_by_atc)
    return diagnostics + repairs + _repair_absent_outputs(read_by_atc)


def normalise(model: ModelProto) -> ModelProto:
    """The model as a `portable` copy, as stock onnxruntime runs it; shares nothing with the original.

    Weights are copied once; external data is not read.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    to_dialect(copy, "portable")
    return copy


def require_overload_ir(model: ModelProto) -> None:
    """Raises `ir_version` to 10 where a function has an overload, in place; leaves it alone otherwise."""
    if model.ir_version < OVERLOAD_IR and any(function.overload for function in model.functions):
        model.ir_version = OVERLOAD_IR


def _fused_functions(model: ModelProto) -> dict[str, set[str]]:
    """Names of the fused functions in the model, with the overloads of each."""
    found: dict[str, set[str]] = {}
    for function in model.functions:
        if function.domain == FUSED_DOMAIN:
            found.setdefault(function.name, set()).add(function.overload)
    return found


def _is_fused(node: NodeProto, functions: dict[str, set[str]]) -> bool:
    """Whether a node among the standard ones calls a fused function, as `atc-flat` writes it."""
    return node.overload in functions.get(node.op_type, ())


def _set_domain(node: NodeProto, domain: str) -> None:
    if node.domain == domain:
        return
    if domain:
        node.domain = domain
    else:
        node.ClearField("domain")


def _set_standard_import(model: ModelProto, domain: str) -> list[Diagnostic]:
    """One import of ONNX's operators under the given name, at the place of the first."""
    imports = [(i, entry) for i, entry in enumerate(model.opset_import) if entry.domain in STANDARD]
    if not imports:
        return []
    versions = sorted({entry.version for _, entry in imports})
    first = imports[0][1]
    if first.domain != domain and domain:
        first.domain = domain
    elif first.domain != domain:
        first.ClearField("domain")
    if len(imports) == 1:
        return []
    first.version = versions[-1]
    for position, _ in reversed(imports[1:]):
        del model.opset_import[position]
    if len(versions) == 1:
        return []
    found = " and ".join(map(str, versions))
    return [warning("ATF604", f"the model imports ONNX's operators in versions {found}; {versions[-1]} was kept")]


def _set_fused_import(model: ModelProto, domain: str, used: bool) -> None:
    positions = [i for i, entry in enumerate(model.opset_import) if entry.domain == FUSED_DOMAIN]
    if not domain:
        for position in reversed(positions):
            del model.opset_import[position]
    elif used and not positions:
        model.opset_import.add(domain=domain, version=FUSED_VERSION)


def _repair_names(scopes: Iterable[Block]) -> list[Diagnostic]:
    """Names every node, once in the whole model, and never like a graph input (which ATC turns into a node)."""
    scopes = list(scopes)
    inputs = {name for block in scopes for name in _fed_inputs(block)}
    kept: set[str] = set()
    unnamed, doubled, shadowed = [], [], []  # type: tuple[list[NodeProto], list[NodeProto], list[NodeProto]]
    for block in scopes:
        for node in block.nodes:
            name = node.name
            if not name:
                unnamed.append(node)
            elif name in inputs:
                shadowed.append(node)
            elif name in kept:
                doubled.append(node)
            else:
                kept.add(name)
    names = _FreshNames(kept | inputs)
    return [
        *_rename(shadowed, names, "ATF602"),
        *_rename(doubled, names, "ATF601"),
        *_rename(unnamed, names, "ATF600"),
    ]


def _fed_inputs(block: Block) -> Iterator[str]:
    """Inputs without an initializer: ATC takes those with one for constants."""
    if block.graph is not None:
        defaults = {tensor.name for tensor in block.graph.initializer}
        yield from (value.name for value in block.graph.input if value.name not in defaults)


class _FreshNames:
    """Names `base_<k>`, with the smallest k that is free; the same ones for the same model."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._next: dict[str, int] = {}

    def make(self, base: str) -> str:
        k = self._next.get(base, 0)
        while f"{base}_{k}" in self._taken:
            k += 1
        self._next[base] = k + 1
        self._taken.add(f"{base}_{k}")
        return f"{base}_{k}"


def _rename(nodes: list[NodeProto], names: _FreshNames, code: str) -> list[Diagnostic]:
    renamed = []
    for node in nodes:
        old = node.name
        node.name = names.make(old or node.op_type)
        renamed.append(f"{_shown(old or node.op_type)} is now {_shown(node.name)}")
    return _counted(code, renamed)


def _repair_constants(scopes: Iterable[Block]) -> list[Diagnostic]:
    """`Constant` nodes get `value`, the only attribute of theirs that ATC reads."""
    repaired = []
    for block in scopes:
        for node in block.nodes:
            if node.op_type == "Constant" and node.domain in STANDARD and len(node.attribute) == 1:
                name = node.attribute[0].name
                if _spell_as_value(node.attribute[0]):
                    repaired.append(f"{_shown(node.name)} had {name}")
    return _counted("ATF603", repaired)


def _repair_absent_outputs(scopes: Iterable[Block]) -> list[Diagnostic]:
    """Outputs left out get names where inputs are left out too: to ATC both are the value of the empty name."""
    scopes = list(scopes)
    names = _FreshNames({value for block in scopes for value in _values(block)})
    repaired = []
    for block in scopes:
        if not any("" in node.input for node in block.nodes):
            continue
        for node in block.nodes:
            if "" in node.output:
                _name_outputs(node, names)
                repaired.append(_shown(node.name))
    return _counted("ATF606", repaired)


def _values(block: Block) -> Iterator[str]:
    """Every value that a graph mentions."""
    for node in block.nodes:
        yield from node.input
        yield from node.output
    if block.graph is not None:
        yield from (
            named.name
            for some in (block.graph.input, block.graph.initializer, block.graph.value_info)
            for named in some
        )


def _name_outputs(node: NodeProto, names: _FreshNames) -> None:
    """Drops the outputs left out at the end, and names those before."""
    outputs = list(node.output)
    while len(outputs) > 1 and not outputs[-1]:
        outputs.pop()
    node.output[:] = [value or names.make(f"{node.name or node.op_type}_unread") for value in outputs]


def _spell_as_value(attribute: AttributeProto) -> bool:
    """Rewrites value_float, value_int, value_string and their plurals in place; False for any other attribute."""
    tensor = _constant(attribute)
    if tensor is None:
        return False
    for field in ("f", "i", "s", "floats", "ints", "strings"):
        attribute.ClearField(field)
    attribute.name, attribute.type = "value", AttributeProto.TENSOR
    attribute.t.CopyFrom(tensor)
    return True


def _constant(attribute: AttributeProto) -> TensorProto | None:
    match attribute.name:
        case "value_float":
            return _packed(TensorProto.FLOAT, struct.pack("<f", attribute.f))
        case "value_floats":
            count = len(attribute.floats)
            return _packed(TensorProto.FLOAT, struct.pack(f"<{count}f", *attribute.floats), count)
        case "value_int":
            return _packed(TensorProto.INT64, struct.pack("<q", attribute.i))
        case "value_ints":
            count = len(attribute.ints)
            return _packed(TensorProto.INT64, struct.pack(f"<{count}q", *attribute.ints), count)
        case "value_string":
            return TensorProto(data_type=TensorProto.STRING, string_data=[attribute.s])
        case "value_strings":
            strings = list(attribute.strings)
            return TensorProto(data_type=TensorProto.STRING, dims=[len(strings)], string_data=strings)
    return None


def _packed(data_type: TensorProto.DataType, raw: bytes, *dims: int) -> TensorProto:
    return TensorProto(data_type=data_type, dims=dims, raw_data=raw)


def _shown(name: str) -> str:
    """A name from a model in one line of bounded length, whatever is in it."""
    return repr(name if len(name) <= 80 else f"{name[:77]}...")


_REPAIRS = {
    "ATF600": ("{} node without a name was named", "{} nodes without a name were named"),
    "ATF601": (
        "{} node with a name that another node has was renamed",
        "{} nodes with a name that another node has were renamed",
    ),
    "ATF602": ("{} node named like a graph input was renamed", "{} nodes named like a graph input were renamed"),
    "ATF603": (
        "{} Constant node with another attribute than `value` was given it",
        "{} Constant nodes with another attribute than `value` were given it",
    ),
    "ATF606": (
        "outputs that {} node leaves out were named, as inputs are left out too",
        "outputs that {} nodes leave out were named, as inputs are left out too",
    ),
}
"""What each repair did, to one node and to any other number of them."""


def _counted(code: str, items: list[str]) -> list[Diagnostic]:
    """What a repair did to so many nodes, with the first of them as notes."""
    if not items:
        return []
    message = _REPAIRS[code][len(items) != 1].format(len(items))
    more = [f"and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return [info(code, message, notes=[*items[:_SHOWN], *more])]
