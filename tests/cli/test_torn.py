"""A run that ends at any step: killed, interrupted, out of space. What stands there is what stood there, or is whole.

The command runs in a forked process in which one system call out of all that write or rename does the damage.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from cli_support import files
from onnx.parser import parse_model

from atcfuse.cli import run
from atcfuse.cli.app import _terminated

TEXT = """<ir_version: 8, opset_import: ["" : 17]> m (float[64,512] x, float[512] g, float[512,512] w) => (float[64,512] y) {
  n = LayerNormalization<epsilon = 1e-5>(x, g)
  p = MatMul(n, w)
  s = SIGMOID(p)
  y = Mul(p, s)
}"""
CALLS = ("open", "write", "fsync", "link", "replace", "rename", "mkdir")
OPTIONS = ("-q", "--min-saving", "0", "--force", "linear_epilogue")


def _hooked(at: int, harm: Callable[[str], None]) -> list[int]:
    """Replaces the calls so that the one with number `at` harms; the list counts them. The real ones stay below."""
    count = [0]

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            writes = name != "open" or (len(given) > 1 and given[1] & os.O_CREAT)
            if writes:
                count[0] += 1
                if count[0] == at:
                    harm(name)
            return real(*given, **more)

        return call

    for name in CALLS:
        setattr(os, name, wrap(name, getattr(os, name)))
    return count


def _in_child(arguments: list[str], at: int, harm: Callable[[str], None]) -> tuple[int, int]:
    """The exit status of a run in another process (negative: the signal), and how many calls it made."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 99
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            signal.signal(signal.SIGTERM, _terminated)  # as the console script does
            signal.signal(signal.SIGINT, signal.default_int_handler)
            put = os.write
            count = _hooked(at, harm)
            code = run(arguments)
            put(writer, str(count[0]).encode())
        except SystemExit as exc:
            code = int(exc.code or 0)
        finally:
            os._exit(code)
    os.close(writer)
    told = os.read(reader, 100)
    os.close(reader)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), int(told or 0)


def _kill(name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _full(name: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _interrupt(name: str) -> None:
    signal.raise_signal(signal.SIGINT)


def _terminate(name: str) -> None:
    signal.raise_signal(signal.SIGTERM)


def _never(name: str) -> None:
    raise AssertionError


@pytest.fixture(scope="module")
def stands(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes], dict[str, bytes], int]:
    """A folder with an older run's outputs, these, those of a new run, and how many calls a run makes."""
    folder = tmp_path_factory.mktemp("old")
    model = folder / "m.onnx"
    onnx.save(parse_model(TEXT.replace("SIGMOID", "Tanh")), model)
    assert run(["optimize", str(model), *OPTIONS]) == 0
    onnx.save(parse_model(TEXT.replace("SIGMOID", "Sigmoid")), model)
    old = files(folder)
    other = folder.parent / "new"
    shutil.copytree(folder, other)
    code, calls = _in_child(["optimize", str(other / "m.onnx"), *OPTIONS], -1, _never)
    assert code == 0
    new = files(other)
    assert new.keys() >= old.keys() - {n for n in old if ".kernels/" in n}
    assert all(new[n] != old[n] for n in new if n in old and not n.startswith("m.onnx") and ".kernels/" not in n)
    assert calls > 20
    return folder, old, new, calls


def _step(calls: int, which: int, of: int) -> int:
    return 1 + which * (calls - 1) // (of - 1)


# Of every 24 steps an ordinary run tries one while files are written and two while they are renamed.
STEPS = [pytest.param(k, marks=[] if k in (8, 19, 22) else pytest.mark.slow) for k in range(24)]


@pytest.mark.parametrize("which", STEPS)
@pytest.mark.parametrize("harm", [_kill, _full, _interrupt, _terminate], ids=["killed", "full", "SIGINT", "SIGTERM"])
def test_files_are_old_or_new(stands: Any, tmp_path: Path, harm: Callable[[str], None], which: int) -> None:
    source, old, new, calls = stands
    folder = tmp_path / "f"
    shutil.copytree(source, folder)
    code, _ = _in_child(["optimize", str(folder / "m.onnx"), *OPTIONS], _step(calls, which, 24), harm)
    # A cache that has been filled meanwhile saves calls: the last step may never come.
    assert code in (0, {"_kill": -9, "_full": 1, "_interrupt": 130, "_terminate": 143}[harm.__name__])
    left = {name: data for name, data in files(folder).items() if not name.startswith(".atcfuse-")}
    if code == 0:
        assert left == new
    if harm is not _kill:
        assert left in (old, new)
        assert files(folder) == left, "nothing temporary stays"
        return
    _assert_whole(left, old, new)


def _assert_whole(left: dict[str, bytes], old: dict[str, bytes], new: dict[str, bytes]) -> None:
    """After a kill between two renames: every file is whole, the project is one of the two, the model came last."""
    kernels = {n: d for n, d in left.items() if ".kernels/" in n}
    assert kernels in ({n: d for n, d in side.items() if ".kernels/" in n} for side in (old, new))
    for name in left.keys() - kernels.keys():
        assert left[name] in (old.get(name), new.get(name)), name
    if left["m.fused.onnx"] == new["m.fused.onnx"]:
        assert left == new
    json.loads(left["m.fused.report.json"])
    onnx.load_from_string(left["m.fused.onnx"])
