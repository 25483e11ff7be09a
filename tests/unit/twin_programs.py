"""Builds the twin's test programs once a session and runs them."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "twin"
COMPILER = shutil.which("g++")
FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O0", f"-I{ROOT / 'kernels' / 'twin'}"]
"""Compiling takes far longer here than running; what only an optimizing compiler warns of, it does where kernels compile."""
SOC = {2201: "Ascend910B1", 2002: "Ascend310P3"}

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="the twin needs g++")


@dataclass(frozen=True)
class Programs:
    """Paths of the built programs; `broken` by the architecture they were built for."""

    run: Path
    run310p: Path
    broken: dict[int, Path]


@functools.cache
def built() -> Programs:
    """Compiles everything, two at a time; the first of the processes that share the tests does it for all."""
    build = Path(os.environ["ATCFUSE_TEST_PROGRAMS"]) / "twin"
    build.mkdir(exist_ok=True)
    jobs = {
        build / "broken2201": (SOURCES / "broken" / "main.cpp", 2201),
        build / "run": (SOURCES / "run.cpp", 2201),
        build / "broken2002": (SOURCES / "broken" / "main.cpp", 2002),
        build / "run310p": (SOURCES / "run310p.cpp", 2002),
    }

    def compile_one(target: Path) -> None:
        source, arch = jobs[target]
        command = [str(COMPILER), *FLAGS, f"-D__NPU_ARCH__={arch}", str(source), "-o", str(target)]
        subprocess.run(command, check=True)

    with (build / "lock").open("w") as lock, ThreadPoolExecutor(2) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released where the file is closed, by a process that dies too
        list(pool.map(compile_one, [target for target in jobs if not target.exists()]))
    broken = {2201: build / "broken2201", 2002: build / "broken2002"}
    return Programs(build / "run", build / "run310p", broken)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True)


def execute(
    directory: Path, kernel: str, blocks: int, numbers: list[float], **inputs: np.ndarray
) -> tuple[np.ndarray, dict[str, Any]]:
    """Runs a test kernel and gives the bytes of its output y and the report."""
    for name, value in inputs.items():
        value.tofile(directory / f"{name}.bin")
    done = run([str(built().run), kernel, str(directory), str(blocks), *map(str, numbers)])
    assert done.returncode == 0, done.stderr
    return np.fromfile(directory / "y.bin", np.uint8), json.loads((directory / "report.json").read_text())
