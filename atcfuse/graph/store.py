"""Reading and writing models: external data stays on disk, and every mistake has a code."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto

from atcfuse.diagnostics import AtcfuseError, Diagnostic, did_you_mean, error, info
from atcfuse.files import Transaction, write_all
from atcfuse.graph import external, wire
from atcfuse.graph.index import MAX_SCOPE_DEPTH, STANDARD
from atcfuse.graph.walk import Block, blocks

MAX_NODES = 2_000_000
"""More nodes than this, all scopes together, are refused: no deployable model comes near, and memory would not last."""

MAX_PROTOBUF = 2**31 - 1
"""Bytes of the largest protobuf message, and of the largest model file that ATC reads."""

MAX_MESSAGES = 100
"""Messages within messages that protobuf reads."""

MAX_OPSET = 1000
"""No opset has a number like this."""

_FLATTEN = "inline or flatten the model's subgraphs"
_HEAD = 4096
_FOREIGN = (
    (0, b"PK\x03\x04", "a ZIP archive, such as a PyTorch checkpoint"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"\x80\x02", "a Python pickle"),
    (0, b"\x89HDF", "an HDF5 file, such as a Keras model"),
    (0, b"IMOD", "an Ascend offline model (.om), which ATC has made already"),
    (4, b"ORTM", "a model in onnxruntime's own format"),
    (4, b"TFL3", "a TensorFlow Lite model"),
)


def load(path: Path) -> ModelProto:
    """Reads an ONNX model; the files of external tensors are checked but not read.

    Raises AtcfuseError: ATF101 to ATF108 (the file), ATF109 to ATF111 and ATF115 (its external data), ATF112 and ATF116
    (nested too deep, too large), ATF117 (a name that is not UTF-8), ATF129 (no opset),
    ATF130 (a tensor of negative size).
    """
    return _parsed(path, _read(path))


def load_hashed(path: Path) -> tuple[ModelProto, str]:
    """The same, and the SHA-256 of the file, which is computed beside parsing. Raises what `load` raises."""
    data, digest = _read(path), hashlib.sha256()
    hashing = threading.Thread(target=digest.update, args=(data,), name="sha256")
    hashing.start()
    try:
        model = _parsed(path, data)
    finally:
        hashing.join()
    return model, digest.hexdigest()


def _parsed(path: Path, data: bytes) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as exc:
        raise AtcfuseError(_not_parsed(path, data, str(exc))) from exc
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise AtcfuseError(_describe_text(path, data) or _no_graph(path))
    del data
    try:
        tensors = _inspect(model, path)
    except UnicodeDecodeError as exc:  # older protobuf releases raise where newer ones hand bytes out
        raise _not_text(path, "a name") from exc
    external.check_references(tensors, path)
    return model


def save_bytes(model: ModelProto) -> bytes:
    """The model as protobuf; the same model gives the same bytes. Raises AtcfuseError ATF125 above 2 GB."""
    message = _message(model, MAX_PROTOBUF)
    if message is None:
        raise _too_large_to_write()
    return b"".join(message.chunks())


def write(
    model: ModelProto,
    transaction: Transaction,
    out_path: Path,
    source: Path | None = None,
    *,
    progress: external.Progress | None = None,
    limit: int = MAX_PROTOBUF,
) -> list[Diagnostic]:
    """Stages the model, and the external data of `source` (the file it was loaded from), to appear at `out_path`.

    Other external-data keys than location, offset and length are removed from `model` itself (ATF605). A model of more
    than `limit` bytes gets its weights into `OUT.onnx.data` (ATF126). Without `source` the external files are taken to
    be in place. Raises AtcfuseError ATF118, ATF125 and what the transaction raises.
    """
    tensors = external.external_tensors(model)
    diagnostics = external.drop_other_keys(tensors)
    if source is not None:
        external.bring_along(tensors, source, out_path, transaction, progress)
    message = _message(model, limit)
    if message is None:
        taken = {os.path.normpath(external.reference(tensor).location) for tensor in tensors}
        data_path = out_path.with_name(_free_name(out_path.name, taken))
        with transaction.open(data_path) as stream:
            moved = external.move_weights(model, stream, data_path.name)
        message = _message(moved, limit)
        where = f"the model is larger than {limit} bytes: its weights are in {data_path.name}"
        diagnostics.append(info("ATF126", where))
    if message is None:
        raise _too_large_to_write()
    with transaction.open(out_path, last=True) as stream:
        for chunk in message.chunks():
            write_all(stream.fileno(), chunk)
    return diagnostics


def _free_name(name: str, taken: set[str]) -> str:
    candidates = (f"{name}.{k}.data" if k else f"{name}.data" for k in range(len(taken) + 1))
    return next(candidate for candidate in candidates if candidate not in taken)


def _message(model: ModelProto, limit: int) -> wire.Message | None:
    """The model ready to be written, or None where it would be larger than `limit` bytes."""
    try:
        message = wire.Message(model)
    except (EncodeError, ValueError):  # what protobuf's implementations raise above 2 GB
        return None
    return message if message.size <= limit else None


def _too_large_to_write() -> AtcfuseError:
    hint = "only initializers of the main graph stored as raw data can move out; export the model with external data"
    return AtcfuseError(error("ATF125", "the model is larger than 2 GB even without its weights", hint=hint))


def _read(path: Path) -> bytes:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise AtcfuseError(error("ATF102", f"{path} is a folder", hint=_models_in(path)))
        if not stat.S_ISREG(status.st_mode):
            raise AtcfuseError(error("ATF103", f"{path} is not a regular file", hint="give the path of a model file"))
        if not status.st_size:
            raise AtcfuseError(error("ATF104", f"{path} is empty", hint="export or download the model again"))
        if status.st_size > MAX_PROTOBUF:
            hint = "a protobuf ends at 2 GB; export the model with external data"
            raise AtcfuseError(error("ATF116", f"{path} has {status.st_size} bytes", hint=hint))
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise AtcfuseError(_missing(path)) from exc
    except (OSError, ValueError) as exc:  # ValueError: a path with a NUL character
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        hint = "check the file's permissions and its disk"
        raise AtcfuseError(error("ATF103", f"cannot read {path}: {reason}", hint=hint)) from exc


def _missing(path: Path) -> Diagnostic:
    if path.is_symlink():
        return error("ATF101", f"{path} is a symbolic link to {os.readlink(path)}, which does not exist")
    hint = did_you_mean(path.name, _onnx_files(path.parent)) or "paths are relative to the working directory"
    return error("ATF101", f"{path} does not exist", hint=hint)


def _models_in(folder: Path) -> str:
    names = _onnx_files(folder)
    if not names:
        return "give the path of a model file"
    # An optimized model is seldom meant; its name is that of the model with more behind it.
    return f"give the files in it, such as {min(names, key=lambda name: (name.count('.'), name))}"


def _onnx_files(folder: Path) -> list[str]:
    try:
        return sorted(p.name for p in folder.iterdir() if p.suffix == ".onnx")
    except OSError:  # this only serves a hint
        return []


def _not_parsed(path: Path, data: bytes, reason: str) -> Diagnostic:
    """Why the bytes are no ONNX model, as precisely as they tell."""
    text = _describe_text(path, data)
    if text:
        return text
    again = "export or download the model again"
    for offset, magic, what in _FOREIGN:
        if data.startswith(magic, offset):
            return error("ATF106", f"{path} is not an ONNX model but {what}", hint="export the model to ONNX")
    if wire.nesting(data, MAX_MESSAGES) >= MAX_MESSAGES:
        return error("ATF112", f"{path} nests graphs deeper than protobuf reads", hint=_FLATTEN)
    damage = wire.damage(data)
    if damage == "cut":
        return error("ATF105", f"{path} ends in the middle of the model, after {len(data)} bytes", hint=again)
    if damage == "foreign":
        return error("ATF106", f"{path} is not an ONNX model", hint=again)
    return error("ATF106", f"{path} is a damaged ONNX model", hint=again, notes=[reason])


def _no_graph(path: Path) -> Diagnostic:
    hint = "a tensor file (.pb) or a model of another framework can look like this; export the model to ONNX"
    return error("ATF108", f"{path} is a protobuf without an ONNX graph", hint=hint)


def _describe_text(path: Path, data: bytes) -> Diagnostic | None:
    """What kind of text the file is, or None where it is binary."""
    head = data[:_HEAD].lstrip(b"\xef\xbb\xbf \t\r\n")
    if any(byte < 32 and byte not in b"\t\r\n\f" for byte in head):
        return None
    if head.startswith(b"version https://git-lfs"):
        return error("ATF107", f"{path} is a Git LFS pointer, not the model", hint="run: git lfs pull")
    convert = "load it with onnx.load(path, format=...) and save it as protobuf"
    if head.startswith(b"{") and b'"' in head:
        return error("ATF107", f"{path} is JSON text{_json_note(data)}", hint=convert)
    if head.startswith(b"<") and (b"ir_version" in head or b"opset_import" in head):
        return error("ATF107", f"{path} is a model in ONNX text syntax, not protobuf", hint=convert)
    if b"ir_version:" in head or b"graph {" in head:
        return error("ATF107", f"{path} is a model in protobuf text format, not binary", hint=convert)
    try:
        data[:_HEAD].decode("utf-8", "strict" if len(data) <= _HEAD else "ignore")
    except UnicodeDecodeError:
        return None
    return error("ATF107", f"{path} is a text file", hint="give the path of the model; a download may have failed")


def _json_note(data: bytes) -> str:
    try:
        keys = json.loads(data).keys()
    except (ValueError, AttributeError, RecursionError):
        return ""
    return ", an ONNX model in JSON" if "graph" in keys else ", not a model"


def _inspect(model: ModelProto, path: Path) -> list[TensorProto]:
    """Guards against hostile sizes and names in one walk; the external tensors."""
    found: list[TensorProto] = []
    nodes = 0
    _check_text(path, "an import or function", [i.domain for i in model.opset_import])
    _check_opset(path, model)
    _check_functions(path, model.functions)
    for block in blocks(model):
        nodes += len(block.nodes)
        if nodes > MAX_NODES:
            raise AtcfuseError(error("ATF116", f"{path} has more than {MAX_NODES} nodes", hint="split the model"))
        if block.depth > MAX_SCOPE_DEPTH:
            raise AtcfuseError(error("ATF112", f"{path} nests graphs more than {MAX_SCOPE_DEPTH} deep", hint=_FLATTEN))
        _check_names(path, block)
        found.extend(tensor for tensor in block.tensors if external.is_external(tensor))
        for tensor in block.tensors:
            if tensor.dims and min(tensor.dims) < 0:
                raise AtcfuseError(_negative(path, tensor))
    return found


def _check_opset(path: Path, model: ModelProto) -> None:
    for entry in model.opset_import:
        if entry.domain in STANDARD and not 1 <= entry.version <= MAX_OPSET:
            hint = "opsets count from 1; the file is damaged, or its exporter is not sound: export the model again"
            raise AtcfuseError(error("ATF129", f"{path} is written for opset {entry.version}", hint=hint))


def _negative(path: Path, tensor: TensorProto) -> Diagnostic:
    message = f"{path} holds a tensor of the dims {list(tensor.dims)}: {tensor.name!r}"
    return error("ATF130", message, hint="stored tensors have sizes from 0; export the model again")


def _check_functions(path: Path, functions: Iterable[FunctionProto]) -> None:
    for f in functions:
        texts = [f.name, f.domain, f.overload, *f.input, *f.output, *f.attribute, *(i.domain for i in f.opset_import)]
        _check_text(path, "a function", texts)
        _check_text(path, "an attribute", [attribute.name for attribute in f.attribute_proto])


def _check_names(path: Path, block: Block) -> None:
    """Every name that the program works with is text: protobuf hands bytes out where a string is not UTF-8."""
    texts: list[str] = []  # one list and one join: several times faster than a look at every name
    for node in block.nodes:
        texts += (node.name, node.op_type, node.domain, node.overload)
        texts += node.input
        texts += node.output
    texts += [attribute.name for attribute in block.attributes]
    _check_text(path, "a node, value or attribute", texts)
    _check_text(path, "a tensor", [tensor.name for tensor in block.tensors])
    if block.graph is not None:
        _check_values(path, block.graph)


def _check_values(path: Path, graph: GraphProto) -> None:
    values = [*graph.input, *graph.output, *graph.value_info]
    _check_text(path, "a graph or value", [graph.name, *(value.name for value in values)])
    dims = [dim for value in values for dim in value.type.tensor_type.shape.dim]
    _check_text(path, "a dim", [dim.dim_param for dim in dims if not dim.dim_value])


def _check_text(path: Path, what: str, texts: list[str]) -> None:
    try:
        "".join(texts)
    except TypeError as exc:
        raise _not_text(path, what) from exc


def _not_text(path: Path, what: str) -> AtcfuseError:
    hint = "ONNX names are UTF-8 text; the file is damaged, or its exporter is not sound: export the model again"
    return AtcfuseError(error("ATF117", f"{path} names {what} with bytes that are not UTF-8", hint=hint))
