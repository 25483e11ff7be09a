"""Generated kernels executed on this machine: compiled against `kernels/twin`, run on numpy inputs, counted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atcfuse.codegen import GeneratedKernel, render_driver
from atcfuse.codegen.signature import BFLOAT16, BOOL, FLOAT, FLOAT16, INT32, INT64
from atcfuse.diagnostics import AtcfuseError, error
from atcfuse.tiling import Platform, platform_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_WORTH_PRECOMPILING = 2
FLAGS = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-O1")
SOCS = {"910B": ("Ascend910B1", 2201), "310P": ("Ascend310P3", 2002)}
"""By family: the chip that the twin stands for, and its `__NPU_ARCH__`."""
NUMPY_TYPES = {FLOAT: "<f4", FLOAT16: "<f2", BFLOAT16: "<u2", BOOL: "|b1", INT32: "<i4", INT64: "<i8"}
"""Numpy types of operands by TensorProto.DataType; bfloat16 as its bits in uint16."""
_BROKE_A_RULE, _REFUSED = 3, 5


@dataclass(frozen=True)
class Launch:
    """What the kernel's own tiling asked of the host: blocks, tiling key, user workspace in bytes."""

    blocks: int
    tiling_key: int
    workspace_bytes: int


@dataclass(frozen=True)
class TwinResult:
    """`outputs` by operand name; `counters` is the twin's report (`kernels/twin/README.md`, "The report")."""

    outputs: Mapping[str, Array]
    counters: Mapping[str, Any]
    launch: Launch


def run_kernel(
    kernel: GeneratedKernel,
    inputs: Mapping[str, Array],
    *,
    platform: Platform | None = None,
    cache: Path | None = None,
    timeout: float = 600.0,
    half_overflow: bool = False,
) -> TwinResult:
    """Compiles a kernel, runs it on `inputs` (bfloat16 as uint16 bits) and returns what it computed and counted.

    `platform` is the chip that the tiling sees, the family's usual one if not given. `cache` keeps programs by content
    for later calls. With `half_overflow` finite values may become infinite halves, as where the model's own do so.
    Raises AtcfuseError: ATF700 no C++ compiler, ATF701 the sources do not compile, ATF702 the kernel
    broke a rule of the chip, ATF703 its tiling refuses the shapes, ATF706 inputs that are not the signature's,
    ATF707 the program failed otherwise.
    """
    _check_inputs(kernel, inputs)
    with _folder(cache) as programs, tempfile.TemporaryDirectory(prefix="atcfuse-run-") as scratch:
        program = build_kernel(kernel, programs)
        folder = Path(scratch)
        chip = platform or platform_of(kernel.signature.family)
        _write_request(kernel, inputs, chip, half_overflow, folder)
        _execute(kernel, program, folder, timeout)
        return _read_result(kernel, folder)


def build_kernel(kernel: GeneratedKernel, folder: Path) -> Path:
    """The program that runs a kernel, compiled into `folder` unless it is there. Raises ATF700 and ATF701."""
    compiler = find_compiler()
    driver = render_driver(kernel)
    headers = (kernel.signature.spec.folder.parent / "twin").resolve()
    program = folder / f"{kernel.function}-{_digest(kernel, driver, headers, compiler)}"
    if program.exists():
        return program
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as scratch:
        sources = Path(scratch)
        for name, text in {**kernel.files, "run.cpp": driver}.items():
            (sources / name).write_text(text, encoding="utf-8")
        flags = (*FLAGS, f"-D__NPU_ARCH__={SOCS[kernel.signature.family][1]}", "-I", str(headers))
        command = [compiler, *flags, *_precompiled(folder, compiler, headers, flags), "run.cpp", "-o", "run"]
        done = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            notes = [line for line in done.stderr.splitlines() if "error" in line or "warning" in line][:5]
            message = f"the generated kernel {kernel.function} does not compile"
            hint = "this is a defect of atcfuse; please report it with the model's fused node"
            raise AtcfuseError(error("ATF701", message, hint=hint, notes=notes or done.stderr.splitlines()[:5]))
        os.replace(sources / "run", program)
    return program


def _precompiled(folder: Path, compiler: str, headers: Path, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Flags that take the twin's headers in precompiled, a third of a kernel's compilation; none for a few kernels.

    A compiler that knows no such files, or finds one unfit, reads the headers as they are.
    """
    if sum(1 for _ in folder.glob("*-*")) < _WORTH_PRECOMPILING:
        return ()
    digest = hashlib.sha256("\0".join([compiler, *flags]).encode())
    for path in sorted(headers.rglob("*.h")):
        digest.update(path.read_bytes())
    header = folder / f"twin_{digest.hexdigest()[:20]}.h"
    compiled = header.with_suffix(".h.gch")
    if not compiled.exists():
        text = "".join(f'#include "{name}"\n' for name in ("kernel_operator.h", "lib/matmul_intf.h", "harness.h"))
        with tempfile.TemporaryDirectory(prefix="headers.", dir=folder) as scratch:
            (Path(scratch) / header.name).write_text(text, encoding="utf-8")
            command = [compiler, *flags, "-x", "c++-header", header.name, "-o", compiled.name]
            if subprocess.run(command, cwd=scratch, capture_output=True, check=False).returncode != 0:
                return ()
            os.replace(Path(scratch) / header.name, header)
            os.replace(Path(scratch) / compiled.name, compiled)
    return "-include", str(header)


def find_compiler() -> str:
    """The C++ compiler: what CXX names, else g++, clang++ or c++ from PATH. Raises AtcfuseError ATF700."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else ("g++", "clang++", "c++"):
        found = shutil.which(name)
        if found:
            return found
    message = f"CXX names {wanted!r}, which is not a program" if wanted else "no C++ compiler was found in PATH"
    hint = "install g++ 9 or newer (or clang++), or set CXX; kernels can be generated but not run without it"
    raise AtcfuseError(error("ATF700", message, hint=hint))


@contextmanager
def _folder(cache: Path | None) -> Iterator[Path]:
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        yield cache
        return
    with tempfile.TemporaryDirectory(prefix="atcfuse-twin-") as scratch:
        yield Path(scratch)


def _digest(kernel: GeneratedKernel, driver: str, headers: Path, compiler: str) -> str:
    digest = hashlib.sha256("\0".join([driver, compiler, *FLAGS]).encode())
    for name, text in sorted(kernel.files.items()):
        digest.update(f"{name}\0{text}\0".encode())
    for path in sorted(headers.rglob("*.h")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def _check_inputs(kernel: GeneratedKernel, inputs: Mapping[str, Array]) -> None:
    import numpy as np

    signature = kernel.signature
    expected = {o.name: signature.dtypes[o.name] for o in signature.spec.inputs if signature.has(o.name)}
    problems = [f"{name} is missing" for name in expected if name not in inputs]
    problems += [f"the node has no input {name}" for name in inputs if name not in expected]
    for name, dtype in expected.items():
        if name in inputs and inputs[name].dtype != np.dtype(NUMPY_TYPES[dtype]):
            problems.append(f"{name} is {inputs[name].dtype}, expected {np.dtype(NUMPY_TYPES[dtype])}")
    if problems:
        raise AtcfuseError(error("ATF706", f"inputs of {kernel.op_type}: {problems[0]}", notes=problems[1:]))


def _write_request(
    kernel: GeneratedKernel, inputs: Mapping[str, Array], p: Platform, half_overflow: bool, folder: Path
) -> None:
    lines = [SOCS[kernel.signature.family][0]]
    lines.append(
        f"{p.cube_cores} {p.vector_cores} {p.ub} {p.l1} {p.l0a} {p.l0b} {p.l0c} {p.tile_rows} {int(half_overflow)}"
    )
    for operand in kernel.signature.spec.inputs:
        array = inputs.get(operand.name)
        if array is None:
            lines.append("-1")
            continue
        lines.append(" ".join(str(n) for n in (array.ndim, *array.shape)))
        (folder / f"{operand.name}.bin").write_bytes(array.tobytes())
    (folder / "request.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _execute(kernel: GeneratedKernel, program: Path, folder: Path, timeout: float) -> None:
    try:
        done = subprocess.run([str(program), str(folder)], capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired as exc:
        hint = "the twin runs one core after another; give it smaller shapes or more time"
        raise AtcfuseError(error("ATF707", f"{kernel.function} did not end in {timeout:g} s", hint=hint)) from exc
    if done.returncode == 0:
        return
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    if done.returncode == _REFUSED:
        raise AtcfuseError(error("ATF703", f"{kernel.op_type} does not take these shapes: {lines[-1]}"))
    code = "ATF702" if done.returncode == _BROKE_A_RULE else "ATF707"
    what = "broke a rule of the chip" if code == "ATF702" else "could not be run"
    raise AtcfuseError(error(code, f"{kernel.function} {what}: {lines[-1]}", notes=lines[:-1][-5:]))


def _read_result(kernel: GeneratedKernel, folder: Path) -> TwinResult:
    import numpy as np

    first, *shapes = (folder / "launch.txt").read_text(encoding="utf-8").splitlines()
    blocks, key, workspace = (int(word) for word in first.split())
    outputs: dict[str, np.ndarray[Any, Any]] = {}
    for operand, line in zip(kernel.signature.spec.outputs, shapes, strict=True):
        if not kernel.signature.has(operand.name):
            continue
        dtype = NUMPY_TYPES[kernel.signature.dtypes[operand.name]]
        shape = tuple(int(word) for word in line.split()[1:])
        outputs[operand.name] = np.fromfile(folder / f"{operand.name}.bin", dtype=dtype).reshape(shape)
    counters = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return TwinResult(outputs, counters, Launch(blocks, key, workspace))
