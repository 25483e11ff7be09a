"""What fusions cost and save on a chip, and which of them pay. Plain figures in, plain figures out."""

from atcfuse.cost.code_size import api_calls, code_bytes
from atcfuse.cost.decide import DEFAULT_POLICY, Policy, decide, more_in_atc
from atcfuse.cost.memory import Moved, handovers
from atcfuse.cost.model import BASIS, FusionCost, Side, fused_cost, fusion_cost, unfused_cost
from atcfuse.cost.stages import Stage

__all__ = [
    "BASIS",
    "DEFAULT_POLICY",
    "FusionCost",
    "Moved",
    "Policy",
    "Side",
    "Stage",
    "api_calls",
    "code_bytes",
    "decide",
    "fused_cost",
    "fusion_cost",
    "handovers",
    "more_in_atc",
    "unfused_cost",
]
