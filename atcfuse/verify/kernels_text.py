"""Kernels that ran in the twin, as text for a terminal and as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from atcfuse.elementwise.expression import TYPE_NAMES
from atcfuse.lang import say, speaking, tell
from atcfuse.lang.width import aligned
from atcfuse.tiling import capacity_of

if TYPE_CHECKING:
    from atcfuse.verify.kernels import KernelRun, KernelRuns

MEMORIES = ("ub", "l1", "l0a", "l0b", "l0c")


def kernels_text(found: KernelRuns, lang: str | None = None) -> str:
    """One line a run; "on chip" is the high-water mark of each memory in use, in percent of what there is."""
    with speaking(lang):
        return "\n".join(_lines(found))


def _lines(found: KernelRuns) -> list[str]:
    feeds = {feed: str(i) for i, feed in enumerate(dict.fromkeys(r.feed for r in found.runs), 1)}
    kernels = len({r.kernel.op_type for r in found.runs})
    nodes = len({r.node for r in found.runs})
    counted = (
        say("{} fused node", nodes) if nodes == 1 else say("{} fused nodes", nodes),
        say("{} kernel", kernels) if kernels == 1 else say("{} kernels", kernels),
    )
    if found.ok:
        lines = [say("{} by {} in the twin: they agree with onnxruntime", *counted)]
    else:
        lines = [say("{} by {} in the twin: they DO NOT all agree with onnxruntime", *counted)]
    lines += [f"  {number}. {tell(name)}" for name, number in feeds.items()]
    return [*lines, *aligned([_header(), *(_row(run, feeds) for run in found.runs)], "  ")]


def _header() -> tuple[str, ...]:
    about = (say("node"), say("kernel"), say("type"), say("set"), say("relative"), say("limit"))
    return (*about, say("tensor B"), say("workspace B"), say("on chip"), "")


def _row(run: KernelRun, feeds: dict[str, str]) -> tuple[str, ...]:
    signature = run.kernel.signature
    start = (run.node, run.kernel.op_type, TYPE_NAMES[signature.dtypes[signature.spec.inputs[0].name]], feeds[run.feed])
    worst, counted = run.worst, run.counted
    if worst is None or counted is None:
        return (*start, "-", "-", "-", "-", "-", f"{run.failure.code}" if run.failure else say("wrong"))
    verdict = say("ok") if worst.status == "ok" else say("wrong")
    if counted != run.predicted:
        verdict = say("{} (not as predicted)", verdict)
    tensor = counted["tensor_bytes_read"] + counted["tensor_bytes_written"]
    workspace = counted["workspace_bytes_read"] + counted["workspace_bytes_written"]
    platform = capacity_of(signature.family)
    used = [f"{m} {100 * counted[m] // getattr(platform, m)}%" for m in MEMORIES if counted[m]]
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
