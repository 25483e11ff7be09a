"""From a prepared fusion to a decision: what it costs on the chip, whether it is done, and its weight in the selection.

Layers that are alike cost once: kernel, shapes and the unfused region are compared, names are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from atcfuse.cost import FusionCost, Policy, decide, fusion_cost
from atcfuse.cost.model import Side, as_list, unfused_cost
from atcfuse.device import Device, Range
from atcfuse.estimate import Kernels, kernel_dict
from atcfuse.graph.index import Model, Node, Scope
from atcfuse.graph.traffic import KindsOf, Remembered, Sizes
from atcfuse.graph.work import OpWork, work_of
from atcfuse.keep_nodes import KeepNodes
from atcfuse.match.find import Match
from atcfuse.match.values import Refusal
from atcfuse.options import Options
from atcfuse.rewrite import Fusion, operand_shape, operand_types

DEPTH = 200
"""Added to the nodes a decided match has: it got further than any that failed to match."""
_TIE = 1e-4

_Key = tuple[Any, ...]


class Pricer:
    """Costs and decisions of one run. Sizes of symbolic dims are those that the report names.

    Standard nodes that a rewrite makes beside a fused one, such as the sum of two masks, are shared by layers: they
    count in the totals of the model and in no fusion's cost.
    """

    def __init__(self, device: Device, options: Options, sizes: Sizes) -> None:
        self.kernels = Kernels(device, options.precision_mode, options.occupancy)
        self._device, self._options, self._sizes = device, options, sizes
        self._policy = Policy(options.min_saving_us, options.occupancy, options.keep_fp32)
        self.kinds_of: KindsOf = Remembered()
        self._costs: dict[_Key, FusionCost | Refusal] = {}
        self._seen: dict[int, tuple[Fusion, FusionCost | Refusal]] = {}

    def refusal(self, fusion: Fusion) -> Refusal | None:
        """Why a fusion is not done, or None."""
        reason = self._reason(fusion)
        if reason is None:
            return None
        match = fusion.match
        return replace(reason, where=match.anchor.name, depth=len(match.members) + DEPTH)

    def _reason(self, fusion: Fusion) -> Refusal | None:
        missing = self.kernels.refusal(fusion.spec, fusion.attributes, self._types(fusion))
        if missing is not None:
            return missing
        found = self._cost(fusion)
        if isinstance(found, Refusal):
            return found
        forced = fusion.match.rule.name in self._options.forced
        return decide(found, self._device, replace(self._policy, forced=forced))

    def gain(self, fusion: Fusion) -> float:
        """The weight of a fusion in the selection: the most it may save in µs, launches where that is the same."""
        cost = self._cost(fusion)
        if isinstance(cost, Refusal):
            return 0.0
        return max(cost.saved_us.high, 0.0) + _TIE * cost.launches_saved

    def cost(self, fusion: Fusion) -> FusionCost:
        """The cost of a fusion that was not refused."""
        found = self._cost(fusion)
        assert isinstance(found, FusionCost)
        return found

    def describe(self, fusion: Fusion, stages: bool = False) -> dict[str, Any]:
        """A fusion's kernel and costs as report JSON, on demand with both sides' launches one by one."""
        cost = self.cost(fusion)
        name = self.kernels.name(fusion.spec, fusion.attributes, self._types(fusion))
        found = {"kernel": name, **kernel_dict(cost.kernel, self._device), **cost_dict(cost)}
        return {**found, "cost": cost.as_dict()} if stages else found

    def describe_folding(self, match: Match, model: Model, name: str) -> dict[str, Any]:
        """The costs of a folding as report JSON, where the node that it left is still there."""
        after = next(((s, n) for s in model.scopes() for n in s.nodes if n.name == name), None)
        if after is None or match.outputs[0] not in after[1].outputs:
            return {}
        scope, node = after
        kind = self.kinds_of(scope)[node.index]
        left = unfused_cost([work_of(scope, node, self._sizes, kind, self.kernels.narrow)], self._device)
        before = unfused_cost(list(self._unfused(match.scope, match)), self._device, match.outputs)
        ends = sorted((before.time_us.low - left.time_us.low, before.time_us.high - left.time_us.high))
        return sides_dict(before, left, Range(*ends), before.tensor_bytes - left.tensor_bytes)

    def _cost(self, fusion: Fusion) -> FusionCost | Refusal:
        if id(fusion) not in self._seen:
            self._seen[id(fusion)] = fusion, self._worked_out(fusion)
        return self._seen[id(fusion)][1]

    def _worked_out(self, fusion: Fusion) -> FusionCost | Refusal:
        scope, match = fusion.match.scope, fusion.match
        shapes = self._shapes(fusion)
        key = (fusion.signature.overload, tuple(shapes.items()), *self._alike(match))
        if key not in self._costs:
            work = self.kernels.work(fusion.spec, fusion.attributes, self._types(fusion), shapes)
            self._costs[key] = (
                work
                if isinstance(work, Refusal)
                else fusion_cost(list(self._unfused(scope, match)), work, self._device, match.outputs)
            )
        return self._costs[key]

    def _unfused(self, scope: Scope, match: Match) -> Iterator[OpWork]:
        """The work of a match's nodes in execution order."""
        known = self.kinds_of(scope)
        for node in _members(match):
            yield work_of(scope, node, self._sizes, known[node.index], self.kernels.narrow)

    def _alike(self, match: Match) -> Iterator[_Key]:
        """Operators, wiring and facts of a match's nodes and outputs, the same for layers that are alike."""
        scope, known = match.scope, self.kinds_of(match.scope)
        numbers: dict[str, int] = {}
        for node in _members(match):
            if known[node.index] == "launch":
                named = (*node.inputs, *node.outputs)
                wiring = tuple(numbers.setdefault(n, len(numbers)) for n in named)
                yield node.op, wiring, node.attributes.get("transA"), node.attributes.get("transB")
        yield tuple((scope.fact(n).dtype, scope.fact(n).shape) for n in numbers)
        yield tuple(numbers.get(n, -1) for n in match.outputs)

    def _types(self, fusion: Fusion) -> dict[str, int]:
        return operand_types(fusion, self._options.precision_mode)

    def _shapes(self, fusion: Fusion) -> Mapping[str, tuple[int, ...]]:
        scope = fusion.match.scope
        given = zip(fusion.spec.inputs, fusion.inputs, strict=False)
        return {
            operand.name: tuple(self._sizes.number(d) for d in operand_shape(scope, value))
            for operand, value in given
            if value is not None
        }


def _members(match: Match) -> list[Node]:
    scope = match.scope
    return [scope.nodes[i] for i in sorted(match.members, key=lambda i: scope.positions[i])]


def kept_by_user(match: Match, keep: KeepNodes) -> Refusal | None:
    """The refusal of a match with a node that the user wants left alone, or None."""
    for node in _members(match):
        named = keep.reason(node.name, node.op)
        if named:
            depth = len(match.members) + DEPTH
            return Refusal("ATF325", f"{node.name or node.op} is left alone: {named}", node.name, depth)
    return None


def cost_dict(cost: FusionCost) -> dict[str, Any]:
    """A fusion's bytes and times as report JSON."""
    return sides_dict(cost.before, cost.after, cost.saved_us, cost.before.tensor_bytes - cost.after.ddr_bytes)


def sides_dict(before: Side, after: Side, saved: Range, ddr_bytes_saved: int) -> dict[str, Any]:
    """Both sides of a change as report JSON."""
    return {
        "ddr_bytes_saved": ddr_bytes_saved,
        "time_us_saved": as_list(saved),
        "time_us_before": as_list(before.time_us),
        "time_us_after": as_list(after.time_us),
        "gm_bytes_before": before.gm_bytes,
        "gm_bytes_after": after.gm_bytes,
        "l2_miss_bytes_before": before.ddr_bytes,
        "l2_miss_bytes_after": after.ddr_bytes,
    }
