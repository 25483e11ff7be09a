"""What a launch of the elementwise kernel does on a chip."""

from __future__ import annotations

from functools import lru_cache

from atcfuse.device import Device
from atcfuse.elementwise.registers import Program
from atcfuse.match.values import Refusal
from atcfuse.planner.work import KernelWork, no_kernels, platform
from atcfuse.tiling import ceil_div, elementwise, round_up

ROW_CALL_ELEMENTS = 512
"""An instruction for one row alone takes as long as one of so many elements at least: an assumption."""


def plan_elementwise(
    problem: elementwise.Problem, program: Program, dtype: str, device: Device, occupancy: float | None = None
) -> KernelWork | Refusal:
    """The tiles and work of an element-wise kernel. ATF336: no kernel for the chip; ATF338: sizes refused."""
    return _elementwise(problem, program, dtype, device, device.occupancy if occupancy is None else occupancy)


@lru_cache(maxsize=1024)
def _elementwise(
    problem: elementwise.Problem, program: Program, dtype: str, device: Device, occupancy: float
) -> KernelWork | Refusal:
    if device.family is None:
        return no_kernels(device)
    chip = platform(device, occupancy)
    reason = elementwise.refusal(problem, chip)
    if reason is not None:
        return Refusal("ATF338", f"the kernel takes {reason}", "elementwise")
    tiling = elementwise.plan(problem, chip)
    predicted = elementwise.predict(tiling)
    tasks = max(tiling.tasks, 1)
    return KernelWork(
        kernel="elementwise",
        reads={"inputs": predicted.tensor_bytes_read},
        writes={"outputs": predicted.tensor_bytes_written},
        sizes={"inputs": predicted.compulsory_bytes - problem.all_rows * problem.columns * sum(problem.outputs)},
        vector_elements=_vector_elements(tiling, program),
        dtype=dtype,
        form="rows" if problem.spread else "elements",
        tasks=tasks,
        blocks=tiling.blocks,
        vector_blocks=tiling.blocks,
        tiles=ceil_div(tasks, tiling.blocks),
        peak={"ub": predicted.ub},
        cautious=problem.needs.reduces,  # what a row of few columns takes is an assumption
        parameters={"tile_rows": tiling.tile_rows, "tile_columns": tiling.chunk, "tasks": tiling.tasks},
    )


def _vector_elements(tiling: elementwise.Plan, program: Program) -> int:
    """Elements that go through vector instructions: whole tiles, values of rows, and rows one by one."""
    rows = tiling.tasks * tiling.tile_rows
    columns = tiling.tasks * round_up(tiling.tile_rows, elementwise.LANES)
    each = max(tiling.pitch, ROW_CALL_ELEMENTS)
    return program.passes * tiling.tasks * tiling.tile + program.row_passes * columns + program.row_calls * rows * each
