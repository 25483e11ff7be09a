"""What ATC would refuse or misread in constants, external data and graph inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

from onnx import TensorProto, ValueInfoProto

from atcfuse.graph.atc_scopes import Finding, Scope, constants, label

_FLOAT8 = frozenset({TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E4M3FN})
_BITS: dict[int, int] = {
    TensorProto.BOOL: 8,
    TensorProto.INT8: 8,
    TensorProto.UINT8: 8,
    TensorProto.FLOAT8E5M2: 8,
    TensorProto.FLOAT8E4M3FN: 8,
    TensorProto.INT16: 16,
    TensorProto.UINT16: 16,
    TensorProto.FLOAT16: 16,
    TensorProto.BFLOAT16: 16,
    TensorProto.INT32: 32,
    TensorProto.UINT32: 32,
    TensorProto.FLOAT: 32,
    TensorProto.INT64: 64,
    TensorProto.UINT64: 64,
    TensorProto.DOUBLE: 64,
    TensorProto.COMPLEX64: 64,
    TensorProto.COMPLEX128: 128,
}
_KNOWN_TYPES = frozenset(_BITS) | {TensorProto.STRING}
_ORDINARY = "store the tensor in an ordinary element type, such as FLOAT16 or INT8, or quantize with Ascend's own tools"
_RESAVE = "save the model again with external data: onnx.save_model(model, path, save_as_external_data=True)"
_C_INTEGER = re.compile(r"\s*[+-]?\d+")


def constant_findings(scope: Scope) -> Iterator[Finding]:
    """Constants that ATC reads as empty, does not read at all, or whose element type it does not know."""
    for node in scope.graph.node:
        if node.op_type == "Constant" and not any(attribute.name == "value" for attribute in node.attribute):
            yield Finding(
                "ATF420",
                "error",
                "a Constant without the attribute `value`: ATC reads an empty tensor and says nothing",
                label(node),
                "Constant",
                "`atcfuse optimize` writes value_float, value_ints and the like as `value`",
            )
    for sparse in scope.graph.sparse_initializer:
        hint = "store the tensor densely"
        yield Finding("ATF421", "error", "a sparse initializer: ATC never reads it", sparse.values.name, "", hint)
    for name, tensor in constants(scope):
        if _type_is_refused(tensor):
            message = f"a constant of element type {_type_name(tensor.data_type)}"
            yield Finding("ATF422", "error", message, name, "", _ORDINARY, "E19999")


def _type_is_refused(tensor: TensorProto) -> bool:
    if tensor.data_type not in _KNOWN_TYPES:
        return True
    # The two FLOAT8 types are known as such; only the reader of inline data has no case for them.
    inline = tensor.data_location != TensorProto.EXTERNAL
    return tensor.data_type in _FLOAT8 and inline and math.prod(tensor.dims) != 0


def _type_name(data_type: int) -> str:
    try:
        return str(TensorProto.DataType.Name(data_type))
    except ValueError:
        return str(data_type)


class ExternalFiles:
    """The sizes of external data files beside the model, each looked up once. Without a folder, every size is None."""

    def __init__(self, model_dir: Path | None) -> None:
        self._folder = model_dir
        self._sizes: dict[str, int | None] = {}

    @property
    def known(self) -> bool:
        """Whether there is a folder to look in."""
        return self._folder is not None

    def size(self, location: str) -> int | None:
        """The file's size in bytes, or None where there is no such file."""
        if self._folder is None:
            return None
        if location not in self._sizes:
            path = self._folder / location
            self._sizes[location] = path.stat().st_size if path.is_file() else None
        return self._sizes[location]


def external_findings(scope: Scope, files: ExternalFiles) -> Iterator[Finding]:
    """External data that ATC would not find, not resolve, or read with a wrong place or length."""
    for name, tensor in constants(scope):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        if scope.is_branch:
            message = "external data inside an If branch: ATC resolves its path only in the main graph"
            hint = "move the tensor to the main graph's initializers, or store it inside the .onnx file"
            yield Finding("ATF427", "error", message, name, "", hint)
            continue
        yield from _entry_findings(name, tensor, files)


def _entry_findings(name: str, tensor: TensorProto, files: ExternalFiles) -> Iterator[Finding]:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.pop("location", "")
    if not location:
        yield Finding("ATF429", "error", "external data without a `location`", name, "", _RESAVE, "E19999")
        return
    for key, value in entries.items():
        number = _C_INTEGER.match(value) is not None
        if key not in ("offset", "length"):
            effect = "takes it for the length" if number else "cannot read it as the length it takes it for"
            message = f"external data with the key `{key}`: ATC {effect}"
            hint = "`atcfuse optimize` writes location, offset and length only"
            yield Finding("ATF424", "error", message, name, "", hint, "" if number else "E19999")
        elif not number:
            message = f"external data whose `{key}` is not a number"
            yield Finding("ATF429", "error", message, name, "", _RESAVE, "E19999")
            return
    yield from _path_findings(name, location)
    if not _is_absolute(location) and files.known:
        yield from _range_findings(name, tensor, location, entries, files)


def _is_absolute(location: str) -> bool:
    return PurePosixPath(location).is_absolute() or bool(PureWindowsPath(location).drive)


def _path_findings(name: str, location: str) -> Iterator[Finding]:
    if _is_absolute(location):
        message = f'external data at the absolute path "{location}": ATC joins it to the model\'s folder'
        yield Finding(
            "ATF425", "error", message, name, "", "put the file beside the model and save it with a relative path"
        )
    elif ".." in PurePosixPath(location).parts:
        message = f'external data outside the model\'s folder: "{location}"'
        hint = "put the file beside the model; onnx.checker and onnxruntime refuse such a path"
        yield Finding("ATF426", "warning", message, name, "", hint)


def _range_findings(
    name: str, tensor: TensorProto, location: str, entries: dict[str, str], files: ExternalFiles
) -> Iterator[Finding]:
    size = files.size(location)
    if size is None:
        message = f'the external data file "{location}" does not exist'
        yield Finding("ATF428", "error", message, name, "", "copy the file into the model's folder")
        return
    offset = int(_C_INTEGER.match(entries.get("offset", "0"))[0])  # type: ignore[index]
    length = int(_C_INTEGER.match(entries.get("length", "0"))[0])  # type: ignore[index]
    needed = length or -(-math.prod(tensor.dims) * _BITS.get(tensor.data_type, 0) // 8)
    if offset < 0 or offset + needed > size:
        message = f'the external data file "{location}" ({size} bytes) ends before the tensor does'
        yield Finding("ATF428", "error", message, name, "", "copy the whole file; the copy may have been cut off")


def input_findings(scope: Scope) -> Iterator[Finding]:
    """Main-graph inputs of a type that ATC does not take, and inputs whose shape the user must give it."""
    if scope.is_branch:
        return
    values = [value for value in scope.graph.input if value.name in scope.inputs]
    for value in values:
        yield from _type_findings(value)
    shaped = [value for value in values if value.type.tensor_type.HasField("shape")]
    dynamic = [value for value in shaped if -1 in _dims(value)]
    setting = ";".join(f"{value.name}:{','.join(map(str, _dims(value)))}" for value in shaped)
    hint = f'--input_shape="{setting}" --input_format=ND, where each -1 may become a size or a range such as 1~8'
    for value in dynamic:
        yield Finding("ATF435", "info", "inputs with unknown dims: ATC must be told their shapes", value.name, "", hint)


def _dims(value: ValueInfoProto) -> list[int]:
    """The dims of a tensor value as ATC reads them: whatever is not a number is -1."""
    shape = value.type.tensor_type.shape
    return [dim.dim_value if dim.HasField("dim_value") else -1 for dim in shape.dim]


def _type_findings(value: ValueInfoProto) -> Iterator[Finding]:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        what = f"of {kind.removesuffix('_type').replace('_', ' ')} type" if kind else "without a type"
        hint = "make it a tensor: split a sequence into several inputs, leave an optional out"
        yield Finding("ATF437", "error", f"a graph input {what}", value.name, "", hint, "E19999")
        return
    element = value.type.tensor_type.elem_type
    if element not in _KNOWN_TYPES:
        message = f"a graph input of element type {_type_name(element)}"
        yield Finding("ATF422", "error", message, value.name, "", _ORDINARY, "E19999")
    elif element == TensorProto.STRING:
        message = "a graph input of strings: no AI Core operator reads them"
        yield Finding("ATF438", "warning", message, value.name, "", "do the text processing outside of the model")
    if not value.type.tensor_type.HasField("shape"):
        message = "a graph input without a shape: ATC takes it for a scalar"
        yield Finding("ATF436", "warning", message, value.name, "", "pass its shape with --input_shape")
