"""Tiles for a chip: what a generated kernel will do there, and how an unfused product is cut by the same model.

The kernels' own tilings (`atcfuse.tiling`) decide; this module gives them the chip, bounds their use of on-chip memory
and says what follows as `KernelWork`, which the cost model prices. Everything is computed from shapes and the SoC file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from atcfuse.device import Device
from atcfuse.graph.work import VECTOR_PASSES, OpWork, Product
from atcfuse.match.values import Refusal
from atcfuse.tiling import Platform, Prediction, attention, ceil_div, layer_norm_qkv, round_up
from atcfuse.tiling.attention_problem import Problem as AttentionProblem
from atcfuse.tiling.attention_problem import visits_of

Level = Literal["auto", "small", "large"]
LEVELS: tuple[Level, ...] = ("auto", "small", "large")
Handover = Literal["none", "workspace", "on_chip"]

CUBE_UNIT = 16
SMALL_ROWS, LARGE_ROWS = 32, 128
_SCORE_PASSES = 9  # scale, maximum, difference, exponential, sum, two casts, rescaling, mask or bias
_NORM_PASSES = VECTOR_PASSES["LayerNormalization"]
_UNIT_COLUMNS = 256
_ROWS = (128, 64, 32, 16)
_LOAD_BYTES = 32  # into L1, a cycle


@dataclass(frozen=True)
class KernelWork:
    """What one launch of a fused kernel does; plain figures, so that a kernel without a tiling can be described too.

    `reads` and `writes` are bytes at global memory by operand, `sizes` the operands' own bytes, `resident` what of an
    operand must stay in L2 for its repeated reads to come from there. `tasks` are spread over `blocks` cube cores and
    `vector_blocks` vector cores, each in `tiles` tiles, of which two are in flight where `double_buffered`; vector work
    comes in fewer, larger steps where `vector_tiles` is not 0. `peak` is on-chip use in bytes by memory. `api_calls`
    counts call sites in the source ("cube": Matmul objects, "vector"). `handover` is how cube and vector unit meet.
    `static_dims` names dims that the kernel needs static and that are not. `cautious` asks for a saving at the low end
    too: products that read weights again. `around` are casts and layout changes at its boundary, launches themselves.
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

    L0A, L0B and L0C are not bounded: they hold the cube's operands of the moment and nothing else, and a block is cut
    to fill them.
    """
    return Platform(
        cube_cores=device.cube_cores,
        vector_cores=device.vector_cores,
        ub=min(device.ub - device.ub_reserved, int(device.ub * occupancy)),
        l1=min(device.l1 - device.l1_reserved, int(device.l1 * occupancy)),
        l0a=device.l0a,
        l0b=device.l0b,
        l0c=device.l0c,
    )


def plan_attention(problem: AttentionProblem, device: Device, occupancy: float | None = None) -> KernelWork | Refusal:
    """The tiles and work of an attention on a chip, in the form that its cores take, whatever `shared_core` says.

    ATF336: no kernels for the chip; ATF338: no tile fits the bound.
    """
    formed = replace(problem, shared_core=device.family == "310P")
    return _attention(formed, device, device.occupancy if occupancy is None else occupancy)


def plan_norm(problem: layer_norm_qkv.Problem, device: Device, occupancy: float | None = None) -> KernelWork | Refusal:
    """The tiles and work of a norm with projections on a chip. ATF336: no kernel for it; ATF338: sizes refused."""
    return _norm(problem, device, device.occupancy if occupancy is None else occupancy)


@lru_cache(maxsize=1024)
def _attention(problem: AttentionProblem, device: Device, occupancy: float) -> KernelWork | Refusal:
    if device.family is None:
        return no_kernels(device)
    chip = platform(device, occupancy)
    predicted = attention.predict(problem, chip)
    if isinstance(predicted, str):
        return Refusal("ATF338", f"{predicted} on {device.name} within {occupancy:.0%} of it", "attention")
    return _attention_work(problem, predicted)


def no_kernels(device: Device) -> Refusal:
    """The refusal of a chip that no kernel is generated for."""
    return Refusal("ATF336", f"no kernels are generated for {device.name}: {device.summary}")


def _attention_work(problem: AttentionProblem, predicted: Prediction) -> KernelWork:
    p, decode = problem, predicted.form == "decode"
    tiles = predicted.parameters
    rows, columns = tiles.get("rows", 1), tiles.get("columns", p.keys)
    scores = p.batch * p.heads * _visited_scores(p, rows, columns)
    flops = 2 * scores * (p.head_dim + p.value_dim)
    query_tiles = ceil_div(p.queries, rows)
    tasks = p.batch * p.heads * query_tiles
    cores = predicted.blocks if p.shared_core else 2 * predicted.blocks
    heads_at_once = min(p.batch * p.heads, ceil_div(cores, query_tiles) + 1)
    sizes = _attention_sizes(p)
    resident = {name: ceil_div(size * heads_at_once, p.batch * p.heads) for name, size in sizes.items()}
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
        blocks=predicted.blocks,
        vector_blocks=cores,
        tiles=max(1, ceil_div(p.keys, columns) * ceil_div(tasks, cores)),
        double_buffered=not p.shared_core,
        peak=predicted.peak,
        handover="none" if decode else "on_chip" if p.shared_core else "workspace",
        parameters=tiles,
        remarks=padding_remarks(p, columns),
    )


def _visited_scores(problem: AttentionProblem, rows: int, columns: int) -> int:
    """Scores of one head that are computed: all, or without the tiles behind the causal diagonal."""
    if not problem.skips:
        return problem.queries * problem.keys
    tiles = range(ceil_div(problem.queries, rows))
    return sum(v.rows * v.columns for tile in tiles for v in visits_of(problem, rows, columns, tile))


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
    if p.queries == 1:
        return ()
    rows, keys = round_up(p.queries, CUBE_UNIT), round_up(p.keys, CUBE_UNIT)
    if (rows, keys) == (p.queries, p.keys):
        return ()
    lengths = dict.fromkeys(n for n in (p.queries, p.keys) if n % CUBE_UNIT)
    extra = rows * keys / (p.queries * p.keys) - 1
    shown = " and ".join(f"{n:,}" for n in lengths)
    text = f"{shown} not a multiple of {CUBE_UNIT}: the cube computes {extra:.1%} more"
    last = p.keys % columns
    if p.keys > columns and 0 < last < CUBE_UNIT:
        text += f", and every query tile visits one more tile of {columns} for {last} key{'s' if last > 1 else ''}"
    return (text,)


def level_rows(level: Level, batch: int, queries: int, head_dim: int) -> tuple[tuple[int, ...], str]:
    """Query rows that a tile may have, and a remark where the level is not meant for these sizes ("" otherwise)."""
    if level == "auto":
        return (16, SMALL_ROWS, 64, LARGE_ROWS), ""
    if level == "small":
        fits = batch >= 8 and queries <= 1024
        return (SMALL_ROWS,), "" if fits else "small tiles are meant for batch from 8 and sequences up to 1024"
    fits = queries >= 2048 and head_dim >= 64
    return (LARGE_ROWS,), "" if fits else "large tiles are meant for sequences from 2048 and head dims from 64"


def attention_tile(
    problem: AttentionProblem, device: Device, level: Level, occupancy: float | None = None
) -> attention.Tiling | Refusal:
    """The tile of a level on a chip of split cores: the widest that fits, loads double buffered where they can be."""
    share = device.occupancy if occupancy is None else occupancy
    chip = platform(device, share)
    rows, _ = level_rows(level, problem.batch, problem.queries, problem.head_dim)
    for tiling in _tiles(problem, rows):
        if sum(attention.buffers(problem, tiling).values()) <= chip.ub:
            return tiling
    shown = " or ".join(map(str, rows))
    return Refusal("ATF338", f"no tile of {shown} rows fits {chip.ub:,} bytes of UB on {device.name}", "attention")


def _tiles(problem: AttentionProblem, rows: tuple[int, ...]) -> Iterator[attention.Tiling]:
    for row in sorted(rows, reverse=True):
        for columns in (256, 128):
            for load_buffers in (2, 1):
                form: attention.Form = "one_tile" if problem.keys <= columns else "flash"
                yield attention.Tiling(form, row, columns, load_buffers)


@lru_cache(maxsize=1024)
def _norm(problem: layer_norm_qkv.Problem, device: Device, occupancy: float) -> KernelWork | Refusal:
    if device.family is None:
        return no_kernels(device)
    if device.family != "910B":
        return Refusal("ATF336", f"layer_norm_qkv hands rows from vector to cube cores, {device.name} has none apart")
    reason = layer_norm_qkv.refusal(problem)
    if reason is not None:
        return Refusal("ATF338", f"the kernel takes {reason}", "layer_norm_qkv")
    tiling = layer_norm_qkv.plan(problem, platform(device, occupancy))
    predicted = layer_norm_qkv.predict(tiling)
    columns = sum(p.columns for p in problem.projections)
    outputs = predicted.tensor_bytes_written
    inputs = predicted.compulsory_bytes - outputs
    rounds = ceil_div(tiling.tasks, tiling.blocks)
    weights = problem.hidden * columns * problem.element_bytes
    return KernelWork(
        kernel="layer_norm_qkv",
        reads={"inputs": predicted.tensor_bytes_read},
        writes={"outputs": outputs},
        sizes={"inputs": inputs},
        resident={"inputs": weights},
        workspace_read=predicted.workspace_bytes_read,
        workspace_written=predicted.workspace_bytes_written,
        workspace_footprint=predicted.workspace_footprint,
        cube_flops=2 * problem.rows * problem.hidden * columns,
        vector_elements=_NORM_PASSES * problem.rows * problem.hidden * tiling.groups,
        dtype="float16" if problem.element_bytes == 2 else "float32",
        form="whole rows" if tiling.row_fits else "two reads",
        tasks=tiling.tasks,
        blocks=tiling.blocks,
        vector_blocks=2 * tiling.blocks,
        tiles=rounds * ceil_div(columns, tiling.groups * tiling.base_n),
        vector_tiles=rounds,
        peak={name: getattr(predicted, name) for name in ("ub", "l1", "l0a", "l0b", "l0c")},
        handover="workspace",
        parameters={"rows": tiling.rows_per_task, "groups": tiling.groups, "tasks": tiling.tasks},
    )


@dataclass(frozen=True)
class ProductPlan:
    """How an unfused product is cut: `a_reads` and `b_reads` bytes from global memory, tasks over cube cores."""

    rows: int
    groups: int
    tasks: int
    blocks: int
    tiles: int
    a_reads: int
    b_reads: int
    a_resident: int
    b_resident: int


@lru_cache(maxsize=4096)
def plan_product(product: Product, chip: Platform) -> ProductPlan:
    """The cut with the fewest bytes into L1 among those at most a quarter slower than possible.

    The model is that of the generated kernels: a task takes up to 128 rows and a group of columns, A stays in L1 where
    its rows take at most two thirds of it and is read again for every 256 columns otherwise, B is read once a task.
    """
    units = ceil_div(product.n, _UNIT_COLUMNS)
    cuts = [_cut(product, chip, r, g) for r in _ROWS for g in range(1, min(units, 2 * chip.cube_cores) + 1)]
    fastest = min(_cycles(product, chip, cut) for cut in cuts)
    affordable = (cut for cut in cuts if _cycles(product, chip, cut) <= fastest * 5 / 4)
    return min(affordable, key=lambda cut: cut.a_reads + cut.b_reads)


def _cut(product: Product, chip: Platform, rows: int, groups: int) -> ProductPlan:
    p, size = product, product.element_bytes
    row_blocks = max(1, ceil_div(p.m, rows))
    tasks = max(1, p.batch) * row_blocks * groups
    columns = ceil_div(p.n, groups)
    keeps_a = round_up(min(rows, max(p.m, 1)), CUBE_UNIT) * p.k * size <= chip.l1 * 2 // 3
    loads_of_a = 1 if keeps_a else ceil_div(columns, _UNIT_COLUMNS)
    a, b = p.batch * p.m * p.k * size, p.batch * p.k * p.n * size
    blocks = min(chip.cube_cores, tasks)
    at_once = min(max(p.batch, 1), ceil_div(blocks, row_blocks * groups) + 1)
    return ProductPlan(
        rows=rows,
        groups=groups,
        tasks=tasks,
        blocks=blocks,
        tiles=max(1, ceil_div(tasks, blocks) * ceil_div(columns, _UNIT_COLUMNS)),
        a_reads=a * groups * loads_of_a,
        b_reads=b * row_blocks,
        a_resident=ceil_div(a * at_once, max(p.batch, 1)),
        b_resident=ceil_div(b * at_once, max(p.batch, 1)),
    )


def _cycles(product: Product, chip: Platform, cut: ProductPlan) -> float:
    """Cycles of the busiest core: the cube's or those of loading, whichever are more."""
    p = product
    rows, columns = min(cut.rows, round_up(max(p.m, 1), CUBE_UNIT)), ceil_div(p.n, cut.groups)
    cube = rows * round_up(columns, CUBE_UNIT) * p.k / (4096 if p.element_bytes <= 2 else 1024)
    loaded = (cut.a_reads + cut.b_reads) / cut.tasks / _LOAD_BYTES
    return ceil_div(cut.tasks, chip.cube_cores) * max(cube, loaded)
