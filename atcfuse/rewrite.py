"""From a match to what replaces it: fused node, standard nodes beside it, rewritten shapes. Plans, edits nothing."""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from atcfuse.dims import Dim, broadcast, divide
from atcfuse.expr import Expr, evaluate, proved
from atcfuse.fold import Folding, replacement
from atcfuse.graph.edit import OWN, Names, NewNode, Replacement, empty_shape
from atcfuse.graph.index import Scope
from atcfuse.graph.schema import signature
from atcfuse.graph.unroll import NODE_LIST
from atcfuse.kernel import DOMAIN, KEPT, Attribute, KernelSpec
from atcfuse.match.find import Match
from atcfuse.match.functions import functions_for
from atcfuse.match.typing import type_name
from atcfuse.match.values import Built, Refusal, Value
from atcfuse.meaning import Signature, signature_of
from atcfuse.precision import compute_type
from atcfuse.safety import Extent

ORIGIN_RULE, ORIGIN_CHOICES, ORIGIN_NODES = f"{OWN}rule", f"{OWN}choices", NODE_LIST
"""Keys of a fused node's metadata: the rule that made it, the alternatives it took, the nodes it replaced (JSON)."""


@dataclass(frozen=True)
class Fusion:
    """A match with everything that its fused node says; not yet part of any model.

    `output_types` are the element types of the outputs where they need not be that of the first input.
    """

    match: Match
    spec: KernelSpec
    inputs: tuple[Value | Built | None, ...]
    attributes: Mapping[str, Any]
    signature: Signature
    output_types: tuple[int, ...] = ()

    @property
    def op(self) -> str:
        """The op type of the fused node."""
        return self.spec.op_of(self.attributes)


def prepare(match: Match, spec: KernelSpec) -> Fusion | Refusal:
    """The fusion that a match asks for, or why its kernel cannot do it."""
    replace = match.rule.replace
    assert replace is not None  # drafts and rules of level constant are dealt with before
    call = replace.tree
    assert isinstance(call, ast.Call)  # the loader has checked it
    names = _Bound({"inf": float("inf"), **match.env})

    def value(tree: ast.expr) -> Any:
        if isinstance(tree, ast.Name):
            return names[tree.id]
        return evaluate(Expr(replace.text, tree, replace.span), names, functions_for(match.scope))

    inputs = [value(a) for a in call.args]
    while inputs and inputs[-1] is None:
        inputs.pop()
    given = {k.arg: value(k.value) for k in call.keywords if k.arg}
    given[KEPT] = tuple(int(made) for made in _made_if_used(match).values())
    attributes: dict[str, Any] = {}
    for attribute in spec.attributes:
        converted = _converted(attribute, given.get(attribute.name, attribute.default))
        if converted is None:
            return Refusal("ATF313", f"{attribute.name} is not known when the model is built", match.anchor.name)
        attributes[attribute.name] = converted
    types = _input_types(match.scope, spec, inputs)
    if isinstance(types, Refusal):
        return types
    for requirement in spec.requires:
        if not proved(evaluate(requirement.test, _Bound({**names, **attributes}), functions_for(match.scope))):
            return Refusal("ATF323", requirement.reason, match.anchor.name)
    outputs = _output_names(match, spec)
    signature = signature_of(spec, attributes, types, outputs, match.scope.model.opset)
    return Fusion(match, spec, tuple(inputs), attributes, signature)


class _Bound(dict[str, Any]):
    """Names of which those that the match did not bind are absent."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> None:
        return None


def _converted(attribute: Attribute, value: Any) -> Any:
    if attribute.kind == "float":
        return float(value) if isinstance(value, (int, float)) else None
    if attribute.kind == "int":
        return int(value) if isinstance(value, int) else None
    if attribute.kind == "string":
        return str(value) if isinstance(value, str) else None
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, (int, float)) for v in value):
        return None
    return tuple(float(v) for v in value) if attribute.kind == "floats" else tuple(int(v) for v in value)


def _input_types(scope: Scope, spec: KernelSpec, inputs: Sequence[Any]) -> dict[str, int] | Refusal:
    types: dict[str, int] = {}
    for operand, value in zip(spec.inputs, inputs, strict=False):
        if value is None:
            if not operand.optional:
                return Refusal("ATF317", f"{spec.op} needs the input {operand.name}", spec.op)
            continue
        dtype = scope.fact(_root(value)).dtype
        if dtype not in operand.types:
            return Refusal("ATF305", f"{spec.op} does not take {operand.name} in {type_name(dtype)}", _root(value))
        types[operand.name] = dtype
    return types


def _root(value: Value | Built) -> str:
    while isinstance(value, Built):
        value = value.inputs[0]
    return str(value)


def _output_names(match: Match, spec: KernelSpec) -> list[str]:
    """The kernel's names for the outputs made; those that are made only if used are the kernel's last."""
    made = _made_if_used(match)
    names = [o.name for o in spec.outputs[: len(match.rule.outputs) - len(made)]]
    last = spec.outputs[len(spec.outputs) - len(made) :]
    return names + [o.name for o, kept in zip(last, made.values(), strict=True) if kept]


def _made_if_used(match: Match) -> dict[str, bool]:
    """The rule's outputs that are made only if used, and whether they are."""
    return {o.step: str(match.env[o.step]) in match.outputs for o in match.rule.outputs if o.if_used}


def operand_shape(scope: Scope, value: Value | Built) -> tuple[Dim, ...]:
    """The shape in which an operand reaches the fused node; () where the rank is not known."""
    if isinstance(value, Value):
        return scope.fact(str(value)).shape or ()
    shapes = [operand_shape(scope, v) for v in value.inputs if isinstance(v, (Value, Built))]
    settings = dict(value.attributes)
    if value.op == "Unsqueeze":
        (axis,) = settings["axes"]
        return (*shapes[0][:axis], 1, *shapes[0][axis:])
    if value.op == "Squeeze":
        return tuple(d for i, d in enumerate(shapes[0]) if i not in settings["axes"])
    if value.op == "Gather":
        return (*shapes[0][:-1], len(settings["indices"]))
    if value.op == "Reshape":
        heads = settings["shape"][1]
        return (divide(shapes[0][1], heads) or 1, heads, *shapes[0][2:])
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(reduce(broadcast, dims) for dims in zip(*padded, strict=True))


def operand_types(fusion: Fusion, precision_mode: str) -> dict[str, int]:
    """The element types in which operands reach the kernel, by the kernel's names; outputs are typed like x or q."""
    types = dict(fusion.signature.inputs)
    made = fusion.output_types or (next(iter(types.values())),) * len(fusion.signature.outputs)
    types.update(zip(fusion.signature.outputs, made, strict=True))
    return {name: compute_type(dtype, precision_mode) for name, dtype in types.items()}


def _written(spec: KernelSpec, attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The attributes as the node carries them: every float also as exact text.

    ATC hands attributes to a plugin as JSON with six digits; the text next to it keeps the number.
    """
    written: list[tuple[str, Any]] = []
    for attribute in spec.attributes:
        value = attributes[attribute.name]
        written.append((attribute.name, value))
        if attribute.kind == "float":
            written.append((f"{attribute.name}_hex", float.hex(_float32(value))))
    return tuple(written)


def _float32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


class _NotLeft(Exception):
    """A value is made within another fusion, which gives none that equals it."""

    def __init__(self, maker: Fusion) -> None:
        super().__init__()
        self.maker = maker


def reconnected(chosen: Sequence[Fusion]) -> tuple[list[Fusion], list[tuple[Fusion, Fusion]]]:
    """The fusions of one round, reading what the others leave; those that could not, each with the one in its way.

    A match reads the value behind no-ops; where another fusion takes that in and makes the value in front of them, that
    one is read instead.
    """
    owners = {(id(f.match.scope), member): f for f in chosen for member in f.match.members}

    def left(fusion: Fusion, value: Any) -> Any:
        if isinstance(value, Built):
            return dataclasses.replace(value, inputs=tuple([left(fusion, item) for item in value.inputs]))
        scope = fusion.match.scope
        maker = scope.producers.get(value) if isinstance(value, Value) else None
        owner = None if maker is None else owners.get((id(scope), maker.index))
        if owner is None or owner is fusion or value in owner.match.outputs:
            return value
        root = scope.source(value)
        made = [o for o in owner.match.outputs if scope.source(o) == root]
        if not made:
            raise _NotLeft(owner)
        return Value(made[0])

    found, lost = list[Fusion](), list[tuple[Fusion, Fusion]]()
    for fusion in chosen:
        try:
            inputs = tuple([left(fusion, value) for value in fusion.inputs])
            shapes = {
                index: tuple([(left(fusion, Value(e[0])), *e[1:]) if isinstance(e, tuple) else e for e in extents])
                for index, extents in fusion.match.shapes.items()
            }
        except _NotLeft as e:
            lost.append((fusion, e.maker))
            continue
        if inputs == fusion.inputs and shapes == fusion.match.shapes:
            found.append(fusion)
        else:
            match = dataclasses.replace(fusion.match, shapes=shapes)
            found.append(dataclasses.replace(fusion, inputs=inputs, match=match))
    return found, lost


def plan(fusion: Fusion, names: Names, shared: dict[Built, str]) -> tuple[Replacement, str]:
    """The replacement that carries a fusion out, and the fused node's name.

    `shared` holds the standard nodes made so far in the scope, so that layers share the sum of two masks.
    """
    match = fusion.match
    made: list[NewNode] = []
    inputs = [_operand(match.scope, v, names, shared, made) for v in fusion.inputs]
    name = names.fresh(_node_name(match.anchor.proto.name, fusion.spec.op))
    made.append(
        NewNode(
            fusion.op,
            name,
            tuple(inputs),
            match.outputs,
            _written(fusion.spec, fusion.attributes),
            DOMAIN,
            fusion.signature.overload,
            match.anchor.index,
            _origin(match),
        )
    )
    rewrites = shape_rewrites(match, names)
    return Replacement(match.scope, match.members, tuple(made), rewrites), name


def _origin(match: Match) -> tuple[tuple[str, str], ...]:
    """Where a fused node comes from, kept on the node itself: a later run can report it without the original."""
    nodes = sorted(match.members, key=match.scope.positions.__getitem__)
    return (
        (ORIGIN_RULE, match.rule.name),
        (ORIGIN_CHOICES, json.dumps(list(match.labels))),
        (ORIGIN_NODES, json.dumps([match.scope.nodes[i].name for i in nodes], ensure_ascii=False)),
    )


def _node_name(anchor: str, op: str) -> str:
    """The fused node's name in the anchor's name scope."""
    head, slash, _ = anchor.rpartition("/")
    return f"{head}{slash}{op}" if slash else f"{op}_{anchor}" if anchor else op


def _operand(
    scope: Scope, value: Value | Built | None, names: Names, shared: dict[Built, str], made: list[NewNode]
) -> str:
    if value is None:
        return ""
    if isinstance(value, Value):
        return str(value)
    if value not in shared:
        inputs: list[str | tuple[int, ...]] = [_operand(scope, i, names, shared, made) for i in value.inputs]
        attributes: list[tuple[str, Any]] = []
        for key, setting in value.attributes:
            if _is_input(scope, value.op, key):
                inputs.append(setting)
            else:
                attributes.append((key, setting))
        output = names.fresh(f"{_root(value)}/{value.op}")
        made.append(NewNode(value.op, names.fresh(f"{output}_node"), tuple(inputs), (output,), tuple(attributes)))
        shared[value] = output
    return shared[value]


def _is_input(scope: Scope, op: str, parameter: str) -> bool:
    known = signature(op, scope.model.opset)
    return known is not None and parameter in known.inputs


def shape_rewrites(match: Match, names: Names) -> dict[int, tuple[NewNode, ...]]:
    """What takes the place of the Shape nodes that lose their operand with a match."""
    return {index: _shape_nodes(match.scope, index, extents, names) for index, extents in match.shapes.items()}


def foldings(chosen: Sequence[Folding], names: Names) -> list[tuple[Replacement, str]]:
    """What carries foldings out, with the Shapes of what goes, each with the name of the node that is left."""
    made = [(folding.match, *replacement(folding, names)) for folding in chosen]
    return [(dataclasses.replace(one, rewrites=shape_rewrites(m, names)), name) for m, one, name in made]


def _shape_nodes(scope: Scope, index: int, extents: tuple[Extent, ...], names: Names) -> tuple[NewNode, ...]:
    """Nodes that give a Shape node's result without its operand."""
    node = scope.nodes[index]
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    wanted = extents[start:end]
    base = next(iter(node.outputs), "")
    if not base:
        return ()
    if not wanted:
        return (NewNode("Constant", node.name, (), (base,), (("value", empty_shape()),), like=index),)
    made: list[NewNode] = []
    parts: list[str | tuple[int, ...]] = []
    whole: dict[str, str] = {}
    for extent in wanted:
        if isinstance(extent, int):
            parts.append((extent,))
            continue
        value, axis = extent
        if value not in whole:
            whole[value] = names.fresh(f"{base}/Shape")
            made.append(NewNode("Shape", names.fresh(f"{whole[value]}_node"), (value,), (whole[value],)))
        part = names.fresh(f"{base}/Gather")
        attributes = (("axis", 0),)
        made.append(NewNode("Gather", names.fresh(f"{part}_node"), (whole[value], (axis,)), (part,), attributes))
        parts.append(part)
    made.append(NewNode("Concat", node.name, tuple(parts), (base,), (("axis", 0),), like=index))
    return tuple(made)
