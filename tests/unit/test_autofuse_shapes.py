"""Element-wise groups on random shapes whose extents are often the same: what is broadcast along which axis must be told
by position, not by size.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, helper, numpy_helper
from test_autofuse import alone, assert_same, fused_ops, optimized, tools
from test_codegen_elementwise import needs_compiler

from atcfuse.verify.kernels import run_kernels

SEEDS = st.integers(0, 2**32 - 1)
EXTENT = 4
Shape = tuple[int, ...]


class Builder:
    """A model under construction, with the shapes of its values; the first axis of inputs of full rank is dynamic."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        rank = self.source.randrange(2, 6)
        self.whole: Shape = tuple(EXTENT if self.source.random() < 0.8 else 1 for _ in range(rank))
        self.nodes: list[object] = []
        self.shapes: dict[str, Shape] = {}
        self.inputs: list[str] = []
        self.tensors: list[object] = []
        for at in range(5):
            self.shapes[f"x{at}"] = self.whole if at < 2 else self.part(self.whole)
            self.inputs.append(f"x{at}")

    def part(self, shape: Shape) -> Shape:
        """A shape that is broadcast to the other one."""
        kept = tuple(size if self.source.random() < 0.5 else 1 for size in shape)
        cut = self.source.randrange(len(kept) + 1) if self.source.random() < 0.3 else 0
        return kept[cut:] if all(size == 1 for size in kept[:cut]) else kept

    def emit(self, op: str, *inputs: str, shape: Shape, **attributes: object) -> str:
        """A node and the name of its result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"n_{name}", **attributes))
        self.shapes[name] = shape
        return name

    def tensor(self, values: object, dtype: type) -> str:
        """An initializer."""
        name = f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def pick(self) -> str:
        """A value, recent ones rather than old ones."""
        names = list(self.shapes)
        return self.source.choice(names[-5:] if self.source.random() < 0.7 else names)

    def step(self) -> None:
        """One more operator."""
        x, kind = self.pick(), self.source.random()
        shape = self.shapes[x]
        if kind < 0.2:
            self.emit(self.source.choice(["Neg", "Abs", "Tanh", "Relu", "Sin"]), x, shape=shape)
        elif kind < 0.3:
            self.emit("Mul", x, self.tensor(0.5, np.float32), shape=shape)
        elif kind < 0.65:
            self.binary(x)
        elif kind < 0.8 and len(shape) > 1:
            self.reduce(x)
        elif kind < 0.9:
            at = self.source.randrange(len(shape) + 1)
            self.emit("Unsqueeze", x, self.tensor([at], np.int64), shape=(*shape[:at], 1, *shape[at:]))
        elif shape and 1 in shape and kind < 0.95:
            at = shape.index(1)
            self.emit("Squeeze", x, self.tensor([at], np.int64), shape=(*shape[:at], *shape[at + 1 :]))
        elif len(shape) > 1:
            flat = (int(np.prod(shape[:-1])), shape[-1])
            self.emit("Reshape", x, self.tensor([-1, shape[-1]], np.int64), shape=flat)

    def binary(self, x: str) -> None:
        """Two values of any shapes that can be broadcast to each other."""
        z = self.pick()
        try:
            shape = np.broadcast_shapes(self.shapes[x], self.shapes[z])
        except ValueError:
            return
        if len(shape) <= 6 and np.prod(shape) <= 5000:
            self.emit(self.source.choice(["Add", "Sub", "Mul", "Max", "Min"]), x, z, shape=shape)

    def reduce(self, x: str) -> None:
        """Of one or two of the last axes, or of another one."""
        shape, keep = self.shapes[x], self.source.random() < 0.5
        count = self.source.choice([1, 1, 2]) if len(shape) > 2 else 1
        axes = list(range(len(shape) - count, len(shape)))
        if self.source.random() < 0.15:
            axes = [self.source.randrange(len(shape))]
        kept = tuple(1 if i in axes else size for i, size in enumerate(shape))
        made = kept if keep else tuple(size for i, size in enumerate(shape) if i not in axes)
        op = self.source.choice(["ReduceMax", "ReduceMean", "ReduceMin"])
        self.emit(op, x, shape=made, axes=axes, keepdims=int(keep))

    def model(self) -> ModelProto:
        """The model; every value that nobody reads is an output."""
        read = {i for node in self.nodes for i in node.input}  # type: ignore[attr-defined]
        inputs = []
        for name in self.inputs:
            shape: list[object] = list(self.shapes[name])
            if len(shape) == len(self.whole) and shape[0] == EXTENT:
                shape[0] = "batch"
            inputs.append(helper.make_tensor_value_info(name, 1, shape))
        made = [n.output[0] for n in self.nodes]  # type: ignore[attr-defined]
        outputs = [helper.make_empty_tensor_value_info(v) for v in made if v not in read]
        graph = helper.make_graph(self.nodes, "shapes", inputs, outputs, self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def random_model(seed: int, steps: int = 22) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A model of random shapes and inputs for it."""
    builder = Builder(seed)
    for _ in range(steps):
        builder.step()
    numbers = np.random.default_rng(seed)
    return builder.model(), {n: numbers.normal(size=builder.shapes[n]).astype(np.float32) for n in builder.inputs}


def check(seed: int) -> None:
    model, inputs = random_model(seed)
    if not model.graph.node:
        return
    first = optimized(model, alone())
    assert_same(model, first.model, inputs)
    again = optimized(first.model, alone())
    assert_same(model, again.model, inputs)
    assert len(fused_ops(again.model)) == len(fused_ops(first.model))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=SEEDS)
def test_shapes_of_equal_extents(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=SEEDS)
def test_thousands_of_shapes(seed: int) -> None:
    check(seed)


def test_random_shapes_are_fused_at_all() -> None:
    assert sum(len(fused_ops(optimized(random_model(seed)[0], alone()).model)) for seed in range(20)) >= 25


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_kernels_of_random_shapes(seed: int, tmp_path: Path) -> None:
    rules = frozenset(rule.name for rule in tools().book.rules) - {"elementwise"}
    using = tools(kernels=True, forced=frozenset({"elementwise"}), min_saving_us=0.0, disabled=rules)
    model, inputs = random_model(seed)
    model = optimized(model, using).model
    found = run_kernels(
        model,
        tmp_path / "m.onnx",
        using.kernels,
        soc="Ascend910B1",
        inputs=inputs,
        cache=tmp_path,
        precision_mode="must_keep_origin_dtype",
    )
    assert not found.diagnostics
