"""Whether a fusion is done: the first reason against it, with its figures, or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atcfuse.cost.code_size import code_bytes
from atcfuse.cost.model import FusionCost
from atcfuse.device import Device
from atcfuse.graph.work import MORE_IN_ATC
from atcfuse.match.values import Refusal
from atcfuse.planner import KernelWork

BOUNDED = ("ub", "l1")
"""Memories that the occupancy bound is about; the cube's L0 buffers are cut to be full."""


@dataclass(frozen=True)
class Policy:
    """What the caller asks of a fusion; None takes the SoC file's figure.

    `keep_fp32` are op types that must be computed in float32. `forced` overrides what does not pay (ATF330, ATF332,
    ATF337) and the occupancy bound up to what the chip has, nothing else.
    """

    min_saving_us: float | None = None
    occupancy: float | None = None
    keep_fp32: frozenset[str] = frozenset()
    forced: bool = False


DEFAULT_POLICY = Policy()


def decide(cost: FusionCost, device: Device, policy: Policy = DEFAULT_POLICY) -> Refusal | None:
    """Why the fusion is not done, or None. What cannot run comes before what does not pay."""
    reasons = [*_impossible(cost, device, policy)]
    if not policy.forced:
        reasons += _unprofitable(cost, device, policy)
    return reasons[0] if reasons else None


def _impossible(cost: FusionCost, device: Device, policy: Policy) -> Iterator[Refusal]:
    kernel = cost.kernel
    if kernel.handover == "on_chip" and device.split:
        where = f"on {device.name} they meet only in global memory"
        said = f"{kernel.kernel} hands results from cube to vector unit on chip; {where}"
        yield Refusal("ATF335", said, kernel.kernel)
    if kernel.static_dims:
        said = f"{kernel.kernel} needs {', '.join(kernel.static_dims)} when the model is built"
        yield Refusal("ATF334", said, kernel.kernel)
    unfused = {stage.op for stage in cost.before.fast}
    wanted = sorted(unfused & policy.keep_fp32)
    if wanted and not kernel.keeps_float32:
        said = f"{kernel.kernel} computes {', '.join(wanted)} in {kernel.dtype}, to be kept in float32"
        yield Refusal("ATF333", said, kernel.kernel)
    yield from _too_full(kernel, device, policy)


def _too_full(kernel: KernelWork, device: Device, policy: Policy) -> Iterator[Refusal]:
    bound = device.occupancy if policy.occupancy is None else policy.occupancy
    for memory in BOUNDED:
        used, capacity = kernel.peak.get(memory, 0), getattr(device, memory)
        share = 1.0 if policy.forced else bound
        if used > capacity * share:
            held = f"{used:,} of {capacity:,} bytes of {memory.upper()}"
            said = f"{kernel.kernel} holds {held}, {used / capacity:.1%}; the bound is {share:.0%}"
            yield Refusal("ATF331", said, kernel.kernel)


def _unprofitable(cost: FusionCost, device: Device, policy: Policy) -> Iterator[Refusal]:
    kernel = cost.kernel
    calls = _operators(cost) if device.code == "operators" else kernel.api_calls
    for core, size in code_bytes(calls, device).items():
        if size > device.icache:
            shown = f"{' and '.join(f'{n} {name}' for name, n in sorted(calls.items()))} {device.code}"
            rates = f"assumed {device.cube_call_bytes:,} and {device.vector_call_bytes:,} bytes each"
            said = (
                f"{kernel.kernel} has about {size:,} bytes of code for a {core}: {shown}, {rates}; "
                f"the instruction cache has {device.icache:,}"
            )
            yield Refusal("ATF332", said, kernel.kernel)
    threshold = device.min_saving_us if policy.min_saving_us is None else policy.min_saving_us
    saved = cost.saved_us
    moved = cost.ddr_bytes_saved
    figures = f"{_us(saved.low)} to {_us(saved.high)} µs by {_launches(cost)} and {moved:,} bytes of DDR traffic"
    if saved.high + more_in_atc(cost) * device.launch_us.high < threshold:
        said = f"{kernel.kernel} saves {figures}; the threshold is {threshold:g} µs"
        yield Refusal("ATF330", said, kernel.kernel)
    if kernel.cautious and saved.low < 0:
        said = f"{kernel.kernel} reads weights again and may lose: it saves {figures}"
        if not kernel.cube_flops:
            said = f"{kernel.kernel} goes row by row and may lose: it saves {figures}"
        yield Refusal("ATF337", said, kernel.kernel)


def more_in_atc(cost: FusionCost) -> int:
    """The launches that ATC may make beside the one of an operator that is all a fusion replaces."""
    return MORE_IN_ATC.get(cost.before.fast[0].op, 0) if len(cost.before.fast) == 1 else 0


def _operators(cost: FusionCost) -> dict[str, int]:
    """How many operators of each unit the fusion takes in; what only moves elements is code in none."""
    stages = cost.before.fast
    cube = sum(1 for stage in stages if stage.cube_us)
    return {"cube": cube, "vector": sum(1 for stage in stages if stage.vector_us and not stage.cube_us)}


def _us(time: float) -> str:
    return f"{time:,.1f}"


def _launches(cost: FusionCost) -> str:
    if not cost.conversions_saved:
        return f"{cost.launches_saved} launches"
    return f"{cost.launches_saved} launches, {cost.conversions_saved} conversions"
