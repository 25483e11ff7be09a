"""Products of attention over several batch axes (windows, blocks, parts of a patch), spelled with one batch axis.

A layout names one batch axis. So before a product the axes in front of the heads become one, and behind it they come
back, both by Reshape, which copies nothing. Transposes and Reshapes around the product that leave these axes alone are
done on the merged ones, so that an operand can still be read from below them. As with the other moves, one after which
no attention is fused is undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atcfuse.dims import Dim, product
from atcfuse.graph.edit import Names, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.einsum import comes_from_softmax
from atcfuse.moves.rescale import leads_to_softmax
from atcfuse.moves.respelling import Several, Steps

_LEAST = 5
"""Fewer axes are batch, heads, positions and width."""
_ALLOWZERO = 14
"""The opset from which on Reshape takes a 0 for what it is."""
_MOST = 8
"""So many views are followed on either side."""


@dataclass(frozen=True)
class Merging(Several):
    """A MatMul with `lead` batch axes before the heads, and the views behind it that leave these alone."""

    scope: Scope
    node: Node
    lead: int
    behind: tuple[Node, ...]

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes that the move replaces: the product and the views behind it."""
        return (self.node, *self.behind)


def find(scope: Scope, node: Node) -> Merging | None:
    """The product that a node is, if it is one of attention over several batch axes that both operands have."""
    if node.op != "MatMul" or len(node.inputs) != 2:
        return None
    left, right = (scope.fact(v).shape or () for v in node.inputs)
    lead = len(left) - 3
    if len(left) < _LEAST or len(right) != len(left) or left[:lead] != right[:lead]:
        return None
    if not all(_is_plain(scope, v, lead) for v in (*node.inputs, *node.outputs)) or not _can_come_back(
        scope, left[:lead]
    ):
        return None
    if not comes_from_softmax(scope, node.inputs[0]) and not leads_to_softmax(scope, node.outputs[0]):
        return None
    return Merging(scope, node, lead, _behind(scope, node, lead))


def _is_plain(scope: Scope, value: str, lead: int) -> bool:
    """Whether the extents behind the first axes are numbers, or all but one are and so are the first ones."""
    shape = scope.fact(value).shape or ()
    open_ = [d for d in shape[lead:] if not isinstance(d, int)]
    return len(shape) > lead and (not open_ or (len(open_) == 1 and all(isinstance(d, int) for d in shape[:lead])))


def _can_come_back(scope: Scope, lead: Sequence[Dim]) -> bool:
    """Whether a Reshape can give the batch axes back: of several open ones a 0 must not copy."""
    return sum(not isinstance(d, int) for d in lead) < 2 or scope.model.opset >= _ALLOWZERO


def _behind(scope: Scope, node: Node, lead: int) -> tuple[Node, ...]:
    """The views of the result, one after the other, of which nothing else reads anything."""
    found: list[Node] = []
    last = node
    while len(found) < _MOST and not scope.escapes(last.outputs[0]):
        readers = scope.consumers.get(last.outputs[0], ())
        if len(readers) != 1 or not _leaves(scope, readers[0], lead) or readers[0].inputs[0] != last.outputs[0]:
            break
        last = readers[0]
        found.append(last)
    return tuple(found)


def _leaves(scope: Scope, node: Node, lead: int) -> bool:
    """Whether a node is a view that leaves the first axes alone."""
    before, after = scope.fact(node.input(0)).shape or (), scope.fact(node.outputs[0]).shape or ()
    if not _is_plain(scope, node.outputs[0], lead) or before[:lead] != after[:lead]:
        return False
    perm = node.attributes.get("perm")
    return node.op == "Reshape" or (isinstance(perm, tuple) and perm[:lead] == tuple(range(lead)))


def carry_out(move: Merging, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What the product makes while no attention takes it up, its operator, and what takes the nodes' place."""
    steps = Steps(move.node, names)
    (left, _), (right, ground) = (_merged(move, steps, value, 0) for value in move.node.inputs)
    product = value = steps.add("MatMul", left, right)
    for node in move.behind:
        value = _again(move, steps, node, value)
    last = move.behind[-1] if move.behind else move.node
    _come_back(move, steps, value, ground, last.outputs[0])
    return (product,), "MatMul", Replacement(move.scope, move.members, tuple(steps.made))


def _merged(move: Merging, steps: Steps, value: str, passed: int) -> tuple[str, str]:
    """A value with one batch axis, merged as far below as views leave the axes alone, and what it was merged from."""
    node = move.scope.producer(value)
    if node is not None and passed < _MOST and _leaves(move.scope, node, move.lead):
        below, ground = _merged(move, steps, node.inputs[0], passed + 1)
        return _again(move, steps, node, below), ground
    return steps.add("Reshape", value, _target(move, value)), value


def _again(move: Merging, steps: Steps, node: Node, value: str) -> str:
    """A view once more, of the value with one batch axis."""
    if node.op == "Reshape":
        return steps.add("Reshape", value, _target(move, node.outputs[0]))
    less = move.lead - 1
    return steps.add("Transpose", value, perm=(0, *(p - less for p in node.attributes["perm"][move.lead :])))


def _target(move: Merging, value: str) -> tuple[int, ...]:
    """The shape of a value with one batch axis, where one extent is what remains."""
    shape = move.scope.fact(value).shape or ()
    tail = tuple(d if isinstance(d, int) else -1 for d in shape[move.lead :])
    whole = product(shape[: move.lead])
    return (whole if -1 in tail and isinstance(whole, int) else -1, *tail)


def _come_back(move: Merging, steps: Steps, value: str, ground: str, end: str) -> None:
    """The Reshape that makes `end` as it was; open batch axes are read from what was merged."""
    shape = move.scope.fact(end).shape or ()
    if sum(not isinstance(d, int) for d in shape) < 2:
        steps.end(end, "Reshape", value, tuple(d if isinstance(d, int) else -1 for d in shape))
        return
    lead = steps.add("Gather", steps.add("Shape", ground), tuple(range(move.lead)), axis=0)
    tail = tuple(d for d in shape[move.lead :] if isinstance(d, int))
    steps.end(end, "Reshape", value, steps.add("Concat", lead, tail, axis=0), allowzero=1)
