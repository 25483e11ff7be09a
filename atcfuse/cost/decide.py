"""Whether a fusion is done: the first reason against it, with its figures, or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atcfuse.cost.code_size import code_bytes
from atcfuse.cost.model import FusionCost
from atcfuse.device import Device
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
        said = "hands results from cube to vector unit on chip; on"
        yield _refusal("ATF335", kernel, f"{said} {device.name} they meet only in global memory")
    if kernel.static_dims:
        yield _refusal("ATF334", kernel, f"needs {', '.join(kernel.static_dims)} when the model is built")
    unfused = {stage.op for stage in cost.before.fast}
    wanted = sorted(unfused & policy.keep_fp32)
    if wanted and not kernel.keeps_float32:
        yield _refusal("ATF333", kernel, f"computes {', '.join(wanted)} in {kernel.dtype}, to be kept in float32")
    yield from _too_full(kernel, device, policy)


def _too_full(kernel: KernelWork, device: Device, policy: Policy) -> Iterator[Refusal]:
    bound = device.occupancy if policy.occupancy is None else policy.occupancy
    for memory in BOUNDED:
        used, capacity = kernel.peak.get(memory, 0), getattr(device, memory)
        share = 1.0 if policy.forced else bound
        if used > capacity * share:
            found = f"holds {used:,} of {capacity:,} bytes of {memory.upper()}, {used / capacity:.1%}"
            yield _refusal("ATF331", kernel, f"{found}; the bound is {share:.0%}")


def _unprofitable(cost: FusionCost, device: Device, policy: Policy) -> Iterator[Refusal]:
    kernel = cost.kernel
    calls = _operators(cost) if device.code == "operators" else kernel.api_calls
    for core, size in code_bytes(calls, device).items():
        if size > device.icache:
            shown = " and ".join(f"{n} {name}" for name, n in sorted(calls.items()))
            found = f"has about {size:,} bytes of code for a {core}: {shown} {device.code},"
            rates = f"assumed {device.cube_call_bytes:,} and {device.vector_call_bytes:,} bytes each"
            yield _refusal("ATF332", kernel, f"{found} {rates}; the instruction cache has {device.icache:,}")
    threshold = device.min_saving_us if policy.min_saving_us is None else policy.min_saving_us
    saved = cost.saved_us
    figures = f"{_us(saved.low)} to {_us(saved.high)} µs by {_launches(cost)} and {_ddr(cost)}"
    if saved.high < threshold:
        yield _refusal("ATF330", kernel, f"saves {figures}; the threshold is {threshold:g} µs")
    if kernel.cautious and saved.low < 0:
        yield _refusal("ATF337", kernel, f"reads weights again and may lose: it saves {figures}")


def _operators(cost: FusionCost) -> dict[str, int]:
    """How many operators of each unit the fusion takes in; what only moves elements is code in none."""
    stages = cost.before.fast
    cube = sum(1 for stage in stages if stage.cube_us)
    return {"cube": cube, "vector": sum(1 for stage in stages if stage.vector_us and not stage.cube_us)}


def _us(time: float) -> str:
    return f"{time:,.1f}"


def _launches(cost: FusionCost) -> str:
    more = f", {cost.conversions_saved} conversions" if cost.conversions_saved else ""
    return f"{cost.launches_saved} launches{more}"


def _ddr(cost: FusionCost) -> str:
    return f"{cost.ddr_bytes_saved:,} bytes of DDR traffic"


def _refusal(code: str, kernel: KernelWork, text: str) -> Refusal:
    return Refusal(code, f"{kernel.kernel} {text}", kernel.kernel)
