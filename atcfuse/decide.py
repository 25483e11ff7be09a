"""From a prepared fusion to a decision: what it costs on the chip, whether it is done, and its weight in the selection.

Layers that are alike cost once: kernel, shapes and the unfused region are compared, names are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from atcfuse.atc import Estimate, Passes
from atcfuse.cost import FusionCost, Policy, decide, fused_cost, fusion_cost, more_in_atc
from atcfuse.cost.model import Side, as_list, unfused_cost
from atcfuse.device import Device, Range
from atcfuse.estimate import Kernels, kernel_dict
from atcfuse.graph.index import Model, Node, Scope
from atcfuse.graph.reroll import Short
from atcfuse.graph.traffic import Remembered, Sizes
from atcfuse.graph.work import NodeWorks, OpWork, transdata_work
from atcfuse.keep_nodes import KeepNodes
from atcfuse.kernel import KernelSpec
from atcfuse.match.find import Match
from atcfuse.match.values import Refusal
from atcfuse.options import Options
from atcfuse.rewrite import Fusion, operand_shape, operand_types

DEPTH = 200
"""Added to the nodes a decided match has: it got further than any that failed to match."""
BLOCKS_ONLY = "310P"
"""The family of chips that copy whole blocks of 32 bytes only."""
_TIE = 1e-4

_Key = tuple[Any, ...]


class Pricer:
    """Costs and decisions of one run. Sizes of symbolic dims are those that the report names.

    Standard nodes that a rewrite makes beside a fused one, such as the sum of two masks, are shared by layers: they
    count in the totals of the model and in no fusion's cost. `estimate` has what ATC would make of the graphs by
    itself, None where nothing is known of that.
    """

    def __init__(self, device: Device, options: Options, sizes: Sizes, passes: Passes | None = None) -> None:
        self.kernels = Kernels(device, options)
        self._device, self._options, self._sizes = device, options, sizes
        self._policy = Policy(options.min_saving_us, options.occupancy, options.keep_fp32)
        self.kinds_of = Remembered()
        self.works = NodeWorks(sizes, self.kernels.narrow, self.kinds_of)
        self.estimate = None if passes is None else Estimate(passes, self.works, self.kinds_of)
        self._after_atc: dict[_Key, dict[str, Any]] = {}
        self._costs: dict[_Key, FusionCost | Refusal] = {}
        self._of_match: dict[int, tuple[Match, FusionCost | Refusal]] = {}
        self._described: dict[int, tuple[FusionCost, dict[str, Any]]] = {}

    def adopt(self, short: Short, told: Scope) -> None:
        """Notes what nodes of a long model are and do, also after ATC's passes: as in `told`, the graph of the short
        one. Raises NotAlike where layers come out unlike.
        """
        if self.estimate is not None:
            self.estimate.adopt(short.scope, told, short)
        self.kinds_of.adopt(short.scope, told, short.likes)
        self.works.adopt(short.scope, told, short.likes)

    def refusal(self, fusion: Fusion) -> Refusal | None:
        """Why a fusion is not done, or None."""
        match, reason = fusion.match, self._reason(fusion)
        if reason is None:
            return None
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

    def behind_atc(self, fusion: Fusion, others: Set[int]) -> Refusal | None:
        """Why ATC alone is better off with the nodes of a fusion that pays as exported; None where that is not so.

        `others` are nodes that other fusions take: where these need what this one leaves, it is no comparison. What is
        nearer than the time of a launch cannot be told apart.
        """
        match = fusion.match
        if self.estimate is None or match.rule.name in self._options.forced:
            return None
        region = self.estimate.would_leave(match.scope, match.members)
        if region is None or not region[2].isdisjoint(others):
            return None
        launches, left, _ = region
        if len(launches) - len(left) > 1:  # it saves a launch
            return None
        low, high = self._against(match, self.cost(fusion), launches, left)["time_us_saved_after_atc"]
        if high > -self._device.launch_us.low:
            return None
        alone = f"what ATC makes of these nodes by itself (launches: {len(launches)})"
        reason = f"{alone} is estimated to take {-high:,.1f} to {-low:,.1f} µs less than with {fusion.op}"
        return Refusal("ATF339", reason, match.anchor.name, len(match.members) + DEPTH)

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
        """A fusion's kernel and costs as report JSON, on demand with both sides' launches one by one.

        What follows from the cost alone is the same for all fusions that are alike.
        """
        cost = self.cost(fusion)
        if id(cost) not in self._described:
            name = self.kernels.name(fusion.spec, fusion.attributes, self._types(fusion))
            told = {"kernel": name, **kernel_dict(cost.kernel, self._device), **cost_dict(cost)}
            told["remarks"] += _uncounted(cost)
            self._described[id(cost)] = cost, told
        found = dict(self._described[id(cost)][1])
        found.update(self._saved_after_atc(fusion, cost))
        return {**found, "cost": cost.as_dict()} if stages else found

    def describe_node(self, scope: Scope, node: Node, spec: KernelSpec, stages: bool = False) -> dict[str, Any]:
        """The kernel of a fused node that the model came with, as `describe`, as far as the node itself tells.

        Empty where no kernel takes it; what it replaced is not known any more.
        """
        work = self.kernels.of_node(scope, node, spec, self._sizes)
        if work is None:
            return {}
        side = fused_cost(work, self._device)
        name = self.kernels.name_of_node(scope, node, spec)
        figures = {"gm_bytes_after": side.gm_bytes, "l2_miss_bytes_after": side.ddr_bytes}
        found = {"kernel": name, **kernel_dict(work, self._device), **figures, "time_us_after": as_list(side.time_us)}
        return {**found, "cost": {"after": side.as_dict()}} if stages else found

    def describe_folding(self, match: Match, model: Model, name: str) -> dict[str, Any]:
        """The costs of a folding as report JSON, where the node that it left is still there."""
        if match.rule.removes:
            return self._describe_removal(match)
        after = next(((s, n) for s in model.scopes() for n in s.nodes if n.name == name), None)
        if after is None or match.outputs[0] not in after[1].outputs:
            return {}
        scope, node = after
        names = {match.scope.nodes[i].name for i in match.members}
        makers = [scope.producers[v] for v in node.inputs if v in scope.producers]
        made = [node, *(m for m in makers if m.name in names)]
        left = unfused_cost([self.works(scope)[n.index] for n in made], self._device)
        before = unfused_cost(self._unfused(match.scope, match), self._device, match.outputs)
        return sides_dict(before, left, _less(before, left), before.tensor_bytes - left.tensor_bytes)

    def _describe_removal(self, match: Match) -> dict[str, Any]:
        """What taking launches away saves, which ATC's own passes may do too, as report JSON."""
        before, none = unfused_cost(self._unfused(match.scope, match), self._device), unfused_cost([], self._device)
        found = sides_dict(before, none, _less(before, none), before.tensor_bytes)
        region = None if self.estimate is None else self.estimate.region(match.scope, match.members)
        if region is None:
            return found
        launches, behind = region
        before, after = (unfused_cost(works, self._device, match.outputs) for works in (launches, behind))
        return {
            **found,
            "launches_saved_after_atc": len(launches) - len(behind),
            "ddr_bytes_saved_after_atc": before.tensor_bytes - after.tensor_bytes,
            "time_us_saved_after_atc": as_list(_less(before, after)),
        }

    def _cost(self, fusion: Fusion) -> FusionCost | Refusal:
        match = fusion.match
        if id(match) not in self._of_match:
            self._of_match[id(match)] = match, self._worked_out(fusion)
        return self._of_match[id(match)][1]

    def _worked_out(self, fusion: Fusion) -> FusionCost | Refusal:
        scope, match = fusion.match.scope, fusion.match
        shapes = self._shapes(fusion)
        handed = self._made_fractal(fusion)
        numbers = tuple(i for i, value in enumerate(fusion.inputs) if value in handed)
        static = tuple(self._open_dims(fusion))
        key = (fusion.signature.overload, tuple(shapes.items()), numbers, *static, *self._alike(match))
        if key not in self._costs:
            work = self.kernels.work(fusion.spec, fusion.attributes, self._types(fusion), shapes)
            if not isinstance(work, Refusal):
                around = tuple(transdata_work(value, size) for value, size in handed.items())
                work = replace(work, around=around, static_dims=static)
                self._costs[key] = fusion_cost(self._unfused(scope, match), work, self._device, match.outputs)
            else:
                self._costs[key] = work
        return self._costs[key]

    def _made_fractal(self, fusion: Fusion) -> dict[str, int]:
        """Inputs that a product outside made, in bytes, where products have a layout of their own.

        As it stands a product of the fusion may read them as they lie; the kernel takes ND.
        """
        if self._device.cube_layout != "fractal":
            return {}
        scope, members = fusion.match.scope, fusion.match.members
        works, found = self.works(scope), {}
        for value in (v for v in fusion.inputs if isinstance(v, str)):
            maker = scope.producers.get(value)
            if maker is not None and maker.index not in members and works[maker.index].product is not None:
                found[str(value)] = works[maker.index].writes[value]
        return found

    def _unfused(self, scope: Scope, match: Match) -> list[OpWork]:
        """The work of a match's nodes in execution order."""
        works = self.works(scope)
        return [works[node.index] for node in _members(match)]

    def _saved_after_atc(self, fusion: Fusion, cost: FusionCost) -> dict[str, Any]:
        """What a fusion saves against ATC's own passes, as report JSON; equal regions are worked out once."""
        match = fusion.match
        region = None if self.estimate is None else self.estimate.region(match.scope, match.members)
        if region is None:
            return {}
        return self._against(match, cost, *region)

    def _against(
        self, match: Match, cost: FusionCost, launches: Sequence[OpWork], left: Sequence[OpWork]
    ) -> dict[str, Any]:
        outside = [*match.outputs, *(name for work in left for name in work.reads)]
        key = (id(cost.kernel), len(left), _pattern([*launches, *left], outside))
        if key not in self._after_atc:
            self._after_atc[key] = saved_against(launches, left, cost, self._device, outside)
        return self._after_atc[key]

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

    def _open_dims(self, fusion: Fusion) -> Iterator[str]:
        """Symbolic dims of inputs that the kernel's declaration wants to be numbers on this chip."""
        spec = fusion.spec
        given = {o.name: v for o, v in zip(spec.inputs, fusion.inputs, strict=False) if v is not None}
        for name, axes in (*spec.static, *(spec.blocks if self._device.family == BLOCKS_ONLY else ())):
            shape = operand_shape(fusion.match.scope, given[name]) if name in given else ()
            for axis in axes:
                if -len(shape) <= axis < len(shape) and not isinstance(shape[axis], int):
                    yield f"axis {axis} of {name} ({shape[axis]})"

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


def _less(before: Side, after: Side) -> Range:
    """What one side takes less than the other."""
    ends = (before.time_us.low - after.time_us.low, before.time_us.high - after.time_us.high)
    return Range(min(ends), max(ends))


def _members(match: Match) -> list[Node]:
    scope = match.scope
    return [scope.nodes[i] for i in sorted(match.members, key=scope.positions.__getitem__)]


def kept_by_user(match: Match, keep: KeepNodes) -> Refusal | None:
    """The refusal of a match with a node that the user wants left alone, or None."""
    for node in _members(match) if keep.entries else ():
        named = keep.reason(node.name, node.op)
        if named:
            depth = len(match.members) + DEPTH
            return Refusal("ATF325", named, node.name, depth)
    return None


def saved_against(
    launches: Sequence[OpWork], left: Sequence[OpWork], cost: FusionCost, device: Device, outputs: Sequence[str]
) -> dict[str, Any]:
    """What a fusion saves against other launches for its region, of which it leaves the nodes `left` to run, as report
    JSON.
    """
    against = fusion_cost(launches, cost.kernel, device, outputs)
    behind = unfused_cost(left, device, outputs)
    low, high = against.saved_us.low - behind.time_us.low, against.saved_us.high - behind.time_us.high
    return {
        "launches_saved_after_atc": len(launches) - len(left) - 1,
        "ddr_bytes_saved_after_atc": against.before.tensor_bytes - behind.tensor_bytes - cost.after.ddr_bytes,
        "time_us_saved_after_atc": as_list(Range(min(low, high), max(low, high))),
    }


def _uncounted(cost: FusionCost) -> list[str]:
    """Launches of ATC's that no figure counts, as a remark."""
    more = more_in_atc(cost)
    op = cost.before.fast[0].op if more else ""
    return [f"ATC makes up to {more} launches more of a {op}, which no figure counts"] if more else []


def _pattern(works: Sequence[OpWork], outputs: Sequence[str]) -> _Key:
    """Everything about launches that costs depend on, names numbered as they occur."""
    numbers: dict[str, int] = {}

    def named(sizes: Mapping[str, int]) -> _Key:
        return tuple((numbers.setdefault(name, len(numbers)), size) for name, size in sizes.items())

    found: list[_Key] = []
    for w in works:
        p = w.product
        product = p and (numbers.get(p.a), numbers.get(p.b), p.batch, p.m, p.n, p.k, p.element_bytes)
        found.append((named(w.reads), named(w.writes), w.cube_flops, w.vector_elements, w.dtype, product))
    return (*found, tuple(sorted(numbers.get(name, -1) for name in outputs)))


def cost_dict(cost: FusionCost) -> dict[str, Any]:
    """A fusion's bytes and times as report JSON."""
    saved = cost.before.tensor_bytes - cost.after.ddr_bytes
    return {**sides_dict(cost.before, cost.after, cost.saved_us, saved), "conversions_saved": cost.conversions_saved}


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
        "stages_us": _stages(after),
    }


def _stages(side: Side) -> dict[str, list[float]]:
    """How long each unit of the busiest core works in the fused kernel itself, which is the last of its stages."""
    units = ("load", "cube", "vector", "store", "wait")
    if not side.fast:  # nothing is left to run
        return {unit: [0.0, 0.0] for unit in units}
    fast, slow = side.fast[-1], side.slow[-1]
    ends = {unit: (getattr(fast, f"{unit}_us"), getattr(slow, f"{unit}_us")) for unit in units}
    return {unit: sorted(round(end, 3) for end in pair) for unit, pair in ends.items()}
