"""Rotary embedding behind tokens that are not rotated, spelled as one of all tokens.

Vision transformers leave class and register tokens as they are and rotate the rest: the tokens are cut apart and put
together again. x·1 + turned(x)·0 is x to the last bit, so the same result comes from rotating all tokens, the first
ones with a cosine of 1 and a sine of 0. As with the other moves, one that no fusion takes up is undone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atcfuse.dims import Dim
from atcfuse.graph.constants import NUMPY_TYPES
from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.views import identity
from atcfuse.match.chains import roots
from atcfuse.moves.respelling import Several

_TURNS = frozenset({"Slice", "Split", "Neg", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Cast", "Identity"})
_MOST_NODES = 16


@dataclass(frozen=True)
class Rotation(Several):
    """Tokens cut from `whole`, of which the first `count` are put back before the others, which `nodes` rotate.

    `cos` and `sin` are what these multiply with, `total` their sum, `end` the Concat, `cuts` what cut the tokens apart.
    """

    scope: Scope
    whole: str
    tokens: str
    count: int
    nodes: tuple[Node, ...]
    cos: str
    sin: str
    total: Node
    end: Node
    cuts: tuple[Node, ...]

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that the move replaces."""
        return (self.end, *self.nodes, *self.cuts)


def find(scope: Scope, node: Node) -> Rotation | None:
    """The rotation that ends in a Concat of tokens."""
    shape = scope.fact(node.outputs[0]).shape if node.op == "Concat" and len(node.inputs) == 2 else None
    if shape is None or len(shape) < 3 or node.attributes.get("axis") not in (-2, len(shape) - 2):
        return None
    total = scope.producer(node.inputs[1])
    first = _cut(scope, node.inputs[0])
    if total is None or total.op != "Add" or first is None or first[1] != 0:
        return None
    whole, _, count = first
    if not isinstance(count, int) or scope.fact(whole).shape != shape:
        return None
    for cosine, sine in (total.inputs, total.inputs[::-1]):
        found = _rotated(scope, (whole, count), (cosine, sine), total, node)
        if found is not None:
            return found
    return None


def carry_out(move: Rotation, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """The sum that rotates all tokens while nothing takes it in, that operator, and what takes the nodes' place."""
    scope, shape = move.scope, move.scope.fact(move.whole).shape or ()
    made: list[NewNode] = []
    now = {move.tokens: move.whole}
    for table, number in ((move.cos, 1.0), (move.sin, 0.0)):
        now[table] = _longer(move, table, number, names, made)
    for node in move.nodes:
        inputs: list[str | tuple[int, ...]] = [now.get(v, v) for v in node.inputs]
        attributes = dict(node.attributes)
        if node.op == "Reshape":
            rest = (scope.fact(node.outputs[0]).shape or ())[len(shape) - 1 :]
            inputs[1:] = [(*[0] * (len(shape) - 1), *(int(d) for d in rest if isinstance(d, int)))]
            attributes.pop("allowzero", None)
        for output in node.outputs:
            now[output] = names.fresh(f"{output}/all") if output else ""
        outputs = tuple(now.get(o, "") for o in node.outputs)
        name = names.fresh(f"{node.name}/all")
        made.append(NewNode(node.op, name, tuple(inputs), outputs, tuple(attributes.items()), like=node.index))
    value = now[move.end.inputs[1]]
    made.append(NewNode("Identity", move.end.proto.name, (value,), move.end.outputs, like=move.end.index))
    shapes = {n.index: _shape(move, n, names) for n in scope.consumers.get(move.tokens, ()) if n.op == "Shape"}
    return (now[move.total.outputs[0]],), "Add", Replacement(scope, move.members, tuple(made), shapes)


def _longer(move: Rotation, table: str, number: float, names: Names, made: list[NewNode]) -> str:
    """A table of cosines or sines with rows for the first tokens in front."""
    fact = move.scope.fact(table)
    shape = fact.shape or ()
    rows = np.full((*(int(d) for d in shape[:-2] if isinstance(d, int)), move.count, int(str(shape[-1]))), number)
    first, longer = names.fresh(f"{table}/first"), names.fresh(f"{table}/all")
    filled = rows.astype(NUMPY_TYPES[fact.dtype])
    made.append(NewNode("Constant", names.fresh(f"{first}_node"), (), (first,), (("value", filled),)))
    axis = (("axis", len(shape) - 2),)
    made.append(NewNode("Concat", names.fresh(f"{longer}_node"), (first, table), (longer,), axis))
    return longer


def _rotated(scope: Scope, cut: tuple[str, int], products: tuple[str, str], total: Node, end: Node) -> Rotation | None:
    """The rotation whose products with cosines and with sines these are."""
    whole, count = cut
    cosine, sine = (scope.producer(v) for v in products)
    if cosine is None or sine is None or cosine.op != "Mul" or sine.op != "Mul":
        return None
    tables = (_table(scope, cosine, count, whole), _table(scope, sine, count, whole))
    if tables[0] is None or tables[1] is None:
        return None
    nodes = {n.index: n for n in (total, cosine, sine)}
    tokens: set[str] = set()
    if not _climb(scope, end.inputs[1], nodes, set(tables) - {None}, tokens, whole) or len(tokens) != 1:
        return None
    value = tokens.pop()
    place = _cut(scope, value)
    if place is None or place[:2] != (whole, count):
        return None
    straight = next(v for v in cosine.inputs if v != tables[0])
    if scope.source(straight) != scope.source(value):
        return None
    ordered = tuple(sorted(nodes.values(), key=lambda n: scope.positions[n.index]))
    cuts = _cuts(scope, ordered, (value, end.inputs[0]), end)
    closed = {n.index for n in (*ordered, end)}
    inside = [o for n in ordered for o in n.outputs if o]
    if cuts is None or any(scope.escapes(o) for o in inside):
        return None
    if any(r.index not in closed for o in inside for r in scope.consumers.get(o, ())):
        return None
    return Rotation(scope, whole, value, count, ordered, str(tables[0]), str(tables[1]), total, end, cuts)


def _table(scope: Scope, product: Node, count: int, whole: str) -> str | None:
    """The operand of a product that has one row for each of the tokens and none of what is in front of them."""
    shape = scope.fact(whole).shape or ()
    for value in product.inputs:
        fact = scope.fact(value)
        rows: tuple[Dim, ...] = fact.shape or ()
        if len(rows) < 2 or any(d != 1 for d in rows[:-2]) or rows[-2] == 1 or not isinstance(rows[-1], int):
            continue
        if rows[-2] == shape[-2] - count and rows[-1] == shape[-1] and fact.dtype in NUMPY_TYPES:
            return value
    return None


def _climb(
    scope: Scope, value: str, nodes: dict[int, Node], tables: set[str | None], tokens: set[str], whole: str
) -> bool:
    """Collects what makes a value of the tokens, each row of its own; False where it is anything else."""
    lead = tuple(scope.fact(value).shape or ())[: len(scope.fact(whole).shape or ()) - 1]
    pending, seen = [value], set()  # type: list[str], set[str]
    while pending:
        here = pending.pop()
        if here in seen or here in tables:
            continue
        seen.add(here)
        place = _cut(scope, here)
        if place is not None and place[0] == whole:
            tokens.add(here)
            continue
        maker = scope.producers.get(here)
        if maker is None or len(nodes) > _MOST_NODES:
            return False
        if maker.index not in nodes and not _turns_rows(scope, maker, len(lead)):
            return False
        if tuple(scope.fact(here).shape or ())[: len(lead)] != lead:
            return False
        nodes[maker.index] = maker
        pending += maker.inputs if maker.op in ("Concat", "Add", "Mul") else maker.inputs[:1]
    return True


def _turns_rows(scope: Scope, node: Node, lead: int) -> bool:
    """Whether a node moves elements within rows only, negates or converts them; extents in front stay, see `_climb`."""
    shape = scope.fact(node.outputs[0]).shape
    if node.op not in _TURNS or shape is None or any(not isinstance(d, int) for d in shape[lead:]):
        return False
    if node.op == "Slice":
        axes = scope.fact(node.input(3)).elements
        rank = scope.fact(node.input(0)).rank
        return bool(axes) and rank is not None and all(isinstance(a, int) and a % rank >= lead for a in axes or ())
    if node.op in ("Split", "Concat"):
        axis = node.attributes.get("axis", 0)
        return bool(axis % len(shape) >= lead)
    return True


def _cut(scope: Scope, value: str) -> tuple[str, int, Dim | None] | None:
    """What a value is cut from along its second last axis, where the cut begins and how long it is."""
    links = roots(scope, value, scaling=False)
    if len(links) < 2:
        return None
    own, link = links[0].shape, links[1]
    whole = identity(link.view.root, link.shape).axes
    if len(own) != len(link.shape) or len(own) < 3 or not isinstance(own[-1], int):
        return None
    if own[:-2] != link.shape[:-2] or own[-1] != link.shape[-1] or own[-2] == link.shape[-2]:
        return None
    axes = link.view.axes
    if (*axes[:-2], axes[-1]) != (*whole[:-2], whole[-1]) or not isinstance(link.view.offset, int):
        return None
    steps = [f for f in axes[-2] if f[0] != 1]
    start, rest = divmod(link.view.offset, own[-1])
    return (str(link.value), start, own[-2]) if not rest and all(f[1] == own[-1] for f in steps) else None


def _cuts(scope: Scope, nodes: tuple[Node, ...], values: tuple[str, str], end: Node) -> tuple[Node, ...] | None:
    """The nodes that cut the tokens apart, where nothing else reads them; None where that is not so."""
    cuts = {m.index: m for m in (scope.producers.get(v) for v in values) if m is not None}
    inside = {n.index for n in (*nodes, end)}
    for node in cuts.values():
        for output in node.outputs:
            if output not in values or scope.escapes(output):
                return None
            if any(
                r.index not in inside for r in scope.consumers.get(output, ()) if output != values[0] or r.op != "Shape"
            ):
                return None
    return tuple(cuts.values())


def _shape(move: Rotation, node: Node, names: Names) -> tuple[NewNode, ...]:
    """The shape of the tokens that were rotated, as that of all tokens less the first."""
    rank = move.scope.fact(move.whole).rank or 0
    less = tuple(move.count if axis == rank - 2 else 0 for axis in range(rank))
    value = names.fresh(f"{node.outputs[0]}/all")
    attributes = tuple(node.attributes.items())
    first = NewNode("Shape", names.fresh(f"{node.name}/all"), (move.whole,), (value,), attributes, like=node.index)
    less = less[node.attributes.get("start", 0) : node.attributes.get("end")]
    return first, NewNode("Sub", node.proto.name, (value, less), node.outputs)
