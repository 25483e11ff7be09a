"""What a launch of the elementwise kernel does on a chip."""

from __future__ import annotations

from functools import lru_cache

from atcfuse.device import Device
from atcfuse.match.values import Refusal
from atcfuse.planner.work import KernelWork, no_kernels, platform
from atcfuse.tiling import ceil_div, elementwise


def plan_elementwise(
    problem: elementwise.Problem, passes: int, dtype: str, device: Device, occupancy: float | None = None
) -> KernelWork | Refusal:
    """The tiles and work of an element-wise kernel. ATF336: no kernel for the chip; ATF338: sizes refused."""
    return _elementwise(problem, passes, dtype, device, device.occupancy if occupancy is None else occupancy)


@lru_cache(maxsize=1024)
def _elementwise(
    problem: elementwise.Problem, passes: int, dtype: str, device: Device, occupancy: float
) -> KernelWork | Refusal:
    if device.family is None:
        return no_kernels(device)
    chip = platform(device, occupancy)
    reason = elementwise.refusal(problem, chip)
    if reason is not None:
        return Refusal("ATF338", f"the kernel takes {reason}", "elementwise")
    tiling = elementwise.plan(problem, chip)
    predicted = elementwise.predict(tiling)
    padded = tiling.tasks * tiling.tile
    tasks = max(tiling.tasks, 1)
    return KernelWork(
        kernel="elementwise",
        reads={"inputs": predicted.tensor_bytes_read},
        writes={"outputs": predicted.tensor_bytes_written},
        sizes={"inputs": predicted.compulsory_bytes - problem.rows * problem.columns * sum(problem.outputs)},
        vector_elements=passes * padded,
        dtype=dtype,
        form="rows" if problem.spread else "elements",
        tasks=tasks,
        blocks=tiling.blocks,
        vector_blocks=tiling.blocks,
        tiles=ceil_div(tasks, tiling.blocks),
        peak={"ub": predicted.ub},
        parameters={"tile_rows": tiling.tile_rows, "tile_columns": tiling.chunk, "tasks": tiling.tasks},
    )
