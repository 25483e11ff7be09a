"""The tiles and work of a softmax of masked scores on a chip."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from atcfuse.device import Device
from atcfuse.match.values import Refusal
from atcfuse.planner.work import KernelWork, no_kernels, platform
from atcfuse.tiling import ceil_div, scale_mask_softmax

_PASSES = 8  # widening, scale, mask or bias, maximum, difference, exponential, sum, quotient


def plan_softmax(
    problem: scale_mask_softmax.Problem, device: Device, occupancy: float | None = None
) -> KernelWork | Refusal:
    """The tiles and work of a softmax on a chip. ATF336: no kernel for it; ATF338: sizes refused."""
    return _softmax(problem, device, device.occupancy if occupancy is None else occupancy)


@lru_cache(maxsize=1024)
def _softmax(problem: scale_mask_softmax.Problem, device: Device, occupancy: float) -> KernelWork | Refusal:
    if device.family is None:
        return no_kernels(device)
    chip, of = platform(device, occupancy), problem.of
    reason = scale_mask_softmax.refusal(problem, chip)
    if reason is not None:
        return Refusal("ATF338", reason, "scale_mask_softmax")
    tiling = scale_mask_softmax.plan(problem, chip)
    predicted = scale_mask_softmax.predict(tiling)
    scores = prod(problem.shape)
    sizes = {"x": scores * of.x_bytes}
    sizes |= {"bias": prod(problem.bias) * of.bias_bytes} if problem.bias else {}
    sizes |= {"mask": prod(problem.mask)} if problem.mask else {}
    return KernelWork(
        kernel="scale_mask_softmax",
        reads=predicted.reads,
        writes=predicted.writes,
        sizes=sizes,
        resident={name: size for name, size in sizes.items() if name != "x"},
        vector_elements=_PASSES * scores * tiling.passes,
        dtype="float16" if of.x_bytes == 2 else "float32",
        form=predicted.form,
        tasks=tiling.tasks,
        blocks=tiling.blocks,
        vector_blocks=tiling.blocks,
        tiles=max(1, ceil_div(tiling.tasks, tiling.blocks) * ceil_div(problem.shape[3], tiling.columns)),
        peak=predicted.peak,
        parameters=predicted.parameters,
    )
