"""A small model builder for generated tests: one call a node, the spelling of moved parameters left to the opset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
Dims = Sequence[int | str]

B, S, K, M = 2, 3, 8, 6
"""Batch, positions and columns of generated rows, columns of their projection."""

ELEMENTS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


@dataclass(frozen=True)
class Built:
    """A model and the input sets it is tried on."""

    model: onnx.ModelProto
    feeds: tuple[Mapping[str, Array], ...]


@dataclass
class Builder:
    """Collects nodes; every method that makes a node gives the name of its result."""

    opset: int
    dtype: str = "float32"
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    @property
    def element(self) -> int:
        """The element type of the data path."""
        return ELEMENTS[self.dtype]

    def input(self, name: str, shape: Dims, element: int | None = None) -> str:
        """A graph input, of the data path's element type where none is given."""
        self.inputs.append(helper.make_tensor_value_info(name, element or self.element, list(shape)))
        return name

    def output(self, name: str, rank: int, element: int | None = None) -> str:
        """A graph output of which only the rank is declared."""
        dims = [f"{name}_{axis}" for axis in range(rank)]
        self.outputs.append(helper.make_tensor_value_info(name, element or self.element, dims))
        return name

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A node; the names of further results are the first's with `_1`, `_2`, … appended."""
        first = f"{kind.lower()}_{len(self.nodes)}"
        names = [first, *(f"{first}_{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"node_{len(self.nodes)}", **attributes))
        return first

    def constant(self, value: Any, dtype: str | None = None) -> str:
        """An initializer, of the data path's element type where none is given."""
        name = f"const_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype or self.dtype), name))
        return name

    def ints(self, values: Sequence[int]) -> str:
        """A one-dimensional int64 initializer."""
        return self.constant(list(values), "int64")

    def axes(self, kind: str, value: str, axes: Sequence[int]) -> str:
        """Squeeze or Unsqueeze."""
        if self.opset < 13:
            return self.op(kind, value, axes=list(axes))
        return self.op(kind, value, self.ints(axes))

    def mean(self, value: str, keepdims: int = 1) -> str:
        """ReduceMean over the last axis."""
        if self.opset < 18:
            return self.op("ReduceMean", value, axes=[-1], keepdims=keepdims)
        return self.op("ReduceMean", value, self.ints([-1]), keepdims=keepdims)

    def maximum(self, value: str) -> str:
        """ReduceMax over the last axis."""
        if self.opset < 18:
            return self.op("ReduceMax", value, axes=[-1], keepdims=1)
        return self.op("ReduceMax", value, self.ints([-1]), keepdims=1)

    def slice(self, value: str, start: int, end: int, axis: int) -> str:
        """One axis cut to [start, end)."""
        return self.op("Slice", value, self.ints([start]), self.ints([end]), self.ints([axis]))

    def split(self, value: str, sizes: Sequence[int], axis: int) -> list[str]:
        """A value in parts of the given sizes."""
        if self.opset < 13:
            first = self.op("Split", value, outputs=len(sizes), axis=axis, split=list(sizes))
        else:
            first = self.op("Split", value, self.ints(sizes), outputs=len(sizes), axis=axis)
        return [first, *(f"{first}_{i}" for i in range(1, len(sizes)))]

    def cast(self, value: str, element: int) -> str:
        """A value in another element type."""
        return self.op("Cast", value, to=element)

    def transpose(self, value: str, *perm: int) -> str:
        """A value with its axes in another order."""
        return self.op("Transpose", value, perm=list(perm))

    def extent(self, value: str, axis: int) -> str:
        """One extent of a value as a one-element tensor, as TorchScript spells it."""
        taken = self.op("Gather", self.op("Shape", value), self.constant(axis, "int64"), axis=0)
        return self.axes("Unsqueeze", taken, [0])

    def reshape(self, value: str, target: Sequence[int | str]) -> str:
        """A reshape; the target is constant where it has numbers only, else computed: a text is `value:axis`."""
        if all(isinstance(t, int) for t in target):
            return self.op("Reshape", value, self.ints([int(t) for t in target]))
        parts = [
            self.ints([t]) if isinstance(t, int) else self.extent(t.split(":")[0], int(t.split(":")[1])) for t in target
        ]
        return self.op("Reshape", value, self.op("Concat", *parts, axis=0))

    def model(self) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(self.nodes, "generated", self.inputs, self.outputs, self.initializers)
        imports = [helper.make_opsetid("", self.opset)]
        made = helper.make_model(graph, opset_imports=imports, ir_version=8)
        onnx.checker.check_model(made)
        return made


@dataclass
class Rows:
    """A model of rows [B, S, K] in the making: of a case's opset, element type and kind of dims."""

    case: Mapping[str, str]
    seed: int

    def __post_init__(self) -> None:
        self.b = Builder(int(self.case["opset"]), self.case["dtype"])
        self.rng = np.random.default_rng(self.seed)
        dynamic = self.case["dims"] == "dynamic"
        self.rows: tuple[int | str, int | str] = ("batch", "positions") if dynamic else (B, S)

    def _weight(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(self.b.dtype)


class Projected(Rows):
    """Rows that are projected to M columns, in the case's spelling of `weights`."""

    def _project(self, x: str, how: str) -> str:
        b = self.b
        if not how.startswith("gemm"):
            product = b.op("MatMul", x, self._matrix(K, M))
            if how == "matmul":
                return product
            bias = b.constant(self._weight(M))
            return b.op("Add", bias, product) if how == "bias_left" else b.op("Add", product, bias)
        transposed = int(how == "gemm_trans")
        weight = self._matrix(*((M, K) if transposed else (K, M)))
        flat = b.op("Reshape", x, b.ints([-1, K]))
        bias = [b.constant(self._weight(M))] if how in ("gemm", "gemm_trans") else []
        rows = b.op("Gemm", flat, weight, *bias, **({"transB": 1} if transposed else {}))
        back = b.reshape(rows, [B, S, M] if self.case["dims"] == "static" else [f"{x}:0", f"{x}:1", M])
        return back if how != "gemm_then_bias" else b.op("Add", b.constant(self._weight(M)), back)

    def _matrix(self, rows: int, columns: int) -> str:
        b, how = self.b, self.case["weights"]
        if how == "transposed":
            return b.transpose(b.constant(self._weight(columns, rows)), 1, 0)
        made = b.constant(self._weight(rows, columns))
        if how == "constant":
            return b.op("Constant", value=b.initializers.pop())
        return b.op("Identity", made) if how == "identity" else made
