"""The tiles and work of a fused attention on a chip."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from atcfuse.device import Device
from atcfuse.match.values import Refusal
from atcfuse.planner.work import CUBE_UNIT, TILE_ROWS, KernelWork, no_kernels, platform
from atcfuse.tiling import Prediction, attention, ceil_div, round_up
from atcfuse.tiling.attention_problem import Problem as AttentionProblem
from atcfuse.tiling.attention_problem import tasks_of

MOST_POSITIONS = 1 << 22
"""So many queries or keys are planned for at most; a size in `--assume` may be any."""
_SCORE_PASSES = 9  # scale, maximum, difference, exponential, sum, two casts, rescaling, mask or bias


def plan_attention(problem: AttentionProblem, device: Device, occupancy: float | None = None) -> KernelWork | Refusal:
    """The tiles and work of an attention on a chip, in the form that its cores take, whatever `shared_core` says.

    ATF336: no kernels for the chip; ATF338: no tile fits the bound, or there are too many.
    """
    formed = replace(problem, shared_core=device.family == "310P")
    return _attention(formed, device, device.occupancy if occupancy is None else occupancy)


@lru_cache(maxsize=1024)
def _attention(problem: AttentionProblem, device: Device, occupancy: float) -> KernelWork | Refusal:
    if device.family is None:
        return no_kernels(device)
    if max(problem.queries, problem.keys) > MOST_POSITIONS:
        return Refusal(
            "ATF338", f"more than {MOST_POSITIONS:,} queries or keys: tiles are counted one by one", "attention"
        )
    chip = platform(device, occupancy)
    predicted = attention.predict(problem, chip)
    if isinstance(predicted, str):
        return Refusal("ATF338", f"{predicted} on {device.name} within {occupancy:.0%} of it", "attention")
    return _attention_work(problem, predicted, chip.tile_rows)


def _attention_work(problem: AttentionProblem, predicted: Prediction, tile_rows: int) -> KernelWork:
    p, decode = problem, predicted.form == "decode"
    tiles = predicted.parameters
    rows, columns = tiles.get("rows", 1), tiles.get("columns", p.keys)
    scores = p.batch * p.heads * _visited_scores(p, rows, columns)
    flops = 2 * scores * (p.head_dim + p.value_dim)
    query_tiles = ceil_div(p.queries, rows)
    # At the sizes assumed there may be no batch, query or key: a launch that computes nothing.
    heads, blocks = max(1, p.batch * p.heads), max(1, predicted.blocks)
    tasks = max(1, p.batch * p.heads * query_tiles)
    cores = blocks if p.shared_core else 2 * blocks
    heads_at_once = min(heads, ceil_div(cores, max(1, query_tiles)) + 1)
    sizes = _attention_sizes(p)
    resident = {name: ceil_div(size * heads_at_once, heads) for name, size in sizes.items()}
    return KernelWork(
        kernel="attention",
        reads=predicted.reads,
        writes=predicted.writes,
        sizes=sizes,
        resident=resident,
        workspace_read=predicted.workspace_read,
        workspace_written=predicted.workspace_written,
        workspace_footprint=predicted.workspace_footprint,
        cube_flops=0 if decode else flops,
        vector_elements=_SCORE_PASSES * scores + (flops if decode else 0),
        dtype="float16" if p.element_bytes == 2 else "float32",
        form=predicted.form,
        tasks=tasks,
        blocks=blocks,
        vector_blocks=cores,
        tiles=max(1, ceil_div(p.keys, columns) * ceil_div(tasks, cores)),
        double_buffered=not p.shared_core,
        peak=predicted.peak,
        handover="none" if decode else "on_chip" if p.shared_core else "workspace",
        parameters=tiles,
        remarks=(*padding_remarks(p, columns), *tile_remarks(p, predicted, tile_rows)),
    )


def _visited_scores(problem: AttentionProblem, rows: int, columns: int) -> int:
    """Scores of one head that are computed: all, or without the tiles behind the causal diagonal."""
    return sum(task.rows * task.covered for task in tasks_of(problem, rows, columns))


def _attention_sizes(p: AttentionProblem) -> dict[str, int]:
    keys = p.batch * p.kv_heads * p.keys * p.element_bytes
    sizes = {
        "q": p.batch * p.heads * p.queries * p.head_dim * p.element_bytes,
        "k": keys * p.head_dim,
        "v": keys * p.value_dim,
        "bias": _count(p.bias_shape) * p.bias_bytes,
        "mask": _count(p.mask_shape) if p.has_mask else 0,
    }
    return {name: size for name, size in sizes.items() if size}


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def padding_remarks(problem: AttentionProblem, columns: int) -> tuple[str, ...]:
    """What lengths that are no multiple of the cube's 16 cost, such as 4097."""
    p = problem
    if p.queries <= 1 or p.keys == 0:
        return ()
    rows, columned = round_up(p.queries, CUBE_UNIT), round_up(p.keys, CUBE_UNIT)
    if (rows, columned) == (p.queries, p.keys):
        return ()
    lengths = dict.fromkeys(n for n in (p.queries, p.keys) if n % CUBE_UNIT)
    extra = rows * columned / (p.queries * p.keys) - 1
    shown = " and ".join(f"{n:,}" for n in lengths)
    text = f"{shown} not a multiple of {CUBE_UNIT}: the cube computes {extra:.1%} more"
    last = p.keys % columns
    if p.keys > columns and 0 < last < CUBE_UNIT:
        keys = f"{last} key{'s' if last > 1 else ''}"
        return (f"{text}, and every query tile visits one more tile of {columns} for {keys}",)
    return (text,)


def tile_remarks(problem: AttentionProblem, predicted: Prediction, asked: int) -> tuple[str, ...]:
    """Where tiles of `asked` rows (0: the tiling chose) are not meant for these sizes, or are not what was taken."""
    p, rows = problem, predicted.parameters["rows"]
    if not asked:
        return ()
    if predicted.form == "decode":
        return ("one query a head is taken as it is, whatever the tile level",)
    found = []
    if asked == TILE_ROWS["small"] and not (p.batch >= 8 and p.queries <= 1024):
        found.append("small tiles are meant for batch from 8 and sequences up to 1,024")
    if asked == TILE_ROWS["large"] and not (p.queries >= 2048 and p.head_dim >= 64):
        found.append("large tiles are meant for sequences from 2,048 and head dims from 64")
    if rows < asked:
        found.append(f"tiles of {asked} rows do not fit the bound of UB; {rows} rows are the most that do")
    return tuple(found)
