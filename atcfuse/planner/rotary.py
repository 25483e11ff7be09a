"""The tiles and work of a rotary embedding on a chip."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from atcfuse.device import Device
from atcfuse.match.values import Refusal
from atcfuse.planner.work import KernelWork, no_kernels, platform
from atcfuse.tiling import ceil_div, rotary_embedding

_PASSES = 5  # widening, two products, a sum, narrowing; for every element that is rotated
_NORM_PASSES = 4  # squares, their sum, a quotient and a product
_MEAN_PASSES = 2  # a sum and a difference
_SHIFTED_PASSES = 4  # widening and merging both shifted copies


def plan_rotary(
    problem: rotary_embedding.Problem, device: Device, occupancy: float | None = None
) -> KernelWork | Refusal:
    """The tiles and work of a rotary embedding on a chip. ATF336: no kernel for it; ATF338: sizes refused."""
    return _rotary(problem, device, device.occupancy if occupancy is None else occupancy)


@lru_cache(maxsize=1024)
def _rotary(problem: rotary_embedding.Problem, device: Device, occupancy: float) -> KernelWork | Refusal:
    if device.family is None:
        return no_kernels(device)
    chip, of = platform(device, occupancy), problem.of
    reason = rotary_embedding.refusal(problem, chip)
    if reason is not None:
        return Refusal("ATF338", reason, "rotary_embedding")
    tiling = rotary_embedding.plan(problem, chip)
    predicted = rotary_embedding.predict(tiling)
    vectors = sum(prod(result) for result in problem.results)
    angles = prod(problem.angles) * of.rotary_dim * of.angle_bytes
    sizes = {name: prod(r) * of.head_dim * of.element_bytes for name, r in zip("qk", problem.results, strict=False)}
    passes = _PASSES + (_SHIFTED_PASSES if of.interleaved else 0) + (_NORM_PASSES if of.normed else 0)
    passes += _MEAN_PASSES * of.centred + (of.normed > 0 and of.shifts)
    gammas = {
        name: of.head_dim * of.gamma_bytes * (problem.results[k][1] if of.by_head else 1) for name, k in of.scales
    }
    return KernelWork(
        kernel="rotary_embedding",
        reads=predicted.reads,
        writes=predicted.writes,
        sizes={**sizes, "cos": angles, "sin": angles, **gammas},
        resident={"cos": angles, "sin": angles, **gammas},
        vector_elements=passes * vectors * (of.head_dim if of.normed else of.rotary_dim),
        dtype="float16" if of.element_bytes == 2 else "float32",
        form=predicted.form,
        tasks=tiling.tasks,
        blocks=tiling.blocks,
        vector_blocks=tiling.blocks,
        tiles=max(1, ceil_div(tiling.tasks, tiling.blocks) * ceil_div(problem.heads, tiling.groups)),
        peak=predicted.peak,
        parameters=predicted.parameters,
    )
