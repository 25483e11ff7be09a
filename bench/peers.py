"""`make bench-peers`: what other optimizers make of the benchmarks' transformer, and how long they take.

    python bench/peers.py [--nodes 20000] [--limit 600] [--runs 3]

Each peer lives in the environment `.venv-peers`, which this script makes, and runs in a process of its own, start-up
and imports included, as atcfuse does. Blocks count as fused where one operator stands for a whole attention, norm or
activation afterwards; every peer has its own names for them, so the table counts by kind. A peer that takes longer than
the limit is stopped, one that fails says how.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSTALLED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""The environment of a run as users have it: Python keeps what it compiled."""
PEERS_VENV = HERE.parent / ".venv-peers"
PACKAGES = ("onnxruntime", "onnxscript", "onnxslim", "onnxoptimizer", "onnx-graphsurgeon", "sympy", "onnx-ir")

PEERS: Mapping[str, tuple[str, str]] = {
    "onnxruntime, graph optimizer": (
        "onnxruntime",
        """
import onnxruntime as ort
o = ort.SessionOptions()
o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
o.optimized_model_filepath = target
ort.InferenceSession(source, o, providers=["CPUExecutionProvider"])
""",
    ),
    "onnxruntime.transformers": (
        "onnxruntime",
        """
from onnxruntime.transformers.optimizer import optimize_model
optimize_model(source, model_type="bert", num_heads=2, hidden_size=16, opt_level=0).save_model_to_file(target)
""",
    ),
    "onnxscript rewriter, fusions for onnxruntime": (
        "onnxscript",
        """
import onnx_ir as ir
from onnxscript.rewriter.ort_fusions import optimize_for_ort
found = optimize_for_ort(ir.load(source))
ir.save(found[0] if isinstance(found, tuple) else found, target)
""",
    ),
    "onnxscript optimizer": (
        "onnxscript",
        """
import onnx_ir as ir
from onnxscript import optimizer
model = ir.load(source)
optimizer.optimize_ir(model)
ir.save(model, target)
""",
    ),
    "onnxslim": ("onnxslim", "import onnxslim\nonnxslim.slim(source, target)"),
    "onnxoptimizer": (
        "onnxoptimizer",
        "import onnx, onnxoptimizer\nonnx.save(onnxoptimizer.optimize(onnx.load(source)), target)",
    ),
    "graphsurgeon, cleanup": (
        "onnx-graphsurgeon",
        """
import onnx, onnx_graphsurgeon as gs
onnx.save(gs.export_onnx(gs.import_onnx(onnx.load(source)).cleanup().toposort()), target)
""",
    ),
}
"""By name: the package whose version is told, and the program that makes `target` of `source`."""

KINDS: Mapping[str, str] = {
    "attention": "FusedAttention Attention MultiHeadAttention SDPA GroupQueryAttention",
    "norms": "FusedLayerNorm FusedAddLayerNorm FusedLayerNormQKV FusedLayerNormLinear FusedLayerNormFFN "
    "LayerNormalization SkipLayerNormalization EmbedLayerNormalization",
    "activations": "FusedFFN FusedLayerNormFFN Gelu BiasGelu FastGelu QuickGelu",
}
"""Operators that stand for a whole block, atcfuse's first."""
COUNT = """
import collections, json, onnx, sys
ops = collections.Counter(n.op_type for n in onnx.load(sys.argv[1], load_external_data=False).graph.node)
print(json.dumps(ops))
"""


def peers_python() -> str:
    """The interpreter of the peers' environment, made and filled where it is not there yet."""
    python = PEERS_VENV / "bin" / "python"
    if not python.exists():
        venv.create(PEERS_VENV, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return str(python)


def timed(command: Sequence[str], limit: float) -> tuple[float | None, str]:
    """Seconds of a command, None where it was stopped or failed, and the last line of what it said then."""
    start = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, env=INSTALLED)
    except subprocess.TimeoutExpired:
        return None, f"more than {limit:.0f} s"
    took = time.perf_counter() - start
    said = (done.stderr or done.stdout).strip().splitlines()
    return (took, "") if done.returncode == 0 else (None, f"failed: {said[-1][:80] if said else done.returncode}")


def row(name: str, python: str, program: str, model: Path, limit: float, runs: int) -> list[object]:
    """Name, median of the seconds, nodes left and blocks fused by kind."""
    target = model.with_name("out.onnx")
    target.unlink(missing_ok=True)
    command = [python, "-c", f"import sys\nsource, target = sys.argv[1:]\n{program}", str(model), str(target)]
    times = []
    for _ in range(runs):
        took, said = timed(command, limit)
        if took is None:
            return [name, said, "", *("" for _ in KINDS)]
        times.append(took)
    ops = json.loads(subprocess.check_output([python, "-c", COUNT, str(target)], text=True))
    fused = [sum(ops.get(op, 0) for op in kinds.split()) for kinds in KINDS.values()]
    return [name, statistics.median(times), sum(ops.values()), *fused]


def document(rows: Sequence[Sequence[object]], nodes: int, runs: int) -> str:
    """The table as Markdown; the last column is the time in atcfuse's."""
    own = next(r[1] for r in rows if r[0] == "atcfuse")
    assert isinstance(own, float)
    lines = [
        "# Beside other optimizers",
        "",
        f"A transformer encoder of {nodes:,} nodes as TorchScript writes it; medians of {runs} processes, start-up",
        "included. Made by `make bench-peers`. What the peers make is for other runtimes than Ascend's.",
        "",
        "| optimizer | seconds | nodes left | attention | norms | activations | time in that of atcfuse |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, seconds, *figures in rows:
        shown, ratio = (f"{seconds:.2f}", f"{seconds / own:.1f}") if isinstance(seconds, float) else (seconds, "")
        lines.append(f"| {name} | {shown} | {' | '.join(map(str, figures))} | {ratio} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measures all peers and atcfuse on one model, prints the table and writes it to bench/peers.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a peer is stopped")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    python = peers_python()
    program = "from atcfuse.cli import main\nsys.argv = ['atcfuse', 'optimize', source, '-o', target, '-q']\nmain()"
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.onnx"
        build = [sys.executable, str(HERE / "models.py"), "transformer", str(options.nodes), str(model)]
        nodes = int(subprocess.check_output(build, text=True))
        rows = [row("atcfuse", sys.executable, program, model, options.limit, options.runs)]
        for name, (package, text) in PEERS.items():
            asked = [python, "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]
            told = f"{name} ({subprocess.check_output(asked, text=True).strip()})"
            rows.append(row(told, python, text, model, options.limit, options.runs))
            print(rows[-1], flush=True)
    text = document(rows, nodes, options.runs)
    print(text)
    (HERE / "peers.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
