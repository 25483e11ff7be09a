"""Inputs that the user gives: an .npz file of arrays named like the model's inputs."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from atcfuse.diagnostics import AtcfuseError, Diagnostic, Span, UsageError, did_you_mean, error
from atcfuse.graph.feeds import BFLOAT16, InputSpec, Interface, dtype_name, numpy_dtype
from atcfuse.paths import is_file, is_folder
from atcfuse.verify.values import Array

HOW_TO_SAVE = "save the inputs with numpy.savez(file, name=array, ...)"


def load_inputs(path: Path) -> dict[str, Array]:
    """Read an .npz file. Raises UsageError where there is none, AtcfuseError where it cannot be read.

    Pickled arrays are refused: reading them could run code.
    """
    span = Span(str(path))
    if not is_file(path):
        kind = "is a directory" if is_folder(path) else "does not exist"
        raise UsageError(error("ATF500", f"the file of inputs {kind}", span, "give the path of an .npz file"))
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it is a single array without a name")
        with loaded as archive:
            arrays = {name: archive[name] for name in archive.files}
        foreign = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
        if foreign:
            raise ValueError(f"the member {foreign[0]!r} is no array")
    except (ValueError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as e:
        found = f"the file of inputs is not a readable .npz archive: {e}"
        if "pickled" in str(e) or "Object arrays" in str(e):
            found = "the file of inputs contains pickled objects, which are never loaded"
        raise AtcfuseError(error("ATF501", found, span, HOW_TO_SAVE)) from e
    return arrays


def check_inputs(values: Mapping[str, Array], interface: Interface) -> dict[str, Array]:
    """The given inputs, held against the model. Raises AtcfuseError that lists every mistake."""
    mistakes = [*_name_mistakes(values, interface)]
    for spec in interface.inputs:
        if spec.name in values:
            mistakes += _type_mistakes(spec, values[spec.name])
    if mistakes:
        raise AtcfuseError(mistakes)
    return {name: _as_fed(value) for name, value in values.items()}


def _as_fed(value: Array) -> Array:
    if value.dtype.kind == "V":
        return value.view(np.uint16)  # bfloat16: numpy stores it as two raw bytes
    return value.astype(object) if value.dtype.kind == "U" else value


def _name_mistakes(values: Mapping[str, Array], interface: Interface) -> Iterator[Diagnostic]:
    known = [*(i.name for i in interface.inputs), *interface.overridable]
    listed = ", ".join(i.name for i in interface.inputs)
    for spec in interface.inputs:
        if spec.name not in values and spec.kind != "optional":
            yield error("ATF502", f"the model's input {spec.name!r} is not among the given arrays", hint=HOW_TO_SAVE)
    for name in sorted(values.keys() - set(known)):
        hint = did_you_mean(name, known) or f"the model's inputs are: {listed}"
        yield error("ATF502", f"the given array {name!r} is not an input of the model", hint=hint)


def _type_mistakes(spec: InputSpec, value: Array) -> Iterator[Diagnostic]:
    if spec.kind != "tensor":
        return
    wanted = numpy_dtype(spec.dtype)
    bits = spec.dtype == BFLOAT16 and value.dtype.kind == "V" and value.dtype.itemsize == 2
    text = wanted == np.dtype(object) and value.dtype.kind == "U"  # object arrays would have to be pickled
    if not (value.dtype == wanted or bits or text):
        message = f"input {spec.name!r} is {value.dtype}, the model takes {dtype_name(spec.dtype)}"
        hint = f"convert it with .astype(numpy.{wanted})" if wanted is not None else ""
        yield error("ATF503", message, hint=hint)
    if spec.dims is None:
        return
    declared = "[" + ", ".join(str(d) for d in spec.dims) + "]"
    shape = list(value.shape)
    if len(shape) != len(spec.dims):
        yield error("ATF503", f"input {spec.name!r} has rank {len(shape)} {shape}, the model takes {declared}")
    elif any(isinstance(d, int) and d != n for d, n in zip(spec.dims, shape, strict=True)):
        yield error("ATF503", f"input {spec.name!r} has shape {shape}, the model takes {declared}")
