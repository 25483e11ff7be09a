"""Moves: edits in standard operators that change no number and bring together what one fused operator takes.

Moves are tried. One that no fusion takes up (`stuck`) is undone, and the model is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from atcfuse.graph.edit import Names, Replacement, apply
from atcfuse.graph.index import Model, Node, Scope
from atcfuse.graph.traffic import KindsOf, kinds
from atcfuse.keep_nodes import KeepNodes
from atcfuse.moves import (
    apart,
    batches,
    bias,
    contraction,
    contrib,
    contrib_attention,
    einsum,
    expand,
    flattened,
    grid,
    lift,
    narrow,
    native,
    prefix,
    regroup,
    rescale,
    rotation,
    selection,
    sink,
    subtract,
    swap,
    transposes,
    unread,
    unrotated,
    unshare,
    update,
    widen,
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

    def beside(self, kept: Callable[[Node], bool]) -> Move | None:
        """What of the move is left where some nodes are kept; None where that is nothing."""


@dataclass(frozen=True)
class Kind:
    """How moves of one kind are found at a node, and carried out.

    Carrying out gives the values by which a trial is told, the operator that makes them while nothing takes it up, and
    what is put in the nodes' place.
    """

    find: Callable[[Scope, Node], Move | None]
    carry_out: Callable[[Any, Names], tuple[tuple[str, ...], str, Replacement]]
    kernel: str = "attention"
    """The kernel whose operator takes up what is moved, which is also the name of a rule that makes it."""
    operator: str = ""
    """An operator that no rule knows. `obstacle` tells why a node of it is not spelled anew, or None where it is."""
    obstacle: Callable[[Scope, Node], str | None] | None = None
    follows: bool = False
    """Whether it takes up what other moves make as well, and so is looked for once more behind them."""
    by_groups: bool = False
    """Whether it is element-wise groups, which come last, that take up what is moved."""

    @property
    def is_foreign(self) -> bool:
        """Whether ATC does not know the operator, so that it is no launch that others could be more than."""
        return self.operator.startswith(contrib.MICROSOFT)


KINDS = (
    Kind(unread.find, unread.carry_out, follows=True),
    Kind(update.find, update.carry_out),
    Kind(lift.find, lift.carry_out, by_groups=True),
    Kind(grid.find, grid.carry_out),
    Kind(expand.find, expand.carry_out),
    Kind(contraction.find, contraction.carry_out, "linear"),
    Kind(bias.find, bias.carry_out, "qkv", follows=True),
    Kind(flattened.find, flattened.carry_out, "layer_norm_qkv"),
    Kind(transposes.find, transposes.carry_out),
    Kind(rescale.find, rescale.carry_out, follows=True),
    Kind(einsum.find, einsum.carry_out),
    Kind(swap.find, swap.carry_out, follows=True),
    Kind(batches.find, batches.carry_out, follows=True),
    Kind(narrow.find, narrow.carry_out, follows=True),
    Kind(widen.find, widen.carry_out, follows=True),
    Kind(native.find, native.carry_out, operator="Attention", obstacle=native.obstacle),
    Kind(
        contrib_attention.find,
        contrib_attention.carry_out,
        operator=contrib_attention.OPERATOR,
        obstacle=contrib_attention.obstacle,
    ),
    Kind(
        contrib.skip_layer_norm,
        contrib.spell_layer_norm,
        "layer_norm",
        f"{contrib.MICROSOFT}SkipLayerNormalization",
        contrib.norm_obstacle,
        by_groups=True,
    ),
    Kind(
        contrib.skip_rms_norm,
        contrib.spell_rms_norm,
        "rms_norm",
        f"{contrib.MICROSOFT}SkipSimplifiedLayerNormalization",
        contrib.norm_obstacle,
        by_groups=True,
    ),
    *(
        Kind(contrib.activation, contrib.spell_activation, "ffn", op, contrib.activation_obstacle, by_groups=True)
        for op in contrib.ACTIVATIONS
    ),
    Kind(rotation.find, rotation.carry_out, "rotary_embedding", "RotaryEmbedding", rotation.obstacle),
    Kind(selection.find, selection.carry_out),
    Kind(subtract.find, subtract.carry_out),
    Kind(regroup.find, regroup.carry_out),
    Kind(prefix.find, prefix.carry_out),
    Kind(apart.find, apart.carry_out, "rotary_embedding"),
    Kind(sink.find, sink.carry_out),
    Kind(unrotated.find, unrotated.carry_out, "rotary_embedding", follows=True),
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
    """A move that was carried out: its name, and the values that operators `op` make while nothing takes it up.

    `nodes` are the names of the nodes in which it spells an operator that no rule knows, `others` that operator's
    outputs but for the first. `standing` are the names of all nodes that it put in the place of others, which were so
    many `launches`, but for those that a move before it made. `idle` are names of nodes that do nothing.
    """

    name: str
    made: tuple[str, ...]
    op: str
    nodes: frozenset[str]
    standing: frozenset[str]
    launches: int
    others: frozenset[str]
    kernel: str
    by_groups: bool
    idle: frozenset[str]
    is_foreign: bool = False


def find(model: Model, keep: KeepNodes, stuck: Collection[str] = (), kinds: Sequence[Kind] = KINDS) -> list[Begun]:
    """The moves that may pay, none that changes a node of another one, of `keep`, or by the name of one in `stuck`."""
    found: list[Begun] = []
    for scope in model.scopes():
        taken: set[int] = set()
        for node in scope.nodes:
            begun = _begun(scope, node, kinds)
            move = begun.move.beside(lambda n: bool(keep.reason(n.name, n.op))) if begun is not None else None
            if begun is None or move is None or move.name in stuck or taken & move.members:
                continue
            taken |= move.members
            found.append(Begun(begun.kind, move))
    return found


def _begun(scope: Scope, node: Node, kinds: Sequence[Kind]) -> Begun | None:
    for kind in kinds:
        move = kind.find(scope, node)
        if move is not None:
            return Begun(kind, move)
    return None


def carry_out(
    model: Model, moves: Sequence[Begun], kinds_of: KindsOf = kinds, before: Sequence[Moved] = ()
) -> list[Moved]:
    """Carries the moves out, in place, behind those that were carried out before.

    One that meets another in a node beside its members, or in a value, waits: behind the other it may be found again.
    """
    names, touched = Names(model), _Touched()
    done, replacements = [], []
    earlier = frozenset[str]().union(*(move.standing for move in before))
    for begun in moves:
        made, op, replacement = begun.kind.carry_out(begun.move, names)
        if not touched.takes(replacement):
            continue
        done.append(_moved(begun, made, op, replacement, kinds_of, earlier))
        replacements.append(replacement)
    apply(model, replacements, (), names)
    return done


@dataclass
class _Touched:
    """The nodes that replacements put others in the place of, the values that these read, and those that are gone."""

    nodes: set[tuple[int, int]] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)

    def takes(self, replacement: Replacement) -> bool:
        """Notes one more replacement; False where it cannot be carried out beside the others."""
        scope, rewrites = replacement.scope, replacement.rewrites
        indices = replacement.members | rewrites.keys()
        nodes = {(id(scope), index) for index in indices}
        new = [*replacement.made, *(node for made in rewrites.values() for node in made)]
        read = {value for node in new for value in node.inputs if isinstance(value, str)}
        made = {value for node in new for value in node.outputs}
        gone = {value for index in indices for value in scope.nodes[index].outputs if value} - made
        if not (self.nodes.isdisjoint(nodes) and self.gone.isdisjoint(read) and self.read.isdisjoint(gone)):
            return False
        self.nodes |= nodes
        self.read |= read
        self.gone |= gone
        return True


def _moved(
    begun: Begun, made: tuple[str, ...], op: str, replacement: Replacement, kinds_of: KindsOf, earlier: Collection[str]
) -> Moved:
    kind, scope = begun.kind, begun.move.scope
    replaced, found = [scope.nodes[i] for i in begun.move.members], kinds_of(scope)
    standing = frozenset(n.name or n.outputs[0] for n in replacement.made)
    nodes = standing if kind.operator else frozenset[str]()
    others = frozenset(o for node in replaced for o in node.outputs[1:]) if kind.operator else frozenset[str]()
    launches = sum(found[node.index] == "launch" and node.name not in earlier for node in replaced)
    name, foreign = begun.move.name, kind.is_foreign
    idle = frozenset(n.name for n in replacement.made if n.idle)
    return Moved(name, made, op, nodes, standing, launches, others, kind.kernel, kind.by_groups, idle, foreign)


def idle(moved: Sequence[Moved]) -> frozenset[str]:
    """The names of all nodes that moves made and that do nothing."""
    return frozenset[str]().union(*(move.idle for move in moved))


def stuck(model: Model, moved: Sequence[Moved], *, by_groups: bool = False) -> frozenset[str]:
    """The names of moves that nothing took up: what was moved is still there. Those for element-wise groups are asked
    of `by_groups`, when these are made.
    """
    left = {(n.op, output) for scope in model.scopes() for n in scope.nodes for output in n.outputs}
    asked = (m for m in moved if m.by_groups == by_groups)
    return frozenset(m.name for m in asked if any((m.op, value) in left for value in m.made))
