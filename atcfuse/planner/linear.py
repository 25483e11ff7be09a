"""The tiles and work of one linear projection with what surrounds it on a chip."""

from __future__ import annotations

from functools import lru_cache

from atcfuse.device import Device
from atcfuse.graph.work import VECTOR_PASSES, Product
from atcfuse.match.values import Refusal
from atcfuse.planner.product import plan_product
from atcfuse.planner.work import KernelWork, no_kernels, platform
from atcfuse.tiling import ceil_div, linear
from atcfuse.tiling.activations import activation
from atcfuse.tiling.linear_problem import Problem, too_large


def plan_linear(problem: Problem, device: Device, occupancy: float | None = None) -> KernelWork | Refusal:
    """The tiles and work of such a projection on a chip. ATF336: no kernel for it; ATF338: sizes refused."""
    return _linear(problem, device, device.occupancy if occupancy is None else occupancy)


@lru_cache(maxsize=1024)
def _linear(problem: Problem, device: Device, occupancy: float) -> KernelWork | Refusal:
    kernel = "layer_norm_linear" if problem.norm else "linear"
    if device.family is None:
        return no_kernels(device)
    if device.family != "910B":
        return Refusal("ATF336", f"{kernel} hands products from cube to vector cores, {device.name} has none apart")
    chip = platform(device, occupancy)
    reason = too_large(problem)
    if reason is not None:
        return Refusal("ATF338", f"the kernel takes {reason}", kernel)
    tiling = linear.plan(problem, chip)
    reason = linear.no_room(tiling)
    if reason is not None:
        return Refusal("ATF338", f"the kernel takes {reason}", kernel)
    return _work(kernel, problem, tiling, _reads_weights_again(problem, tiling, device))


def _work(kernel: str, problem: Problem, tiling: linear.Plan, cautious: bool) -> KernelWork:
    predicted = linear.predict(tiling)
    outputs = predicted.tensor_bytes_written
    weights = problem.hidden * problem.columns * problem.element_bytes
    tasks = max(1, tiling.tasks)  # no rows, no task: the launch remains
    rounds = ceil_div(tasks, tiling.blocks)
    return KernelWork(
        kernel=kernel,
        reads={"inputs": predicted.tensor_bytes_read},
        writes={"outputs": outputs},
        sizes={"inputs": predicted.compulsory_bytes - outputs},
        resident={"inputs": weights},
        workspace_read=predicted.workspace_bytes_read,
        workspace_written=predicted.workspace_bytes_written,
        workspace_footprint=predicted.workspace_footprint,
        cube_flops=2 * problem.rows * problem.hidden * problem.columns,
        vector_elements=_vector_elements(problem, tiling),
        dtype="float16" if problem.element_bytes == 2 else "float32",
        form=_form(problem, tiling),
        tasks=tasks,
        blocks=tiling.blocks,
        vector_blocks=2 * tiling.blocks,
        tiles=rounds * ceil_div(problem.columns, tiling.groups * tiling.unit_columns),
        vector_tiles=rounds,
        peak={name: getattr(predicted, name) for name in ("ub", "l1", "l0a", "l0b", "l0c")},
        handover="workspace" if problem.prepares or problem.finishes else "none",
        cautious=cautious,
        parameters={
            "rows": tiling.rows_per_task,
            "groups": tiling.groups,
            "tasks": tiling.tasks,
            "tile_elements": tiling.tile_elements,
        },
    )


def _reads_weights_again(problem: Problem, tiling: linear.Plan, device: Device) -> bool:
    """Whether weights are read more often than the unfused product reads them, in the model of both."""
    weights = problem.hidden * problem.columns * problem.element_bytes
    product = Product(1, problem.rows, problem.columns, problem.hidden, element_bytes=problem.element_bytes)
    unfused = plan_product(product, platform(device)).b_reads
    return ceil_div(problem.rows, tiling.rows_per_task) * weights > unfused


def _vector_elements(problem: Problem, tiling: linear.Plan) -> int:
    """Rows are prepared once for every group of columns, the product is finished once."""
    prepared = VECTOR_PASSES["LayerNormalization"] if problem.norm else 0
    if problem.prologue != "none":
        prepared = 2 + activation(problem.prologue).passes
    rows = problem.rows * problem.hidden * tiling.groups * prepared
    return rows + problem.rows * problem.columns * problem.tile_instructions


def _form(problem: Problem, tiling: linear.Plan) -> str:
    parts = [] if not problem.norm else ["whole rows" if tiling.row_fits else "two reads"]
    parts += ["prologue"] if problem.prologue != "none" else []
    parts += ["epilogue"] if problem.finishes else []
    return ", ".join(parts) or "product"
