"""onnxruntime as the judge of the evaluator: every claim about every value is compared with what a run gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from atcfuse.dims import Dim, Poly, as_symbol, evaluate, symbols
from atcfuse.graph.constants import constant
from atcfuse.graph.facts import Fact
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer

OnnxruntimeFail = (
    errors.EPFail,
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.NotImplemented,
    errors.RuntimeException,
)
"""How onnxruntime refuses a model or a run."""

Arrays = Mapping[str, np.ndarray]

runs_random_programs = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 24),
    reason="this onnxruntime ends the process where a program divides integers by zero",
)


def inferred(proto: onnx.ModelProto) -> Model:
    """The indexed model with its facts."""
    model = Model(proto)
    infer(model)
    return model


def session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session without optimizations in which every value of the main graph is an output."""
    everything = onnx.ModelProto()
    everything.CopyFrom(proto)
    known = {o.name for o in proto.graph.output}
    for node in proto.graph.node:
        everything.graph.output.extend(onnx.ValueInfoProto(name=o) for o in node.output if o and o not in known)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(everything.SerializeToString(), options, providers=["CPUExecutionProvider"])


def values(run: onnxruntime.InferenceSession, feeds: Arrays) -> dict[str, np.ndarray]:
    """All values of a run, the feeds included."""
    names = [o.name for o in run.get_outputs()]
    return {**feeds, **dict(zip(names, run.run(names, dict(feeds)), strict=True))}


def is_meaningful(proto: onnx.ModelProto, known: Arrays) -> bool:
    """Whether a run is one that the evaluator speaks of.

    onnxruntime lets empty operands of Concat differ from the others, which ONNX does not; and integers that overflow
    mean nothing.
    """
    if any(np.abs(v.astype(np.float64)).max(initial=0) > 2**40 for v in known.values() if v.dtype == np.int64):
        return False
    for node in proto.graph.node:
        if node.op_type == "Concat":
            shapes = [list(known[i].shape) for i in node.input if i in known]
            for shape in shapes:
                shape[node.attribute[0].i] = 0
            if any(shape != shapes[0] for shape in shapes):
                return False
    return True


@dataclass
class Judge:
    """Compares facts with the values of one run.

    A symbol gets its number where it first stands alone; every other place where it occurs must agree.
    """

    model: Model
    values: Arrays
    sizes: dict[str, int] = field(default_factory=dict)
    compared: int = 0

    def contradictions(self) -> list[str]:
        """Every claim that the run refutes."""
        return [f"{name}: {text}" for name in self._names() for text in self._about(name)]

    def _names(self) -> list[str]:
        return [n for n in self.model.main.facts if isinstance(self.values.get(n), np.ndarray)]

    def _about(self, name: str) -> Iterator[str]:
        fact, value = self.model.main.facts[name], self.values[name]
        if fact.dtype and helper.tensor_dtype_to_np_dtype(fact.dtype) != value.dtype:
            yield f"{fact} is {value.dtype}"
        if fact.shape is not None:
            if len(fact.shape) != value.ndim:
                yield f"{fact} has the shape {value.shape}"
            elif not all(self._agrees(d, x) for d, x in zip(fact.shape, value.shape, strict=True)):
                yield f"{fact} has the shape {value.shape} at {self.sizes}"
        yield from self._numbers(name, fact, value)
        root = self.model.main.alias.get(name)
        if root in self.values:
            self.compared += 1
            if self.values[root].dtype != value.dtype or not same(self.values[root], value):
                yield f"does not repeat {root}"

    def _numbers(self, name: str, fact: Fact, value: np.ndarray) -> Iterator[str]:
        if fact.elements is not None and not all(map(self._agrees, fact.elements, map(int, value.ravel().tolist()))):
            yield f"{fact} is {value.ravel()[:8]} at {self.sizes}"
        if fact.array is not None and not close(fact.array, value):
            yield f"{fact.array.ravel()[:8]} is {value.ravel()[:8]}"
        if isinstance(fact.splat, (int, float)) and not close(np.full(value.shape, fact.splat), value):
            yield f"all of {fact.splat} is {value.ravel()[:8]}"
        known = constant(self.model.main, name)
        if known is not None and not close(known, value):
            yield f"the constant {known.ravel()[:8]} is {value.ravel()[:8]}"

    def _agrees(self, dim: Dim, actual: int) -> bool:
        self.compared += 1
        alone = as_symbol(dim)
        if alone is not None and not alone.op:
            return self.sizes.setdefault(alone.name, actual) == actual and (alone.signed or actual >= 0)
        if isinstance(dim, Poly) and any(not s.op and s.name not in self.sizes for s in symbols(dim)):
            return True
        return evaluate(dim, self.sizes) == actual


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays hold the same numbers."""
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def close(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays agree up to the last bits of an elementary function."""
    if a.shape != b.shape:
        return False
    tolerance = 2e-3 if b.dtype == np.float16 else 2e-6
    return bool(np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=tolerance, atol=0, equal_nan=True))
