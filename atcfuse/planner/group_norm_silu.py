"""The tiles and work of a GroupNorm, with an activation or without, on a chip."""

from __future__ import annotations

from functools import lru_cache

from atcfuse.device import Device
from atcfuse.graph.work import VECTOR_PASSES
from atcfuse.match.values import Refusal
from atcfuse.planner.work import KernelWork, no_kernels, platform
from atcfuse.tiling import ceil_div, group_norm_silu
from atcfuse.tiling.activations import activation

_PASSES = VECTOR_PASSES["GroupNormalization"]


@lru_cache(maxsize=1024)
def plan_group_norm_silu(problem: group_norm_silu.Problem, device: Device, occupancy: float) -> KernelWork | Refusal:
    """The tiles and work of a GroupNorm on a chip. ATF336: no kernel for it; ATF338: sizes refused."""
    if device.family is None:
        return no_kernels(device)
    chip = platform(device, occupancy)
    reason = group_norm_silu.refusal(problem, chip)
    if reason is not None:
        return Refusal("ATF338", f"the kernel takes {reason}", "group_norm_silu")
    tiling = group_norm_silu.plan(problem, chip)
    predicted = group_norm_silu.predict(tiling)
    affine = problem.channels * (problem.gamma_bytes + problem.beta_bytes)
    chunks = 1 if tiling.whole else _chunks(tiling)
    return KernelWork(
        kernel="group_norm_silu",
        reads={"inputs": predicted.tensor_bytes_read},
        writes={"outputs": predicted.tensor_bytes_written},
        sizes={"inputs": predicted.compulsory_bytes - predicted.tensor_bytes_written},
        resident={"inputs": affine if tiling.whole else problem.row * problem.element_bytes * tiling.blocks + affine},
        vector_elements=(_PASSES + activation(problem.activation).passes) * problem.rows * problem.row,
        dtype="float16" if problem.element_bytes == 2 else "float32",
        form="whole groups" if tiling.whole else "two reads",
        tasks=max(1, problem.rows),
        blocks=tiling.blocks,
        vector_blocks=tiling.blocks,
        tiles=max(1, ceil_div(problem.rows, tiling.blocks) * chunks),
        peak={"ub": predicted.ub},
        parameters={"elements": tiling.pitch, "tasks": problem.rows},
    )


def _chunks(tiling: group_norm_silu.Plan) -> int:
    """Loads of a group that goes in chunks: for the statistics, then channel by channel."""
    problem = tiling.problem
    return ceil_div(problem.row, tiling.pitch) + problem.per_group * ceil_div(problem.spatial, tiling.pitch)
