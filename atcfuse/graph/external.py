"""External data: tensors whose bytes lie in files beside the model.

The files are checked, linked or copied, never read to match. A model names its files itself, so a hostile one may name
any: only regular files inside the model's folder are accepted (where the model is a symbolic link, also those inside
the folder it points into, as in a hub cache).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path, PureWindowsPath
from typing import BinaryIO

from onnx import ModelProto, TensorProto

from atcfuse.diagnostics import AtcfuseError, Diagnostic, error, info
from atcfuse.files import CHUNK, Transaction, create, write_all, writing
from atcfuse.graph.walk import blocks

Progress = Callable[[Path, int, int], None]
"""Called while a file is copied: the file, bytes done, bytes in all."""

KEYS = ("location", "offset", "length")
"""The keys of an external-data entry that every reader knows; ATC takes any other key for the length."""

MOVED_FROM = 1024
"""Tensors of fewer bytes stay in the model: readers need small constants to infer shapes."""

_BITS = {
    **dict.fromkeys(("FLOAT4E2M1", "INT4", "UINT4"), 4),
    **dict.fromkeys(("INT2", "UINT2"), 2),
    **dict.fromkeys(("INT8", "UINT8", "BOOL"), 8),
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0"), 8),
    **dict.fromkeys(("INT16", "UINT16", "FLOAT16", "BFLOAT16"), 16),
    **dict.fromkeys(("INT32", "UINT32", "FLOAT"), 32),
    **dict.fromkeys(("INT64", "UINT64", "DOUBLE", "COMPLEX64"), 64),
    "COMPLEX128": 128,
}
_WIDTH = {number: _BITS[name] for name, number in TensorProto.DataType.items() if name in _BITS}
_FICLONE = 0x40049409
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Reference:
    """Where the bytes of one tensor lie; `length` is None where neither the entry nor the element type tells it."""

    tensor: str
    location: str
    offset: int
    length: int | None


def external_tensors(model: ModelProto) -> list[TensorProto]:
    """Every tensor of the model, in whatever scope, whose data is external."""
    return [t for block in blocks(model) for t in block.tensors if is_external(t)]


def locations(model: ModelProto) -> list[str]:
    """The files that a model's weights lie in, relative to its folder, sorted."""
    return sorted({reference(tensor).location for tensor in external_tensors(model)})


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor's bytes lie in another file."""
    return tensor.data_location == TensorProto.EXTERNAL


def byte_size(tensor: TensorProto) -> int | None:
    """The bytes of the tensor's elements by type and dims, or None where the type has no fixed width."""
    width = _WIDTH.get(tensor.data_type)
    return None if width is None else (prod(tensor.dims) * width + 7) // 8


def reference(tensor: TensorProto) -> Reference:
    """The external-data entry of a tensor. Raises AtcfuseError ATF115 where it is not well formed."""
    entry: dict[str, str] = {}
    for pair in tensor.external_data:
        if not isinstance(pair.key, str) or not isinstance(pair.value, str) or "\0" in pair.value:
            raise _malformed(tensor, "a key or value that is not text")
        if pair.key in entry and pair.key in KEYS:
            raise _malformed(tensor, f"two entries for {pair.key!r}")
        entry[pair.key] = pair.value
    if not entry.get("location"):
        raise _malformed(tensor, "no location")
    if tensor.data_type == TensorProto.STRING or any(extent < 0 for extent in tensor.dims):
        raise _malformed(tensor, f"element type {tensor.data_type} and dims {list(tensor.dims)}")
    length = _number(tensor, entry, "length")
    size = byte_size(tensor)
    if length and size is not None and length != size:
        raise _malformed(tensor, f"length {length} where its type and dims take {size} bytes")
    return Reference(str(tensor.name), entry["location"], _number(tensor, entry, "offset"), length or size)


def _number(tensor: TensorProto, entry: dict[str, str], key: str) -> int:
    text = entry.get(key) or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _LARGEST):
        raise _malformed(tensor, f"{key} {text[:40]!r}")
    return int(text)


def _malformed(tensor: TensorProto, found: str) -> AtcfuseError:
    hint = "an entry has a location and, as decimal numbers, an offset and a length; export the model again"
    return AtcfuseError(error("ATF115", f"the external data entry of tensor {tensor.name!r} has {found}", hint=hint))


def check_references(tensors: Iterable[TensorProto], model_path: Path) -> None:
    """Proves that every external tensor can be read whole; no data is read.

    Raises AtcfuseError with the first finding a file of: ATF109 (missing), ATF110 (too short), ATF111 (outside of the
    model's folder), ATF115 (malformed entry).
    """
    found: dict[tuple[str, str], Diagnostic] = {}
    sizes: dict[str, int] = {}
    for tensor in tensors:
        location = ""
        try:
            ref = reference(tensor)
            location = ref.location
            if location not in sizes:
                sizes[location] = os.path.getsize(resolve(location, model_path))
            _check_extent(ref, sizes[location])
        except AtcfuseError as exc:
            for diagnostic in exc.diagnostics:
                found.setdefault((diagnostic.code, location), diagnostic)
    if found:
        raise AtcfuseError(found.values())


def _check_extent(ref: Reference, size: int) -> None:
    needed = ref.offset + (ref.length or 0)
    if needed <= size:
        return
    message = f"external data file {ref.location!r} has {size} bytes; tensor {ref.tensor!r} needs {needed}"
    hint = "the file was cut short or belongs to another export; copy it again"
    raise AtcfuseError(error("ATF110", message, hint=hint))


def resolve(location: str, model_path: Path) -> Path:
    """The real path of an external data file. Raises AtcfuseError ATF109 or ATF111."""
    as_windows = PureWindowsPath(location)  # also splits at "/"; a model written on Windows must not escape either
    if as_windows.anchor or as_windows.drive or ".." in as_windows.parts:
        raise _outside(location, "is not a plain path below the model's folder")
    path = Path(os.path.realpath(model_path.parent / location))
    folders = (os.path.realpath(model_path.parent), os.path.dirname(os.path.realpath(model_path)))
    if not any(path.is_relative_to(folder) for folder in folders):
        raise _outside(location, "is a symbolic link that leaves the model's folder")
    try:
        mode = path.stat().st_mode
    except OSError as exc:
        raise _missing(location, model_path) from exc
    if not stat.S_ISREG(mode):
        raise _outside(location, "is not a regular file")
    return path


def _outside(location: str, what: str) -> AtcfuseError:
    hint = "external data must lie in regular files beside the model, named relative to it"
    return AtcfuseError(error("ATF111", f"the external data location {location!r} {what}", hint=hint))


def _missing(location: str, model_path: Path) -> AtcfuseError:
    hint = f"put {location} into {model_path.parent}, where the model expects it"
    if model_path.is_symlink():
        own = f"the model is a symbolic link to {os.path.realpath(model_path)}, so its own path may work"
        hint = f"{hint}; {own}"
    return AtcfuseError(error("ATF109", f"the external data file {location!r} is missing", hint=hint))


def drop_other_keys(tensors: Iterable[TensorProto]) -> list[Diagnostic]:
    """Removes, in place, every external-data key but location, offset and length; info ATF605 where there were any."""
    dropped: dict[str, int] = {}
    for tensor in tensors:
        others = [pair.key for pair in tensor.external_data if pair.key not in KEYS]
        if not others:
            continue
        kept = [(pair.key, pair.value) for pair in tensor.external_data if pair.key in KEYS]
        del tensor.external_data[:]
        for key, value in kept:
            tensor.external_data.add(key=key, value=value)
        for key in others:
            dropped[key] = dropped.get(key, 0) + 1
    if not dropped:
        return []
    keys = ", ".join(f"{key} ({count})" for key, count in sorted(dropped.items()))
    return [info("ATF605", f"external data keys that ATC misreads were left out: {keys}")]


def bring_along(
    tensors: Iterable[TensorProto],
    source: Path,
    out_path: Path,
    transaction: Transaction,
    progress: Progress | None = None,
) -> None:
    """Stages the external files of the model `source` beside `out_path` under their own names.

    A file that is there already (the same, or with the same content) stays. Raises AtcfuseError ATF118 where a
    different file has the name, and what `resolve` and `Transaction` raise.
    """
    for location in sorted({reference(tensor).location for tensor in tensors}):
        origin = resolve(location, source)
        transaction.protect(origin)
        target = out_path.parent / location
        if target.exists() and _same_content(origin, target):
            continue
        if target.exists():
            hint = "write into another folder, or remove that file if nothing needs it"
            message = f"{target} exists and is not the external data file {location!r} of the input"
            raise AtcfuseError(error("ATF118", message, hint=hint))
        _place(origin, transaction.stage(target, parents=True), target, progress)


def _same_content(one: Path, other: Path) -> bool:
    if os.path.samefile(one, other):
        return True
    if one.stat().st_size != other.stat().st_size or not other.is_file():
        return False
    with _reading(one), one.open("rb") as left, other.open("rb") as right:
        while chunk := left.read(CHUNK):
            if chunk != right.read(CHUNK):
                return False
    return True


def _place(origin: Path, staged: Path, target: Path, progress: Progress | None) -> None:
    """A reflink where the filesystem has them, else a copy that keeps holes.

    Never a hard link: onnx refuses external data with more than one link, in the copy and in the original alike.
    """
    with writing(target), create(staged) as stream, _reading(origin), origin.open("rb") as source:
        if not _reflink(source, stream):
            _copy(source, stream, target, progress)


def _reflink(source: BinaryIO, stream: BinaryIO) -> bool:
    try:
        import fcntl

        fcntl.ioctl(stream.fileno(), _FICLONE, source.fileno())
    except (ImportError, OSError):
        return False
    return True


def _copy(source: BinaryIO, stream: BinaryIO, target: Path, progress: Progress | None) -> None:
    size = os.fstat(source.fileno()).st_size
    with writing(target):
        os.ftruncate(stream.fileno(), size)
    for start, end in _extents(source.fileno(), size):
        while start < end:
            chunk = os.pread(source.fileno(), min(CHUNK, end - start), start)
            if not chunk:
                raise OSError(f"it became shorter than {size} bytes while it was read")
            with writing(target):
                os.lseek(stream.fileno(), start, os.SEEK_SET)
                write_all(stream.fileno(), chunk)
            start += len(chunk)
            if progress:
                progress(target, start, size)


def _extents(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that are not holes."""
    position = 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as exc:
            if exc.errno != errno.ENXIO:  # ENXIO: only a hole is left; else the filesystem tells no holes
                yield position, size
            return
        yield start, end
        position = end


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        message = f"cannot read {path}: {exc.strerror or exc}"
        raise AtcfuseError(error("ATF103", message, hint="check the file's permissions and its disk")) from exc


def move_weights(model: ModelProto, stream: BinaryIO, location: str) -> ModelProto:
    """A copy of the model whose larger initializers are written to `stream`, aligned, one at a time.

    Only initializers of the main graph move, since ATC looks for external data nowhere else; those stored in typed
    fields stay. `location` is the name the entries get.
    """
    moved = ModelProto()
    moved.CopyFrom(model)
    position = 0
    for tensor in moved.graph.initializer:
        raw = tensor.raw_data
        if is_external(tensor) or len(raw) < MOVED_FROM:
            continue
        alignment = 4096 if len(raw) >= 1 << 20 else 64  # whole pages, so that large weights can be mapped
        padding = -position % alignment
        write_all(stream.fileno(), bytes(padding))
        write_all(stream.fileno(), raw)
        position += padding
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in zip(KEYS, (location, position, len(raw)), strict=True):
            tensor.external_data.add(key=key, value=str(value))
        position += len(raw)
    return moved
