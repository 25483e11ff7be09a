"""The tiles and work of projections of the same rows on a chip, of a norm or not."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from atcfuse.device import Device
from atcfuse.graph.work import VECTOR_PASSES
from atcfuse.match.values import Refusal
from atcfuse.planner.work import KernelWork, no_kernels, platform
from atcfuse.tiling import ceil_div, layer_norm_qkv

_NORM_PASSES = VECTOR_PASSES["LayerNormalization"]
_SUM_PASSES = {4: 1, 2: 4}  # by element bytes: converted, added, rounded and converted back


def plan_norm(problem: layer_norm_qkv.Problem, device: Device, occupancy: float | None = None) -> KernelWork | Refusal:
    """The tiles and work of projections on a chip, of a norm or not. ATF336: no kernel; ATF338: sizes refused."""
    return _norm(problem, device, device.occupancy if occupancy is None else occupancy)


@lru_cache(maxsize=1024)
def _norm(problem: layer_norm_qkv.Problem, device: Device, occupancy: float) -> KernelWork | Refusal:
    kernel = "qkv" if not problem.norm else "add_layer_norm_qkv" if problem.is_sum else "layer_norm_qkv"
    if device.family is None:
        return no_kernels(device)
    if device.family != "910B":
        return Refusal("ATF336", f"{kernel} hands rows from vector to cube cores, {device.name} has none apart")
    # Assumed sizes may contradict each other, as positions and a longer sequence do; summands then count in full.
    problem = replace(problem, periods=tuple([p or problem.rows for p in problem.periods]))
    reason = layer_norm_qkv.refusal(problem)
    if reason is not None:
        return Refusal("ATF338", f"the kernel takes {reason}", kernel)
    tiling = layer_norm_qkv.plan(problem, platform(device, occupancy))
    predicted = layer_norm_qkv.predict(tiling)
    columns = sum(p.columns for p in problem.projections)
    outputs = predicted.tensor_bytes_written
    inputs = predicted.compulsory_bytes - outputs
    tasks = max(1, tiling.tasks)  # no rows, no task: the launch remains
    rounds = ceil_div(tasks, tiling.blocks)
    weights = problem.hidden * columns * problem.element_bytes
    repeated = problem.hidden * problem.element_bytes * sum(p for p in problem.periods if p and p < problem.rows)
    # Projections alone save nothing but launches, so generated products must not lose more than these at their worst.
    # With a norm they may, although every block of rows reads the weights again: so do the toolkit's own products, by
    # which the baseline is counted. Asking for a saving at the low end too would keep long sequences unfused, and a
    # packed projection of 197 rows already.
    return KernelWork(
        kernel=kernel,
        reads={"inputs": predicted.tensor_bytes_read},
        writes={"outputs": outputs},
        sizes={"inputs": inputs},
        resident={"inputs": weights + repeated},
        workspace_read=predicted.workspace_bytes_read,
        workspace_written=predicted.workspace_bytes_written,
        workspace_footprint=predicted.workspace_footprint,
        cube_flops=2 * problem.rows * problem.hidden * columns,
        vector_elements=_vector_elements(problem, tiling),
        dtype="float16" if problem.element_bytes == 2 else "float32",
        form=_form(problem, tiling),
        tasks=tasks,
        blocks=tiling.blocks,
        vector_blocks=2 * tiling.blocks,
        tiles=rounds * ceil_div(columns, tiling.groups * tiling.cube.base_n),
        vector_tiles=rounds,
        peak={name: getattr(predicted, name) for name in ("ub", "l1", "l0a", "l0b", "l0c")},
        handover="workspace" if tiling.slot_bytes else "none",
        cautious=not problem.norm,
        parameters={"rows": tiling.rows_per_task, "groups": tiling.groups, "tasks": tiling.tasks},
    )


def _vector_elements(problem: layer_norm_qkv.Problem, tiling: layer_norm_qkv.Plan) -> int:
    """Rows are added up and normalised once for every group of columns."""
    passes = _NORM_PASSES + (len(problem.periods) - 1) * _SUM_PASSES[problem.element_bytes]
    return passes * problem.rows * problem.hidden * tiling.groups if problem.norm else 0


def _form(problem: layer_norm_qkv.Problem, tiling: layer_norm_qkv.Plan) -> str:
    if not problem.norm:
        return "product"
    return "whole rows" if tiling.row_fits else "two reads"
