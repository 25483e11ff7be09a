"""GatherND at indices that count along axes: it gives every element at its own place, as torch.vmap reads a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atcfuse.dims import product, proves_at_most
from atcfuse.graph.constants import constant
from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.match.bands import Known, Shape, Slopes, as_ramp, from_table
from atcfuse.match.indexed import MAX_TABLE, Bands
from atcfuse.moves.respelling import Respelling, with_axes

_MOST_INDICES = 4


@dataclass(frozen=True)
class Grid(Respelling):
    """A GatherND that puts axes of one element, `added`, between those of its operand."""

    added: tuple[int, ...]


def find(scope: Scope, node: Node) -> Grid | None:
    """The GatherND that a node is, if it gives all elements of its operand in their order."""
    if node.op != "GatherND" or len(node.inputs) != 2 or node.attributes.get("batch_dims", 0) != 0:
        return None
    data, made = scope.fact(node.inputs[0]).shape, scope.fact(node.outputs[0]).shape
    components = _components(scope, node.inputs[1])
    if not data or made is None or not components or len(components) > len(data):
        return None
    counted = len(made) - (len(data) - len(components))
    axes = _counted_along(components, data, made[:counted])
    if axes is None or made[counted:] != data[len(components) :]:
        return None
    added = tuple(axis for axis in range(counted) if axis not in axes)
    return Grid(scope, node, added) if all(made[axis] == 1 for axis in added) else None


def _counted_along(components: Sequence[Slopes | None], data: Shape, made: Shape) -> tuple[int, ...] | None:
    """The axis along which each index counts from 0 through its whole axis of the operand, in their order."""
    found: list[int] = []
    for slopes, size in zip(components, data, strict=False):
        if slopes is None or len(slopes) != len(made):
            return None
        axes = [axis for axis, slope in enumerate(slopes) if slope]
        if size == 1 and not axes:
            axes = [axis for axis in range(found[-1] + 1 if found else 0, len(made)) if made[axis] == 1][:1]
        if len(axes) != 1 or made[axes[0]] != size or (slopes[axes[0]] != 1 and size != 1):
            return None
        found.append(axes[0])
    return tuple(found) if found == sorted(set(found)) else None


def _components(scope: Scope, indices: str) -> list[Slopes | None]:
    """How each index grows along the axes of the indices, None for one that is no count from 0."""
    node = scope.producer(indices)
    if node is None:
        return _of_table(scope, indices)
    rank = scope.fact(indices).rank
    if node.op != "Concat" or rank is None or len(node.inputs) > _MOST_INDICES:
        return _of_table(scope, indices)
    if node.attributes.get("axis") not in (-1, rank - 1):
        return []
    bands = Bands(scope)
    found: list[Slopes | None] = []
    for value in node.inputs:
        shape = scope.fact(value).shape
        if not shape or shape[-1] != 1:
            return []
        slopes = _counting(bands.of(value))
        found.append(None if slopes is None else slopes[:-1])
    return found


def _of_table(scope: Scope, indices: str) -> list[Slopes | None]:
    """The same of indices that are a constant."""
    shape = scope.fact(indices).shape
    if not shape or len(shape) < 2 or not proves_at_most(product(shape), MAX_TABLE):
        return []
    table = constant(scope, indices)
    if table is None or table.shape[-1] > _MOST_INDICES:
        return []
    return [_counting(from_table(table[..., at])) for at in range(table.shape[-1])]


def _counting(known: Known | None) -> Slopes | None:
    """How a value that counts from 0 grows along its axes."""
    ramp = None if known is None else as_ramp(known)
    return ramp.slopes if ramp is not None and ramp.start == 0 else None


def carry_out(move: Grid, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """Nothing that would have to be taken up, and what takes the place of the node."""
    return (), "", Replacement(move.scope, move.members, (view_of(move, move.node.inputs[0], move.node.outputs[0]),))


def view_of(move: Grid, value: str, result: str) -> NewNode:
    """The view that a GatherND is, of a value."""
    node, axes = move.node, move.added
    if not axes:
        return NewNode("Identity", node.proto.name, (value,), (result,), like=node.index)
    return with_axes("Unsqueeze", move.scope.model.opset, node.proto.name, value, axes, result, node.index)
