"""The results of onnxruntime with all of its optimizations on: how far a correct rewrite may drift.

Runs in a process of its own, because onnxruntime's optimizer can crash on valid models and must not take the
verification with it.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from atcfuse.graph.feeds import Interface, ModelProto, read_model
from atcfuse.graph.feeds_bytes import model_bytes
from atcfuse.verify.session import RuntimeFailure, Session
from atcfuse.verify.values import Feed, Value

CHILD = "import sys; from atcfuse.verify.drift import run_child; run_child(sys.argv[1])"
TIMEOUT_SECONDS = 1800


def optimized_results(
    model: ModelProto, base_dir: Path, interface: Interface, feeds: Sequence[Feed]
) -> list[dict[str, Value]]:
    """What the model gives on each feed with every optimization of onnxruntime on. Raises RuntimeFailure."""
    content, left_out = model_bytes(model)
    if left_out:
        raise RuntimeFailure("the model's weights are too large to be handed to another process")
    with TemporaryDirectory(prefix="atcfuse-") as folder:
        (Path(folder) / "model.onnx").write_bytes(content)
        task = (base_dir.resolve(), interface, [dict(f.values) for f in feeds])
        (Path(folder) / "task.pickle").write_bytes(pickle.dumps(task))
        try:
            done = subprocess.run(
                [sys.executable, "-c", CHILD, folder], capture_output=True, text=True, timeout=TIMEOUT_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            raise RuntimeFailure(f"the optimized run did not finish ({type(e).__name__})") from e
        results = Path(folder) / "results.pickle"
        if done.returncode or not results.exists():
            raise RuntimeFailure("onnxruntime's optimizer crashes or fails on the model")
        out: list[dict[str, Value]] = pickle.loads(results.read_bytes())  # written by our own child just now
        return out


def run_child(folder: str) -> None:
    """The other process: read the task, run it, write the results."""
    base_dir, interface, values = pickle.loads((Path(folder) / "task.pickle").read_bytes())
    session = Session(read_model((Path(folder) / "model.onnx").read_bytes()), base_dir, optimized=True)
    results = [session.run(one, interface) for one in values]
    (Path(folder) / "results.pickle").write_bytes(pickle.dumps(results))
