"""What a region costs as it stands, what its fused kernel costs, and the saving as a range.

Two scenarios bound every time: launches and memory accesses at the low ends of the SoC file, then at the high ends.
The saving's low end is the low scenario with generated products at their worst against the toolkit's, its high end the
high scenario with them at their best; so no figure of the chip counts low on one side and high on the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atcfuse.cost.conversions import handed_in_fractal, with_layout_changes
from atcfuse.cost.memory import Moved, handovers, moved_by, moved_by_kernel
from atcfuse.cost.stages import Stage, fused_stage, unfused_stage
from atcfuse.device import Device, Range
from atcfuse.graph.work import OpWork
from atcfuse.planner import KernelWork, ProductPlan, plan_product, platform

BASIS: Mapping[str, str] = {
    "launches": "computed from the graph",
    "conversions": "estimated: changes of layout that the toolkit puts around its own products",
    "tensor_bytes": "computed from shapes and, fused, from the kernel's tiling",
    "gm_bytes": "computed from shapes and tilings",
    "workspace_bytes": "computed from the kernel's tiling",
    "workspace_footprint": "computed from the kernel's tiling",
    "ddr_bytes": "estimated with the SoC file's L2 size",
    "cube_flops": "computed from shapes",
    "vector_elements": "estimated from instructions an element",
    "time_us": "estimated with the SoC file's rates and overheads",
    "saved_us": "estimated with the SoC file's rates and overheads",
}
"""Where the figures of a cost come from, as the report says it."""


@dataclass(frozen=True)
class Side:
    """A region before or after. `tensor_bytes` are inputs and outputs (each once where unfused), `gm_bytes` all traffic
    at global memory with repeated reads, `ddr_bytes` the part of it that passes L2, `accesses` the memory round trips
    that something waits for, `conversions` the launches that are no nodes: casts and layout changes, which are in all
    figures but `launches` and `tensor_bytes`. `fast` and `slow` are the stages with products at their best and worst.
    """

    launches: int
    conversions: int
    accesses: int
    tensor_bytes: int
    gm_bytes: int
    ddr_bytes: int
    workspace_bytes: int
    workspace_footprint: int
    cube_flops: int
    vector_elements: int
    fast: tuple[Stage, ...]
    slow: tuple[Stage, ...]
    overhead_us: Range

    @property
    def time_us(self) -> Range:
        """Overhead and stages."""
        fast, slow = (sum(s.total_us for s in stages) for stages in (self.fast, self.slow))
        return Range(self.overhead_us.low + fast, self.overhead_us.high + slow)

    def as_dict(self) -> dict[str, Any]:
        """The side as report JSON, times in microseconds to three decimals."""
        plain = (
            "launches",
            "conversions",
            "tensor_bytes",
            "gm_bytes",
            "ddr_bytes",
            "workspace_bytes",
            "workspace_footprint",
        )
        return {
            **{name: getattr(self, name) for name in (*plain, "cube_flops", "vector_elements")},
            "time_us": as_list(self.time_us),
            "stages": [_stage_dict(f, s) for f, s in zip(self.fast, self.slow, strict=True)],
        }


def as_list(figure: Range) -> list[float]:
    """A range as report JSON."""
    return [round(figure.low, 3), round(figure.high, 3)]


def _stage_dict(fast: Stage, slow: Stage) -> dict[str, Any]:
    times = ("load_us", "cube_us", "vector_us", "store_us", "wait_us", "total_us")
    ranges = {t: sorted(round(getattr(s, t), 3) for s in (fast, slow)) for t in times}
    return {"name": fast.name, "op": fast.op, **ranges}


@dataclass(frozen=True)
class FusionCost:
    """A fusion on a chip. `saved_us` may be negative: the fused kernel may take longer."""

    device: str
    kernel: KernelWork
    before: Side
    after: Side
    saved_us: Range

    @property
    def launches_saved(self) -> int:
        """Launches fewer than before, conversions aside."""
        return self.before.launches - self.after.launches

    @property
    def conversions_saved(self) -> int:
        """Casts and layout changes fewer than before."""
        return self.before.conversions - self.after.conversions

    @property
    def tensor_bytes_saved(self) -> int:
        """Input and output bytes fewer than before, negative where tiles read operands again."""
        return self.before.tensor_bytes - self.after.tensor_bytes

    @property
    def ddr_bytes_saved(self) -> int:
        """DDR bytes fewer than before, by the model of L2."""
        return self.before.ddr_bytes - self.after.ddr_bytes

    def as_dict(self) -> dict[str, Any]:
        """The cost as report JSON."""
        return {
            "saved_us": as_list(self.saved_us),
            "before": self.before.as_dict(),
            "after": self.after.as_dict(),
            "basis": dict(BASIS),
        }


def fusion_cost(before: Sequence[OpWork], after: KernelWork, device: Device, outputs: Iterable[str] = ()) -> FusionCost:
    """The cost of a region unfused and fused.

    `before` is in execution order, views and host nodes included or not; `outputs` names those of its values that are
    read outside although something inside reads them too.
    """
    toolkit, generated = device.cube_efficiency, device.generated_cube
    fractal = tuple(handed_in_fractal(after.around))
    unfused, fused = unfused_cost(before, device, outputs, fractal), fused_cost(after, device)
    at_worst = sum(s.total_us for s in _fused_stages(after, device, toolkit.high * generated.low))
    at_best = sum(s.total_us for s in _fused_stages(after, device, toolkit.low * generated.high))
    low = unfused.time_us.low - fused.overhead_us.low - at_worst
    high = unfused.time_us.high - fused.overhead_us.high - at_best
    return FusionCost(device.name, after, unfused, fused, Range(min(low, high), max(low, high)))


def unfused_cost(
    works: Sequence[OpWork], device: Device, outputs: Iterable[str] = (), fractal: Iterable[str] = ()
) -> Side:
    """What launches cost one after another, each with the toolkit's own kernel; a model or a part of one.

    `fractal` names inputs that lie in the layout of products already, where the chip has such a layout.
    """
    works = [work for work in works if work.launches]
    if device.cube_layout == "fractal":
        works = with_layout_changes(works, outputs, fractal)
    chip = platform(device)
    plans = [plan_product(work.product, chip) if work.product else None for work in works]
    moved = moved_by(works, plans, device.l2, outputs)
    launches = sum(work.launches for work in works if not work.added)
    conversions = sum(work.launches for work in works if work.added)
    accesses = max(1, handovers(works)) if works else 0
    fast, slow = (_unfused_stages(works, plans, moved, device, share) for share in _ends(device.cube_efficiency))
    return Side(
        launches=launches,
        conversions=conversions,
        accesses=accesses,
        tensor_bytes=sum(work.tensor_bytes for work in works if not work.added),
        gm_bytes=sum(m.gm_read + m.gm_written for m in moved),
        ddr_bytes=sum(m.ddr for m in moved),
        workspace_bytes=0,
        workspace_footprint=0,
        cube_flops=sum(work.cube_flops for work in works),
        vector_elements=sum(work.vector_elements for work in works),
        fast=fast,
        slow=slow,
        overhead_us=_overhead(launches + conversions, accesses, device),
    )


def fused_cost(kernel: KernelWork, device: Device) -> Side:
    """What a fused kernel costs, with the casts and layout changes around it."""
    around = unfused_cost(kernel.around, device)
    moved = moved_by_kernel(kernel, device.l2)
    launches, conversions, accesses = around.launches + 1, around.conversions, around.accesses + 1
    toolkit, generated = device.cube_efficiency, device.generated_cube
    return Side(
        launches=launches,
        conversions=conversions,
        accesses=accesses,
        tensor_bytes=around.tensor_bytes + kernel.tensor_bytes,
        gm_bytes=around.gm_bytes + moved.gm_read + moved.gm_written,
        ddr_bytes=around.ddr_bytes + moved.ddr,
        workspace_bytes=kernel.workspace_read + kernel.workspace_written,
        workspace_footprint=kernel.workspace_footprint,
        cube_flops=kernel.cube_flops,
        vector_elements=around.vector_elements + kernel.vector_elements,
        fast=_fused_stages(kernel, device, toolkit.high * generated.high),
        slow=_fused_stages(kernel, device, toolkit.low * generated.low),
        overhead_us=_overhead(launches + conversions, accesses, device),
    )


def _ends(share: Range) -> tuple[float, float]:
    """The best and the worst of a share."""
    return share.high, share.low


def _unfused_stages(
    works: Sequence[OpWork],
    plans: Sequence[ProductPlan | None],
    moved: Sequence[Moved],
    device: Device,
    cube_share: float,
) -> tuple[Stage, ...]:
    together = zip(works, plans, moved, strict=True)
    return tuple(unfused_stage(work, plan, one, device, cube_share) for work, plan, one in together)


def _fused_stages(kernel: KernelWork, device: Device, cube_share: float) -> tuple[Stage, ...]:
    """The kernel's stage and, first, those of what stands around it, which multiplies nothing."""
    own = fused_stage(kernel, moved_by_kernel(kernel, device.l2), device, cube_share)
    return (*unfused_cost(kernel.around, device).fast, own)


def _overhead(launches: int, accesses: int, device: Device) -> Range:
    """Launches and the memory round trips that something waits for."""
    launch, access = device.launch_us, device.ddr_access_us
    return Range(launches * launch.low + accesses * access.low, launches * launch.high + accesses * access.high)
