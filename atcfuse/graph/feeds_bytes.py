"""A model as bytes that onnxruntime takes, also where its tensors in memory exceed protobuf's 2 GiB."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto

SPILL_ABOVE = 1 << 30
"""Above this many bytes of embedded weights, the large tensors travel beside the protobuf."""
SPILL_TENSOR = 1 << 20
_CARRIERS: dict[int, type[np.unsignedinteger]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def model_bytes(model: ModelProto) -> tuple[bytes, dict[str, TensorProto]]:
    """Serialise a model; returns the bytes and the initializers that were left out of them because of their size.

    A left-out tensor is marked as external in the bytes; the runtime must be given its value. Tensors that are
    external already are not touched and stay on disk.
    """
    large = [t for t in model.graph.initializer if len_embedded(t) >= SPILL_TENSOR]
    if sum(map(len_embedded, large)) <= SPILL_ABOVE:
        return model.SerializeToString(), {}
    left_out = {t.name: t for t in large}
    light = ModelProto()
    _copy_fields(model, light, skip="graph")
    _copy_fields(model.graph, light.graph, skip="initializer")
    for tensor in model.graph.initializer:
        light.graph.initializer.append(_marked_external(tensor) if tensor.name in left_out else tensor)
    return light.SerializeToString(), left_out


def len_embedded(tensor: TensorProto) -> int:
    """The bytes of raw data that a tensor holds in the protobuf itself, without reading them."""
    if tensor.data_location == TensorProto.EXTERNAL or not tensor.HasField("raw_data"):
        return 0
    return int(np.prod(tensor.dims, dtype=np.int64)) * _ITEM.get(tensor.data_type, 0)


_ITEM: dict[int, int] = {
    TensorProto.DOUBLE: 8, TensorProto.INT64: 8, TensorProto.UINT64: 8, TensorProto.FLOAT: 4, TensorProto.INT32: 4,
    TensorProto.UINT32: 4, TensorProto.FLOAT16: 2, TensorProto.BFLOAT16: 2, TensorProto.INT16: 2, TensorProto.UINT16: 2,
    TensorProto.INT8: 1, TensorProto.UINT8: 1, TensorProto.BOOL: 1,
}  # fmt: skip


def raw_array(tensor: TensorProto) -> np.ndarray:
    """The raw data of an embedded tensor, its elements as unsigned integers of their width."""
    return np.frombuffer(tensor.raw_data, dtype=_CARRIERS[_ITEM[tensor.data_type]]).reshape(tuple(tensor.dims))


def _marked_external(tensor: TensorProto) -> TensorProto:
    stub = TensorProto(name=tensor.name, data_type=tensor.data_type, data_location=TensorProto.EXTERNAL)
    stub.dims.extend(tensor.dims)
    stub.external_data.add(key="location", value="given-in-memory")
    return stub


def _copy_fields(source: ModelProto | GraphProto, target: ModelProto | GraphProto, skip: str) -> None:
    for fd, value in source.ListFields():
        if fd.name == skip:
            continue
        if hasattr(value, "MergeFrom"):  # a message, or a repeated field
            getattr(target, fd.name).MergeFrom(value)
        else:
            setattr(target, fd.name, value)
