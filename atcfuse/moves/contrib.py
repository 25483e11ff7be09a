"""Norms and activations that onnxruntime's optimizer of transformers writes, spelled in operators that rules know.

SkipLayerNormalization and its kin are sums and a norm; BiasGelu, FastGelu, QuickGelu and Gelu are activations. ATC
knows none of them. As with the other moves, one after which nothing is fused is undone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from atcfuse.graph.edit import Names, Replacement
from atcfuse.graph.index import Node, Scope
from atcfuse.moves.respelling import FLOATS, Respelling, Steps

MICROSOFT = "com.microsoft::"
_NORM_SINCE = 17
"""The opset from which on LayerNormalization is an operator."""
_MEAN_BY_INPUT = 18
"""The opset from which on ReduceMean takes its axes as an input."""


def _is_float(scope: Scope, node: Node) -> str | None:
    """Why operands that are floats of one known type and known rank are not, if so."""
    facts = [scope.fact(v) for v in node.inputs if v]
    if not facts or facts[0].dtype not in FLOATS or any(f.dtype != facts[0].dtype for f in facts):
        return "the operands are not all float32 or all float16"
    return None if facts[0].shape is not None else "the operand has no known shape"


def is_read(scope: Scope, value: str) -> bool:
    """Whether anything reads a value."""
    return bool(value) and (scope.escapes(value) or bool(scope.readers(value)))


def norm_obstacle(scope: Scope, node: Node) -> str | None:
    """Why a norm of a sum cannot be spelled out, or None where it can."""
    if any(is_read(scope, value) for value in node.outputs[1:3]):
        return "the statistics of the norm are read"
    if any(name != "epsilon" for name in node.attributes):
        return "an attribute of the norm is not known"
    return _is_float(scope, node)


def skip_layer_norm(scope: Scope, node: Node) -> Respelling | None:
    """The SkipLayerNormalization that a node is, if it can be spelled out."""
    fits = node.op == f"{MICROSOFT}SkipLayerNormalization" and norm_obstacle(scope, node) is None
    return Respelling(scope, node) if fits else None


def skip_rms_norm(scope: Scope, node: Node) -> Respelling | None:
    """The SkipSimplifiedLayerNormalization that a node is, if it can be spelled out."""
    fits = node.op == f"{MICROSOFT}SkipSimplifiedLayerNormalization" and norm_obstacle(scope, node) is None
    return Respelling(scope, node) if fits else None


def spell_layer_norm(move: Respelling, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What the sum makes while nothing takes it up, its operator, and what takes the place of the node.

    A norm that is left is a launch as the node was.
    """
    steps, node = Steps(move.node, names), move.node
    total = _sum(move, steps, node.input(4))
    shift = (node.input(3),) if node.input(3) else ()
    epsilon = float(node.attributes.get("epsilon", 1e-12))
    if move.scope.model.opset >= _NORM_SINCE:
        steps.end(node.outputs[0], "LayerNormalization", total, node.inputs[2], *shift, axis=-1, epsilon=epsilon)
        return (total,), "Add", _replaced(move, steps)
    centred = steps.add("Sub", total, _mean(move, steps, total))
    unit = _unit(move, steps, centred, epsilon)
    scaled = steps.add("Mul", unit, node.inputs[2]) if shift else unit
    steps.end(node.outputs[0], "Add" if shift else "Mul", scaled, *(shift or (node.inputs[2],)))
    return (total,), "Add", _replaced(move, steps)


def spell_rms_norm(move: Respelling, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """The same of an RMSNorm, which has no shift."""
    steps, node = Steps(move.node, names), move.node
    total = _sum(move, steps, node.input(3))
    unit = _unit(move, steps, total, float(node.attributes.get("epsilon", 1e-12)))
    steps.end(node.outputs[0], "Mul", unit, node.inputs[2])
    return (total,), "Add", _replaced(move, steps)


def _sum(move: Respelling, steps: Steps, bias: str) -> str:
    """The sum that is normalised, which may be an output; a bias belongs to the operand that is a product."""
    first, second = move.node.inputs[:2]
    if bias:
        maker = move.scope.producer(second)
        if maker is not None and maker.op == "MatMul":
            first, second = second, first
        first = steps.add("Add", first, bias)
    output = (*move.node.outputs, "", "", "")[3]
    if not is_read(move.scope, output):
        return steps.add("Add", first, second)
    steps.end(output, "Add", first, second)
    return output


def _mean(move: Respelling, steps: Steps, value: str) -> str:
    if move.scope.model.opset >= _MEAN_BY_INPUT:
        return steps.add("ReduceMean", value, (-1,))
    return steps.add("ReduceMean", value, axes=(-1,))


def _unit(move: Respelling, steps: Steps, value: str, epsilon: float) -> str:
    """Rows of mean square 1."""
    dtype = FLOATS[move.scope.fact(move.node.inputs[0]).dtype]
    mean = _mean(move, steps, steps.add("Mul", value, value))
    root = steps.add("Sqrt", steps.add("Add", mean, steps.number(epsilon, dtype)))
    return steps.add("Div", value, root)


def _replaced(move: Respelling, steps: Steps) -> Replacement:
    return Replacement(move.scope, move.members, tuple(steps.made))


def activation_obstacle(scope: Scope, node: Node) -> str | None:
    """Why an activation cannot be spelled out, or None where it can."""
    if any(name != "alpha" for name in node.attributes):
        return "an attribute of the activation is not known"
    return _is_float(scope, node)


def activation(scope: Scope, node: Node) -> Respelling | None:
    """The activation that a node is, if it can be spelled out."""
    fits = node.op in ACTIVATIONS and activation_obstacle(scope, node) is None
    return Respelling(scope, node) if fits else None


def spell_activation(move: Respelling, names: Names) -> tuple[tuple[str, ...], str, Replacement]:
    """What the function makes while nothing takes it up, its operator, and what takes the place of the node."""
    steps, node = Steps(move.node, names), move.node
    x = steps.add("Add", node.inputs[0], node.inputs[1]) if node.input(1) else node.inputs[0]
    value, op = ACTIVATIONS[node.op](steps, x, FLOATS[move.scope.fact(node.inputs[0]).dtype])
    return (value,), op, _replaced(move, steps)


def _gelu(steps: Steps, x: str, dtype: np.dtype[Any]) -> tuple[str, str]:
    erf = steps.add("Erf", steps.add("Div", x, steps.number(math.sqrt(2), dtype)))
    product = steps.add("Mul", x, steps.add("Add", erf, steps.number(1, dtype)))
    steps.end(steps.node.outputs[0], "Mul", product, steps.number(0.5, dtype))
    return erf, "Erf"


def _fast_gelu(steps: Steps, x: str, dtype: np.dtype[Any]) -> tuple[str, str]:
    cube = steps.add("Mul", steps.add("Mul", steps.add("Mul", x, x), x), steps.number(0.044715, dtype))
    inner = steps.add("Mul", steps.add("Add", x, cube), steps.number(math.sqrt(2 / math.pi), dtype))
    tanh = steps.add("Tanh", inner)
    product = steps.add("Mul", x, steps.add("Add", tanh, steps.number(1, dtype)))
    steps.end(steps.node.outputs[0], "Mul", product, steps.number(0.5, dtype))
    return tanh, "Tanh"


def _quick_gelu(steps: Steps, x: str, dtype: np.dtype[Any]) -> tuple[str, str]:
    alpha = float(steps.node.attributes.get("alpha", 1.702))
    inner = x if alpha == 1 else steps.add("Mul", x, steps.number(alpha, dtype))
    sigmoid = steps.add("Sigmoid", inner)
    steps.end(steps.node.outputs[0], "Mul", x, sigmoid)
    return sigmoid, "Sigmoid"


ACTIVATIONS = {
    f"{MICROSOFT}BiasGelu": _gelu,
    f"{MICROSOFT}Gelu": _gelu,
    f"{MICROSOFT}FastGelu": _fast_gelu,
    f"{MICROSOFT}QuickGelu": _quick_gelu,
}
"""How each activation is spelled, by its operator: the value by which a trial is told and what makes that."""
