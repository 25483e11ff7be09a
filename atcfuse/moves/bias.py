"""A bias that is added behind views of a projection's rows, added to the rows as they were.

Keras splits the heads first and adds a bias of [heads, head dim]; tf2onnx flattens rows for a Gemm and deals them out
again. A row-major view of a row is the same elements in the same order, so the bias is one vector, which a projection's
kernel takes along. As with the other moves, one that none does is undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from atcfuse.dims import Dim
from atcfuse.graph.constants import constant_tensor
from atcfuse.graph.edit import Names, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.traffic import VIEWS
from atcfuse.moves.respelling import Respelling, Steps

_FAR = 8
"""At most so many views lie between a product and its bias."""


@dataclass(frozen=True)
class Bias(Respelling):
    """An Add of a constant to a view of a product: the view, the constant, and how many last axes are one row."""

    rows: str
    bias: str
    axes: int


def find(scope: Scope, node: Node) -> Bias | None:
    """The bias that a node adds to a product's rows, whose elements lie along more axes than one by then."""
    if node.op != "Add" or len(node.inputs) != 2:
        return None
    for bias, rows in (node.inputs, node.inputs[::-1]):
        if constant_tensor(scope, bias) is None:
            continue
        width = _width_of_product(scope, node, rows)
        axes = None if width is None else _axes(scope.fact(bias).shape, scope.fact(rows).shape, width)
        if axes is not None:
            return Bias(scope, node, rows, bias, axes)
    return None


def carry_out(move: Bias, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """The biased rows, which an Add makes while nothing takes it in, and what takes the place of the Add."""
    shape = move.scope.fact(move.rows).shape or ()
    lead = (0,) * (len(shape) - move.axes)  # as it is
    heads = tuple(d for d in shape[len(lead) :] if isinstance(d, int))
    steps = Steps(move.node, names)
    vector = steps.add("Reshape", move.bias, (prod(heads),))
    rows = steps.add("Reshape", move.rows, (*lead, prod(heads)))
    biased = steps.add("Add", rows, vector)
    steps.end(move.node.outputs[0], "Reshape", biased, (*lead, *heads))
    return (biased,), "Add", Replacement(move.scope, move.members, tuple(steps.made))


def _width_of_product(scope: Scope, reader: Node, value: str) -> int | None:
    """The length of the rows that a product makes, of which a value is a view that nothing else reads, or None."""
    for _ in range(_FAR):
        if not scope.is_read_by_one(value, reader):
            return None
        maker = scope.producers.get(value)
        if maker is None or maker.op not in VIEWS:
            shape = scope.fact(value).shape
            found = maker is not None and _is_projection(scope, maker) and bool(shape)
            return shape[-1] if found and shape and isinstance(shape[-1], int) else None
        reader, value = maker, maker.inputs[0]
    return None


def _is_projection(scope: Scope, node: Node) -> bool:
    """Whether a node multiplies rows with a matrix and adds nothing."""
    return node.op in ("MatMul", "Gemm") and not node.input(2) and scope.fact(node.input(1)).rank == 2


def _axes(bias: tuple[Dim, ...] | None, rows: tuple[Dim, ...] | None, width: int) -> int | None:
    """How many last axes are one row, if they are several and a bias has one number for each element there."""
    if bias is None or rows is None or len(bias) > len(rows):
        return None
    axes, covered = 0, 1
    while axes < len(bias) and covered < width:
        axes += 1
        extent = bias[-axes]
        if extent != rows[-axes] or not isinstance(extent, int) or extent < 1:
            return None
        covered *= extent
    whole = covered == width and axes > 1 and all(d == 1 for d in bias[: len(bias) - axes])
    return axes if whole else None
