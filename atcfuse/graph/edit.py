"""The one pass that changes a model: sets of nodes out, new nodes in, everything else byte for byte as it was."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from atcfuse.graph.index import Model, Node, Scope
from atcfuse.graph.text import parse_function

OWN = "atcfuse."
"""What keys of metadata begin with that a fused node has of its own."""
INT64_PREFIX = "atcfuse_"
"""What names of initializers for the integers that new nodes read begin with."""
FREE_INITIALIZERS = 4
"""The IR version from which on an initializer need not be a graph input as well, and one that is may be overridden."""


@dataclass(frozen=True)
class NewNode:
    """A node to be made; an input may be a name or a tuple of integers, which becomes an initializer.

    `like` is the node whose metadata it inherits, `metadata` what is added to it; a node with metadata of its own has
    none of ours from elsewhere. An `idle` one does nothing: it is there for a pattern alone.
    """

    op: str
    name: str
    inputs: tuple[str | tuple[int, ...], ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    domain: str = ""
    overload: str = ""
    like: int | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    idle: bool = False


@dataclass(frozen=True)
class Replacement:
    """A set of nodes of one scope and what takes its place; `rewrites` replaces single other nodes.

    `tensors` become initializers of the scope's graph.
    """

    scope: Scope
    members: frozenset[int]
    made: tuple[NewNode, ...]
    rewrites: Mapping[int, tuple[NewNode, ...]] = field(default_factory=dict)
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)


class Names:
    """Fresh names: unique among all nodes and values of a model, deterministic."""

    def __init__(self, model: Model) -> None:
        self._taken: set[str] = set()
        for scope in model.scopes():
            self._taken.update(scope.inputs, scope.tensors, scope.producers)
            self._taken.update(n.proto.name for n in scope.nodes)

    @property
    def taken(self) -> frozenset[str]:
        """All names that there are by now."""
        return frozenset(self._taken)

    def take(self, names: Iterable[str]) -> None:
        """Notes names that are in use."""
        self._taken.update(names)

    def fresh(self, wanted: str) -> str:
        """The wanted name, or the first free one with a number behind it."""
        name, count = wanted, 0
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def apply(model: Model, replacements: Sequence[Replacement], functions: Iterable[str], names: Names) -> None:
    """Carries out all replacements and adds the functions (ONNX text), in place.

    What only served a removed set goes with it; what was dead before stays. Raises ValueError where replacements
    would close a cycle: the caller has ruled that out.
    """
    by_scope: dict[int, list[Replacement]] = {}
    for replacement in replacements:
        by_scope.setdefault(id(replacement.scope), []).append(replacement)
    orphans: set[str] = set()
    for scope in reversed(list(model.scopes())):
        if id(scope) in by_scope:
            orphans |= _rebuild(scope, by_scope[id(scope)], names)
    drop_initializers(model, orphans)
    for text in functions:
        model.proto.functions.append(parse_function(text))


def _rebuild(scope: Scope, replacements: Sequence[Replacement], names: Names) -> set[str]:
    """Rebuilds a scope's node list; returns initializers of any scope that lost a reader."""
    made_at: dict[int, list[NewNode]] = {}
    removed: set[int] = set()
    for replacement in replacements:
        last = max(replacement.members, key=scope.positions.__getitem__)
        made_at.setdefault(last, []).extend(replacement.made)
        removed |= replacement.members
        for index, nodes in replacement.rewrites.items():
            made_at.setdefault(index, []).extend(nodes)
            removed.add(index)
    new_nodes = [n for nodes in made_at.values() for n in nodes]
    dead = _dead(scope, removed, new_nodes)
    constants = _Constants(scope, names)
    sequence: list[onnx.NodeProto] = []
    for index in scope.order:
        if index not in removed and index not in dead:
            sequence.append(scope.nodes[index].proto)
        sequence.extend(_proto(n, scope, constants) for n in made_at.get(index, ()))
    ordered = _stable_order(sequence, scope)
    gone = {o for i in removed | dead for o in scope.nodes[i].outputs} - {o for n in new_nodes for o in n.outputs}
    graph = scope.graph
    del graph.node[:]
    graph.node.extend(ordered)
    graph.initializer.extend(constants.tensors)
    for replacement in replacements:
        _add_tensors(scope, replacement.tensors)
    read = {n for node in new_nodes for n in (*node.inputs, *node.outputs) if isinstance(n, str)}
    keep_annotations(scope, gone, read)
    return {name for i in removed | dead for name in _reads(scope, scope.nodes[i])}


def keep_annotations(scope: Scope, gone: Set[str], read: Set[str]) -> None:
    """Drops the annotations of values that are `gone`, and wrong ones of values that new nodes `read` or make."""
    graph = scope.graph
    kept = [v for v in graph.value_info if v.name not in gone and not (v.name in read and _is_wrong(scope, v))]
    if len(kept) != len(graph.value_info):
        del graph.value_info[:]
        graph.value_info.extend(kept)


def _is_wrong(scope: Scope, info: onnx.ValueInfoProto) -> bool:
    """Whether an annotation contradicts what was proved of the value: runtimes believe it beside a fused node."""
    fact, said = scope.fact(info.name), info.type.tensor_type
    if fact.dtype and said.elem_type not in (0, fact.dtype):
        return True
    if fact.shape is None or not said.HasField("shape"):
        return False
    sizes = [d.dim_value if d.HasField("dim_value") else None for d in said.shape.dim]
    if len(sizes) != len(fact.shape):
        return True
    return any(
        isinstance(known, int) and size not in (None, known) for known, size in zip(fact.shape, sizes, strict=True)
    )


def _add_tensors(scope: Scope, tensors: Mapping[str, np.ndarray]) -> None:
    for name, array in tensors.items():
        tensor = numpy_helper.from_array(array, name)
        scope.graph.initializer.append(tensor)
        if scope.model.proto.ir_version < FREE_INITIALIZERS:
            scope.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))


def _reads(scope: Scope, node: Node) -> set[str]:
    read = set(node.inputs)
    read.discard("")
    if scope.bodies:
        read |= {n for owner, body in scope.bodies if owner is node for n in body.free_names()}
    return read


def _dead(scope: Scope, removed: set[int], made: Sequence[NewNode]) -> set[int]:
    """Nodes that nobody reads any more because their readers were removed."""
    read = {i for n in made for i in n.inputs if isinstance(i, str)}
    gone, pending = set(removed), list(removed)
    nodes, producers = scope.nodes, scope.producers
    while pending:
        for name in _reads(scope, nodes[pending.pop()]):
            node = producers.get(name)
            if node is None or node.index in gone:
                continue
            if all(_unread(scope, o, gone, read) for o in node.outputs if o):
                gone.add(node.index)
                pending.append(node.index)
    return gone - removed


def _unread(scope: Scope, value: str, gone: set[int], read: set[str]) -> bool:
    if value in read or scope.is_output(value):
        return False
    return all(r.index in gone for r in scope.readers(value))


class _Constants:
    """Small int64 initializers that new nodes read, one for each distinct value."""

    def __init__(self, scope: Scope, names: Names) -> None:
        self._names, self._known = names, {}  # type: Names, dict[tuple[int, ...], str]
        self.tensors: list[onnx.TensorProto] = []

    def name(self, values: tuple[int, ...]) -> str:
        """The initializer that holds the values."""
        if values not in self._known:
            wanted = INT64_PREFIX + "_".join(str(v).replace("-", "m") for v in values)
            self._known[values] = self._names.fresh(wanted)
            array = np.asarray(values, dtype=np.int64)
            self.tensors.append(numpy_helper.from_array(array, self._known[values]))
        return self._known[values]


def _proto(new: NewNode, scope: Scope, constants: _Constants) -> onnx.NodeProto:
    inputs = [i if isinstance(i, str) else constants.name(i) for i in new.inputs]
    node = onnx.NodeProto(op_type=new.op, name=new.name, input=inputs, output=new.outputs)
    if new.domain:
        node.domain = new.domain
    if new.overload:
        node.overload = new.overload
    node.attribute.extend([_attribute(name, value) for name, value in new.attributes])
    if new.like is not None:
        inherited = scope.nodes[new.like].proto.metadata_props
        node.metadata_props.extend([p for p in inherited if not (new.metadata and p.key.startswith(OWN))])
    for key, value in new.metadata:
        node.metadata_props.add(key=key, value=value)
    return node


def empty_shape() -> np.ndarray:
    """The shape of a scalar, as the value of a Constant node."""
    return np.zeros(0, dtype=np.int64)


def _attribute(name: str, value: Any) -> onnx.AttributeProto:
    # The kinds that nearly all attributes have are made here: `make_attribute` takes two to three times as long, and a
    # large model gets tens of thousands.
    if type(value) is int:
        return onnx.AttributeProto(name=name, type=onnx.AttributeProto.INT, i=value)
    if type(value) is float:
        return onnx.AttributeProto(name=name, type=onnx.AttributeProto.FLOAT, f=value)
    if type(value) is str:
        return onnx.AttributeProto(name=name, type=onnx.AttributeProto.STRING, s=value.encode("utf-8"))
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, numpy_helper.from_array(value))
    if isinstance(value, (list, tuple)):
        whole = all(isinstance(v, int) for v in value)
        kind = onnx.AttributeProto.INTS if whole else onnx.AttributeProto.FLOATS
        return helper.make_attribute(name, list(value), attr_type=kind)
    return helper.make_attribute(name, value)


def _stable_order(sequence: list[onnx.NodeProto], scope: Scope) -> list[onnx.NodeProto]:
    """The sequence itself where it is in topological order, else the stable order nearest to it."""
    maker = {o: i for i, node in enumerate(sequence) for o in node.output if o}
    needs = [_sources(node, maker) for node in sequence]
    if all(source < at for at, sources in enumerate(needs) for source in sources):
        return sequence
    readers: list[list[int]] = [[] for _ in sequence]
    for at, sources in enumerate(needs):
        for source in sources:
            readers[source].append(at)
    waiting = [len(s) for s in needs]
    # A node whose outputs are wanted earlier than its place goes as early as its inputs allow.
    wanted = _wanted(sequence, needs)
    ready = [(wanted[i], i) for i, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order: list[onnx.NodeProto] = []
    while ready:
        _, index = heapq.heappop(ready)
        order.append(sequence[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (wanted[reader], reader))
    if len(order) != len(sequence):
        raise ValueError(f"the replacements close a cycle in {scope.path}")
    return order


def _wanted(sequence: list[onnx.NodeProto], needs: list[set[int]]) -> list[int]:
    wanted = list(range(len(sequence)))
    for at in range(len(sequence) - 1, -1, -1):
        for source in needs[at]:
            wanted[source] = min(wanted[source], wanted[at])
    return wanted


def _sources(node: onnx.NodeProto, maker: Mapping[str, int]) -> set[int]:
    found = {maker[i] for i in node.input if i in maker}
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            found |= {maker[n] for n in _free(attribute.g) if n in maker}
    return found


def _free(graph: onnx.GraphProto) -> set[str]:
    stack, used, own = [graph], set(), set()  # type: list[onnx.GraphProto], set[str], set[str]
    while stack:
        here = stack.pop()
        own |= {i.name for i in here.input} | {t.name for t in here.initializer}
        used |= {o.name for o in here.output}
        for node in here.node:
            used.update(node.input)
            own.update(node.output)
            for a in node.attribute:
                stack += [a.g] if a.type == onnx.AttributeProto.GRAPH else list(a.graphs)
    return used - own


def drop_initializers(model: Model, candidates: set[str]) -> None:
    """Drops the candidates that are initializers nobody reads any more, in every scope."""
    graphs = [scope.graph for scope in model.scopes()] if not candidates else _graphs(model.proto.graph)
    used: set[str] = set()
    for graph in graphs:
        for node in graph.node:
            used.update(i for i in node.input if i in candidates)
        used.update(o.name for o in graph.output if o.name in candidates)
    unused = candidates - used
    for graph in graphs:
        inputs = {i.name for i in graph.input}
        if model.proto.ir_version < FREE_INITIALIZERS:
            inputs -= _drop_inputs(graph, unused & {t.name for t in graph.initializer})
        kept = [t for t in graph.initializer if t.name not in unused or t.name in inputs]
        if len(kept) != len(graph.initializer):
            _keep_only(graph, {t.name for t in kept})


def _drop_inputs(graph: onnx.GraphProto, unused: set[str]) -> set[str]:
    """Takes initializers that nobody reads off the inputs, where an old IR version lists them there."""
    for at in range(len(graph.input) - 1, -1, -1):
        if graph.input[at].name in unused:
            del graph.input[at]
    return unused


def _keep_only(graph: onnx.GraphProto, kept: set[str]) -> None:
    # Deleting from behind moves no tensor that stays, and copies none.
    for at in range(len(graph.initializer) - 1, -1, -1):
        if graph.initializer[at].name not in kept:
            del graph.initializer[at]


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    found, stack = [], [graph]
    while stack:
        here = stack.pop()
        found.append(here)
        for node in here.node:
            for a in node.attribute:
                if a.type == onnx.AttributeProto.GRAPH:
                    stack.append(a.g)
                stack.extend(a.graphs)
    return found
