"""How long one launch takes on the busiest core, where loading, cube, vector and storing overlap.

Work is spread evenly over tasks, tasks over cores, and the core with one task more than the others decides. With double
buffering the tiles form a pipeline: one tile's worth pays for every stage, the others only for the slowest. Loading and
storing share the way to memory; cube and vector unit overlap only where they are different cores.
"""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.cost.memory import Moved
from atcfuse.device import Device
from atcfuse.graph.work import OpWork
from atcfuse.planner import KernelWork, ProductPlan
from atcfuse.tiling import ceil_div

_ELEMENT_BYTES = {"float16": 2, "int8": 2, "uint8": 2, "bool": 2, "int64": 8}
"""Bytes of an element in a vector instruction, 4 where not listed; bytes are computed in float16."""
_TRANSFER = 16_384
"""Bytes from which a transfer reaches full bandwidth: smaller shares are not given to further cores."""


@dataclass(frozen=True)
class Stage:
    """One launch without its overhead, in microseconds of the busiest core.

    `wait_us` is what its compute units spend waiting for memory (on cores apart, the busier of the two).
    """

    name: str
    op: str
    load_us: float
    cube_us: float
    vector_us: float
    store_us: float
    wait_us: float
    total_us: float


@dataclass(frozen=True)
class _Spread:
    """Shares of the work on the busiest core, for each kind of core, and tiles that core handles one after another."""

    cube: float
    vector: float
    memory: float
    tiles: int
    vector_tiles: int
    double_buffered: bool = True


def unfused_stage(work: OpWork, plan: ProductPlan | None, moved: Moved, device: Device, cube_share: float) -> Stage:
    """The stage of an unfused node; `cube_share` is how much of the cube's peak its product reaches."""
    spread = _product_spread(plan, device) if plan else _vector_spread(work, moved, device)
    return _stage(work, moved, device, cube_share, spread, uses_cube=work.cube_flops > 0)


def fused_stage(kernel: KernelWork, moved: Moved, device: Device, cube_share: float) -> Stage:
    """The stage of a fused kernel; `cube_share` is how much of the cube's peak its products reach."""
    cube, vector = _busiest(kernel.tasks, kernel.blocks), _busiest(kernel.tasks, kernel.vector_blocks)
    uses_cube = kernel.cube_flops > 0
    steps = kernel.vector_tiles or kernel.tiles
    spread = _Spread(cube, vector, cube if uses_cube else vector, kernel.tiles, steps, kernel.double_buffered)
    return _stage(kernel, moved, device, cube_share, spread, uses_cube)


def _busiest(tasks: int, cores: int) -> float:
    """The share of equal tasks that the busiest of the cores gets; of none, as for empty tensors, it is all."""
    return ceil_div(tasks, cores) / tasks if tasks else 1.0


def _product_spread(plan: ProductPlan, device: Device) -> _Spread:
    share = _busiest(plan.tasks, plan.blocks)
    return _Spread(share, 1 / device.vector_cores, share, plan.tiles, plan.tiles)


def _vector_spread(work: OpWork, moved: Moved, device: Device) -> _Spread:
    """Even over as many cores as get a transfer of full bandwidth each, in tiles of half of UB."""
    cores = device.cube_cores if work.cube_flops else device.vector_cores
    moved_bytes = moved.gm_read + moved.gm_written
    used = max(1, min(cores, ceil_div(moved_bytes, _TRANSFER)))
    tiles = max(1, ceil_div(moved_bytes, used * (device.ub // 2)))
    return _Spread(1 / device.cube_cores, 1 / used, 1 / used, tiles, tiles)


def _stage(
    work: OpWork | KernelWork, moved: Moved, device: Device, cube_share: float, spread: _Spread, uses_cube: bool
) -> Stage:
    # A vector core alone gets its part of what the chip moves, which is less than a cube core's.
    lanes = 1.0 if uses_cube else device.cube_cores / device.vector_cores
    per_byte = spread.memory / (device.cube_mhz * lanes)
    load = per_byte * max(moved.gm_read / device.l2_read, moved.ddr_read / device.ddr_read)
    store = per_byte * max(moved.gm_written / device.l2_write, moved.ddr_written / device.ddr_write)
    cube_rate = device.cube_macs(work.dtype) * device.cube_mhz * cube_share
    fused = isinstance(work, KernelWork)  # fused kernels keep float32 in their vector units
    element_bytes = 4 if fused else _ELEMENT_BYTES.get(work.dtype, 4)
    vector_rate = device.vector_bytes / element_bytes * device.vector_mhz
    cube = work.cube_flops / 2 * spread.cube / cube_rate
    vector = work.vector_elements * spread.vector / vector_rate
    computing = max(cube, vector) if device.split else cube + vector
    total = _pipelined(load, cube, vector, store, computing, spread)
    name, op = (work.kernel, work.form) if isinstance(work, KernelWork) else (work.name, work.op)
    return Stage(name, op, load, cube, vector, store, total - computing, total)


def _pipelined(load: float, cube: float, vector: float, store: float, computing: float, spread: _Spread) -> float:
    if not spread.double_buffered:
        return load + cube + vector + store
    ends = (load + cube + store) / spread.tiles + vector / spread.vector_tiles
    return ends + max(load + store, computing) * (spread.tiles - 1) / spread.tiles
