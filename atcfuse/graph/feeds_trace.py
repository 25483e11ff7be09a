"""Where the values of a graph input go while nothing but their type, shape or offset changes.

The walk enters the bodies of If and Loop and the model's own functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

MAX_STEPS = 20_000
MAX_CONSTANT = 4096
LARGE = 999.0
"""A mask is turned into a penalty by a factor at least this large."""

# Operators whose first inputs come out again, perhaps elsewhere or as another type: op → how many such inputs.
CARRIES = {
    "Cast": 1, "CastLike": 1, "Clip": 1, "Dropout": 1, "Expand": 1, "Flatten": 1, "Gather": 1, "Identity": 1,
    "Reshape": 1, "Slice": 1, "Split": 1, "Squeeze": 1, "Tile": 1, "Transpose": 1, "Unsqueeze": 1,
    "Concat": 1 << 30, "Max": 1 << 30, "Min": 1 << 30,
}  # fmt: skip
COMPARES = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or", "Xor"})
# Operators that look an input up in another one: (domain, op) → {index position: table position}.
LOOKUPS = {
    ("", "Gather"): {1: 0},
    ("", "RotaryEmbedding"): {3: 1},
    ("com.microsoft", "GatherBlockQuantized"): {1: 0},
    ("com.microsoft", "RotaryEmbedding"): {1: 2},
    ("com.microsoft", "EmbedLayerNormalization"): {0: 2, 1: 4, 8: 3},
}


@dataclass
class Uses:
    """What became of one input.

    `bound`: smallest exclusive limit as an index. `selects`: it reached a Where condition. `inverted`: it was
    subtracted from a constant and scaled to a penalty. `branch`: it decides an If. `axis_sizes`: extents that weights
    demand of its axes.
    """

    bound: int | None = None
    selects: bool = False
    inverted: bool = False
    branch: bool = False
    axis_sizes: dict[int, int] = field(default_factory=dict)

    def limit(self, bound: int) -> None:
        """Note one more table that the input is looked up in."""
        if bound > 0:  # else the offset is the whole table: a negative index being wrapped around
            self.bound = bound if self.bound is None else min(self.bound, bound)


class Scope:
    """The nodes of a graph, body or function with what is needed to follow a value out of it again."""

    def __init__(
        self,
        nodes: Iterable[NodeProto],
        tensors: Mapping[str, TensorProto],
        outputs: Iterable[str],
        functions: Mapping[tuple[str, str], FunctionProto],
        caller: tuple[Scope, NodeProto] | None = None,
        captures: bool = False,
        actuals: Mapping[str, str] | None = None,
    ) -> None:
        self.nodes = list(nodes)
        self.tensors = tensors
        self.outputs = list(outputs)
        self.functions = functions
        self.caller = caller
        self.captures = captures
        self.actuals = actuals or {}
        self.declared: dict[str, tuple[int, ...]] = {}
        self._readers: dict[str, list[tuple[NodeProto, int]]] = {}
        self._producers: dict[str, NodeProto] = {}
        self._children: dict[int, list[Scope]] = {}
        for node in self.nodes:
            for position, name in enumerate(node.input):
                self._readers.setdefault(name, []).append((node, position))
            self._producers.update((name, node) for name in node.output if name)
        self._with_bodies = [n for n in self.nodes if any(a.HasField("g") or a.graphs for a in n.attribute)]

    @classmethod
    def of_model(cls, model: ModelProto) -> Scope:
        """The scope of a model's main graph."""
        functions = {(f.domain, f.name): f for f in model.functions}
        graph = model.graph
        scope = cls(graph.node, {t.name: t for t in graph.initializer}, (o.name for o in graph.output), functions)
        for info in (*graph.input, *graph.value_info):
            dims = info.type.tensor_type.shape.dim
            if dims and all(d.WhichOneof("value") == "dim_value" for d in dims):
                scope.declared[info.name] = tuple(d.dim_value for d in dims)
        return scope

    def children(self, node: NodeProto) -> list[Scope]:
        """The scopes of a node's bodies, or of the function that it calls."""
        known = self._children.get(id(node))
        if known is None:
            known = self._children[id(node)] = list(self._open(node))
        return known

    def _open(self, node: NodeProto) -> Iterator[Scope]:
        function = self.functions.get((node.domain, node.op_type))
        if function is not None and self._depth() < 16:
            actuals = dict(zip(function.input, node.input, strict=False))
            yield Scope(function.node, {}, function.output, self.functions, (self, node), actuals=actuals)
        for a in node.attribute:
            for body in _bodies(a):
                tensors = {t.name: t for t in body.initializer}
                actuals = _loop_actuals(node, body)
                outputs = [o.name for o in body.output][1 if node.op_type == "Loop" else 0 :]
                yield Scope(body.node, tensors, outputs, self.functions, (self, node), True, actuals)

    def _depth(self) -> int:
        return 0 if self.caller is None else 1 + self.caller[0]._depth()

    def readers(self, name: str) -> Iterator[tuple[Scope, NodeProto, int]]:
        """Every node that reads a value, in bodies that capture it too."""
        for node, position in self._readers.get(name, ()):
            yield self, node, position
        for node in self._with_bodies:
            for child in self.children(node):
                if child.captures and name not in child.tensors and name not in child.actuals:
                    yield from child.readers(name)

    def constant(self, name: str) -> np.ndarray | None:
        """The small constant that a name stands for, or None."""
        tensor = self.tensor(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL or np.prod(tensor.dims) > MAX_CONSTANT:
            return None
        return numpy_helper.to_array(tensor)

    def tensor(self, name: str) -> TensorProto | None:
        """The initializer or Constant value behind a name, whichever scope defines it."""
        if name in self.tensors:
            return self.tensors[name]
        node = self._producers.get(name)
        if node is not None:
            if node.op_type == "Identity":
                return self.tensor(node.input[0])
            if node.op_type == "Constant":
                return next((a.t for a in node.attribute if a.name == "value"), None)
            return None
        outer = self.outer_name(name)
        return None if outer is None or self.caller is None else self.caller[0].tensor(outer)

    def outer_name(self, name: str) -> str | None:
        """What a value that is not made here is called in the enclosing scope, or None."""
        if name in self.actuals:
            return self.actuals[name]
        return name if self.captures else None

    def extent(self, name: str, axis: int) -> int | None:
        """The static extent of one axis, looked for through casts, dequantization and transposes; else None."""
        tensor = self.tensor(name)
        dims = tuple(tensor.dims) if tensor is not None else self.declared.get(name)
        if dims is not None:
            return dims[axis] if -len(dims) <= axis < len(dims) else None
        node = self._producers.get(name)
        if node is None:
            outer = self.outer_name(name)
            return None if outer is None or self.caller is None else self.caller[0].extent(outer, axis)
        if node.op_type in ("Cast", "CastLike", "DequantizeLinear", "Identity"):
            return self.extent(node.input[0], axis)
        if node.op_type == "Transpose":
            perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
            return self.extent(node.input[0], perm[axis]) if -len(perm) <= axis < len(perm) else None
        return None


def _bodies(attribute: AttributeProto) -> list[GraphProto]:
    return [attribute.g] if attribute.HasField("g") else list(attribute.graphs)


def _loop_actuals(node: NodeProto, body: GraphProto) -> dict[str, str]:
    formals = [i.name for i in body.input]
    if node.op_type != "Loop":
        return dict.fromkeys(formals, "")
    return {**dict.fromkeys(formals, ""), **dict(zip(formals[2:], node.input[2:], strict=False))}


@dataclass(frozen=True)
class _Step:
    scope: Scope
    name: str
    shift: int = 0
    penalty: bool = False
    direct: bool = True
    integral: bool = False
    compared: bool = False

    def to(
        self,
        scope: Scope,
        name: str,
        offset: int = 0,
        penalty: bool = False,
        direct: bool = False,
        compared: bool = False,
    ) -> _Step:
        """The step that continues this one at another value."""
        shift, kept = self.shift + offset, self.direct and direct
        return _Step(scope, name, shift, self.penalty or penalty, kept, self.integral, self.compared or compared)


def trace_input(scope: Scope, name: str, integral: bool) -> Uses:
    """Follow one graph input through the model; integers also through arithmetic among values (wrapped indices)."""
    uses = Uses()
    stack = [_Step(scope, name, integral=integral)]
    seen = {(id(scope), name, 0)}
    for _ in range(MAX_STEPS):
        if not stack:
            break
        step = stack.pop()
        for after in _follow(step, uses):
            key = (id(after.scope), after.name, after.shift)
            if after.name and key not in seen:
                seen.add(key)
                stack.append(after)
    return uses


def _follow(step: _Step, uses: Uses) -> Iterator[_Step]:
    if step.scope.caller is not None and step.name in step.scope.outputs:
        outer, node = step.scope.caller
        position = step.scope.outputs.index(step.name)
        if position < len(node.output):
            yield step.to(outer, node.output[position], direct=True)
    for scope, node, position in step.scope.readers(step.name):
        _note(scope, node, position, step, uses)
        for child in scope.children(node):
            formals = [formal for formal, actual in child.actuals.items() if actual == step.name]
            yield from (step.to(child, formal, direct=True) for formal in formals)
        yield from _outputs(scope, node, position, step)


def _outputs(scope: Scope, node: NodeProto, position: int, step: _Step) -> Iterator[_Step]:
    op = node.op_type
    if op in COMPARES or (op == "Where" and position > 0) or position < CARRIES.get(op, 0):
        direct, compared = op in ("Cast", "Identity"), op in COMPARES
        yield from (step.to(scope, out, direct=direct, compared=compared) for out in node.output)
        return
    if op not in ("Add", "Sub", "Mul") or len(node.input) != 2:
        return
    other = scope.constant(node.input[1 - position])
    if op == "Mul" or other is None or not other.size or other.dtype.kind not in "iuf":
        if step.integral:
            yield step.to(scope, node.output[0])
        return
    if op == "Sub" and position == 1:
        yield step.to(scope, node.output[0], penalty=True)
        return
    offset = 0 if other.dtype.kind == "f" else int(other.max()) if op == "Add" else -int(other.min())
    yield step.to(scope, node.output[0], offset)


def _note(scope: Scope, node: NodeProto, position: int, step: _Step, uses: Uses) -> None:
    domain = "" if node.domain == "ai.onnx" else node.domain
    table = LOOKUPS.get((domain, node.op_type), {}).get(position)
    if table is not None and table < len(node.input) and not step.compared:
        axis = next((a.i for a in node.attribute if a.name in ("axis", "gather_axis")), 0)
        extent = scope.extent(node.input[table], axis)
        if extent is not None:
            uses.limit(extent - step.shift)
    elif node.op_type == "Where" and position == 0:
        uses.selects = True
    elif node.op_type == "If" and position == 0:
        uses.branch = True
    elif node.op_type == "Mul" and step.penalty:
        factor = scope.constant(node.input[1 - position])
        if factor is not None and factor.dtype.kind == "f" and factor.size and abs(factor).min() > LARGE:
            uses.inverted = True
    elif position == 0 and step.direct:
        _note_axis_sizes(scope, node, uses)


def _note_axis_sizes(scope: Scope, node: NodeProto, uses: Uses) -> None:
    if len(node.input) < 2:
        return
    if node.op_type == "Conv":
        group = next((a.i for a in node.attribute if a.name == "group"), 1)
        channels = scope.extent(node.input[1], 1)
        if channels:
            uses.axis_sizes[1] = channels * group
    elif node.op_type in ("MatMul", "Gemm"):
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        rows = scope.extent(node.input[1], -1 if transposed else -2)
        if rows:
            uses.axis_sizes[-1] = rows
    elif node.op_type == "LayerNormalization":
        width = scope.extent(node.input[1], -1)
        if width:
            uses.axis_sizes[-1] = width
