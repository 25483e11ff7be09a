"""Rows that are regrouped between a norm and projections, regrouped before the norm instead.

A norm over the last axis treats every row alike, so it commutes with whatever only moves rows about: windows of Swin,
their shift by Slice and Concat, axes of a grid, the token that a classifier picks. Moved in front, norm and projections
stand side by side and are one kernel. As with the other moves, one after which the norm is still there is undone.
"""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.schema import RESHAPES
from atcfuse.moves.respelling import Several

_MOST_STEPS = 32
"""A roll along two axes and a partition into windows take eight."""


@dataclass(frozen=True)
class Regrouping(Several):
    """A LayerNormalization whose rows are regrouped: into `rows`, which `readers` project and nothing else reads."""

    scope: Scope
    norm: Node
    entries: tuple[Node, ...]
    rows: str
    readers: tuple[Node, ...]

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that are put on other values: what reads the norm, the norm, the projections."""
        return (self.norm, *self.entries, *self.readers)


def find(scope: Scope, node: Node) -> Regrouping | None:
    """The regrouping behind a node, if it is a norm over the last axis that only regrouped rows are read of."""
    shape = scope.fact(node.input(0)).shape
    if node.op != "LayerNormalization" or shape is None or len([o for o in node.outputs if o]) != 1:
        return None
    if node.attributes.get("axis", -1) not in (-1, len(shape) - 1):
        return None
    if any(scope.fact(v).rank != 1 for v in node.inputs[1:] if v):  # one scale for all rows, not one for each
        return None
    rows = _regrouped(scope, node.outputs[0])
    if rows is None:
        return None
    readers = tuple(scope.value_readers(rows))
    if len({n.index for n in readers}) != len(readers):
        return None
    entries = {n.index: n for n in scope.consumers[node.outputs[0]]}
    return Regrouping(scope, node, tuple(entries.values()), rows, readers)


def carry_out(move: Regrouping, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What the norm makes while nothing takes it in, its operator, and what takes the place of the nodes."""
    norm, before = move.norm, move.norm.outputs[0]
    normalized = names.fresh(f"{move.rows}/normalized")
    made = [_on(entry, before, norm.inputs[0]) for entry in move.entries]
    attributes = tuple({**norm.attributes, "axis": -1}.items())
    inputs = (move.rows, *norm.inputs[1:])
    made.append(NewNode(norm.op, norm.proto.name, inputs, (normalized,), attributes, like=norm.index))
    made += [_on(reader, move.rows, normalized) for reader in move.readers]
    return (normalized,), norm.op, Replacement(move.scope, move.members, tuple(made))


def _on(node: Node, value: str, other: str) -> NewNode:
    """The node with one value read in another's place."""
    inputs = tuple(other if v == value else v for v in node.inputs)
    return NewNode(node.op, node.proto.name, inputs, node.outputs, tuple(node.attributes.items()), like=node.index)


def _regrouped(scope: Scope, start: str) -> str | None:
    """The value that all rows of `start` end up in, read by projections alone; None where there is none, or several."""
    values, pending, ends = {start}, _readers(scope, start), set()  # type: set[str], dict[int, Node], set[str]
    for _ in range(_MOST_STEPS):
        if not pending:
            break
        node = pending.pop(min(pending))
        if _is_projection(scope, node, values):
            ends.add(node.inputs[0])
        elif _moves_rows(scope, node, values):
            values.add(node.outputs[0])
            pending.update(_readers(scope, node.outputs[0]))
        else:
            return None
    if pending or len(ends) != 1 or start in ends or any(scope.escapes(v) for v in values):
        return None
    end = ends.pop()
    last = scope.producers[end]
    if last.op == "Transpose" and last.inputs[0] == start:  # `transposes` moves it to the attention, if it can
        return None
    if all(scope.producers[v].op in RESHAPES for v in values - {start}):  # rules look through these
        return None
    return end if all(_is_projection(scope, n, {end}) for n in _readers(scope, end).values()) else None


def _readers(scope: Scope, value: str) -> dict[int, Node]:
    """What reads a value itself, not its shape, by place in the order."""
    return {scope.positions[n.index]: n for n in scope.value_readers(value)}


def _is_projection(scope: Scope, node: Node, values: set[str]) -> bool:
    """Whether a node multiplies rows of these values with a matrix that is none of them."""
    if node.op not in ("MatMul", "Gemm") or node.attributes.get("transA", 0) or scope.fact(node.input(1)).rank != 2:
        return False
    if any(v in values for v in node.inputs[2:]):
        return False
    return node.inputs[0] in values and node.inputs[1] not in values


def _moves_rows(scope: Scope, node: Node, values: set[str]) -> bool:
    """Whether a node takes whole rows of these values as they are, each to some place, and makes none of its own."""
    before, after = scope.fact(node.input(0)).shape, scope.fact(node.outputs[0]).shape if node.outputs else None
    if not before or not after or len(node.outputs) != 1 or before[-1] != after[-1] or node.inputs[0] not in values:
        return False
    last = len(before) - 1
    if node.op == "Concat":
        return all(v in values for v in node.inputs) and node.attributes.get("axis") not in (-1, last)
    if any(v in values for v in node.inputs[1:]):
        return False
    if node.op == "Transpose":
        perm = node.attributes.get("perm")
        return isinstance(perm, tuple) and perm[-1] == last
    if node.op == "Gather":
        return node.attributes.get("axis", 0) not in (-1, last)
    if node.op == "Slice":
        axes = scope.fact(node.input(3)).elements
        return bool(axes) and all(isinstance(a, int) and a not in (-1, last) for a in axes or ())
    if node.op == "Pad":
        pads = scope.fact(node.input(1)).elements
        return bool(pads) and all(p == 0 for p in pads or ())
    return node.op in RESHAPES
