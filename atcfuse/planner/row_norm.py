"""The tiles and work of a norm on vector cores alone, with or without the sum that it normalises."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from atcfuse.device import Device
from atcfuse.graph.work import VECTOR_PASSES
from atcfuse.match.values import Refusal
from atcfuse.planner.work import KernelWork, no_kernels, platform
from atcfuse.tiling import ceil_div, row_norm

_SUM_PASSES = 4  # widened, added, rounded, widened again
_GATE_PASSES = 3  # widened, multiplied, rounded


@lru_cache(maxsize=1024)
def plan_row_norm(kernel: str, problem: row_norm.Problem, device: Device, occupancy: float) -> KernelWork | Refusal:
    """The tiles and work of a norm on a chip. ATF336: no kernel for it; ATF338: sizes refused."""
    if device.family is None:
        return no_kernels(device)
    # Assumed sizes may contradict each other, as positions and a longer sequence do; summands then count in full.
    problem = replace(problem, periods=tuple(p or problem.rows for p in problem.periods))
    chip = platform(device, occupancy)
    reason = row_norm.refusal(problem, chip)
    if reason is not None:
        return Refusal("ATF338", f"the kernel takes {reason}", kernel)
    tiling = row_norm.plan(problem, chip)
    predicted = row_norm.predict(tiling)
    norm = "RMSNormalization" if "rms" in kernel else "LayerNormalization"
    passes = VECTOR_PASSES[norm] + _SUM_PASSES * (len(problem.periods) - 1) + _GATE_PASSES * problem.gated
    chunks = 1 if tiling.row_fits else 2 * ceil_div(problem.hidden, tiling.pitch) * tiling.rows_per_tile
    return KernelWork(
        kernel=kernel,
        reads={"inputs": predicted.tensor_bytes_read},
        writes={"outputs": predicted.tensor_bytes_written},
        sizes={"inputs": predicted.compulsory_bytes - predicted.tensor_bytes_written},
        resident={"inputs": _resident(problem)},
        vector_elements=passes * problem.rows * problem.hidden,
        dtype="float16" if problem.element_bytes == 2 else "float32",
        form="whole rows" if tiling.row_fits else "two reads",
        tasks=max(1, tiling.tiles),
        blocks=tiling.blocks,
        vector_blocks=tiling.blocks,
        tiles=max(1, ceil_div(tiling.tiles, tiling.blocks) * chunks),
        peak={"ub": predicted.ub},
        parameters={"rows": tiling.rows_per_tile, "columns": tiling.pitch, "tasks": tiling.tiles},
    )


def _resident(problem: row_norm.Problem) -> int:
    """Bytes that several cores or tiles read: scale, shift, and summands with fewer rows than the sum."""
    repeated = sum(p for p in problem.periods if p is not None and p < problem.rows)
    gate = problem.element_bytes if problem.gated else 0
    affine = (problem.gamma_bytes + problem.beta_bytes + gate) * row_norm.affine_rows(problem)
    return problem.hidden * (repeated * problem.element_bytes + affine)
