"""ONNX's own Attention operator (opset 23), spelled as products around a softmax, which is what rules know.

Queries, keys and values [batch, heads, positions, dim], or with the heads of a position in one row; keys of the past in
front of the others; fewer heads of keys; a cap; a causal mask, counted from the first key of the past; a mask that
keeps or is added. A row in which nothing is kept is zero, as the standard has it since its release 1.23; where there is
a mask, so is a row whose scores hold NaN, which the operator would hand on: the kernel cannot tell one from the other.

As with the other moves, one after which no attention is fused is undone.
"""

from __future__ import annotations

import numpy as np

from atcfuse.graph.constants import NUMPY_TYPES
from atcfuse.graph.edit import Names, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.respelling import Respelling, Steps

_FLOAT, _BOOL, _FLOAT16 = 1, 9, 10
_PADDED_SINCE = 24
"""From this opset on a mask may have fewer columns than there are keys."""

_KNOWN = frozenset(
    {"is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision"}
)


def find(scope: Scope, node: Node) -> Respelling | None:
    """The Attention that a node is, if it can be spelled out."""
    if node.op != "Attention" or obstacle(scope, node) is not None:
        return None
    return Respelling(scope, node)


def obstacle(scope: Scope, node: Node) -> str | None:
    """Why an Attention cannot be spelled out, or None where it can."""
    return _of_attributes(scope, node) or _of_operands(scope, node) or _of_heads(scope, node) or _of_mask(scope, node)


def _of_attributes(scope: Scope, node: Node) -> str | None:
    if not node.outputs[:1] or not node.outputs[0]:
        return "the result is left out"
    if node.input(6):
        return "keys are counted for each batch (nonpad_kv_seqlen)"
    if any(node.attributes.get(name, -1) != -1 for name in ("left_window_size", "right_window_size")):
        return "positions attend to a window (left_window_size, right_window_size)"
    if any(name not in _KNOWN and not name.endswith("_window_size") for name in node.attributes):
        return "an attribute of Attention is not known"
    if len(node.outputs) > 3 and _is_read(scope, node.outputs[3]):
        return "the scores are read elsewhere (qk_matmul_output)"
    scale = node.attributes.get("scale")
    return "the factor on the scores is not positive" if scale is not None and not scale > 0 else None


def _of_operands(scope: Scope, node: Node) -> str | None:
    facts = [scope.fact(v) for v in node.inputs[:3]]
    if len(facts) != 3 or any(f.shape is None for f in facts):
        return "queries, keys or values have no known shape"
    if facts[0].dtype not in (_FLOAT, _FLOAT16) or len({f.dtype for f in facts}) != 1:
        return "queries, keys and values are not all float32 or all float16"
    if node.attributes.get("softmax_precision", _FLOAT) not in (_FLOAT, facts[0].dtype):
        return "softmax is taken in another element type than float32 or that of the queries"
    if len({f.rank for f in facts}) != 1 or facts[0].rank not in (3, 4):
        return "queries, keys and values have not three axes each, or four each"
    past = [node.input(4), node.input(5)]
    if any(past) and not all(past):
        return "keys of the past come without values, or values without keys"
    if any(scope.fact(v).rank != 4 or scope.fact(v).dtype != facts[0].dtype for v in past if v):
        return "keys and values of the past have another form than those that are added"
    return None


def _of_heads(scope: Scope, node: Node) -> str | None:
    heads, dims = _heads(scope, node), _dims(scope, node)
    if not all(isinstance(n, int) and n > 0 for n in (*heads, *dims)):
        return "the number of heads, or of elements of a vector, is not known"
    queries, keys, values = (int(str(n)) for n in heads)
    if keys != values or queries % keys:
        return "the heads of queries are no multiple of those of keys and values"
    stated = node.attributes.get("q_num_heads", 0), node.attributes.get("kv_num_heads", 0)
    if any(n and n != own for n, own in zip(stated, (queries, keys), strict=True)):
        return "the number of heads that is stated is not that of the operands"
    return None


def _of_mask(scope: Scope, node: Node) -> str | None:
    mask = scope.fact(node.input(3)) if node.input(3) else None
    if mask is None:
        return None
    if mask.shape is None or not 2 <= len(mask.shape) <= 4:
        return "the mask has no known shape of two to four axes"
    if mask.dtype not in (_BOOL, scope.fact(node.inputs[0]).dtype):
        return "the mask is neither boolean nor of the element type of the queries"
    total = scope.fact(node.inputs[1]).shape
    keys = None if total is None else total[-3 if len(total) == 3 else -2]
    past = scope.fact(node.input(4)).shape if node.input(4) else None
    columns = mask.shape[-1]
    whole = keys is not None and columns == (keys if past is None else keys + past[2])
    if not whole and (columns == 1 or scope.model.opset >= _PADDED_SINCE):
        return "the mask is not proved to have a column for each key"
    return None


def _is_read(scope: Scope, value: str) -> bool:
    return bool(value) and (scope.is_output(value) or bool(scope.readers(value)))


def _heads(scope: Scope, node: Node) -> tuple[object, object, object]:
    """The number of heads of queries, keys and values."""
    if scope.fact(node.inputs[0]).rank == 3:
        keys = node.attributes.get("kv_num_heads")
        return node.attributes.get("q_num_heads"), keys, keys
    queries, keys, values = ((scope.fact(v).shape or (0, 0))[1] for v in node.inputs[:3])
    return queries, keys, values


def _dims(scope: Scope, node: Node) -> tuple[object, ...]:
    """The number of elements of a vector of queries, keys and values; 0 where rows hold no whole heads."""
    found = []
    for value, heads in zip(node.inputs[:3], _heads(scope, node), strict=True):
        row = (scope.fact(value).shape or (0,))[-1]
        if scope.fact(value).rank == 3 and isinstance(row, int) and isinstance(heads, int) and heads > 0:
            row = 0 if row % heads else row // heads
        found.append(row)
    return tuple(found)


def carry_out(move: Respelling, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What the last MatMul makes while no attention is fused, that operator, and what takes the operator's place."""
    scope, node = move.scope, move.node
    steps = Steps(node, names)
    many, few, _ = (int(str(n)) for n in _heads(scope, node))
    head_dim, _, v_head_dim = dims = tuple(int(str(n)) for n in _dims(scope, node))
    flat = scope.fact(node.inputs[0]).rank == 3
    queries, keys, values = (
        _by_heads(steps, value, heads, dim) if flat else value
        for value, heads, dim in zip(node.inputs[:3], (many, few, few), dims, strict=True)
    )
    keys, values = (_present(move, steps, value, at) for at, value in enumerate((keys, values)))
    repeated = [
        value if many == few else _repeated(steps, value, many, few, dim)
        for value, dim in zip((keys, values), (head_dim, v_head_dim), strict=True)
    ]
    weights = _weights(move, steps, queries, keys, repeated[0])
    if not flat:
        steps.end(node.outputs[0], "MatMul", weights, repeated[1])
        return (node.outputs[0],), "MatMul", Replacement(scope, move.members, tuple(steps.made))
    attended = steps.add("MatMul", weights, repeated[1])
    row = many * v_head_dim
    steps.end(node.outputs[0], "Reshape", steps.add("Transpose", attended, perm=(0, 2, 1, 3)), (0, 0, row))
    return (attended,), "MatMul", Replacement(scope, move.members, tuple(steps.made))


def _by_heads(steps: Steps, value: str, heads: int, dim: int) -> str:
    """Rows [batch, positions, heads · dim] as [batch, heads, positions, dim]."""
    return steps.add("Transpose", steps.add("Reshape", value, (0, 0, heads, dim)), perm=(0, 2, 1, 3))


def _present(move: Respelling, steps: Steps, value: str, at: int) -> str:
    """All keys, or all values where `at` is 1: those of the past and those that are added; they may be an output."""
    output, past = (move.node.outputs[at + 1 :] or ("",))[0], move.node.input(4 + at)
    if not _is_read(move.scope, output):
        return steps.add("Concat", past, value, axis=2) if past else value
    if past:
        steps.end(output, "Concat", past, value, axis=2)
    else:
        steps.end(output, "Identity", value)
    return output if past else value


def _repeated(steps: Steps, value: str, many: int, few: int, dim: int) -> str:
    """Each head as often as queries have heads for it, one copy after the other."""
    wide = steps.add("Expand", steps.add("Unsqueeze", value, (2,)), (1, 1, many // few, 1, 1))
    return steps.add("Reshape", wide, (0, many, -1, dim))


def _weights(move: Respelling, steps: Steps, queries: str, keys: str, repeated: str) -> str:
    """The weights of the values, from scores that are scaled, capped and masked in this order."""
    scope, node = move.scope, move.node
    dtype = scope.fact(node.inputs[0]).dtype
    number = NUMPY_TYPES[dtype]
    scale = node.attributes.get("scale") or float(int(str(_dims(scope, node)[0]))) ** -0.5
    product = steps.add("MatMul", queries, steps.add("Transpose", repeated, perm=(0, 1, 3, 2)))
    scores = steps.add("Mul", product, steps.number(scale, number))
    if (cap := node.attributes.get("softcap", 0.0)) > 0:
        factor = steps.number(cap, number)
        scores = steps.add("Mul", steps.add("Tanh", steps.add("Div", scores, factor)), factor)
    mask = node.input(3)
    added = bool(mask) and scope.fact(mask).dtype != _BOOL
    kept = [_visible(steps, queries, keys)] if node.attributes.get("is_causal", 0) else []
    for where in (*kept, mask) if mask and not added else kept:
        scores = steps.add("Where", where, scores, steps.number(-np.inf, number))
    if added:
        scores = steps.add("Add", scores, mask)
    precision = node.attributes.get("softmax_precision", dtype)
    if precision != dtype:
        scores = steps.add("Cast", scores, to=precision)
    weights = steps.add("Softmax", scores, axis=-1)
    if mask:
        zero = steps.number(0.0, NUMPY_TYPES[precision])
        weights = steps.add("Where", steps.add("IsNaN", weights), zero, weights)
    return steps.add("Cast", weights, to=dtype) if precision != dtype else weights


def _visible(steps: Steps, queries: str, keys: str) -> str:
    """Which keys a query sees: those up to its own position, which is counted from the first key of the past."""
    zero, one = (steps.number(n, np.dtype("<i8")) for n in (0, 1))

    def extent(value: str) -> str:
        return steps.add("Squeeze", steps.add("Shape", value, start=2, end=3), (0,))

    first = extent(steps.node.input(4)) if steps.node.input(4) else zero
    end = extent(queries)
    positions = steps.add("Range", first, steps.add("Add", first, end) if first != zero else end, one)
    key = steps.add("Range", zero, extent(keys), one)
    return steps.add("LessOrEqual", key, steps.add("Unsqueeze", positions, (1,)))
