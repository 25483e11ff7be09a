"""Tiles for a chip: what a generated kernel will do there, and how an unfused product is cut by the same model.

The kernels' own tilings (`atcfuse.tiling`) decide; this package gives them the chip, bounds their use of on-chip memory
and says what follows as `KernelWork`, which the cost model prices. Everything is computed from shapes and the SoC file.
One module a kernel.
"""

from atcfuse.planner.attention import LEVELS, Level, attention_tile, level_rows, plan_attention
from atcfuse.planner.elementwise import plan_elementwise
from atcfuse.planner.norm import plan_norm
from atcfuse.planner.product import ProductPlan, plan_product
from atcfuse.planner.work import KernelWork, no_kernels, platform

__all__ = [
    "LEVELS",
    "KernelWork",
    "Level",
    "ProductPlan",
    "attention_tile",
    "level_rows",
    "no_kernels",
    "plan_attention",
    "plan_elementwise",
    "plan_norm",
    "plan_product",
    "platform",
]
