"""`make bench`: time and memory of `atcfuse optimize` beside a plain load and save of the same model.

Every run is a process of its own, so start-up and imports count on both sides. This script imports nothing heavy and
leaves building the models to another process: Linux hands the peak memory of a parent on to the children it starts.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOAD_AND_SAVE = "import onnx, sys; onnx.save(onnx.load(sys.argv[1], load_external_data=False), sys.argv[2])"


@dataclass(frozen=True)
class Case:
    """A model to measure on: `kind` and `number` as `models.py` takes them."""

    title: str
    kind: str
    number: int
    external: bool = False
    runs: int = 5


CASES = (
    Case("transformer, 20k nodes", "transformer", 20_000),
    Case("transformer, 100k nodes", "transformer", 100_000, runs=3),
    Case("chain, 20k nodes", "chain", 20_000),
    Case("element-wise chain, 10k nodes", "elementwise-chain", 10_000),
    Case("element-wise chain, 100k nodes", "elementwise-chain", 100_000, runs=3),
    Case("element-wise DAG, 10k nodes", "elementwise-dag", 10_000),
    Case("element-wise DAG, 100k nodes", "elementwise-dag", 100_000, runs=3),
    Case("reduced rows, 10k nodes", "elementwise-rows", 10_000),
    Case("reduced rows, 100k nodes", "elementwise-rows", 100_000, runs=3),
    Case("BERT-base, 12 layers, weights inside", "bert", 12),
    Case("BERT-base, 12 layers, external weights", "bert", 12, external=True),
    Case("LLaMA-7B shape, 32 layers, 13 GB external", "llama", 32),
)


@dataclass(frozen=True)
class Usage:
    """What one process took: seconds, seconds of CPU (user and system), peak resident memory in bytes."""

    wall: float
    cpu: float
    peak: int


def installed() -> dict[str, str]:
    """The environment of a run as users have it: Python keeps what it compiled."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def measure(command: Sequence[str]) -> Usage:
    """Runs a command to its end. Raises RuntimeError with its output where it fails."""
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=installed()
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            text = output.read().decode(errors="replace")
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{text}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Usage(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)


def median(usages: Sequence[Usage]) -> Usage:
    """The median of every figure."""
    return Usage(
        statistics.median(u.wall for u in usages),
        statistics.median(u.cpu for u in usages),
        int(statistics.median(u.peak for u in usages)),
    )


def rows(case: Case, folder: Path) -> list[str]:
    """Builds the model of a case, measures both commands on it in turn, and gives the lines of the table."""
    folder.mkdir()
    model = folder / "model.onnx"
    build = [sys.executable, str(HERE / "models.py"), case.kind, str(case.number), str(model)]
    build += ["--external"] * case.external
    nodes = int(subprocess.run(build, check=True, capture_output=True, text=True).stdout)
    plain = [sys.executable, "-c", LOAD_AND_SAVE, str(model), str(folder / "copy.onnx")]
    atcfuse = str(Path(sys.executable).with_name("atcfuse"))
    optimize = [atcfuse, "optimize", str(model), "-o", str(folder / "fused.onnx")]
    pairs = [(measure(plain), measure(optimize)) for _ in range(case.runs)]
    before, after = median([p for p, _ in pairs]), median([o for _, o in pairs])
    return [
        _row(case.title, f"{nodes:,}", "load and save", before, None),
        _row("", "", "`atcfuse optimize`", after, after.cpu / before.cpu),
    ]


def _row(title: str, nodes: str, command: str, usage: Usage, ratio: float | None) -> str:
    figures = f"{usage.wall:.2f} s | {usage.cpu:.2f} s | {usage.peak / 2**20:.0f} MiB"
    return f"| {title} | {nodes} | {command} | {figures} | {'' if ratio is None else f'{ratio:.1f}x'} |"


HEADER = (
    "| model | nodes | command | wall | CPU | peak memory | CPU ratio |",
    "|---|---:|---|---:|---:|---:|---:|",
)


def document(lines: Sequence[str]) -> str:
    """The results as Markdown, with what they were measured on."""
    machine = f"Python {platform.python_version()}, onnx {version('onnx')}, {os.cpu_count()} CPUs, {platform.system()}"
    notes = (
        "Medians of five processes each (three for 100k nodes), start-up and imports included; CPU is user and system",
        "time together. *Load and save* is `onnx.load` and `onnx.save` without reading external data. Made by",
        f"`make bench` on {machine} {platform.machine()}.",
    )
    return "\n".join(["# Benchmark results", "", *notes, "", *HEADER, *lines, ""])


def main() -> None:
    """Measures the cases (or those whose titles contain a word given), prints the table and writes it."""
    parser = argparse.ArgumentParser(description="Time and memory of atcfuse optimize beside a plain load and save.")
    parser.add_argument("words", nargs="*", help="measure only cases whose titles contain one of these, write nothing")
    parser.add_argument("--write", action="store_true", help="write the results of chosen cases too")
    options = parser.parse_args()
    chosen = [c for c in CASES if not options.words or any(w in c.title for w in options.words)]
    print("\n".join(HEADER), flush=True)
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        for index, case in enumerate(chosen):
            found = rows(case, Path(name) / str(index))
            lines += found
            print("\n".join(found), flush=True)
    if options.write or not options.words:
        helps = median([measure([str(Path(sys.executable).with_name("atcfuse")), "--help"]) for _ in range(5)])
        lines.append(_row("", "", "`atcfuse --help`", helps, None))
        print(lines[-1])
        (HERE / "results.md").write_text(document(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
