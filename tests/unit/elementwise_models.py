"""Random models of element-wise operators and reductions, with what groups must not cross: products, views, shapes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

FLOAT, BOOL, FLOAT16 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.FLOAT16
NUMPY = {FLOAT: np.float32, BOOL: np.bool_, FLOAT16: np.float16}
ROWS, COLUMNS = 3, 8
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0)
CONSTANTS = (0.0, 1.0, -1.0, 0.5, 2.0, -0.375, 3.5, -10000.0)
UNARY = (
    "Neg",
    "Abs",
    "Exp",
    "Erf",
    "Tanh",
    "Sigmoid",
    "Relu",
    "Softplus",
    "HardSwish",
    "LeakyRelu",
    "Elu",
    "HardSigmoid",
    "Softsign",
    "Selu",
    "ThresholdedRelu",
    "Floor",
    "Round",
    "Sign",
    "Sin",
    "Cos",
)
REDUCTIONS = ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSum")
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


@dataclass
class Program:
    """A model under construction; `full` values have the whole shape, `others` are broadcast to it."""

    source: random.Random
    dtype: int
    nodes: list[Any] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node and the name of its result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"n_{name}", **attributes))
        return name

    def constant(self) -> str:
        """A scalar constant of the model's element type."""
        name = f"c{len(self.constants)}"
        value = self.source.choice(CONSTANTS)
        shape = self.source.choice([(), (1,)])
        self.constants.append(numpy_helper.from_array(np.full(shape, value, NUMPY[self.dtype]), name))
        return name

    def number(self) -> str:
        """A value of numbers of the whole shape, recent ones rather than old ones."""
        recent = self.numbers[-4:] if self.source.random() < 0.6 else self.numbers
        return self.source.choice(recent)

    def operand(self) -> str:
        """A value of numbers of any shape."""
        kind = self.source.random()
        if kind < 0.25:
            return self.constant()
        return self.other() if kind < 0.45 else self.number()

    def other(self) -> str:
        """A value that is broadcast, or something computed from it for one reader."""
        value = self.source.choice(self.others)
        for _ in range(self.source.choice((0, 0, 1, 2))):
            op = self.source.choice(("Neg", "Abs", "Mul", "Tanh"))
            value = self.emit(op, value, *([self.constant()] if op == "Mul" else []))
        return value

    def step(self) -> None:
        """One more operator."""
        pick = self.source.random()
        if pick < 0.35:
            pair = [self.number(), self.operand()]
            self.source.shuffle(pair)
            # ONNX's interpreter begins a Sum with +0, which -0 and -0 do not make.
            sums = ["Sum"] if self.dtype == FLOAT else []
            self.numbers.append(self.emit(self.source.choice(["Add", "Sub", "Mul", "Div", "Min", "Max", *sums]), *pair))
        elif pick < 0.56:
            self.numbers.append(self.emit(self.source.choice(UNARY), self.number()))
        elif pick < 0.6:
            self.several()
        elif pick < 0.7:
            pair = [self.number(), self.operand()]
            self.source.shuffle(pair)
            self.masks.append(self.emit(self.source.choice(COMPARISONS), *pair))
        elif pick < 0.8:
            mask = self.source.choice(self.masks)
            self.numbers.append(self.emit("Where", mask, self.number(), self.operand()))
        elif pick < 0.87:
            self.logical()
        elif pick < 0.9:
            self.rows()
        elif pick < 0.95:
            target = self.source.choice([self.dtype, BOOL])
            made = self.emit(
                "Cast", self.source.choice(self.masks) if target == self.dtype else self.number(), to=target
            )
            (self.masks if target == BOOL else self.numbers).append(made)
        else:
            self.barrier()

    def several(self) -> None:
        """Operators of three values and more, bounds that are values, powers."""
        kind = self.source.choice(["min", "clip", "pow"])
        if kind == "min":
            operands = [self.operand() for _ in range(self.source.randrange(2, 5))]
            self.numbers.append(self.emit(self.source.choice(["Min", "Max"]), self.number(), *operands))
        elif kind == "clip":
            # Without a bound ONNX's interpreter leaves infinities, where ONNX means the least number of the type.
            lower = ["", "low"] if self.dtype == FLOAT else ["low", "low"]
            self.numbers.append(self.emit("Clip", self.number(), self.source.choice(lower), "high"))
        else:
            self.numbers.append(self.emit("Pow", self.emit("Tanh", self.number()), "four"))

    def logical(self) -> None:
        """A mask of masks."""
        op = self.source.choice(["And", "Or", "Xor", "Not"])
        operands = [self.source.choice(self.masks) for _ in range(1 if op == "Not" else 2)]
        self.masks.append(self.emit(op, *operands))

    def rows(self) -> None:
        """One value a row, what is computed from it, and a row that reads that."""
        op, source = self.source.choice(REDUCTIONS), self.number()
        if self.source.random() < 0.15:
            self.numbers.append(self.emit("Softmax", source, axis=-1))
            return
        axis = 1 if self.source.random() < 0.15 else -1
        if op == "ReduceSum":
            column = self.emit(op, source, "axes" if axis == -1 else "middle", keepdims=1)
        else:
            column = self.emit(op, source, axes=[axis], keepdims=int(self.source.random() < 0.7))
            if not self.nodes[-1].attribute[1].i:  # one axis less
                if self.source.random() < 0.5:
                    column = self.emit("Abs", column)
                if self.source.random() < 0.2:
                    return
                column = self.emit("Unsqueeze", column, "middle" if axis == 1 else "axes")
        for _ in range(self.source.randrange(3)):
            column = self.emit(self.source.choice(["Abs", "Tanh", "Relu"]), column)
        if self.source.random() < 0.3:
            column = self.emit("Add", column, self.constant())
        self.numbers.append(self.emit(self.source.choice(["Sub", "Mul", "Div", "Max"]), source, column))
        if self.source.random() < 0.3 and axis == -1:
            self.others.append(column)

    def integers(self) -> None:
        """Ids, cast to numbers and compared with a constant."""
        self.numbers.append(self.emit("Cast", "ids", to=self.dtype))
        self.masks.append(self.emit(self.source.choice(COMPARISONS), "ids", "one"))

    def more(self, source: random.Random) -> None:
        """Guards against NaN and infinity, what is spread before it is read, and other reductions."""
        kind = source.choice(["guard", "infinity", "spread", "rows", "softmax"])
        if kind == "infinity" and self.dtype == FLOAT:  # of halves since opset 20
            signs = {"detect_negative": source.randrange(2), "detect_positive": 1}
            self.masks.append(self.emit("IsInf", self.emit("Exp", source.choice(self.numbers)), **signs))
        elif kind == "spread":
            number = source.choice(self.numbers)
            value = self.emit("Expand", source.choice(self.others[:7]), self.emit("Shape", number))
            for _ in range(source.randrange(3)):
                value = self.emit(source.choice(["Neg", "Tanh", "Abs"]), value)
            self.numbers.append(self.emit(source.choice(["Add", "Div", "Max"]), number, value))
        elif kind == "rows":
            number = source.choice(self.numbers)
            op = source.choice(["ReduceSumSquare", "ReduceL1", "ReduceL2"])
            self.numbers.append(self.emit("Div", number, self.emit(op, number, axes=[-1], keepdims=1)))
        elif kind == "softmax":
            self.numbers.append(self.emit("LogSoftmax", source.choice(self.numbers), axis=-1))
        else:
            number = source.choice(self.numbers)
            mask = self.emit("IsNaN", number)
            self.masks.append(mask)
            self.numbers.append(self.emit("Where", mask, self.constant(), number))

    def barrier(self) -> None:
        """What no element-wise kernel takes in."""
        kind = self.source.choice(["product", "sum", "view", "twin", "shape", "integers"])
        if kind == "product":
            self.numbers.append(self.emit("MatMul", self.number(), "w"))
        elif kind == "integers":
            self.integers()
        elif kind == "sum":
            total = self.emit("ReduceSum", self.number(), "axes", keepdims=1)
            self.others.append(self.emit("Tanh", total))
        elif kind == "view":
            flat = self.emit("Reshape", self.number(), "flat")
            for _ in range(self.source.randrange(3)):
                flat = (
                    self.emit("Tanh", flat) if self.source.random() < 0.5 else self.emit("Mul", flat, self.constant())
                )
            self.numbers.append(self.emit("Reshape", flat, "whole"))
        elif kind == "twin":
            self.numbers.append(self.emit("Identity", self.number()))
        else:
            size = self.emit("Cast", self.emit("Shape", self.number()), to=self.dtype)
            self.others.append(self.emit("ReduceMax", size, keepdims=1))


def random_model(seed: int, dtype: int = FLOAT, steps: int = 24) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A model and inputs for it; the first axis is dynamic.

    Even seeds have guards and what is spread as well, and half of these NaN, infinities and zeros among the inputs.
    """
    source = random.Random(seed)
    program = Program(source, dtype)
    shapes = {"x": ("batch", ROWS, COLUMNS), "z": ("batch", ROWS, COLUMNS), "row": (COLUMNS,), "rows": (ROWS, COLUMNS)}
    shapes |= {
        "ids": ("batch", ROWS, COLUMNS),
        "column": ("batch", ROWS, 1),
        "scalar": (1,),
        "mask": ("batch", ROWS, COLUMNS),
        "few": (COLUMNS,),
        "batches": ("batch", 1, COLUMNS),
        "shared": (ROWS, 1),
        "each": ("batch", 1, 1),
        "low": (),
        "high": (),
    }
    program.numbers, program.masks = ["x", "z"], ["mask"]
    program.others = ["row", "column", "scalar", "rows", "batches", "shared", "each"]
    others = random.Random(f"{seed} more") if seed % 2 == 0 else None
    for _ in range(steps):
        program.step()
        if others is not None and others.random() < 0.2:
            program.more(others)
    if source.random() < 0.5:
        program.masks.append("few")
        program.numbers.append(program.emit("Where", "few", program.number(), program.number()))
    return _model(program, shapes), _inputs(shapes, dtype, seed)


def _model(program: Program, shapes: dict[str, tuple[Any, ...]]) -> ModelProto:
    made = [n.output[0] for n in program.nodes]
    read = {i for n in program.nodes for i in n.input}
    outputs = [v for v in made if v not in read or program.source.random() < 0.08]
    weight = np.linspace(-0.5, 0.5, COLUMNS * COLUMNS).reshape(COLUMNS, COLUMNS).astype(NUMPY[program.dtype])
    tensors = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array([2], np.int64), "axes")]
    tensors += [numpy_helper.from_array(np.array([-1, ROWS * COLUMNS], np.int64), "flat")]
    tensors += [numpy_helper.from_array(np.array([-1, ROWS, COLUMNS], np.int64), "whole"), *program.constants]
    tensors += [numpy_helper.from_array(np.array([1], np.int64), name) for name in ("middle", "one")]
    tensors.append(numpy_helper.from_array(np.array(4.0, NUMPY[program.dtype]), "four"))
    types = {name: BOOL if name in ("mask", "few") else program.dtype for name in shapes}
    types["ids"] = TensorProto.INT64
    inputs = [helper.make_tensor_value_info(name, types[name], shape) for name, shape in shapes.items()]
    results = [helper.make_empty_tensor_value_info(v) for v in outputs]
    graph = helper.make_graph(program.nodes, "random", inputs, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _inputs(shapes: dict[str, tuple[Any, ...]], dtype: int, seed: int) -> dict[str, np.ndarray]:
    random_numbers = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes.items():
        sizes = [2 if s == "batch" else s for s in shape]
        drawn = np.asarray(random_numbers.normal(size=sizes))
        found[name] = drawn > 0 if name in ("mask", "few") else drawn.astype(NUMPY[dtype])
    if seed % 4 == 0:
        for name in ("x", "z", "row"):
            found[name].flat[: len(SPECIAL)] = SPECIAL
    found["low"] = np.asarray(found["high"] - abs(found["low"]))
    found["ids"] = random_numbers.integers(0, 3, (2, ROWS, COLUMNS))
    return found
