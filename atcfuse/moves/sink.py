"""Transposes of heads moved past norms of queries and keys, and past the Concat of a joint attention's two streams.

A norm over the last axis, spelled out or one operator, treats every row alike, and rows of two values are put together
in one order of axes as in another. Behind them a Transpose is one more view of attention's operands. As with the other
moves, one that nothing takes up is undone.
"""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.respelling import Several
from atcfuse.moves.unshare import is_rotated

_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Cast", "Neg"})
_ROW_WISE = _ELEMENTWISE | _NORMS | {"ReduceMean"}
"""Operators of which each row of the result may come from one row of each operand."""
_MOST_NODES = 48
"""Two streams, each with a norm of queries spelled out in a dozen nodes."""


@dataclass(frozen=True)
class Sinking(Several):
    """Transposes by one `perm`, the row-wise `nodes` that read them in order, and the `end` that takes their place."""

    scope: Scope
    transposes: tuple[Node, ...]
    nodes: tuple[Node, ...]
    end: Node
    perm: tuple[int, ...]

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that the move replaces."""
        return (self.end, *self.transposes, *self.nodes)


def find(scope: Scope, node: Node) -> Sinking | None:
    """The Transposes that may move behind a node: a Concat of what they make, or the end of a norm."""
    if node.op == "Concat":
        return _behind(scope, node)
    if node.op not in _ELEMENTWISE and node.op not in _NORMS:
        return None
    readers = scope.value_readers(node.outputs[0])
    if any(r.op == "Concat" or _is_row_wise(scope, r) for r in readers):
        return None
    if is_rotated(scope, node.outputs[0]):  # a rotary embedding takes the norm and the Transpose in as they stand
        return None
    found = _behind(scope, node)
    if found is None or not any(n.op in _NORMS or n.op == "ReduceMean" for n in (*found.nodes, node)):
        return None
    return found


def carry_out(move: Sinking, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What the Transpose behind makes while nothing takes it in, that operator, and what takes the nodes' place."""
    before = {t.outputs[0]: t.inputs[0] for t in move.transposes}
    made: list[NewNode] = []
    for node in (*move.nodes, move.end):
        output = node.outputs[0]
        before[output] = names.fresh(f"{output}/rows")
        inputs = tuple(before.get(v, v) for v in node.inputs)
        attributes = dict(node.attributes)
        if node.op == "Concat":
            attributes["axis"] = move.perm[attributes["axis"]]
        name = names.fresh(f"{node.name}/rows")
        made.append(NewNode(node.op, name, inputs, (before[output],), tuple(attributes.items()), like=node.index))
    output = move.end.outputs[0]
    last = move.transposes[0]
    attributes = {"perm": move.perm}
    name = move.end.proto.name
    made.append(NewNode("Transpose", name, (before[output],), (output,), tuple(attributes.items()), like=last.index))
    return (output,), "Transpose", Replacement(move.scope, move.members, tuple(made))


def _behind(scope: Scope, end: Node) -> Sinking | None:
    nodes, transposes, pending = {}, {}, [end]  # type: dict[int, Node], dict[int, Node], list[Node]
    while pending:
        node = pending.pop()
        if not (node is end and node.op == "Concat") and not _is_row_wise(scope, node):
            return None
        nodes[node.index] = node
        for value in node.inputs:
            if not value or _is_one_row(scope, value):
                continue
            maker = scope.producers.get(value)
            if maker is None or len(nodes) > _MOST_NODES:
                return None
            if maker.op == "Transpose":
                transposes[maker.index] = maker
            elif maker.index not in nodes:
                pending.append(maker)
    perms = {t.attributes.get("perm") for t in transposes.values()}
    perm = perms.pop() if len(perms) == 1 else None
    if not isinstance(perm, tuple) or len(perm) < 3 or perm[-1] != len(perm) - 1:
        return None
    shape = scope.fact(end.outputs[0]).shape
    if shape is None or len(shape) != len(perm) or not _is_closed(scope, nodes, transposes, end):
        return None
    if end.op == "Concat" and end.attributes.get("axis", -1) % len(perm) == len(perm) - 1:
        return None
    order = sorted((n for n in nodes.values() if n is not end), key=lambda n: scope.positions[n.index])
    return Sinking(scope, tuple(transposes.values()), tuple(order), end, perm)


def _is_closed(scope: Scope, nodes: dict[int, Node], transposes: dict[int, Node], end: Node) -> bool:
    """Whether nothing else reads what lies between the Transposes and the end."""
    inside = {o for n in (*nodes.values(), *transposes.values()) if n is not end for o in n.outputs}
    if any(scope.escapes(v) for v in inside):
        return False
    return all(reader.index in nodes for v in inside for reader in scope.consumers.get(v, ()))


def _is_row_wise(scope: Scope, node: Node) -> bool:
    """Whether a node makes each row of its result from that row of its operands, which have its rank or are one row."""
    if node.op not in _ROW_WISE or len([o for o in node.outputs if o]) != 1:
        return False
    shapes = [scope.fact(v).shape for v in node.inputs if v]
    result = scope.fact(node.outputs[0]).shape
    if result is None or any(s is None for s in shapes):
        return False
    last = len(result) - 1
    if node.op in _NORMS:
        return node.attributes.get("axis", -1) in (-1, last) and all(
            _is_one_row(scope, v) for v in node.inputs[1:] if v
        )
    if node.op == "ReduceMean":
        axes = node.attributes.get("axes") or scope.fact(node.input(1)).elements
        return axes in ((-1,), (last,)) and node.attributes.get("keepdims", 1) == 1
    return all(_is_one_row(scope, v) or len(s or ()) == len(result) for v, s in zip(node.inputs, shapes, strict=False))


def _is_one_row(scope: Scope, value: str) -> bool:
    """Whether a value is the same for every row: a number, or one row."""
    shape = scope.fact(value).shape
    return shape is not None and all(d == 1 for d in shape[:-1])
