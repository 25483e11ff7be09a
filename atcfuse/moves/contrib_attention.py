"""onnxruntime's Attention, a packed projection with attention behind it, spelled in operators that rules know.

Keys may be masked by a number of keys that count for each batch, or by a mask of keys; or a query sees no later keys.
What is masked gets a large negative number added. ATC does not know the operator. As with the other moves, one
after which no attention is fused is undone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.contrib import MICROSOFT
from atcfuse.moves.respelling import FLOATS, Respelling, Steps, split, with_axes

OPERATOR = f"{MICROSOFT}Attention"
_INT32, _INT64 = 6, 7
_KNOWN = frozenset({"num_heads", "unidirectional", "qkv_hidden_sizes", "scale", "mask_filter_value"})


def find(scope: Scope, node: Node) -> Respelling | None:
    """The Attention that a node is, if it can be spelled out."""
    return Respelling(scope, node) if node.op == OPERATOR and obstacle(scope, node) is None else None


def obstacle(scope: Scope, node: Node) -> str | None:
    """Why an Attention cannot be spelled out, or None where it can."""
    if any(name not in _KNOWN and value for name, value in node.attributes.items()):
        return "an attribute of Attention is not known"
    if any(node.input(at) for at in range(4, 8)):
        return "keys of the past, or a bias of the scores, come with it"
    facts = [scope.fact(node.input(at)) for at in range(3)]
    if facts[0].dtype not in FLOATS or any(f.dtype != facts[0].dtype for f in facts if f.dtype or f.shape):
        return "rows and weights are not all float32 or all float16"
    if facts[0].rank != 3 or facts[1].rank != 2 or _sizes(scope, node) is None:
        return "the number of heads, or of elements of a vector, is not known"
    return _of_mask(scope, node)


def _of_mask(scope: Scope, node: Node) -> str | None:
    if not node.input(3):
        return None
    if node.attributes.get("unidirectional", 0):
        return "a mask comes with one of later keys"
    mask, rows = scope.fact(node.input(3)), scope.fact(node.inputs[0]).shape or ()
    if mask.dtype != _INT32 or mask.shape not in (rows[:1], rows[:2]):
        return "the mask is not proved to be a number for each batch, or for each of its keys"
    return None


def _sizes(scope: Scope, node: Node) -> tuple[int, tuple[int, int, int]] | None:
    """The number of heads, and of elements in the rows of queries, keys and values."""
    heads, width = node.attributes.get("num_heads", 0), (scope.fact(node.inputs[1]).shape or (0,))[-1]
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1:
        return None
    given = tuple(int(n) for n in node.attributes.get("qkv_hidden_sizes") or (width // 3,) * 3)
    if len(given) != 3 or sum(given) != width or given[0] != given[1] or any(n < heads or n % heads for n in given):
        return None
    return heads, (given[0], given[1], given[2])


def carry_out(move: Respelling, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What the last MatMul makes while no attention is fused, that operator, and what takes the operator's place."""
    scope, node, steps = move.scope, move.node, Steps(move.node, names)
    known = _sizes(scope, node)
    assert known is not None  # obstacle has seen to that
    heads, sizes = known
    queries, keys, values = (
        steps.add("Transpose", steps.add("Reshape", part, (0, 0, heads, size // heads)), perm=(0, 2, 1, 3))
        for part, size in zip(_projected(move, steps, names, sizes), sizes, strict=True)
    )
    picked = _picked(scope, (*node.outputs, "")[1])
    if picked is None:
        both = [_on(steps, names, scope, "Unsqueeze", value, (0,)) for value in (keys, values)]
        steps.end(node.outputs[1], "Concat", *both, axis=0)
    dtype = FLOATS[scope.fact(node.inputs[0]).dtype]
    scale = float(node.attributes.get("scale", 0.0)) or (sizes[0] // heads) ** -0.5
    product = steps.add("MatMul", queries, steps.add("Transpose", keys, perm=(0, 1, 3, 2)))
    scores = _masked(move, steps, names, steps.add("Mul", product, steps.number(scale, dtype)), dtype)
    attended = steps.add("MatMul", steps.add("Softmax", scores, axis=-1), values)
    merged = steps.add("Transpose", attended, perm=(0, 2, 1, 3))
    steps.end(node.outputs[0], "Reshape", merged, (0, 0, sizes[2]))
    rewrites = {n.index: (_same(n, (keys, values)[at]),) for n, at in (picked or {}).values()}
    return (attended,), "MatMul", Replacement(scope, move.members, tuple(steps.made), rewrites)


def _picked(scope: Scope, present: str) -> dict[int, tuple[Node, int]] | None:
    """The nodes that pick keys (0) or values (1) of both, if nothing else reads them."""
    readers = [scope.nodes[n.index] for n in scope.readers(present)] if present else []
    if scope.escapes(present):
        return None
    found = {}
    for n in readers:
        index = scope.fact(n.input(1))
        if n.op != "Gather" or n.attributes.get("axis", 0) != 0 or index.shape != () or index.integer not in (0, 1):
            return None
        found[n.index] = (n, int(str(index.integer)))
    return found


def _same(node: Node, value: str) -> NewNode:
    return NewNode("Identity", node.proto.name, (value,), node.outputs, like=node.index)


def _projected(move: Respelling, steps: Steps, names: Names, sizes: tuple[int, int, int]) -> tuple[str, ...]:
    """Queries, keys and values: parts of the rows of one projection."""
    node = move.node
    rows = steps.add("MatMul", *node.inputs[:2])
    rows = steps.add("Add", rows, node.inputs[2]) if node.input(2) else rows
    outputs = tuple(names.fresh(f"{node.outputs[0]}/{part}") for part in ("queries", "keys", "values"))
    name = names.fresh(f"{node.name}/Split")
    steps.made.append(split(move.scope.model.opset, name, rows, 2, sizes, outputs, node.index))
    return outputs


def _on(steps: Steps, names: Names, scope: Scope, op: str, value: str, axes: tuple[int, ...]) -> str:
    """A Squeeze or Unsqueeze."""
    result = names.fresh(f"{steps.node.outputs[0]}/{op}")
    name = names.fresh(f"{steps.node.name}/{op}")
    steps.made.append(with_axes(op, scope.model.opset, name, value, axes, result, steps.node.index))
    return result


def _masked(move: Respelling, steps: Steps, names: Names, scores: str, dtype: np.dtype[Any]) -> str:
    """The scores with what is masked made small."""
    scope, node, mask = move.scope, move.node, move.node.input(3)
    if node.attributes.get("unidirectional", 0):
        positions = _positions(move, steps, names)
        column = _on(steps, names, scope, "Unsqueeze", positions, (1,))
        hidden = steps.add("Greater", positions, column)
        return steps.add("Where", hidden, steps.number(-np.inf, dtype), scores)
    if not mask:
        return scores
    if scope.fact(mask).rank == 1:
        lengths = _on(steps, names, scope, "Unsqueeze", steps.add("Cast", mask, to=_INT64), (1,))
        kept = steps.add("Less", _positions(move, steps, names), lengths)
    else:
        kept = steps.add("Greater", mask, steps.number(0, np.dtype(np.int32)))
    fill = max(float(node.attributes.get("mask_filter_value", -10000.0)), float(np.finfo(dtype).min))
    added = steps.add("Where", kept, steps.number(0, dtype), steps.number(fill, dtype))
    return steps.add("Add", scores, _on(steps, names, scope, "Unsqueeze", added, (1, 2)))


def _positions(move: Respelling, steps: Steps, names: Names) -> str:
    """0, 1, … for each position."""
    zero, one = (steps.number(n, np.dtype(np.int64)) for n in (0, 1))
    extent = steps.add("Gather", steps.add("Shape", move.node.inputs[0]), one, axis=0)
    return steps.add("Range", zero, extent, one)
