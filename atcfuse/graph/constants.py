"""Reading constants: the provably known value of a name, wherever the model spells it out.

Tensors inside the model are read at any size, external ones only when tiny and only from files inside the model's own
folder. What cannot be read has no known value; nothing here raises for a malformed tensor.
"""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from atcfuse.dims import Poly
from atcfuse.graph.facts import INTEGRAL, SMALL, Fact
from atcfuse.graph.fixed import computed

if TYPE_CHECKING:
    from atcfuse.graph.index import Model, Scope

_MINIFLOATS = frozenset({TensorProto.BFLOAT16, *range(17, 21)})
"""bfloat16 and float8."""
UNREAD = frozenset({TensorProto.UNDEFINED, TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128})

MAX_EXTERNAL_BYTES = 4096
"""External tensors up to this size are read; larger ones stay on disk."""

NUMPY_TYPES: dict[int, np.dtype] = {
    TensorProto.FLOAT: np.dtype("<f4"),
    TensorProto.UINT8: np.dtype("u1"),
    TensorProto.INT8: np.dtype("i1"),
    TensorProto.UINT16: np.dtype("<u2"),
    TensorProto.INT16: np.dtype("<i2"),
    TensorProto.INT32: np.dtype("<i4"),
    TensorProto.INT64: np.dtype("<i8"),
    TensorProto.BOOL: np.dtype("?"),
    TensorProto.FLOAT16: np.dtype("<f2"),
    TensorProto.DOUBLE: np.dtype("<f8"),
    TensorProto.UINT32: np.dtype("<u4"),
    TensorProto.UINT64: np.dtype("<u8"),
}
"""The element types that numpy has itself. Constants of the others (bfloat16, float8, int4) are read as float32."""


def constant(scope: Scope, name: str) -> np.ndarray | None:
    """The provably known value of a name visible in `scope`, or None.

    No-ops and enclosing scopes are looked through. An initializer that a caller may override has no known value.
    Element types that numpy lacks come as float32.
    """
    defining, root = _definition(scope, name)
    if defining is None:
        return None
    tensor = defining.initializers.get(root) or _constant_tensor(defining, root)
    if tensor is not None:
        return read_tensor(tensor, scope.model)
    fact = defining.facts.get(root)
    known = None if fact is None else _known(fact)
    return computed(defining, root) if known is None and fact is not None else known


def full_constant(scope: Scope, name: str) -> np.ndarray | None:
    """`constant` of any size: the bytes of an external tensor are read however many they are."""
    tensor = constant_tensor(scope, name)
    return constant(scope, name) if tensor is None else read_tensor(tensor, scope.model, None)


def constant_tensor(scope: Scope, name: str) -> TensorProto | None:
    """The tensor of an initializer or Constant node visible in `scope`, no-ops looked through."""
    defining, root = _definition(scope, name)
    if defining is None:
        return None
    return defining.initializers.get(root) or _constant_tensor(defining, root)


def scalar(scope: Scope, name: str) -> float | None:
    """The one number of a one-element or uniform constant visible in `scope`, or None."""
    fact = scope.fact(name)
    if isinstance(fact.splat, (int, float)):
        return float(fact.splat)
    array = constant(scope, name)
    if array is None or not is_uniform(array) or array.dtype.kind not in "fiub":
        return None
    return float(array.flat[0])


def is_uniform(array: np.ndarray) -> bool:
    """Whether the array has elements and all have the same bits (so 0.0 and -0.0 differ and a NaN equals itself)."""
    ends = array.ravel()[:: max(array.size - 1, 1)].tobytes()
    if not array.size or ends[: array.itemsize] != ends[-array.itemsize :]:
        return False
    raw = array.tobytes()
    return raw == raw[: array.itemsize] * array.size


def read_tensor(tensor: TensorProto, model: Model, limit: int | None = MAX_EXTERNAL_BYTES) -> np.ndarray | None:
    """The values of a tensor, or None where they are not numbers, malformed, missing, or external and not tiny.

    `limit` is the size in bytes up to which an external one is read, None for any.
    """
    dtype = NUMPY_TYPES.get(tensor.data_type)
    if tensor.data_type in UNREAD or min(tensor.dims, default=0) < 0:
        return None
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = _external_bytes(tensor, model, limit)
        if raw is None or dtype is None:
            return None
        return _from_bytes(raw, dtype, tuple(tensor.dims))
    if dtype is not None and tensor.HasField("raw_data"):
        return _from_bytes(tensor.raw_data, dtype, tuple(tensor.dims))
    if tensor.HasField("segment"):
        return None
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError):  # the payload does not fit dims or type, or onnx does not know the type
        return None
    if dtype is None and tensor.data_type in _MINIFLOATS and array.dtype.kind == "u":
        return _of_bits(array, tensor.data_type)
    return array if dtype is not None else array.astype(np.float32)


def _of_bits(array: np.ndarray, kind: int) -> np.ndarray | None:
    """The numbers of which onnx before 1.19 hands out the bits; None for float8, which nothing decodes there."""
    if kind != TensorProto.BFLOAT16:
        return None
    return (array.astype(np.uint32) << 16).view(np.float32)


def tensor_fact(tensor: TensorProto, model: Model) -> Fact:
    """What is known of a constant tensor; small values are read when they are first asked for."""
    shape = tuple(tensor.dims)
    size = math.prod(shape)
    if size > SMALL or tensor.data_type in UNREAD:
        return Fact(tensor.data_type, shape)
    if size > 1:
        return Fact(tensor.data_type, shape, read=lambda: read_tensor(tensor, model))
    array = read_tensor(tensor, model)
    return Fact(tensor.data_type, shape) if array is None else array_fact(array, tensor.data_type)


def array_fact(array: np.ndarray, dtype: int) -> Fact:
    """What is known of a constant array of an ONNX element type."""
    shape = tuple(array.shape)
    if array.size > SMALL:
        return Fact(dtype, shape)
    if array.size != 1 or array.dtype.kind not in "fiub":
        return Fact(dtype, shape, array=array)
    number = array.item()
    if dtype in INTEGRAL:
        return Fact(dtype, shape, elements=(int(number),), array=array)
    return Fact(dtype, shape, array=array, splat=number)


def _definition(scope: Scope, name: str) -> tuple[Scope | None, str]:
    at: Scope | None = scope
    while at is not None:
        name = at.alias.get(name, name)
        if at.defines(name):
            return at, name
        at = at.parent
    return None, name


def _constant_tensor(scope: Scope, name: str) -> TensorProto | None:
    node = scope.producers.get(name)
    if node is None or node.op != "Constant":
        return None
    value = node.attributes.get("value")
    return value if isinstance(value, TensorProto) else None


def _known(fact: Fact) -> np.ndarray | None:
    if fact.array is not None:
        return fact.array
    dtype = NUMPY_TYPES.get(fact.dtype)
    if fact.shape is None or dtype is None or not isinstance(fact.splat, (int, float)):
        return None
    if any(isinstance(d, Poly) for d in fact.shape):
        return None
    return np.broadcast_to(np.array(fact.splat, dtype), fact.shape)  # type: ignore[arg-type]


def _from_bytes(raw: bytes, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray | None:
    if len(raw) != math.prod(shape) * dtype.itemsize:
        return None
    return np.frombuffer(raw, dtype).reshape(shape)


def _external_bytes(tensor: TensorProto, model: Model, limit: int | None) -> bytes | None:
    keys = {entry.key: entry.value for entry in tensor.external_data}
    path = _inside_model_folder(keys.get("location", ""), model.path)
    offset, length = keys.get("offset", "0"), keys.get("length", "")
    if path is None or not offset.isdecimal() or not (length.isdecimal() or not length):
        return None
    wanted = (
        int(length)
        if length
        else math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    )
    if (limit is not None and wanted > limit) or not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            file.seek(int(offset))
            return file.read(wanted)
    except OSError:  # a file that cannot be read is reported where the model is loaded; here it has no known value
        return None


def _inside_model_folder(location: str, model: Path | None) -> Path | None:
    pure = PurePosixPath(location)
    if model is None or not location or "\0" in location or pure.is_absolute() or ".." in pure.parts:
        return None
    if PureWindowsPath(location).is_absolute() or ".." in PureWindowsPath(location).parts:
        return None
    folder = model.parent.resolve()
    path = (folder / pure).resolve()
    return path if path.is_relative_to(folder) else None
