"""The tiles and work of a feed-forward network on a chip."""

from __future__ import annotations

from functools import lru_cache

from atcfuse.device import Device
from atcfuse.graph.work import VECTOR_PASSES
from atcfuse.match.values import Refusal
from atcfuse.planner.work import KernelWork, no_kernels, platform
from atcfuse.tiling import ceil_div, ffn
from atcfuse.tiling.activations import activation
from atcfuse.tiling.ffn_problem import Problem, refusal

_CONVERSIONS = 4  # vector instructions an element for loading, adding and rounding what passes through
_APPLYING = 2  # the same for each vector that is applied to the result


def plan_ffn(problem: Problem, device: Device, occupancy: float | None = None) -> KernelWork | Refusal:
    """The tiles and work of a feed-forward network on a chip. ATF336: no kernel for it; ATF338: sizes refused."""
    return _ffn(problem, device, device.occupancy if occupancy is None else occupancy)


@lru_cache(maxsize=1024)
def _ffn(problem: Problem, device: Device, occupancy: float) -> KernelWork | Refusal:
    kernel = "ffn" if problem.norm is None else "layer_norm_ffn"
    if device.family is None:
        return no_kernels(device)
    if device.family != "910B":
        return Refusal("ATF336", f"{kernel} hands rows between vector and cube cores, {device.name} has none apart")
    reason = refusal(problem)
    if reason is not None:
        return Refusal("ATF338", f"the kernel takes {reason}", kernel)
    tiling = ffn.plan(problem, platform(device, occupancy))
    predicted = ffn.predict(tiling)
    written = predicted.tensor_bytes_written
    inputs = predicted.compulsory_bytes - written
    tasks = max(1, tiling.tasks)  # an empty input is a launch too
    rounds, chunks = ceil_div(tasks, tiling.blocks), len(tiling.chunks)
    columns = problem.factors * ceil_div(tiling.inner_chunk, tiling.up.base_n)
    return KernelWork(
        kernel=kernel,
        reads={"inputs": predicted.tensor_bytes_read},
        writes={"outputs": written},
        sizes={"inputs": inputs},
        resident={"inputs": problem.weights * problem.element_bytes},
        workspace_read=predicted.workspace_bytes_read,
        workspace_written=predicted.workspace_bytes_written,
        workspace_footprint=predicted.workspace_footprint,
        cube_flops=2 * problem.rows * problem.weights,
        vector_elements=_vector_elements(problem),
        dtype="float16" if problem.element_bytes == 2 else "float32",
        form="one chunk" if chunks == 1 else "chunks of hidden columns",
        tasks=tasks,
        blocks=tiling.blocks,
        vector_blocks=min(2 * tiling.blocks, tasks),
        tiles=rounds * chunks * (columns + ceil_div(problem.columns, tiling.down.base_n)),
        vector_tiles=rounds * chunks,
        peak={name: getattr(predicted, name) for name in ("ub", "l1", "l0a", "l0b", "l0c")},
        handover="workspace",
        cautious=True,
        parameters={"rows": tiling.rows_per_task, "inner": tiling.inner_chunk, "tasks": tiling.tasks},
        remarks=_remarks(tiling, device),
    )


def _vector_elements(problem: Problem) -> int:
    """Vector instructions times elements: of the norm, the activation with its gates, and the result."""
    norm = VECTOR_PASSES["LayerNormalization"] * problem.hidden if problem.norm is not None else 0
    activated = (activation(problem.activation).passes + _CONVERSIONS * problem.factors) * problem.inner
    return problem.rows * (norm + activated + (_CONVERSIONS + _APPLYING * problem.vectors) * problem.columns)


def _remarks(tiling: ffn.Plan, device: Device) -> tuple[str, ...]:
    """Few blocks of rows leave cores idle, since a block's sums cannot be shared between cores."""
    if not 0 < tiling.tasks < device.cube_cores:
        return ()
    rows, blocks = tiling.problem.rows, tiling.tasks
    found = f"{rows:,} row{'s' if rows != 1 else ''} in {blocks} block{'s' if blocks != 1 else ''}"
    return (f"{found} for {device.cube_cores} cube cores: the others stay idle",)
