"""Random networks of transformer parts on one residual stream: parts share values, are read twice, end in outputs.

Unlike the generated tests of single rules, these put fusions next to, into and across each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from building import Array, Builder, Built
from onnx import TensorProto, helper

WIDTH, HIDDEN, HEADS = 16, 24, 2
EPSILONS = (1e-5, 1e-6, 1e-12, 0.1)


@dataclass
class Network:
    """A network under construction; `rows` are values [batch, positions, WIDTH]."""

    rng: random.Random
    b: Builder
    rows: list[str] = field(default_factory=list)
    mask: str = ""

    def pick(self) -> str:
        """A value of the stream, the later the likelier."""
        return self.rows[max(self.rng.randrange(len(self.rows)) for _ in range(3))]

    def weights(self, *shape: int, spread: float = 0.3, around: float = 0.0) -> str:
        """A constant of random numbers."""
        source = np.random.default_rng(self.rng.randrange(2**32))
        return self.b.constant(source.normal(around, spread, shape))

    def number(self, value: float) -> str:
        """One number, of rank 0 or 1."""
        return self.b.constant(value if self.rng.random() < 0.6 else [value])

    def either(self, op: str, a: str, c: str) -> str:
        """A commutative operator with its operands in either order."""
        return self.b.op(op, *((a, c) if self.rng.random() < 0.5 else (c, a)))

    def linear(self, x: str, inputs: int = WIDTH, outputs: int = WIDTH) -> str:
        """A projection, with a bias or without."""
        y = self.b.op("MatMul", x, self.weights(inputs, outputs))
        return self.either("Add", y, self.weights(outputs)) if self.rng.random() < 0.7 else y


def network(rng: random.Random) -> Built:
    """A random network and its input sets."""
    opset = rng.choice([11, 13, 14, 15, 17, 18])
    n = Network(rng, Builder(opset, rng.choice(["float32", "float32", "float16"])))
    dynamic = rng.random() < 0.5
    shape = ["batch", "positions", WIDTH] if dynamic else [2, 3, WIDTH]
    n.rows = [n.b.input("x", shape), n.b.input("z", shape)]
    n.mask = n.b.input("mask", [shape[0], 1, 1, shape[1]])
    for _ in range(rng.randint(2, 9)):
        n.rows.append(rng.choice(PARTS)(n))
    read = {i for node in n.b.nodes for i in node.input}
    made = [o for node in n.b.nodes for o in node.output]
    for name in dict.fromkeys(n.rows[2:]):
        if name in made and (name not in read or rng.random() < 0.08):
            n.b.output(name, 3)
    return Built(n.b.model(), tuple(_feed(n, rng, sizes) for sizes in ([(2, 3), (1, 5)] if dynamic else [(2, 3)])))


def _feed(n: Network, rng: random.Random, sizes: tuple[int, int]) -> dict[str, Array]:
    source = np.random.default_rng(rng.randrange(2**32))
    batch, positions = sizes
    element = n.b.dtype
    keep = source.random((batch, 1, 1, positions)) > 0.3
    lowest = float(np.finfo(element).min)
    fill = rng.choice([0.0, -1.0, -10000.0, lowest, -np.inf])
    if fill < -1e30:
        keep[..., 0] = True  # what a row of nothing but fills gives is in tests of its own
    return {
        **{name: source.normal(size=(batch, positions, WIDTH)).astype(element) for name in "xz"},
        "mask": np.where(keep, 0.0, fill).astype(element),
    }


def _layer_norm(n: Network) -> str:
    b, x = n.b, n.pick()
    epsilon = n.rng.choice(EPSILONS)
    gamma, beta = n.weights(WIDTH, around=1.0), n.weights(WIDTH)
    if b.opset >= 17 and n.rng.random() < 0.5:
        return b.op("LayerNormalization", x, gamma, *([beta] * n.rng.randint(0, 1)), axis=-1, epsilon=epsilon)
    centred = b.op("Sub", x, b.mean(x))
    square = b.op("Pow", centred, b.constant(2.0)) if n.rng.random() < 0.5 else b.op("Mul", centred, centred)
    root = b.op("Sqrt", n.either("Add", b.mean(square), n.number(epsilon)))
    y = n.either("Mul", b.op("Div", centred, root), gamma)
    return n.either("Add", y, beta) if n.rng.random() < 0.7 else y


def _rms_norm(n: Network) -> str:
    b, x = n.b, n.pick()
    square = b.op("Pow", x, b.constant(2.0)) if n.rng.random() < 0.5 else b.op("Mul", x, x)
    root = b.op("Sqrt", n.either("Add", b.mean(square), n.number(n.rng.choice(EPSILONS))))
    if n.rng.random() < 0.5:
        y = b.op("Div", x, root)
    else:
        y = n.either("Mul", x, b.op("Reciprocal", root))
    return n.either("Mul", y, n.weights(WIDTH, around=1.0)) if n.rng.random() < 0.8 else y


def _activated(n: Network, x: str) -> str:
    b = n.b
    kind = n.rng.choice(["gelu", "tanh_gelu", "quick", "silu", "relu", "tanh", "sigmoid", "none"])
    if kind == "gelu":
        inner = b.op("Erf", b.op("Div", x, n.number(2**0.5)))
        return n.either("Mul", n.either("Mul", x, n.either("Add", inner, n.number(1.0))), n.number(0.5))
    if kind == "tanh_gelu":
        cubed = n.either("Mul", b.op("Pow", x, b.constant(3.0)), n.number(0.044715))
        inner = b.op("Tanh", n.either("Mul", n.either("Add", x, cubed), n.number(0.7978845608)))
        return n.either("Mul", n.either("Mul", x, n.number(0.5)), n.either("Add", inner, n.number(1.0)))
    if kind == "quick":
        return n.either("Mul", x, b.op("Sigmoid", n.either("Mul", x, n.number(1.702))))
    if kind == "silu":
        return n.either("Mul", x, b.op("Sigmoid", x))
    return x if kind == "none" else b.op({"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}[kind], x)


def _projection(n: Network) -> str:
    y = n.linear(n.pick())
    if n.rng.random() < 0.3:
        y = n.either("Mul", y, n.number(n.rng.choice([0.5, 2.0, 1.0])))
    return _activated(n, y)


def _feed_forward(n: Network) -> str:
    x = n.pick()
    hidden = _activated(n, n.linear(x, WIDTH, HIDDEN))
    if n.rng.random() < 0.4:
        hidden = n.either("Mul", hidden, n.linear(x, WIDTH, HIDDEN))
    return n.linear(hidden, HIDDEN, WIDTH)


def _attention(n: Network) -> str:
    b = n.b
    x = n.pick()
    source = x if n.rng.random() < 0.8 else n.pick()
    heads = [0, -1, HEADS, WIDTH // HEADS]
    q, k, v = (b.reshape(n.linear(s), heads) for s in (x, source, source))
    q, v = b.transpose(q, 0, 2, 1, 3), b.transpose(v, 0, 2, 1, 3)
    if n.rng.random() < 0.5:
        kt = b.transpose(k, 0, 2, 3, 1)
    else:
        kt = b.transpose(b.transpose(k, 0, 2, 1, 3), 0, 1, 3, 2)
    scale = n.rng.choice([1.0, 0.35355338, 0.5])
    if n.rng.random() < 0.3:
        q = n.either("Mul", q, n.number(scale))
    scores = b.op("MatMul", q, kt)
    if n.rng.random() < 0.6:
        scores = b.op("Div", scores, n.number(1 / scale))
    if n.rng.random() < 0.6:
        scores = n.either("Add", scores, n.mask)
    probabilities = b.op("Softmax", scores, axis=-1 if n.rng.random() < 0.7 else 3)
    merged = b.reshape(b.transpose(b.op("MatMul", probabilities, v), 0, 2, 1, 3), [0, -1, WIDTH])
    return n.linear(merged) if n.rng.random() < 0.7 else merged


def _sum(n: Network) -> str:
    return n.either("Add", n.pick(), n.pick())


def _element_wise(n: Network) -> str:
    b, x = n.b, n.pick()
    kind = n.rng.choice(["binary", "unary", "scaled", "clip", "where", "no-op", "cast"])
    if kind == "binary":
        return b.op(n.rng.choice(["Mul", "Sub", "Max", "Min"]), *n.rng.sample([x, n.pick(), n.pick()], 2))
    if kind == "unary":
        return b.op(n.rng.choice(["Neg", "Abs", "Tanh", "Sigmoid", "Erf", "Relu", "Softplus", "LeakyRelu"]), x)
    if kind == "scaled":
        return n.either("Mul", x, n.weights(*n.rng.choice([(WIDTH,), (1,), (1, 1, WIDTH)]), around=1.0))
    if kind == "clip":
        return b.op("Clip", x, b.constant(-0.5), b.constant(0.75))
    if kind == "where":
        return b.op("Where", b.op("Greater", x, n.number(0.1)), x, n.pick())
    if kind == "no-op":
        return b.op(n.rng.choice(["Identity", "Dropout"]), x)
    return b.cast(b.cast(x, TensorProto.FLOAT), b.element)


def _reordered(n: Network) -> str:
    b, x = n.b, n.pick()
    kind = n.rng.choice(["transposed", "flat", "halves", "heads", "sliced"])
    if kind == "transposed":
        return b.transpose(_activated(n, b.transpose(x, 1, 0, 2)), 1, 0, 2)
    if kind == "flat":
        flat = n.linear(b.reshape(x, [-1, WIDTH]))
        return b.reshape(flat, [f"{x}:0", f"{x}:1", WIDTH])
    if kind == "halves":
        parts = b.split(x, [WIDTH // 2, WIDTH // 2], -1)
        return b.op("Concat", *n.rng.sample(parts, 2), axis=-1)
    if kind == "heads":
        return b.reshape(b.reshape(x, [0, -1, HEADS, WIDTH // HEADS]), [0, -1, WIDTH])
    half = b.slice(x, 0, WIDTH // 2, 2)
    return b.op("Concat", half, b.op("Neg", half), axis=2)


def _softmax(n: Network) -> str:
    return n.b.op("Softmax", n.pick(), axis=-1 if n.b.opset < 13 else n.rng.choice([-1, -1, 2, 1]))


def _branches(n: Network) -> str:
    """An If whose bodies read a value of the stream and compute a norm or an activation of it."""
    captured = {"@x": n.pick(), "@y": n.pick()}
    bodies = []
    for name in ("then", "else"):
        prefix = f"{name}_{len(n.b.nodes)}"
        inner = Network(n.rng, Builder(n.b.opset, n.b.dtype), list(captured))
        last = n.rng.choice([_rms_norm, _element_wise, _sum])(inner)
        if last in captured:
            last = inner.b.op("Identity", last)
        names = [o for node in inner.b.nodes for o in node.output] + [t.name for t in inner.b.initializers]
        bodies.append(_body(prefix, inner.b, captured | {o: f"{prefix}_{o}" for o in names}, last))
    if not any(i.name == "flag" for i in n.b.initializers):
        n.b.initializers.append(helper.make_tensor("flag", TensorProto.BOOL, [], [n.rng.random() < 0.5]))
    return n.b.op("If", "flag", then_branch=bodies[0], else_branch=bodies[1])


def _body(prefix: str, b: Builder, renamed: dict[str, str], last: str) -> object:
    for node in b.nodes:
        node.name = f"{prefix}_{node.name}"
        for names in (node.input, node.output):
            names[:] = [renamed.get(i, i) for i in names]
    for tensor in b.initializers:
        tensor.name = renamed[tensor.name]
    output = helper.make_tensor_value_info(renamed[last], b.element, [None, None, None])
    return helper.make_graph(b.nodes, prefix, [], [output], b.initializers)


Part = Callable[[Network], str]
PARTS: tuple[Part, ...] = (
    *(_layer_norm, _layer_norm, _rms_norm, _projection, _projection, _feed_forward, _feed_forward, _attention),
    *(_attention, _sum, _sum, _sum, _element_wise, _element_wise, _reordered, _softmax, _branches),
)
