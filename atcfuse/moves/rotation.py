"""ONNX's own RotaryEmbedding operator (opset 23), spelled as products of halves or neighbours, which rules know.

Vectors [batch, heads, positions, dim], or with the heads of a position in one row; a cosine and a sine for each pair,
of each position of a batch or from tables that positions choose of; the last elements of a vector may stay as they are.

As with the other moves, one after which no rotation is fused is undone.
"""

from __future__ import annotations

from atcfuse.graph.edit import Names, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.respelling import Respelling, Steps

_FLOATS = frozenset({1, 10})
_END = 2**63 - 1


def find(scope: Scope, node: Node) -> Respelling | None:
    """The RotaryEmbedding that a node is, if it can be spelled out."""
    if node.op != "RotaryEmbedding" or obstacle(scope, node) is not None:
        return None
    return Respelling(scope, node)


def obstacle(scope: Scope, node: Node) -> str | None:
    """Why a RotaryEmbedding cannot be spelled out, or None where it can."""
    if not node.outputs[:1] or not node.outputs[0]:
        return "the result is left out"
    x, *tables = (scope.fact(node.input(i)) for i in range(3))
    if x.shape is None or len(x.shape) not in (3, 4):
        return "the vectors have no known shape of three or four axes"
    if x.dtype not in _FLOATS or any(t.dtype != x.dtype for t in tables):
        return "vectors, cosines and sines are not all float32 or all float16"
    dim = _dim(scope, node)
    width = _width(scope, node)
    if not dim or width % 2 or not 0 < width <= dim:
        return "the number of elements of a vector, or of those that are rotated, is not known or not even"
    rank = 2 if node.input(3) else 3
    if any(t.shape is None or len(t.shape) != rank or t.shape[-1] != width // 2 for t in tables):
        return "cosines and sines are not proved to be one for each pair of elements"
    if node.input(3):
        known = scope.fact(node.input(3)).rank == 2
        return None if known else "the positions are not known to be those of each batch"
    batch, positions = x.shape[0], x.shape[1 if len(x.shape) == 3 else 2]
    # PyTorch writes tables of one batch for all; the reference implementation repeats them.
    if any((t.shape or ())[:2] not in ((batch, positions), (1, positions)) for t in tables):
        return "cosines and sines are not proved to be one for each position of each batch"
    return None


def _dim(scope: Scope, node: Node) -> int:
    """The number of elements of a vector, 0 where it is not known."""
    shape = scope.fact(node.input(0)).shape or (0,)
    row, heads = shape[-1], node.attributes.get("num_heads", 0)
    if not isinstance(row, int):
        return 0
    if len(shape) == 4:
        return row
    return row // heads if heads > 0 and row % heads == 0 else 0


def _width(scope: Scope, node: Node) -> int:
    """How many elements of a vector are rotated."""
    return int(node.attributes.get("rotary_embedding_dim", 0)) or _dim(scope, node)


def carry_out(move: Respelling, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What puts vectors together while no rotation is fused, that operator, and what takes the node's place."""
    scope, node = move.scope, move.node
    steps, flat = Steps(node, names), scope.fact(node.inputs[0]).rank == 3
    dim, width = _dim(scope, node), _width(scope, node)
    x, heads = node.inputs[0], int(node.attributes.get("num_heads", 0))
    if flat:
        x = steps.add("Reshape", x, (0, 0, heads, dim))
    cos, sin = (_angles(steps, table, 2 if flat else 1) for table in node.inputs[1:3])
    turning = x if width == dim else steps.add("Slice", x, (0,), (width,), (3,))
    turned = (_neighbours if node.attributes.get("interleaved", 0) else _halves)(steps, turning, cos, sin, width)
    if width < dim:
        turned = steps.add("Concat", turned, steps.add("Slice", x, (width,), (_END,), (3,)), axis=-1)
    if flat:
        steps.end(node.outputs[0], "Reshape", turned, (0, 0, heads * dim))
    else:
        last = steps.made.pop()
        steps.end(node.outputs[0], last.op, *last.inputs, **dict(last.attributes))
    made = turned if flat else node.outputs[0]
    op = next(n.op for n in steps.made if made in n.outputs)
    return (made,), op, Replacement(scope, move.members, tuple(steps.made))


def _angles(steps: Steps, table: str, axis: int) -> str:
    """Cosines or sines with an axis for the heads."""
    positions = steps.node.input(3)
    chosen = steps.add("Gather", table, positions, axis=0) if positions else table
    return steps.add("Unsqueeze", chosen, (axis,))


def _turned(steps: Steps, first: str, second: str, cos: str, sin: str) -> tuple[str, str]:
    """Pairs, of which the one has the first elements and the other the second, turned by their angles."""
    left = steps.add("Sub", steps.add("Mul", first, cos), steps.add("Mul", second, sin))
    return left, steps.add("Add", steps.add("Mul", second, cos), steps.add("Mul", first, sin))


def _halves(steps: Steps, x: str, cos: str, sin: str, width: int) -> str:
    first = steps.add("Slice", x, (0,), (width // 2,), (3,))
    second = steps.add("Slice", x, (width // 2,), (_END,), (3,))
    return steps.add("Concat", *_turned(steps, first, second, cos, sin), axis=-1)


def _neighbours(steps: Steps, x: str, cos: str, sin: str, width: int) -> str:
    even, odd = (steps.add("Slice", x, (start,), (_END,), (3,), (2,)) for start in (0, 1))
    pairs = [steps.add("Unsqueeze", part, (4,)) for part in _turned(steps, even, odd, cos, sin)]
    return steps.add("Reshape", steps.add("Concat", *pairs, axis=-1), (0, 0, 0, width))
