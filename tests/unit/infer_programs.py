"""Random small models of shape arithmetic, each node of which runs in onnxruntime at the sizes they are grown at."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from infer_oracle import OnnxruntimeFail, session, values
from onnx import TensorProto, helper, numpy_helper

INPUTS = {"x": ["a", "b", 4], "y": ["b", 3, "a"], "n": [], "m": ["a", 1, "b"], "p": [2]}
TYPES = {"n": TensorProto.INT64, "p": TensorProto.INT64, "m": TensorProto.BOOL}
SIZED_BY_VALUE = frozenset({"Range", "ConstantOfShape", "Expand", "Tile", "OneHot", "Pad"})


def feeds(a: int, b: int, n: int) -> dict[str, np.ndarray]:
    """Inputs at given extents."""
    rng = np.random.default_rng(7)
    return {
        "x": rng.integers(-3, 4, (a, b, 4)).astype(np.float32),
        "y": rng.integers(-3, 4, (b, 3, a)).astype(np.float32),
        "n": np.array(n, np.int64),
        "m": rng.integers(0, 2, (a, 1, b)).astype(bool),
        "p": np.array([n, -n], np.int64),
    }


class Program:
    """A model under construction and its values at one size."""

    def __init__(self, seed: int, start: dict[str, np.ndarray]) -> None:
        self.rng = random.Random(seed)
        self.known = dict(start)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def pick(self, kinds: str, ranks: tuple[int, ...] = (0, 1, 2, 3, 4), size: int = 10**6) -> str:
        """A value of one of the numpy kinds, the later the likelier."""
        fit = [n for n, v in self.known.items() if v.dtype.kind in kinds and v.ndim in ranks and v.size <= size]
        if not fit:
            raise LookupError(kinds)
        return fit[max(self.rng.randrange(len(fit)) for _ in range(2))]

    def integers(self, *numbers: int, scalar: bool = False) -> str:
        """An int64 constant, spelled as an initializer or a Constant node."""
        return self.constant(np.array(numbers[0] if scalar else numbers, np.int64))

    def constant(self, value: np.ndarray) -> str:
        """A constant."""
        name = f"c{len(self.tensors) + len(self.nodes)}"
        tensor = numpy_helper.from_array(value, name)
        if self.rng.random() < 0.5:
            self.tensors.append(tensor)
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        self.known[name] = value
        return name

    def add(self, op: str, inputs: list[str], outputs: int = 1, **attributes: object) -> None:
        """Appends a node if it runs at the current sizes."""
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        node = helper.make_node(op, inputs, names, name=names[0], **attributes)
        given = {i: self.known[i] for i in dict.fromkeys(inputs) if i}
        if op in SIZED_BY_VALUE and any(np.abs(v).max(initial=0) > 40 for v in given.values() if v.dtype == np.int64):
            return
        kinds = {np.dtype(np.float32): 1, np.dtype(np.int64): 7, np.dtype(bool): 9, np.dtype(np.int32): 6}
        if any(v.dtype not in kinds for v in given.values()):
            return
        declared = [helper.make_tensor_value_info(i, kinds[v.dtype], None) for i, v in given.items()]
        graph = helper.make_graph([node], "one", declared, [onnx.ValueInfoProto(name=o) for o in names])
        try:
            made = values(session(_model(graph)), given)
        except OnnxruntimeFail:  # a node that does not run is not part of the program
            return
        if all(made[o].size <= 5000 and made[o].dtype in kinds for o in names):
            self.known.update({o: made[o] for o in names})
            self.nodes.append(node)

    def model(self) -> onnx.ModelProto:
        """The whole model."""
        inputs = [helper.make_tensor_value_info(n, TYPES.get(n, 1), shape) for n, shape in INPUTS.items()]
        made = [o for node in self.nodes for o in node.output]
        last = [onnx.ValueInfoProto(name=made[-1])] if made else []
        return _model(helper.make_graph(self.nodes, "program", inputs, last, self.tensors))


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def grow(seed: int, steps: int, start: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A random model of about `steps` nodes."""
    program = Program(seed, start)
    for _ in range(steps):
        try:
            program.rng.choice(STEPS)(program)
        except LookupError:
            continue
    return program.model()


def _shape(p: Program) -> None:
    part = p.rng.choice([{}, {"start": -1}, {"start": 1}, {"end": 2}, {"start": 0, "end": 1}])
    p.add("Shape", [p.pick("fib")], **part)


def _gather(p: Program) -> None:
    index = p.integers(p.rng.randint(-2, 2), scalar=p.rng.random() < 0.6)
    p.add("Gather", [p.pick("fib", (1, 2, 3)), index], axis=p.rng.choice([0, 0, 0, 1, -1]))


def _concat(p: Program) -> None:
    kind = p.rng.choice("iiif")
    ranks = (1,) if kind == "i" else (2, 3)
    items = [p.pick(kind, ranks, 30 if kind == "i" else 10**6) for _ in range(p.rng.randint(1, 3))]
    if kind == "i" and p.rng.random() < 0.6:
        items.append(p.integers(p.rng.choice([-1, 0, 1, 2, 4])))
    p.rng.shuffle(items)
    p.add("Concat", items, axis=0 if kind == "i" else p.rng.choice([0, -1, 1]))


def _axes(p: Program) -> None:
    p.add(p.rng.choice(["Unsqueeze", "Unsqueeze", "Squeeze"]), [p.pick("fib"), p.integers(p.rng.choice([0, 0, -1, 1]))])


def _squeeze_all(p: Program) -> None:
    p.add("Squeeze", [p.pick("fib")])


def _arithmetic(p: Program) -> None:
    op = p.rng.choice(["Add", "Sub", "Mul", "Div", "Min", "Max", "Mod", "Mul", "Div"])
    second = (
        p.pick("i", size=30) if p.rng.random() < 0.5 else p.integers(p.rng.choice([1, 2, 3, -1, 0, 4, 6]), scalar=True)
    )
    operands = [p.pick("i", size=30), second]
    p.rng.shuffle(operands)
    if op in ("Div", "Mod") and not p.known[operands[1]].all():
        return
    p.add(op, operands)


def _floats(p: Program) -> None:
    op = p.rng.choice(["Add", "Sub", "Mul", "Div", "Max", "MatMul"])
    number = p.rng.choice([0.0, 1.0, 2.0])
    second = p.pick("f") if p.rng.random() < 0.5 else p.constant(np.array(number, np.float32))
    operands = [p.pick("f"), second]
    p.rng.shuffle(operands)
    p.add(op, operands)


def _unary(p: Program) -> None:
    op = p.rng.choice(
        ["Neg", "Abs", "Sign", "Identity", "Sqrt", "Relu", "Not", "Exp", "Reciprocal", "IsNaN", "NonZero"]
    )
    kind = {"Not": "b", "Identity": "ifb", "Neg": "if", "Abs": "if", "Sign": "if", "Relu": "if", "NonZero": "ifb"}
    p.add(op, [p.pick(kind.get(op, "f"))])


def _compare(p: Program) -> None:
    op = p.rng.choice(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
    second = p.pick("i", size=30) if p.rng.random() < 0.5 else p.integers(p.rng.choice([-1, 0, 1, 3]), scalar=True)
    operands = [p.pick("i", size=30), second]
    p.rng.shuffle(operands)
    p.add(op, operands)


def _logic(p: Program) -> None:
    p.add(p.rng.choice(["And", "Or", "Xor"]), [p.pick("b"), p.pick("b")])


def _where(p: Program) -> None:
    kind = p.rng.choice("iif")
    p.add("Where", [p.pick("b"), p.pick(kind), p.pick(kind)])


def _cast(p: Program) -> None:
    p.add("Cast", [p.pick("ifb")], to=p.rng.choice([1, 6, 7, 7, 9, 11]))


def _slice(p: Program) -> None:
    def bound() -> str:
        if p.rng.random() < 0.5:
            return p.integers(p.rng.choice([0, 1, -1, 2, -2, 2**63 - 1, -(2**63), 2**31 - 1]))
        return p.pick("i", (1,), 1)

    axis = p.integers(p.rng.choice([0, 0, 1, -1]))
    step = [p.integers(p.rng.choice([1, 1, 2, -1, -2]))] if p.rng.random() < 0.5 else []
    p.add("Slice", [p.pick("fib", (1, 2, 3)), bound(), bound(), axis, *step])


def _reshape(p: Program) -> None:
    target = (
        p.pick("i", (1,), 5)
        if p.rng.random() < 0.6
        else p.integers(*p.rng.choice([(-1,), (0, -1), (-1, 4), (0, 0, -1)]))
    )
    p.add("Reshape", [p.pick("fib"), target], allowzero=p.rng.choice([0, 0, 1]))


def _expand_idiom(p: Program) -> None:
    """TorchScript's expand: -1 in the target keeps the extent."""
    target = p.pick("i", (1,), 5)
    if not p.known[target].size:
        return
    before = len(p.nodes)
    p.add("Shape", [target])
    p.add("ConstantOfShape", [p.nodes[-1].output[0]], value=numpy_helper.from_array(np.array([1], np.int64)))
    if len(p.nodes) < before + 2:
        return
    ones = p.nodes[-1].output[0]
    p.add("Mul", [ones, p.integers(-1, scalar=True)])
    p.add("Equal", [target, p.nodes[-1].output[0]])
    p.add("Where", [p.nodes[-1].output[0], ones, target])
    p.add("Expand", [p.pick("f"), p.nodes[-1].output[0]])


def _expand(p: Program) -> None:
    p.add(p.rng.choice(["Expand", "Expand", "Tile"]), [p.pick("fib"), p.pick("i", (1,), 5)])


def _fill(p: Program) -> None:
    one = p.rng.choice([np.array([1], np.int64), np.array([0], np.float32), np.array([True])])
    p.add("ConstantOfShape", [p.pick("i", (1,), 4)], value=numpy_helper.from_array(one))


def _range(p: Program) -> None:
    start = p.integers(0, scalar=True) if p.rng.random() < 0.5 else p.pick("i", (0,))
    step = p.integers(p.rng.choice([1, 1, 2, -1]), scalar=True)
    p.add("Range", [start, p.pick("i", (0,)), step])


def _split(p: Program) -> None:
    count = p.rng.choice([2, 2, 3])
    p.add("Split", [p.pick("fib", (1, 2, 3))], count, axis=p.rng.choice([0, -1, 1]), num_outputs=count)


def _transpose(p: Program) -> None:
    name = p.pick("fib", (1, 2, 3))
    perm = list(range(p.known[name].ndim))
    if p.rng.random() < 0.8:
        p.rng.shuffle(perm)
    p.add("Transpose", [name], perm=perm)


def _reduce(p: Program) -> None:
    op = p.rng.choice(["ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ArgMax"])
    name = p.pick("i" if p.rng.random() < 0.7 and op not in ("ReduceMean", "ArgMax") else "f", (1, 2, 3))
    keep = p.rng.choice([0, 1])
    if op == "ArgMax":
        p.add(op, [name], axis=p.rng.choice([0, -1]), keepdims=keep)
        return
    p.add(op, [name, *([p.integers(p.rng.choice([0, -1]))] if p.rng.random() < 0.5 else [])], keepdims=keep)


def _other(p: Program) -> None:
    number = p.integers(p.rng.choice([0, 1, 2]))
    choices: list[Callable[[], None]] = [
        lambda: p.add("Size", [p.pick("fib")]),
        lambda: p.add("Flatten", [p.pick("f")], axis=p.rng.choice([0, 1, -1, 2])),
        lambda: p.add("CumSum", [p.pick("if", (1, 2, 3)), p.integers(0, scalar=True)]),
        lambda: p.add("TopK", [p.pick("f", (1, 2, 3)), number], 2),
        lambda: p.add("Trilu", [p.pick("fi", (2, 3))], upper=p.rng.choice([0, 1])),
        lambda: p.add("OneHot", [p.pick("i", (0, 1, 2)), p.pick("i", (0,)), p.constant(np.array([0, 1], np.float32))]),
        lambda: p.add("GatherND", [p.pick("f", (2, 3)), p.constant(np.array([[0]], np.int64))]),
        lambda: p.add("Clip", [p.pick("i"), p.integers(0, scalar=True)]),
        lambda: p.add("Pad", [p.pick("f", (2,)), p.constant(np.array([0, 1, 1, 0], np.int64))]),
        lambda: p.add("Softmax", [p.pick("f", (1, 2, 3))]),
        lambda: p.add("Dropout", [p.pick("f")], 1),
        lambda: p.add("Pow", [p.pick("i"), p.integers(2, scalar=True)]),
        lambda: p.add("Einsum", [p.pick("f", (3,)), p.pick("f", (3,))], equation="abc,cde->abde"),
        lambda: p.add("Concat", [p.pick("fib", (1, 2, 3))], axis=0),
    ]
    p.rng.choice(choices)()


STEPS: tuple[Callable[[Program], None], ...] = (
    *(_shape, _shape, _shape, _gather, _gather, _concat, _concat, _axes, _squeeze_all, _arithmetic, _arithmetic),
    *(_floats, _unary, _compare, _logic, _where, _cast, _slice, _slice, _reshape, _reshape, _expand_idiom, _expand),
    *(_fill, _range, _split, _transpose, _reduce, _other, _other),
)
