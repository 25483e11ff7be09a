"""Tiles for a chip: what a generated kernel will do there, and how an unfused product is cut by the same model.

The kernels' own tilings (`atcfuse.tiling`) decide; this package gives them the chip, bounds their use of on-chip memory
and says what follows as `KernelWork`, which the cost model prices. Everything is computed from shapes and the SoC file.
One module a kernel.
"""

from atcfuse.planner.attention import plan_attention
from atcfuse.planner.elementwise import plan_elementwise
from atcfuse.planner.ffn import plan_ffn
from atcfuse.planner.group_norm_silu import plan_group_norm_silu
from atcfuse.planner.linear import plan_linear
from atcfuse.planner.norm import plan_norm
from atcfuse.planner.product import ProductPlan, plan_product
from atcfuse.planner.rotary import plan_rotary
from atcfuse.planner.row_norm import plan_row_norm
from atcfuse.planner.softmax import plan_softmax
from atcfuse.planner.work import TILE_ROWS, KernelWork, no_kernels, platform

__all__ = [
    "TILE_ROWS",
    "KernelWork",
    "ProductPlan",
    "no_kernels",
    "plan_attention",
    "plan_ffn",
    "plan_linear",
    "plan_group_norm_silu",
    "plan_elementwise",
    "plan_norm",
    "plan_product",
    "plan_rotary",
    "plan_row_norm",
    "plan_softmax",
    "platform",
]
