"""What a planner says of a kernel's launch, and the chip as a tiling sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from atcfuse.device import Device
from atcfuse.graph.work import OpWork
from atcfuse.match.values import Refusal
from atcfuse.options import TileLevel
from atcfuse.tiling import Platform

TILE_ROWS: Mapping[TileLevel, int] = {"auto": 0, "small": 32, "large": 128}
"""Query rows of attention tiles by `--tile-level`, as users of CANN's flash attention know it; 0: a free choice."""

Handover = Literal["none", "workspace", "on_chip"]
CUBE_UNIT = 16


@dataclass(frozen=True)
class KernelWork:
    """What one launch of a fused kernel does; plain figures, so that a kernel without a tiling can be described too.

    `reads` and `writes` are bytes at global memory by operand, `sizes` the operands' own bytes, `resident` what of an
    operand must stay in L2 for its repeated reads to come from there. `tasks` are spread over `blocks` cube cores and
    `vector_blocks` vector cores, each in `tiles` tiles, of which two are in flight where `double_buffered`; vector work
    comes in fewer, larger steps where `vector_tiles` is not 0. `peak` is on-chip use in bytes by memory. `api_calls`
    counts call sites in the source ("cube": Matmul objects, "vector"). `handover` is how cube and vector unit meet.
    `static_dims` names dims that the kernel needs static and that are not. `cautious` asks for a saving at the low end
    too: products that read weights again, reductions row by row. `around` are casts and layout changes at its boundary,
    launches themselves.
    """

    kernel: str
    reads: Mapping[str, int] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    resident: Mapping[str, int] = field(default_factory=dict)
    workspace_read: int = 0
    workspace_written: int = 0
    workspace_footprint: int = 0
    cube_flops: int = 0
    vector_elements: int = 0
    dtype: str = "float16"
    form: str = ""
    tasks: int = 1
    blocks: int = 1
    vector_blocks: int = 1
    tiles: int = 1
    vector_tiles: int = 0
    double_buffered: bool = True
    peak: Mapping[str, int] = field(default_factory=dict)
    api_calls: Mapping[str, int] = field(default_factory=dict)
    keeps_float32: bool = True
    handover: Handover = "none"
    static_dims: tuple[str, ...] = ()
    cautious: bool = False
    around: tuple[OpWork, ...] = ()
    parameters: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def tensor_bytes(self) -> int:
        """Traffic of inputs and outputs at global memory."""
        return sum(self.reads.values()) + sum(self.writes.values())


def platform(device: Device, occupancy: float = 1.0) -> Platform:
    """The chip as a tiling sees it, kept to a share of L1 and UB.

    Tiles are as the device says they were asked for. L0A, L0B and L0C are not bounded: they hold the cube's operands of
    the moment and nothing else, and a block is cut to fill them.
    """
    return Platform(
        cube_cores=device.cube_cores,
        vector_cores=device.vector_cores,
        ub=min(device.ub - device.ub_reserved, int(device.ub * occupancy)),
        l1=min(device.l1 - device.l1_reserved, int(device.l1 * occupancy)),
        l0a=device.l0a,
        l0b=device.l0b,
        l0c=device.l0c,
        tile_rows=device.tile_rows,
    )


def no_kernels(device: Device) -> Refusal:
    """The refusal of a chip that no kernel is generated for."""
    return Refusal("ATF336", f"no kernels are generated for {device.name}: {device.summary}")
