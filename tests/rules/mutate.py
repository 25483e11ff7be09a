"""Single faults planted in a model: what is fused afterwards must still give the faulty model's own numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import onnx
from building import Array
from onnx import TensorProto, helper, numpy_helper
from running import session

FLOATS = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}
REPLACED = {
    "Add": "Sub", "Sub": "Add", "Mul": "Div", "Div": "Mul", "Max": "Min", "Tanh": "Sigmoid", "ReduceMean": "ReduceMax",
    "Sqrt": "Exp", "Reciprocal": "Neg", "Neg": "Abs", "Equal": "Greater", "IsNaN": "Not", "Softmax": "LogSoftmax",
    "And": "Or", "ReduceMax": "ReduceMin", "GlobalAveragePool": "GlobalMaxPool",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A faulty model and what was done to it."""

    model: onnx.ModelProto
    what: str


@dataclass
class _Mutation:
    """One mutation in progress: `model` is changed in place, `shapes` tells every value's shape in one run."""

    model: onnx.ModelProto
    shapes: Mapping[str, tuple[int, tuple[int, ...]]]
    rng: random.Random

    @property
    def graph(self) -> onnx.GraphProto:
        return self.model.graph

    def node(self, *kinds: str) -> onnx.NodeProto | None:
        """A node of one of the kinds, of any kind where none is given."""
        found = [n for n in self.graph.node if not kinds or n.op_type in kinds]
        return self.rng.choice(found) if found else None

    def value(self) -> str:
        """The result of some node."""
        return self.rng.choice([o for n in self.graph.node for o in n.output])

    def insert_after(self, value: str, *nodes: onnx.NodeProto, result: str) -> None:
        """Puts nodes behind the producer of a value; all readers read the result instead."""
        for node in self.graph.node:
            for position, name in enumerate(node.input):
                if name == value and node not in nodes:
                    node.input[position] = result
        at = next((i for i, n in enumerate(self.graph.node) if value in n.output), -1)
        ordered = [*self.graph.node[: at + 1], *nodes, *self.graph.node[at + 1 :]]
        kept = [deepcopy(n) for n in ordered]
        del self.graph.node[:]
        self.graph.node.extend(kept)

    def constant(self, array: Array, name: str) -> str:
        """A new initializer."""
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name


def mutant(model: onnx.ModelProto, feed: Mapping[str, Array], rng: random.Random) -> Mutant | None:
    """The model with one random fault, None where the fault drawn does not apply."""
    changed = deepcopy(model)
    kind = rng.choice(list(MUTATIONS))
    what = MUTATIONS[kind](_Mutation(changed, shapes_of(model, feed), rng))
    return None if what is None else Mutant(changed, f"{kind}: {what}")


def shapes_of(model: onnx.ModelProto, feed: Mapping[str, Array]) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Element type and shape of every value in one run."""
    probe = deepcopy(model)
    names = [o for n in probe.graph.node for o in n.output]
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    results = session(probe).run(None, dict(feed))
    found = dict(zip(names, results, strict=True)) | dict(feed)
    found |= {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return {name: (helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for name, a in found.items()}


def _change_constant(m: _Mutation) -> str | None:
    found = [t for t in m.graph.initializer if all(t.dims)]
    if not found:
        return None
    tensor = m.rng.choice(found)
    array = numpy_helper.to_array(tensor).copy()
    at = m.rng.randrange(array.size)
    flat = array.reshape(-1)
    if array.dtype.kind == "f":
        # An infinite number stands for a fill; among the weights of a row it only shows the order of summation.
        infinite = [-np.inf] if array.size == 1 else []
        divides = any(n.op_type == "Div" and n.input[1] == tensor.name for n in m.graph.node)
        nothing = [] if divides else [0.0]
        flat[at] = m.rng.choice([*nothing, 1.0, -1.0, 3.0, *infinite, float(flat[at]) * 1.5, -float(flat[at])])
    elif array.dtype.kind == "b":
        flat[at] = not flat[at]
    else:
        flat[at] = m.rng.choice([int(flat[at]) + 1, int(flat[at]) - 1, 0, 1, 2, -1, -2])
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return f"{tensor.name}[{at}] = {flat[at]}"


def _reshape_constant(m: _Mutation) -> str | None:
    found = [t for t in m.graph.initializer if t.data_type in FLOATS]
    if not found:
        return None
    tensor = m.rng.choice(found)
    array = numpy_helper.to_array(tensor)
    _, shape = m.shapes[m.rng.choice([n for n, (kind, s) in m.shapes.items() if kind in FLOATS and s])]
    ways: list[Callable[[], Array]] = [
        lambda: array.reshape((1,) * m.rng.randint(0, 2) + array.shape),
        lambda: np.broadcast_to(array.ravel()[:1].reshape((1,) * len(shape)), shape) * 1,
        lambda: np.broadcast_to(array.ravel()[:1], [*(1 for _ in shape[:-1]), *shape[-1:]]),
        lambda: np.broadcast_to(array.ravel()[:1].reshape((1,) * len(shape)), shape) * np.linspace(0.5, 2, shape[-1] if shape else 1).reshape(shape[-1:]),
        lambda: np.broadcast_to(array, (2, *array.shape)),
    ]  # fmt: skip
    if not array.size:
        return None
    made = np.array(m.rng.choice(ways)(), array.dtype)
    tensor.CopyFrom(numpy_helper.from_array(made, tensor.name))
    return f"{tensor.name} is {made.shape}"


def _swap(m: _Mutation) -> str | None:
    node = m.node("Sub", "Div", "MatMul", "Add", "Mul", "Where", "Gemm", "Pow", "Concat")
    if node is None or len(node.input) < 2:
        return None
    first, second = m.rng.sample(range(len(node.input)), 2)
    node.input[first], node.input[second] = node.input[second], node.input[first]
    return f"operands {first} and {second} of {node.op_type}"


def _change_attribute(m: _Mutation) -> str | None:
    found = [(n, a) for n in m.graph.node for a in n.attribute if a.type in (2, 7) and a.name != "to"]
    if not found:
        return None
    node, attribute = m.rng.choice(found)
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = m.rng.choice([attribute.i + 1, attribute.i - 1, 0, 1, -1, -2])
        return f"{node.op_type}.{attribute.name} = {attribute.i}"
    values = list(attribute.ints)
    m.rng.shuffle(values)
    if len(values) == 1:
        values[0] += m.rng.choice([1, -1])
    attribute.ClearField("ints")
    attribute.ints.extend(values)
    return f"{node.op_type}.{attribute.name} = {values}"


def _new_attribute(m: _Mutation) -> str | None:
    kind, name, value = m.rng.choice([
        ("Gemm", "alpha", 0.5), ("Gemm", "beta", 2.0), ("Gemm", "transA", 1), ("ReduceMean", "keepdims", 0),
        ("LayerNormalization", "axis", 1), ("LayerNormalization", "epsilon", 0.5), ("Reshape", "allowzero", 1),
    ])  # fmt: skip
    node = m.node(kind)
    if node is None:
        return None
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
    return f"{kind}.{name} = {value}"


def _rewire(m: _Mutation) -> str | None:
    node = m.node()
    if node is None or not node.input:
        return None
    position = m.rng.randrange(len(node.input))
    have = m.shapes.get(node.input[position])
    before = {t.name for t in m.graph.initializer} | {i.name for i in m.graph.input}
    for other in m.graph.node:
        if other is node or list(other.output) == list(node.output):
            break
        before.update(other.output)
    found = sorted(n for n in before if m.shapes.get(n) == have and n != node.input[position])
    if not found:
        return None
    node.input[position] = m.rng.choice(found)
    return f"operand {position} of {node.op_type} is {node.input[position]}"


def _replace_operator(m: _Mutation) -> str | None:
    node = m.node(*REPLACED)
    if node is None:
        return None
    was, node.op_type = node.op_type, REPLACED[node.op_type]
    return f"{was} becomes {node.op_type}"


def _read_outside(m: _Mutation) -> str:
    value = m.value()
    m.graph.node.append(helper.make_node("Identity", [value], ["outside"], name="outside_node"))
    m.graph.output.append(helper.make_empty_tensor_value_info("outside"))
    return value


def _make_output(m: _Mutation) -> str | None:
    value = m.value()
    if any(o.name == value for o in m.graph.output):
        return None
    m.graph.output.append(helper.make_empty_tensor_value_info(value))
    return value


def _capture(m: _Mutation) -> str | None:
    value = m.value()
    kind, shape = m.shapes[value]
    bodies = []
    for name in ("then", "else"):
        node = helper.make_node("Identity", [value], [f"{name}_out"], name=f"{name}_node")
        out = helper.make_tensor_value_info(f"{name}_out", kind, [None] * len(shape))
        bodies.append(helper.make_graph([node], name, [], [out]))
    flag = m.constant(np.array(True), "flag")
    m.graph.node.append(
        helper.make_node("If", [flag], ["picked"], "if_node", then_branch=bodies[0], else_branch=bodies[1])
    )
    m.graph.output.append(helper.make_tensor_value_info("picked", kind, [None] * len(shape)))
    return value


def _cast(m: _Mutation) -> str | None:
    value = m.value()
    kind, _ = m.shapes[value]
    if kind not in FLOATS:
        return None
    through = m.rng.choice([TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.FLOAT])
    away = helper.make_node("Cast", [value], ["away"], to=through, name="away_node")
    back = helper.make_node("Cast", ["away"], ["back"], to=kind, name="back_node")
    m.insert_after(value, away, back, result="back")
    return f"{value} through type {through}"


def _insert(m: _Mutation) -> str | None:
    value = m.value()
    kind, shape = m.shapes[value]
    if kind not in FLOATS:
        return None
    if not shape:
        return None
    perm = list(range(len(shape)))
    m.rng.shuffle(perm)
    number = m.constant(np.array(m.rng.choice([0.0, 1.0, -1.0, 2.0, 1e-3]), FLOATS[kind]), "number")
    made = m.rng.choice([
        helper.make_node("Transpose", [value], ["inserted"], perm=perm),
        helper.make_node("Relu", [value], ["inserted"]),
        helper.make_node("Mul", [value, number], ["inserted"]),
        helper.make_node("Add", [number, value], ["inserted"]),
        helper.make_node("Max", [value, number], ["inserted"]),
        helper.make_node("Neg", [value], ["inserted"]),
        helper.make_node("Tanh", [value], ["inserted"]),
        helper.make_node("Softmax", [value], ["inserted"], axis=len(shape) - 1),
    ])  # fmt: skip
    made.name = "inserted_node"
    m.insert_after(value, made, result="inserted")
    return f"{made.op_type} after {value}"


def _drop(m: _Mutation) -> str | None:
    """A node taken out: its readers read its first operand."""
    node = m.node()
    if node is None or not node.input or len(node.output) != 1 or any(o.name == node.output[0] for o in m.graph.output):
        return None
    source, gone = m.rng.choice(list(node.input)), node.output[0]
    for other in m.graph.node:
        for position, name in enumerate(other.input):
            if name == gone:
                other.input[position] = source
    kept = [deepcopy(n) for n in m.graph.node if gone not in n.output]
    del m.graph.node[:]
    m.graph.node.extend(kept)
    return f"{node.op_type} {gone}"


MUTATIONS: dict[str, Callable[[_Mutation], str | None]] = {
    "constant": _change_constant,
    "constant's shape": _reshape_constant,
    "swapped": _swap,
    "attribute": _change_attribute,
    "new attribute": _new_attribute,
    "rewired": _rewire,
    "operator": _replace_operator,
    "read outside": _read_outside,
    "graph output": _make_output,
    "captured": _capture,
    "cast": _cast,
    "inserted": _insert,
    "dropped": _drop,
}
