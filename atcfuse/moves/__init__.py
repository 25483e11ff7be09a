"""Moves: edits in standard operators that change no number and bring together what one fused operator takes.

Moves are tried. One that no fusion takes up (`stuck`) is undone, and the model is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from atcfuse.graph.edit import Names, Replacement, apply
from atcfuse.graph.index import Model, Node, Scope
from atcfuse.keep_nodes import KeepNodes
from atcfuse.moves import (
    einsum,
    native,
    prefix,
    regroup,
    rescale,
    sink,
    subtract,
    transposes,
    unread,
    unshare,
)


class Move(Protocol):
    """Nodes of a scope that can be spelled anew, by the name that the move is remembered by."""

    @property
    def scope(self) -> Scope:
        """Where the nodes are."""

    @property
    def members(self) -> frozenset[int]:
        """The nodes that the move replaces."""

    @property
    def name(self) -> str:
        """What the move is remembered by."""


@dataclass(frozen=True)
class Kind:
    """How moves of one kind are found at a node, and carried out.

    Carrying out gives the values by which a trial is told, the operator that makes them while nothing takes it up, and
    what is put in the nodes' place.
    """

    find: Callable[[Scope, Node], Move | None]
    carry_out: Callable[[Any, Names], tuple[tuple[str, ...], str, Replacement]]


KINDS = (
    Kind(unread.find, unread.carry_out),
    Kind(transposes.find, transposes.carry_out),
    Kind(rescale.find, rescale.carry_out),
    Kind(einsum.find, einsum.carry_out),
    Kind(native.find, native.carry_out),
    Kind(subtract.find, subtract.carry_out),
    Kind(regroup.find, regroup.carry_out),
    Kind(prefix.find, prefix.carry_out),
    Kind(sink.find, sink.carry_out),
    Kind(unshare.find, unshare.carry_out),
)
"""Every kind of move, asked in this order for the one that a node begins or ends."""


@dataclass(frozen=True)
class Begun:
    """A move that may pay, and its kind."""

    kind: Kind
    move: Move


@dataclass(frozen=True)
class Moved:
    """A move that was carried out: its name, and the values that operators `op` make while nothing takes it up."""

    name: str
    made: tuple[str, ...]
    op: str


def find(model: Model, keep: KeepNodes, stuck: Collection[str] = ()) -> list[Begun]:
    """The moves that may pay, none that changes a node of another one, of `keep`, or by the name of one in `stuck`."""
    found: list[Begun] = []
    for scope in model.scopes():
        taken: set[int] = set()
        for node in scope.nodes:
            begun = _begun(scope, node)
            if begun is None or begun.move.name in stuck or taken & begun.move.members:
                continue
            if any(keep.reason(n.name, n.op) for n in (scope.nodes[i] for i in begun.move.members)):
                continue
            taken |= begun.move.members
            found.append(begun)
    return found


def _begun(scope: Scope, node: Node) -> Begun | None:
    for kind in KINDS:
        move = kind.find(scope, node)
        if move is not None:
            return Begun(kind, move)
    return None


def carry_out(model: Model, moves: Sequence[Begun]) -> list[Moved]:
    """Carries the moves out, in place."""
    names = Names(model)
    done, replacements = [], []
    for begun in moves:
        made, op, replacement = begun.kind.carry_out(begun.move, names)
        done.append(Moved(begun.move.name, made, op))
        replacements.append(replacement)
    apply(model, replacements, (), names)
    return done


def stuck(model: Model, moved: Sequence[Moved]) -> frozenset[str]:
    """The names of moves that nothing took up: what was moved is still there."""
    left = {(n.op, output) for scope in model.scopes() for n in scope.nodes for output in n.outputs}
    return frozenset(m.name for m in moved if any((m.op, value) in left for value in m.made))
