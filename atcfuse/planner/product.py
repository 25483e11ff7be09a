"""How an unfused product is cut, by the same model as generated kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from atcfuse.graph.work import Product
from atcfuse.planner.work import CUBE_UNIT
from atcfuse.tiling import Platform, ceil_div, round_up

_UNIT_COLUMNS = 256
_ROWS = (128, 64, 32, 16)
_LOAD_BYTES = 32  # into L1, a cycle


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
    groups = range(1, max(1, min(units, 2 * chip.cube_cores)) + 1)  # one where there are no columns
    cuts = [_cut(product, chip, r, g) for r in _ROWS for g in groups]
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
