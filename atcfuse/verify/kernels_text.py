"""Kernels that ran in the twin, as text for a terminal and as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from atcfuse.codegen.signature import BFLOAT16, FLOAT, FLOAT16
from atcfuse.tiling import capacity_of

if TYPE_CHECKING:
    from atcfuse.verify.kernels import KernelRun, KernelRuns

ELEMENTS = {FLOAT: "float32", FLOAT16: "float16", BFLOAT16: "bfloat16"}
MEMORIES = ("ub", "l1", "l0a", "l0b", "l0c")
HEADER = ("node", "kernel", "type", "set", "relative", "limit", "tensor B", "workspace B", "on chip", "")


def kernels_text(found: KernelRuns) -> str:
    """One line a run; "on chip" is the high-water mark of each memory in use, in percent of what there is."""
    feeds = {feed: str(i) for i, feed in enumerate(dict.fromkeys(r.feed for r in found.runs), 1)}
    kernels = len({r.kernel.op_type for r in found.runs})
    nodes = len({r.node for r in found.runs})
    verdict = "agree with onnxruntime" if found.ok else "DO NOT all agree with onnxruntime"
    lines = [f"{_count(nodes, 'fused node')} by {_count(kernels, 'kernel')} in the twin: they {verdict}"]
    lines += [f"  {number}. {name}" for name, number in feeds.items()]
    rows = [HEADER, *(_row(run, feeds) for run in found.runs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines += ["  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _row(run: KernelRun, feeds: dict[str, str]) -> tuple[str, ...]:
    signature = run.kernel.signature
    start = (run.node, run.kernel.op_type, ELEMENTS[signature.dtypes[signature.spec.inputs[0].name]], feeds[run.feed])
    worst, counted = run.worst, run.counted
    if worst is None or counted is None:
        return (*start, "-", "-", "-", "-", "-", f"{run.failure.code}" if run.failure else "wrong")
    same = "" if counted == run.predicted else " (not as predicted)"
    tensor = counted["tensor_bytes_read"] + counted["tensor_bytes_written"]
    workspace = counted["workspace_bytes_read"] + counted["workspace_bytes_written"]
    platform = capacity_of(signature.family)
    used = [f"{m} {100 * counted[m] // getattr(platform, m)}%" for m in MEMORIES if counted[m]]
    verdict = ("ok" if worst.status == "ok" else "wrong") + same
    return (*start, f"{worst.max_rel:.1e}", f"{worst.limit:.0e}", str(tensor), str(workspace), " ".join(used), verdict)


def kernels_dict(found: KernelRuns) -> dict[str, Any]:
    """The runs as JSON-ready data; numbers that are not finite become null."""
    return {
        "ok": found.ok,
        "runs": [_run(run) for run in found.runs],
        "diagnostics": [d.as_dict() for d in found.diagnostics],
    }


def _run(run: KernelRun) -> dict[str, Any]:
    worst = run.worst
    finite = worst is not None and math.isfinite(worst.max_rel)
    return {
        "node": run.node,
        "op": run.kernel.signature.spec.op,
        "kernel": run.kernel.op_type,
        "inputs": run.feed,
        "ok": run.ok,
        "max_rel": float(f"{worst.max_rel:.2e}") if worst is not None and finite else None,
        "limit": None if worst is None else worst.limit,
        "counted": None if run.counted is None else dict(run.counted),
        "predicted": None if run.predicted is None else dict(run.predicted),
    }
