"""ONNX's own Attention operator (opset 23), spelled as products around a softmax, which is what rules know.

As with the other moves, one after which no attention is fused is undone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atcfuse.graph.constants import NUMPY_TYPES
from atcfuse.graph.edit import Names, NewNode, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.respelling import Respelling

_FLOATS = frozenset({1, 10})
_NEUTRAL = {"is_causal": 0, "softcap": 0.0, "qk_matmul_output_mode": 0}
"""Attributes that must be at their default: a causal mask and a cap are other spellings."""


@dataclass(frozen=True)
class Native(Respelling):
    """An Attention of queries, keys and values [batch, heads, positions, dim] without a mask.

    Runtimes differ in what they make of rows that a mask hides as a whole.
    """

    scale: float


def find(scope: Scope, node: Node) -> Native | None:
    """The Attention that a node is: without mask and cache, with as many heads of keys as of queries."""
    if node.op != "Attention" or len([o for o in node.outputs if o]) != 1 or any(node.inputs[3:]):
        return None
    if any(node.attributes.get(name, default) != default for name, default in _NEUTRAL.items()):
        return None
    facts = [scope.fact(v) for v in node.inputs[:3]]
    shapes = [f.shape for f in facts]
    if len({f.dtype for f in facts}) != 1 or facts[0].dtype not in _FLOATS or len(shapes) != 3:
        return None
    if any(s is None or len(s) != 4 for s in shapes) or len({s[1] for s in shapes if s}) != 1:
        return None
    dim = (shapes[0] or ())[-1]
    scale = node.attributes.get("scale")
    if scale is None:
        scale = float(dim) ** -0.5 if isinstance(dim, int) and dim > 0 else 0.0
    return Native(scope, node, float(scale)) if scale > 0 else None


def carry_out(move: Native, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What the last MatMul makes while no attention is fused, that operator, and what takes the operator's place."""
    node, made = move.node, []  # type: Node, list[NewNode]
    queries, keys, values = node.inputs[:3]

    def step(op: str, inputs: tuple[str, ...], **attributes: object) -> str:
        output = names.fresh(f"{node.outputs[0]}/{op}")
        name = names.fresh(f"{node.name}/{op}")
        made.append(NewNode(op, name, inputs, (output,), tuple(attributes.items()), like=node.index))
        return output

    factor = step("Constant", (), value=np.array(move.scale, NUMPY_TYPES[move.scope.fact(queries).dtype]))
    turned = step("Transpose", (keys,), perm=(0, 1, 3, 2))
    scores = step("Mul", (step("MatMul", (queries, turned)), factor))
    weights = step("Softmax", (scores,), axis=-1)
    made.append(NewNode("MatMul", node.proto.name, (weights, values), (node.outputs[0],), like=node.index))
    return (node.outputs[0],), "MatMul", Replacement(move.scope, move.members, tuple(made))
