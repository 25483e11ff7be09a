"""Updates of a cache along an axis that is not its first, written in place of turning the whole cache twice.

torch.export writes `cache.index_copy(2, positions, new)` as a Transpose that brings the axis to the front, a ScatterND
of rows, and a Transpose back; what is new is transposed as well. A ScatterND with an index for each axis in front does
the same without any Transpose. Its indices are two small nodes, which all updates at the same positions share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.respelling import Several

_MOST_ROWS = 4096
"""So many indices in front of the axis are written out."""
_INT64 = 7


@dataclass(frozen=True)
class Update:
    """A ScatterND of rows at `positions` of a cache, with the axis that is updated in front, and the Transpose `back`.

    The rows are those of `new`, turned by `turn`; `gone` are the ScatterND and what turned its operands for it alone.
    """

    cache: str
    new: str
    turn: tuple[int, ...]
    positions: str
    lead: tuple[int, ...]
    back: Node
    gone: tuple[Node, ...]

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that writing in place replaces."""
        return (self.back, *self.gone)


@dataclass(frozen=True)
class Updates(Several):
    """Updates at the same positions of caches that have the same axes in front."""

    scope: Scope
    updates: tuple[Update, ...]

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that the move replaces."""
        return tuple(node for update in self.updates for node in update.replaced)

    def beside(self, kept: Callable[[Node], bool]) -> Updates | None:
        """Those of which no node is kept; None where there are none."""
        updates = tuple(update for update in self.updates if not any(map(kept, update.replaced)))
        return Updates(self.scope, updates) if updates else None


def find(scope: Scope, node: Node) -> Updates | None:
    """The updates of which a node ends the first, with all others at the same positions."""
    first = _update(scope, node) if node.op == "Transpose" else None
    if first is None:
        return None
    same = sorted(_alike(scope, first), key=lambda update: scope.positions[update.back.index])
    return Updates(scope, tuple(same)) if same[0].back is node else None


def _alike(scope: Scope, first: Update) -> Iterator[Update]:
    for node in scope.by_op.get("ScatterND", ()):
        readers = scope.readers(node.outputs[0])
        if len(node.inputs) != 3 or scope.source(node.inputs[1]) != first.positions or len(readers) != 1:
            continue
        update = _update(scope, readers[0])
        if update is not None and update.lead == first.lead:
            yield update


def _update(scope: Scope, back: Node) -> Update | None:
    """The update that a Transpose ends."""
    scatter = scope.producers.get(back.input(0)) if back.op == "Transpose" else None
    if scatter is None or scatter.op != "ScatterND" or len(scatter.inputs) != 3 or scope.escapes(back.inputs[0]):
        return None
    if len(scope.readers(back.inputs[0])) != 1 or scatter.attributes.get("reduction", "none") not in ("none", b"none"):
        return None
    cache, rows = (_turned(scope, scatter.inputs[at]) for at in (0, 2))
    axis, perm, undo = cache.perm[0] if cache.perm else 0, cache.perm, back.attributes.get("perm")
    if axis == 0 or perm != (axis, *(i for i in range(len(perm)) if i != axis)) or _inverse(perm) != undo:
        return None
    shape, indices = scope.fact(cache.value).shape, scope.fact(scatter.inputs[1])
    lead = tuple(d for d in (shape or ())[:axis] if isinstance(d, int))
    if indices.dtype != _INT64 or indices.rank != 2 or (indices.shape or ())[-1] != 1 or len(lead) != axis:
        return None
    if not 0 < int(np.prod(lead)) <= _MOST_ROWS or scope.fact(rows.value).rank != len(perm):
        return None
    turn = tuple((rows.perm or tuple(range(len(perm))))[i] for i in undo)
    alone = [t.node for t in (cache, rows) if t.node is not None and _serves(scope, t.node, scatter)]
    positions = scope.source(scatter.inputs[1])
    return Update(cache.value, rows.value, turn, positions, lead, back, (scatter, *alone))


@dataclass(frozen=True)
class _Turned:
    """What a Transpose makes, or any value, of which `perm` is empty."""

    value: str
    perm: tuple[int, ...] = ()
    node: Node | None = None


def _turned(scope: Scope, value: str) -> _Turned:
    """What a value is turned from. The end of another update is none: what that turns is written in place as well."""
    node = scope.producers.get(value)
    if node is None or node.op != "Transpose" or not isinstance(perm := node.attributes.get("perm"), tuple):
        return _Turned(value)
    maker = scope.producers.get(node.inputs[0])
    return _Turned(value) if maker is not None and maker.op == "ScatterND" else _Turned(node.inputs[0], perm, node)


def _serves(scope: Scope, node: Node, reader: Node) -> bool:
    """Whether one node alone reads what another makes."""
    return [n.index for n in scope.readers(node.outputs[0])] == [reader.index] and not scope.escapes(node.outputs[0])


def _inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(perm.index(i) for i in range(len(perm)))


def carry_out(move: Updates, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """Nothing that would have to be taken up, and what takes the place of the nodes."""
    first, *others = move.updates
    axis = len(first.lead)
    base = first.back.outputs[0]
    rows, table, indices = (names.fresh(f"{base}/{what}") for what in ("rows", "table", "indices"))
    grid = np.zeros((*first.lead, 1, axis + 1), np.int64)
    for place in product(*map(range, first.lead)):
        grid[place][0, :axis] = place
    last = (0,) * axis + (1,)
    made = (
        NewNode("Mul", names.fresh(f"{first.back.name}/rows"), (first.positions, last), (rows,), like=first.back.index),
        NewNode("Add", names.fresh(f"{first.back.name}/indices"), (rows, table), (indices,), like=first.back.index),
        *_scatter(first, indices, names),
    )
    rewrites = {u.back.index: _scatter(u, indices, names) for u in others} | {
        n.index: () for u in others for n in u.gone
    }
    members = frozenset(n.index for n in (first.back, *first.gone))
    return (), "", Replacement(move.scope, members, made, rewrites, {table: grid})


def _scatter(update: Update, indices: str, names: Names) -> tuple[NewNode, ...]:
    """The ScatterND of the cache as it lies, behind a Transpose of what is new where that lies otherwise."""
    new, like = update.new, update.gone[0].index
    turned = names.fresh(f"{update.back.outputs[0]}/new") if update.turn != tuple(sorted(update.turn)) else new
    inputs = (update.cache, indices, turned)
    scatter = NewNode("ScatterND", update.back.proto.name, inputs, update.back.outputs, like=like)
    if turned == new:
        return (scatter,)
    name, perm = names.fresh(f"{update.back.name}/new"), (("perm", update.turn),)
    return (NewNode("Transpose", name, (new,), (turned,), perm, like=like), scatter)
