"""Transposes of leading axes moved past a linear projection, towards attention that reads them along.

A projection over the last axis treats every row alike, so it commutes with a Transpose that leaves the last axis where
it is. nn.MultiheadAttention with `batch_first` transposes the batch behind a norm and back before a residual sum; moved
to the attention's side of the projections, such a Transpose is one more view of its operands, and norm, projection and
sum stand side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atcfuse.dims import Dim
from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.views import is_view
from atcfuse.moves.respelling import Several

_EXACT_RESHAPE = 14
"""The opset from which on a Reshape can be told that 0 means no elements, not the operand's own extent."""


@dataclass(frozen=True)
class _Linear:
    """A product with a matrix over the last axis: the node that multiplies, and the Add of a bias to it, if any."""

    product: Node
    bias: Node | None

    @property
    def nodes(self) -> list[Node]:
        return [n for n in (self.product, self.bias) if n is not None]

    @property
    def result(self) -> str:
        return self.nodes[-1].outputs[0]

    def on(self, x: str, result: str, names: Names) -> list[NewNode]:
        """The same projection of another value."""
        made, value = [], x
        for node in self.nodes:
            at = 0 if node is self.product else node.inputs.index(self.product.outputs[0])
            inputs = tuple(value if i == at else name for i, name in enumerate(node.inputs))
            value = result if node is self.nodes[-1] else names.fresh(f"{node.outputs[0]}/rows")
            made.append(_like(node, inputs, value))
        return made


@dataclass(frozen=True)
class Commuting(Several):
    """A Transpose that may move: down past the projections that read it, or up before the one that it reads."""

    scope: Scope
    transpose: Node
    linears: tuple[_Linear, ...]
    unflatten: Node | None = None
    up: bool = False

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that the move replaces."""
        return (
            self.transpose,
            *(n for linear in self.linears for n in linear.nodes),
            *([self.unflatten] if self.unflatten else ()),
        )


def find(scope: Scope, node: Node) -> Commuting | None:
    """The move of the Transpose that a node is, if it reorders leading axes beside a projection."""
    if node.op != "Transpose" or not _of_leading_axes(scope, node):
        return None
    return _down(scope, node) or _up(scope, node)


def carry_out(move: Commuting, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What the moved Transposes make while nothing takes them in, their operator, what takes the place of the nodes."""
    made, replacement = (_moved_up if move.up else _moved_down)(move, names)
    return made, "Transpose", replacement


def _of_leading_axes(scope: Scope, node: Node) -> bool:
    perm = node.attributes.get("perm")
    if not isinstance(perm, tuple) or len(perm) < 3 or scope.fact(node.input(0)).rank != len(perm):
        return False
    return perm[-1] == len(perm) - 1 and sorted(perm) == list(range(len(perm))) and perm != tuple(sorted(perm))


def _has_no_other_reader(scope: Scope, value: str, reader: Node) -> bool:
    """Whether nothing else reads the value, not even its shape, which a move changes."""
    return not scope.is_output(value) and [n.index for n in scope.readers(value)] == [reader.index]


def _down(scope: Scope, node: Node) -> Commuting | None:
    """All that read the Transpose are projections, whose results are read as views, and Shapes."""
    value = node.outputs[0]
    if scope.escapes(value):
        return None
    readers = scope.value_readers(value)
    linears = [_projection_of(scope, reader, value) for reader in readers]
    if not linears or not all(linears):
        return None
    return Commuting(scope, node, tuple(x for x in linears if x is not None))


def _projection_of(scope: Scope, node: Node, value: str) -> _Linear | None:
    if node.op != "MatMul" or node.input(0) != value or scope.fact(node.input(1)).rank != 2:
        return None
    linear = _with_bias(scope, node)
    result = linear.result
    readers = scope.value_readers(result)
    if scope.escapes(result) or not readers:
        return None
    return linear if all(is_view(n) for n in readers) else None


def _with_bias(scope: Scope, product: Node) -> _Linear:
    value = product.outputs[0]
    readers = scope.consumers.get(value, [])
    if len(readers) == 1 and _is_bias(scope, readers[0], value) and _has_no_other_reader(scope, value, readers[0]):
        return _Linear(product, readers[0])
    return _Linear(product, None)


def _is_bias(scope: Scope, node: Node, value: str) -> bool:
    """Whether a node adds one number a column to a value, the same to every row, and leaves the shape."""
    if node.op != "Add" or len(node.inputs) != 2 or node.inputs.count(value) != 1:
        return False
    other = scope.fact(node.inputs[1 - node.inputs.index(value)]).shape
    return _one_row(other, scope.fact(value).shape)


def _one_row(bias: Sequence[Dim] | None, shape: Sequence[Dim] | None) -> bool:
    if bias is None or shape is None or len(bias) > len(shape):
        return False
    return all(d == 1 for d in bias[:-1]) and (not bias or bias[-1] in (1, shape[-1]))


def _up(scope: Scope, node: Node) -> Commuting | None:
    """What the Transpose reads is a projection of a view, of rows as they are or flattened to a matrix for it."""
    value = node.inputs[0]
    maker = scope.producers.get(value)
    if maker is None or not _has_no_other_reader(scope, value, node):
        return None
    unflatten = maker if maker.op == "Reshape" else None
    if unflatten is not None:
        value = unflatten.inputs[0]
        maker = scope.producers.get(value)
        if maker is None or not scope.is_read_by_one(value, unflatten):
            return None
    linear = _projection_making(scope, maker)
    if linear is None or not _from_view(scope, linear.product.inputs[0]):
        return None
    move = Commuting(scope, node, (linear,), unflatten, up=True)
    flat = unflatten is not None
    return move if (_same_rows(move) if flat else linear.product.op == "MatMul") else None


def _projection_making(scope: Scope, node: Node) -> _Linear | None:
    """The projection that a node ends."""
    if node.op == "Gemm":
        shape, bias = scope.fact(node.outputs[0]).shape, node.input(2)
        plain = not node.attributes.get("transA") and (not bias or _one_row(scope.fact(bias).shape, shape))
        return _Linear(node, None) if plain else None
    if node.op == "MatMul":
        return _Linear(node, None) if scope.fact(node.input(1)).rank == 2 else None
    for value in node.inputs if node.op == "Add" else ():
        product = scope.producers.get(value)
        if product is not None and product.op in ("MatMul", "Gemm") and _is_bias(scope, node, value):
            inner = _projection_making(scope, product)
            if inner is not None and _has_no_other_reader(scope, value, node):
                return _Linear(product, node)
    return None


def _from_view(scope: Scope, value: str) -> bool:
    maker = scope.producers.get(value)
    return maker is not None and (is_view(maker) or maker.op == "MatMul")


def _same_rows(move: Commuting) -> bool:
    """Whether the projection takes a matrix to one of its own shape, whose rows the Reshape deals out."""
    assert move.unflatten is not None
    scope, linear = move.scope, move.linears[0]
    x, y = scope.fact(linear.product.inputs[0]).shape, scope.fact(linear.result).shape
    rows = scope.fact(move.unflatten.outputs[0]).shape
    if x is None or y is None or rows is None or len(x) != 2 or x != y:
        return False
    width = x[-1]
    if not isinstance(width, int) or width < 1 or rows[-1] != width:
        return False
    return scope.model.opset >= _EXACT_RESHAPE or all(isinstance(d, int) and d > 0 for d in rows)


def _moved_down(move: Commuting, names: Names) -> tuple[tuple[str, ...], Replacement]:
    scope, node = move.scope, move.transpose
    made: list[NewNode] = []
    for number, linear in enumerate(move.linears):
        rows = names.fresh(f"{linear.result}/rows")
        made += linear.on(node.inputs[0], rows, names)
        name = node.proto.name if not number else names.fresh(node.name)
        made.append(_like(node, (rows,), linear.result, name))
    shapes = {n.index: shape_of(node, n, names) for n in scope.consumers[node.outputs[0]] if n.op == "Shape"}
    results = tuple(linear.result for linear in move.linears)
    return results, Replacement(scope, move.members, tuple(made), shapes)


def shape_of(transpose: Node, shape: Node, names: Names) -> tuple[NewNode, ...]:
    """The extents of a Transpose's result, picked from those of its operand."""
    perm = transpose.attributes["perm"]
    wanted = tuple(perm[shape.attributes.get("start", 0) : shape.attributes.get("end")])
    value = names.fresh(f"{shape.outputs[0]}/Shape")
    first = NewNode("Shape", names.fresh(f"{value}_node"), (transpose.inputs[0],), (value,))
    return first, NewNode("Gather", shape.proto.name, (value, wanted), shape.outputs, (("axis", 0),), like=shape.index)


def _moved_up(move: Commuting, names: Names) -> tuple[tuple[str, ...], Replacement]:
    scope, node, linear = move.scope, move.transpose, move.linears[0]
    x, made = linear.product.inputs[0], []  # type: str, list[NewNode]
    if move.unflatten is not None:
        split = names.fresh(f"{x}/split")
        made.append(_like(move.unflatten, (x, *move.unflatten.inputs[1:]), split))
        x = split
    turned = names.fresh(f"{linear.product.inputs[0]}/rows")
    made.append(_like(node, (x,), turned))
    if move.unflatten is None:
        made += linear.on(turned, node.outputs[0], names)
    else:
        made += _on_matrix(move, turned, names)
    # The projection of a matrix has the shape of what it projects, see `_same_rows`.
    shapes = {
        n.index: (_like(n, (linear.product.inputs[0],), n.outputs[0]),)
        for n in scope.consumers.get(linear.result, ())
        if n.op == "Shape"
    }
    return (turned,), Replacement(scope, move.members, tuple(made), shapes)


def _on_matrix(move: Commuting, turned: str, names: Names) -> list[NewNode]:
    """The projection of a transposed value, flattened for it; the rows are dealt out in the shape of that value."""
    linear, value = move.linears[0], move.transpose.outputs[0]
    flat, rows = names.fresh(f"{turned}/flat"), names.fresh(f"{value}/flat")
    shape = move.scope.fact(value).shape or ()
    width = tuple(d for d in shape[-1:] if isinstance(d, int))
    made = [NewNode("Reshape", names.fresh(f"{flat}_node"), (turned, (-1, *width)), (flat,))]
    made += linear.on(flat, rows, names)
    name = names.fresh(f"{value}/Reshape")
    static = tuple(d for d in shape if isinstance(d, int) and d > 0)
    if len(static) == len(shape):
        return [*made, NewNode("Reshape", name, (rows, static), (value,))]
    target = names.fresh(f"{value}/Shape")
    made.append(NewNode("Shape", names.fresh(f"{target}_node"), (turned,), (target,)))
    return [*made, NewNode("Reshape", name, (rows, target), (value,), (("allowzero", 1),))]


def _like(node: Node, inputs: tuple[str, ...], output: str, name: str | None = None) -> NewNode:
    """A copy of a standard node with one output, on other values."""
    attributes = tuple(node.attributes.items())
    own = node.proto.name if name is None else name
    return NewNode(node.op, own, inputs, (output,), attributes, like=node.index)
