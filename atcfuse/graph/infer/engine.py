"""The walk over a model: sources first, then every node in topological order, nested bodies inside their node."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from onnx import AttributeProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto

from atcfuse.dims import Dim, Poly, is_nonnegative, parse_dim_param, split_constant, symbol, symbols
from atcfuse.graph.constants import tensor_fact
from atcfuse.graph.facts import UNKNOWN, Fact
from atcfuse.graph.index import STANDARD, Model, Node, Scope
from atcfuse.graph.infer import (
    casts,
    control,
    create,
    elementwise,
    fused,
    indexing,
    layers,
    linear,
    reduce,
    spatial,
    views,
)
from atcfuse.graph.infer.aliases import ALIASES, BY_SURROUNDINGS
from atcfuse.graph.infer.call import Call, MalformedNodeError, value_symbol
from atcfuse.graph.infer.pinned import Pins, of_inputs, with_pins

NAMED_VALUES = 16
"""Integer tensors of at most this many unknown elements get a symbol for each."""

ANONYMOUS = re.compile(r"[^A-Za-z]*|none|null|unk(nown)?|dyn(amic)?|any", re.IGNORECASE)
"""Texts that exporters write as `dim_param` where they do not know a name; two of them need not be equal."""

OPERATORS: dict[str, Callable[[Call], Fact | list[Fact]]] = {
    **create.OPERATORS,
    **elementwise.OPERATORS,
    **casts.OPERATORS,
    **views.OPERATORS,
    **indexing.OPERATORS,
    **reduce.OPERATORS,
    **linear.OPERATORS,
    **spatial.OPERATORS,
    **layers.OPERATORS,
    **control.OPERATORS,
    **fused.OPERATORS,
}
"""The evaluation function of every operator that is known; it gives the facts of the first outputs, or of all."""

NO_BODIES: Mapping[str, Scope] = {}


_COUNTING = (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
"""Element types of which small tensors get a symbol for each element."""


class _Result(NamedTuple):
    """What a node makes; `plain` where it repeats no other value and follows from the node's key alone: operator,
    attributes, and the facts of what it reads.
    """

    facts: Sequence[Fact]
    plain: bool


class Evaluator:
    """Fills the facts and aliases of a model's scopes.

    `local` are the operators that the model defines itself, `taken` the names of symbols given out so far, `parameters`
    the names of extents that graph inputs declare.
    """

    def __init__(
        self,
        model: Model,
        known: Mapping[str, Scope] | None = None,
        pins: Pins | None = None,
    ) -> None:
        self.model = model
        self.known = known or {}
        self.pins = _pinned_before(model.main, self.known) if pins is None else pins
        own = (_operator(f.domain, f.name) for f in model.proto.functions)
        self.local = {name for name in own if fused.operator_of(name) is None}
        self.taken: set[str] = set()
        self.parameters: set[str] = set()
        self.hints: dict[int, dict[str, ValueInfoProto]] = {}
        self._facts: dict[object, Fact] = {}
        self._results: dict[object, _Result] = {}

    def again(self, pins: Pins) -> Evaluator:
        """An evaluator for the same model, of which nothing but the numbers of these extents is known."""
        for scope in self.model.scopes():
            for told in (scope.facts, scope.alias, scope.extents, scope.hinted):
                told.clear()
        return Evaluator(self.model, self.known, pins)

    def run(self, scope: Scope, given: Sequence[Fact] | None = None) -> None:
        """Evaluates one scope; `given` are the facts of a body's inputs, None for the main graph's declared ones."""
        prefix = "" if scope.parent is None else f"{scope.path}:"
        named = self._unique if not prefix else lambda name: self._unique(prefix + name)
        self._sources(scope, given, named)
        bodies = _bodies_by_attribute(scope)
        opset, nodes, run, own = self.model.opset, scope.nodes, self.run, id(scope)
        facts, results = scope.facts, self._results
        for index in scope.order:
            node = nodes[index]
            inputs = [facts[i] if i in facts else scope.fact(i) if i else UNKNOWN for i in node.inputs]
            key = own, node.op, node.written, *inputs, len(node.outputs)
            known = results.get(key)
            if known is not None and known.plain:
                for name, fact in zip(node.outputs, known.facts, strict=True):
                    if name:
                        facts[name] = fact
                continue
            call = Call(scope, node, inputs, opset, named, bodies.get(index, NO_BODIES), run)
            self._evaluate(call, key, known)

    def _unique(self, name: str) -> str:
        while name in self.taken:
            name += "~"
        self.taken.add(name)
        return name

    def _evaluate(self, call: Call, key: object, known: _Result | None) -> None:
        """Fills in what a node makes. `known` is what another one made whose `key` says that it does the same."""
        node, scope = call.node, call.scope
        operator = OPERATORS.get(node.op) or (fused.operator_of(node.op) if "::" in node.op else None)
        if operator is None or node.op in self.local:
            self._unknown(call)
            return
        try:
            outputs = self._outputs(call, operator, key) if known is None else known.facts
            repeats = ALIASES[node.op](call, outputs) if node.op in ALIASES else ()
        except MalformedNodeError:
            self._unknown(call)
            return
        plain = True
        for name, fact in zip(node.outputs, outputs, strict=False):
            if name:
                given = fact if fact.dtype not in _COUNTING else _with_values(call, fact, name)
                scope.facts[name] = given
                plain = plain and given is fact
            elif fact.dtype in _COUNTING:
                plain = False
        if any(repeats):
            for name, source in zip(node.outputs, repeats, strict=False):
                if name and source:
                    self._alias(scope, name, source)
        elif known is None and key in self._results and node.op not in BY_SURROUNDINGS:
            self._results[key] = _Result(outputs, plain)

    def _outputs(self, call: Call, operator: Callable[[Call], Fact | list[Fact]], key: object) -> Sequence[Fact]:
        """The facts of all outputs. Nodes of a scope that do the same with the same facts, as layers do, share them.

        What names a symbol of its own is like no other node, and of an absent input the facts do not tell.
        """
        node, scope = call.node, call.scope
        named = len(self.taken)
        result = operator(call)
        made = [result] if isinstance(result, Fact) else result[: len(node.outputs)]
        facts = [*map(self._one, made), *[UNKNOWN] * (len(node.outputs) - len(made))]
        for dim in (d for fact in facts for d in fact.shape or ()):
            if isinstance(dim, Poly) and not is_nonnegative(dim):
                rest, constant = split_constant(dim)
                scope.extents[rest] = min(constant, scope.extents.get(rest, constant))
        if len(self.taken) == named and not call.bodies and UNKNOWN not in call.inputs:
            self._results[key] = _Result(facts, False)
        return facts

    def _one(self, fact: Fact) -> Fact:
        """The first of facts that say the same."""
        content = fact.content
        return fact if content is None else self._facts.setdefault(content, fact)

    def _unknown(self, call: Call) -> None:
        """Outputs of which only the model's own annotations say something; bodies with inputs of any kind."""
        for name in call.node.outputs:
            if name:
                call.scope.facts[name] = self._hinted(call, name)
        for body in call.bodies.values():
            if not body.facts:
                self.run(body, [])

    def _alias(self, scope: Scope, name: str, source: str) -> None:
        root = scope.alias.get(source, source)
        if not scope.defines(root):
            root = _outer_root(scope, root)
        scope.alias[name] = root
        known = scope.fact(root)
        if known is not UNKNOWN:
            scope.facts[name] = known

    def _sources(self, scope: Scope, given: Sequence[Fact] | None, named: Callable[[str], str]) -> None:
        facts = scope.facts
        before = self.known.get(scope.path)
        tensors, told = ({}, {}) if before is None else (before.initializers, before.facts)
        for name, tensor in scope.initializers.items():
            same = tensors.get(name) is tensor and name in told
            facts[name] = told[name] if same else self._one(tensor_fact(tensor, self.model))
        for sparse in scope.graph.sparse_initializer:
            if sparse.values.name not in scope.inputs:
                facts[sparse.values.name] = Fact(sparse.values.data_type, tuple(sparse.dims))
        for position, info in enumerate(scope.graph.input):
            if info.name in facts:
                continue
            if given is None:
                self.parameters.update(name for name in _parameters(info.type) if name not in self.pins)
                fact = declared(info.type, info.name, self._input_dim, named)
            else:
                fact = given[position] if position < len(given) else Fact(info.type.tensor_type.elem_type)
            facts[info.name] = fact if fact.dtype not in _COUNTING else _values(fact, info.name, named)

    def _input_dim(self, text: str) -> Dim | None:
        return None if ANONYMOUS.fullmatch(text) else with_pins(parse_dim_param(text), self.pins)

    def _hinted(self, call: Call, name: str) -> Fact:
        scope = call.scope
        before = self.known.get(scope.path)
        if before is not None and name in before.facts:
            return before.facts[name]
        scope.hinted.add(name)
        hints = self.hints.get(id(scope))
        if hints is None:
            hints = {i.name: i for i in (*scope.graph.value_info, *scope.graph.output)}
            self.hints[id(scope)] = hints
        info = hints.get(name)
        return UNKNOWN if info is None else declared(info.type, name, self._known_dim, call.name_symbol)

    def _known_dim(self, text: str) -> Dim | None:
        if ANONYMOUS.fullmatch(text):
            return None
        dim = with_pins(parse_dim_param(text), self.pins)
        return dim if all(s.name in self.parameters for s in symbols(dim)) else None


def _operator(domain: str, name: str) -> str:
    return name if domain in STANDARD else f"{domain}::{name}"


def declared(kind: TypeProto, name: str, parse: Callable[[str], Dim | None], named: Callable[[str], str]) -> Fact:
    """The fact that a declared type gives; `parse` maps a `dim_param`, None stands for a fresh symbol."""
    if kind.WhichOneof("value") != "tensor_type":
        return UNKNOWN
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return Fact(tensor.elem_type)
    shape = []
    for axis, dim in enumerate(tensor.shape.dim):
        extent = _declared_dim(dim, parse)
        shape.append(symbol(named(f"{name}.dim{axis}")) if extent is None else extent)
    return Fact(tensor.elem_type, tuple(shape))


def _declared_dim(dim: TensorShapeProto.Dimension, parse: Callable[[str], Dim | None]) -> Dim | None:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return parse(dim.dim_param) if dim.dim_param else None


def _pinned_before(main: Scope, known: Mapping[str, Scope]) -> Pins:
    """The extents that were found to have one number while the model had the nodes that tell."""
    before = known.get(main.path)
    if before is None:
        return {}
    texts = {i.name: [d.dim_param for d in i.type.tensor_type.shape.dim] for i in main.graph.input}
    return of_inputs(before.facts, texts)


def _parameters(kind: TypeProto) -> Iterable[str]:
    for dim in kind.tensor_type.shape.dim:
        if dim.dim_param and not ANONYMOUS.fullmatch(dim.dim_param):
            yield from (s.name for s in symbols(parse_dim_param(dim.dim_param)))


def _with_values(call: Call, fact: Fact, name: str) -> Fact:
    return _values(fact, name, call.name_symbol)


def _values(fact: Fact, name: str, named: Callable[[str], str]) -> Fact:
    """The fact with a symbol for each element of a small integer tensor of which nothing is known."""
    shape = fact.shape
    if shape is None or len(shape) > 2:
        return fact
    size = 1
    for dim in shape:
        if type(dim) is not int:
            return fact
        size *= dim
    if size > NAMED_VALUES or fact.elements is not None:
        return fact
    signed = fact.dtype != TensorProto.BOOL
    elements = tuple(value_symbol(name, i, signed, named) for i in range(size))
    return Fact(fact.dtype, shape, elements, splat=fact.splat)


def _outer_root(scope: Scope, name: str) -> str:
    """The root of a captured value in the scope that defines it, unless a nearer scope has a value of that name."""
    passed = [scope]
    outer = scope.parent
    while outer is not None and not outer.defines(name):
        passed.append(outer)
        outer = outer.parent
    root = name if outer is None else outer.alias.get(name, name)
    return name if any(s.defines(root) for s in passed) else root


def _bodies_by_attribute(scope: Scope) -> dict[int, dict[str, Scope]]:
    bodies: dict[int, dict[str, Scope]] = {}
    for node, body in scope.bodies:
        own = bodies.setdefault(node.index, {})
        own[_body_names(node)[len(own)]] = body
    return bodies


def _body_names(node: Node) -> list[str]:
    names: list[str] = []
    for attribute in node.proto.attribute:
        if attribute.type == AttributeProto.GRAPH:
            names.append(attribute.name)
        elif attribute.type == AttributeProto.GRAPHS:
            names.extend(f"{attribute.name}[{i}]" for i in range(len(attribute.graphs)))
    return names
