"""What a model's inputs mean, as far as sensible test values need it: extents, vocabularies, masks, positions.

Everything here is a heuristic that only decides which numbers are fed; no fusion depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, TensorShapeProto, ValueInfoProto, numpy_helper
from onnx import ModelProto as ModelProto  # re-exported: only this package imports onnx

from atcfuse.dims import Dim, parse_dim_param, symbol
from atcfuse.graph.feeds_trace import Scope, Uses, trace_input

Kind = Literal["tensor", "sequence", "optional", "other"]
Role = Literal["index", "mask", "bias", "positions", "flag", "value"]
Precision = Literal["float32", "half", "quantized"]

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})
HALVES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
BFLOAT16 = TensorProto.BFLOAT16
BOOL = TensorProto.BOOL
QUANTIZED = re.compile(r"Quantize|^QLinear|Integer$|NBits|^QAttention|^QGemm|^QMoE")
MAX_OVERRIDE = 1 << 20
MAX_SHAPE = 8
MAX_BAKED = 4096


@dataclass(frozen=True)
class InputSpec:
    """One input that must be fed.

    `dtype` is an ONNX `TensorProto.DataType` (of the element, for sequences and optionals). `dims` holds a number or
    a polynomial an axis; `None` where the model declares no rank. `bound` is the exclusive upper limit of an index
    that is looked up in a table of known size. `hints` gives sizes that a dynamic axis must have because a weight
    says so (channels of a convolution, rows of a projection).
    """

    name: str
    kind: Kind
    dtype: int
    dims: tuple[Dim, ...] | None
    role: Role
    bound: int | None = None
    hints: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Interface:
    """What verification needs to know of a model: required inputs, outputs, precision, sizes baked into it.

    `overridable` names the initializers that are graph inputs too; `baked` lists the numbers that constants of
    the size of a shape contain, most frequent first: where tracing baked an extent in, it is among them.
    """

    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    overridable: tuple[str, ...]
    precision: Precision
    baked: tuple[int, ...]

    def input(self, name: str) -> InputSpec | None:
        """The required input of that name, or None."""
        return next((i for i in self.inputs if i.name == name), None)


def numpy_dtype(dtype: int) -> np.dtype[Any] | None:
    """The numpy dtype that carries a tensor type when fed; bfloat16 travels as its bit pattern in uint16."""
    if dtype == BFLOAT16:
        return np.dtype(np.uint16)
    return _NUMPY.get(dtype)


_NUMPY: dict[int, np.dtype[Any]] = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.DOUBLE: np.dtype(np.float64),
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.INT32: np.dtype(np.int32),
    TensorProto.INT64: np.dtype(np.int64),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.UINT32: np.dtype(np.uint32),
    TensorProto.UINT64: np.dtype(np.uint64),
    TensorProto.BOOL: np.dtype(np.bool_),
    TensorProto.STRING: np.dtype(object),
}


def dtype_name(dtype: int) -> str:
    """The tensor type in ONNX's own lower-case notation."""
    return str(TensorProto.DataType.Name(dtype)).lower()


def read_interface(model: ModelProto) -> Interface:
    """Read what the inputs of a model are. External tensors are not opened."""
    scope = Scope.of_model(model)
    given = {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}
    required = [i for i in model.graph.input if i.name not in given]
    return Interface(
        inputs=tuple(_input_spec(scope, i) for i in required),
        outputs=tuple(o.name for o in model.graph.output),
        overridable=tuple(i.name for i in model.graph.input if i.name in given),
        precision=precision_of(model),
        baked=_baked_sizes(scope),
    )


def read_model(content: bytes) -> ModelProto:
    """A model from its bytes."""
    model = ModelProto()
    model.ParseFromString(content)
    return model


def override_values(model: ModelProto) -> dict[str, np.ndarray]:
    """Other values for the float initializers that a caller may override: a quarter more, so that signs survive.

    Empty below IR version 4, where an initializer that is an input is a constant for every runtime, and for tensors
    that are large or stored outside the file.
    """
    names = {i.name for i in model.graph.input}
    out = {}
    for t in model.graph.initializer:
        small = t.data_location != TensorProto.EXTERNAL and np.prod(t.dims) <= MAX_OVERRIDE
        if model.ir_version >= 4 and t.name in names and small and t.data_type in FLOATS - {BFLOAT16}:
            values = numpy_helper.to_array(t)
            out[t.name] = (values * 1.25).astype(values.dtype)
    return out


def _input_spec(scope: Scope, info: ValueInfoProto) -> InputSpec:
    kind, dtype, dims = _declared(info)
    uses = trace_input(scope, info.name, integral=dtype not in FLOATS)
    role = _role(info.name, dtype, dims, uses)
    hints = tuple(sorted(uses.axis_sizes.items()))
    return InputSpec(info.name, kind, dtype, dims, role, uses.bound, hints)


def _declared(info: ValueInfoProto) -> tuple[Kind, int, tuple[Dim, ...] | None]:
    which = info.type.WhichOneof("value")
    kind: Kind = "tensor"
    tensor = info.type.tensor_type
    if which == "sequence_type":
        kind, tensor = "sequence", info.type.sequence_type.elem_type.tensor_type
    elif which == "optional_type":
        kind, tensor = "optional", info.type.optional_type.elem_type.tensor_type
    elif which != "tensor_type":
        return "other", 0, None
    if not tensor.elem_type:
        return "other", 0, None
    if not tensor.HasField("shape"):
        return kind, tensor.elem_type, None
    return kind, tensor.elem_type, tuple(_dim(info.name, i, d) for i, d in enumerate(tensor.shape.dim))


def _dim(name: str, axis: int, dim: TensorShapeProto.Dimension) -> Dim:
    which = dim.WhichOneof("value")
    if which == "dim_value" and dim.dim_value >= 0:
        return dim.dim_value
    if which == "dim_param" and dim.dim_param.strip("?"):
        return parse_dim_param(dim.dim_param)
    return symbol(f"?{name}.{axis}")  # anonymous axes are not related to one another


def _role(name: str, dtype: int, dims: tuple[Dim, ...] | None, uses: Uses) -> Role:
    named_mask = re.search(r"mask", name, re.IGNORECASE) is not None
    single = dims is not None and all(d == 1 for d in dims)
    if dtype == TensorProto.BOOL:
        if single or uses.branch:
            return "flag"
        return "mask" if named_mask or uses.selects or re.search(r"pad", name, re.IGNORECASE) else "value"
    if dtype in FLOATS:
        if uses.inverted or uses.selects:
            return "mask"
        return "bias" if named_mask else "value"
    if named_mask:
        return "mask"
    if re.search(r"position|pos_ids", name, re.IGNORECASE):
        return "positions"
    if uses.bound is not None:
        return "index"
    return "mask" if uses.selects or uses.inverted else "value"


def precision_of(model: ModelProto) -> Precision:
    """The coarsest arithmetic that occurs anywhere in the model, bodies and functions included."""
    half = any(_is_half_type(v) for v in (*model.graph.input, *model.graph.output, *model.graph.value_info))
    for graph in _graphs(model.graph):
        half = half or any(t.data_type in HALVES for t in graph.initializer)
    for node in _nodes(model):
        if QUANTIZED.search(node.op_type):
            return "quantized"
        half = half or any(
            (a.name in ("to", "dtype") and a.i in HALVES) or (a.HasField("t") and a.t.data_type in HALVES)
            for a in node.attribute
        )
    return "half" if half else "float32"


def _is_half_type(info: ValueInfoProto) -> bool:
    return info.type.tensor_type.elem_type in HALVES


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    stack = [graph]
    while stack:
        one = stack.pop()
        yield one
        for node in one.node:
            for a in node.attribute:
                stack += [a.g] if a.HasField("g") else a.graphs


def _nodes(model: ModelProto) -> Iterator[NodeProto]:
    for graph in _graphs(model.graph):
        yield from graph.node
    for function in model.functions:
        for graph in _graphs(GraphProto(node=function.node)):
            yield from graph.node


def _baked_sizes(scope: Scope) -> tuple[int, ...]:
    counts: dict[int, int] = {}
    names = [*scope.tensors, *(o for n in scope.nodes if n.op_type == "Constant" for o in n.output)]
    for name in names:
        values = scope.constant(name)
        if values is None or values.dtype != np.int64 or values.size > MAX_SHAPE:
            continue
        for value in values.ravel().tolist():
            if 1 < value <= MAX_BAKED:
                counts[value] = counts.get(value, 0) + 1
    return tuple(sorted(counts, key=lambda v: (-counts[v], v)))
