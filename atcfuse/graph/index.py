"""One light index a scope over the user's protobuf: the main graph and the bodies of If, Loop and Scan.

The protobuf stays the only truth; the index holds no copies of tensors and is never written back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import onnx
from onnx import AttributeProto, helper

from atcfuse.diagnostics import AtcfuseError, error
from atcfuse.graph.facts import UNKNOWN, Fact

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from atcfuse.dims import Dim

STANDARD = ("", "ai.onnx")
MAX_SCOPE_DEPTH = 64
_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


class Node:
    """A node of a scope: `op` is the op type, preceded by `domain::` for other domains than ONNX's own.

    One that makes nothing, as operators of other domains may, has one output that is absent, "".
    """

    __slots__ = ("_attributes", "_name", "_written", "index", "inputs", "op", "outputs", "proto")

    def __init__(self, index: int, proto: onnx.NodeProto) -> None:
        self.index = index
        self.proto = proto
        self.op: str = proto.op_type if proto.domain in STANDARD else f"{proto.domain}::{proto.op_type}"
        self.inputs: tuple[str, ...] = tuple(proto.input)
        self.outputs: tuple[str, ...] = tuple(proto.output) or ("",)
        self._attributes: dict[str, Any] | None = None
        self._written: tuple[bytes, ...] | None = None
        self._name = ""

    @property
    def name(self) -> str:
        """The node's name, or its first output where it has none."""
        if not self._name:
            self._name = self.proto.name or next((o for o in self.outputs if o), f"{self.op}_{self.index}")
        return self._name

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes as Python values (text as str, tensors and graphs as protobufs)."""
        if self._attributes is None:
            bare = self._written == ()
            self._attributes = {} if bare else {a.name: attribute_value(a) for a in self.proto.attribute}
        return self._attributes

    @property
    def written(self) -> tuple[bytes, ...]:
        """The attributes as they are written, in an order that does not depend on the exporter: to compare nodes by."""
        if self._written is None:
            attributes = self.proto.attribute
            self._written = tuple(sorted([a.SerializeToString() for a in attributes])) if attributes else ()
        return self._written

    def input(self, position: int) -> str:
        """The name of an input, "" where it is absent."""
        return self.inputs[position] if position < len(self.inputs) else ""

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}"


def attribute_value(attribute: AttributeProto) -> Any:
    """An attribute as a Python value; strings that are not UTF-8 stay bytes."""
    kind = attribute.type
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.FLOAT:
        return attribute.f
    if kind == AttributeProto.INTS:
        return tuple(attribute.ints)
    if kind == AttributeProto.STRING:
        try:
            return attribute.s.decode("utf-8")
        except UnicodeDecodeError:
            return attribute.s
    if kind == AttributeProto.FLOATS:
        return tuple(attribute.floats)
    return helper.get_attribute_value(attribute)


class Scope:
    """The index of one graph: nodes, who makes and who reads each value, constants, nested scopes.

    `order` lists node indexes topologically and stably. `captured` maps this scope's values that nested bodies read to
    the nodes with those bodies. `facts` is filled by the evaluator, `alias` maps a value to the one it merely repeats.
    `repeated` is the same in a `literal` copy too, where `alias` is empty.
    `extents` are the compound dims that values of the scope have, and which thus are at least 0 where the model runs:
    the least constant by the rest of the dim (`dims.split_constant`);
    `hinted` are values of which no more is known than what the model declares;
    `fixed` and `computed` are what `graph.fixed` remembers, `functions` what `match.functions` does.
    """

    def __init__(self, model: Model, graph: onnx.GraphProto, parent: Scope | None, path: str, depth: int) -> None:
        if depth > MAX_SCOPE_DEPTH:
            raise AtcfuseError(error("ATF112", f"graphs nested more than {MAX_SCOPE_DEPTH} deep ({path})"))
        self.model, self.graph, self.parent, self.path = model, graph, parent, path
        self.nodes = [Node(i, proto) for i, proto in enumerate(graph.node)]
        self.outputs = {o.name for o in graph.output}
        self.inputs = {i.name: i for i in graph.input}
        overridable = self.inputs if model.proto.ir_version >= 4 else {}
        self.tensors: dict[str, onnx.TensorProto] = {t.name: t for t in graph.initializer}
        self.initializers = {name: t for name, t in self.tensors.items() if name not in overridable}
        self.producers: dict[str, Node] = {}
        self.consumers: dict[str, list[Node]] = {}
        self.captured: dict[str, list[Node]] = {}
        self.bodies: list[tuple[Node, Scope]] = []
        self.facts: dict[str, Fact] = {}
        self.alias: dict[str, str] = {}
        self.repeated = self.alias
        self.extents: dict[Dim, int] = {}
        self.hinted: set[str] = set()
        self.fixed: frozenset[str] | None = None
        self.computed: dict[str, np.ndarray | None] = {}
        self.functions: Mapping[str, Callable[..., Any]] | None = None
        self._index(depth)
        self.order = self._topological_order()
        self.positions = {index: position for position, index in enumerate(self.order)}

    @cached_property
    def by_op(self) -> dict[str, list[Node]]:
        """The nodes of each operator in order."""
        found: dict[str, list[Node]] = {}
        for index in self.order:
            node = self.nodes[index]
            found.setdefault(node.op, []).append(node)
        return found

    @cached_property
    def is_branch(self) -> bool:
        """Whether this is the graph of a branch of an If."""
        parent = self.parent
        return parent is not None and any(node.op == "If" and body is self for node, body in parent.bodies)

    def _index(self, depth: int) -> None:
        producers, consumers, tensors = self.producers, self.consumers, self.tensors
        for node in self.nodes:
            for name in node.outputs:
                if not name:
                    continue
                if name in producers or name in tensors:
                    raise AtcfuseError(error("ATF113", f"two producers of the value {name!r} in {self.path}"))
                producers[name] = node
            inputs = node.inputs
            for name in inputs if len(inputs) < 2 else dict.fromkeys(inputs):
                if name in consumers:
                    consumers[name].append(node)
                elif name:
                    consumers[name] = [node]
        for node in self.nodes:
            for attribute in node.proto.attribute:
                if attribute.type in _GRAPHS:
                    self._index_bodies(node, attribute, depth)

    def _index_bodies(self, node: Node, attribute: AttributeProto, depth: int) -> None:
        bodies = [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
        for body in bodies:
            scope = Scope(self.model, body, self, f"{self.path}/{node.name}.{attribute.name}", depth + 1)
            self.bodies.append((node, scope))
            for name in scope.free_names():
                self.captured.setdefault(name, []).append(node)

    def free_names(self) -> set[str]:
        """Names that this scope and the bodies in it read from enclosing scopes."""
        used = {*self.consumers, *self.captured, *self.outputs}
        return {n for n in used if not self.defines(n)}

    def defines(self, name: str) -> bool:
        """Whether the value comes into being in this scope itself."""
        return name in self.producers or name in self.inputs or name in self.tensors

    def _topological_order(self) -> list[int]:
        captures: dict[int, set[str]] = {}
        for node, scope in self.bodies:
            captures.setdefault(node.index, set()).update(scope.free_names())
        if self._is_in_order(captures):
            return list(range(len(self.nodes)))
        waiting, readers = [0] * len(self.nodes), [[] for _ in self.nodes]  # type: tuple[list[int], list[list[int]]]
        for node in self.nodes:
            sources = {*node.inputs, *captures.get(node.index, ())}
            for made in {self.producers[s].index for s in sources if s in self.producers}:
                waiting[node.index] += 1
                readers[made].append(node.index)
        ready = [i for i, count in enumerate(waiting) if not count]
        order: list[int] = []
        while ready:
            index = heapq.heappop(ready)
            order.append(index)
            for reader in readers[index]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(ready, reader)
        if len(order) != len(self.nodes):
            stuck = next(n for n in self.nodes if waiting[n.index])
            raise AtcfuseError(error("ATF114", f"{self.path} has a cycle through node {stuck.name!r}"))
        return order

    def _is_in_order(self, captures: Mapping[int, set[str]]) -> bool:
        """Whether the nodes stand in topological order already, as ONNX wants it."""
        producers = self.producers
        for node in self.nodes:
            read = (*node.inputs, *captures.get(node.index, ())) if captures else node.inputs
            for name in read:
                if name in producers and producers[name].index >= node.index:
                    return False
        return True

    def fact(self, name: str) -> Fact:
        """What is proved about a value visible here."""
        known = self.facts.get(name)
        if known is not None:
            return known
        return UNKNOWN if self.parent is None else self.parent.fact(name)

    def source(self, name: str) -> str:
        """The value that `name` repeats through Identity and other no-ops, or `name` itself."""
        return self.alias.get(name, name)

    def producer(self, name: str) -> Node | None:
        """The node of this scope that makes the value, no-ops looked through."""
        return self.producers.get(self.alias.get(name, name))

    def tensor(self, name: str) -> onnx.TensorProto | None:
        """The constant tensor behind an initializer of this or an enclosing scope, no-ops looked through."""
        scope: Scope | None = self
        while scope is not None:
            name = scope.alias.get(name, name)
            found = scope.initializers.get(name)
            if found is not None or scope.defines(name):
                return found
            scope = scope.parent
        return None

    def readers(self, name: str) -> Sequence[Node]:
        """The nodes that read the value, as an input or inside a body."""
        read = self.consumers.get(name, ())
        return [*read, *self.captured[name]] if name in self.captured else read

    def value_readers(self, name: str) -> list[Node]:
        """The nodes of this graph that read more of the value than its shape."""
        return [node for node in self.consumers.get(name, ()) if node.op != "Shape"]

    def is_read_by_one(self, name: str, reader: Node) -> bool:
        """Whether one node, once, and nothing else reads more of the value than its shape."""
        return not self.escapes(name) and [node.index for node in self.value_readers(name)] == [reader.index]

    def is_output(self, name: str) -> bool:
        """Whether the value is an output of this graph."""
        return name in self.outputs

    def escapes(self, name: str) -> bool:
        """Whether more than the nodes of this graph read the value: it is an output, or a nested body reads it."""
        return name in self.outputs or name in self.captured

    def literal(self) -> Scope:
        """This scope with no-ops as operators like any other; what they repeat is in `repeated` alone."""
        found = copy(self)
        found.alias, found.functions = {}, None
        return found

    def walk(self) -> Iterator[Scope]:
        """This scope and all scopes nested in it, outermost first."""
        stack = [self]
        while stack:
            scope = stack.pop()
            yield scope
            stack.extend(body for _, body in reversed(scope.bodies))


class Model:
    """A loaded model: the protobuf and the index of its main graph. External tensors stay on disk.

    `pins` are extents that inputs declare as open and that have one number all the same, which the evaluator finds.
    """

    def __init__(self, proto: onnx.ModelProto, path: Path | None = None) -> None:
        self.pins: Mapping[str, int] = {}
        self.proto = proto
        self.path = path
        self.opset = opset_of(proto.opset_import)
        self.main = Scope(self, proto.graph, None, proto.graph.name or "graph", 0)

    def scopes(self) -> Iterator[Scope]:
        """All scopes, the main graph first."""
        return self.main.walk()


def opset_of(imports: Iterable[onnx.OperatorSetIdProto]) -> int:
    """The version of ONNX's own operator set that is imported, 1 where none is."""
    return max((o.version for o in imports if o.domain in STANDARD), default=1)
