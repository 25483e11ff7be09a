"""From what a run found to the report document: counting and naming, no decisions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import atcfuse
from atcfuse import atc, entries, unrolled
from atcfuse.cost.model import as_list
from atcfuse.decide import Pricer
from atcfuse.device import Device
from atcfuse.diagnostics import Diagnostic
from atcfuse.estimate import ModelCost, model_cost, narrows, planned_share
from atcfuse.graph.index import Model
from atcfuse.graph.traffic import KindsOf, Sizes, Traffic, element_bits, kinds, measure
from atcfuse.kernel import DOMAIN
from atcfuse.sequence import in_order, launched
from atcfuse.switches import explain_switch

if TYPE_CHECKING:
    from atcfuse.run import Findings, Toolbox

SCHEMA = "atcfuse.report/1"
_ATC_BASIS = (
    "estimated: rules that describe ATC's passes by public documents and sources, matched here; ATC did not run"
)


@dataclass(frozen=True)
class Before:
    """The model as it came. `cost` is None where no kernels are wanted; `after_atc`, what ATC's own passes make of it,
    and `passes`, how often each acts and what it saves, also where nothing is known of ATC.
    """

    nodes: int
    traffic: Traffic
    sizes: Sizes
    weight_bytes: int
    cost: ModelCost | None
    after_atc: ModelCost | None
    passes: Mapping[str, tuple[int, int]]
    fused: int


def before(model: Model, tools: Toolbox, sizes: Sizes, pricer: Pricer | None) -> Before:
    """Counts a model that is about to be changed."""
    fused = sum(node.op.startswith(f"{DOMAIN}::") for scope in model.scopes() for node in scope.nodes)
    return Before(
        nodes=_node_count(model),
        traffic=measure(model.main, sizes, pricer.kinds_of if pricer else kinds),
        sizes=sizes,
        weight_bytes=_weight_bytes(model),
        cost=_cost(model, tools, sizes, pricer),
        after_atc=_cost_after_atc(model, tools, sizes, pricer),
        passes=pricer.estimate.counts(model.scopes()) if pricer and pricer.estimate else {},
        fused=fused,
    )


def _cost(model: Model, tools: Toolbox, sizes: Sizes, pricer: Pricer | None) -> ModelCost | None:
    if pricer is None:
        return None
    return model_cost(model.main, pricer.kernels, tools.kernels, sizes, pricer.works)


def _cost_after_atc(model: Model, tools: Toolbox, sizes: Sizes, pricer: Pricer | None) -> ModelCost | None:
    if pricer is None or pricer.estimate is None:
        return None
    return model_cost(model.main, pricer.kernels, tools.kernels, sizes, pricer.estimate.works)


def _node_count(model: Model) -> int:
    return sum(len(scope.nodes) for scope in model.scopes())


def _weight_bytes(model: Model) -> int:
    tensors = [t for scope in model.scopes() for t in scope.tensors.values()]
    return sum(math.prod(t.dims) * element_bits(t.data_type) // 8 for t in tensors)


def document(
    start: Before,
    model: Model,
    tools: Toolbox,
    findings: Findings,
    diagnostics: Sequence[Diagnostic],
    name: str,
    sha: str,
) -> dict[str, Any]:
    """The report document of design §7."""
    pricer = findings.pricer
    kinds_of = findings.kinds_of
    costs = _cost(model, tools, start.sizes, pricer), _cost_after_atc(model, tools, start.sizes, pricer)
    fusions = [
        {**entries.of_fusion(f, n, start.sizes, kinds_of), **(pricer.describe(f, tools.stages) if pricer else {})}
        for f, n in findings.fusions
    ]
    fusions = [entries.of_folding(f, n, model, start.sizes, kinds_of, pricer) for f, n in findings.folded] + fusions
    fusions = unrolled.fusions(fusions, findings.unrolled)
    effects = Counter(fusion["rule"] for fusion in fusions)
    fusions += entries.earlier(model, {fusion["name"] for fusion in fusions}, tools, pricer)
    fusions, left_last = in_order(model, kinds_of, fusions)
    return {
        "schema": SCHEMA,
        "atcfuse": atcfuse.__version__,
        "soc": tools.device.name,
        "dialect": tools.options.dialect,
        "settings": {key: getattr(tools.options, key) for key in ("precision_mode", "occupancy", "tile_level")},
        "model": {
            "name": name,
            "sha256": sha or None,
            "opset": model.opset,
            "nodes": start.nodes,
            "weight_bytes": start.weight_bytes,
        },
        "summary": _summary(start, model, measure(model.main, start.sizes, kinds_of), *costs, claims=fusions),
        "basis": _basis(tools),
        "fusions": fusions,
        "kept": unrolled.kept([entries.of_kept(k) for k in findings.kept], findings.unrolled),
        "rules": _rules(tools, findings, effects),
        "diagnostics": [d.as_dict() for d in diagnostics],
        "plugins": _plugins(model),
        "switches": _switches(tools),
        "files": {},
        "left": _left(model, kinds_of),
        "left_last": left_last,
        **({"chip": _chip(tools.device)} if pricer else {}),
        **_atc(start, model, tools, pricer),
    }


def _left(model: Model, kinds_of: KindsOf) -> list[dict[str, Any]]:
    """The launches that no rule took, by operator, the most frequent first."""
    found = Counter(node.op for node in launched(model, kinds_of))
    ours = f"{DOMAIN}::"
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return [{"op": op, "count": times} for op, times in ordered if not op.startswith(ours)]


def _chip(device: Device) -> dict[str, int]:
    """Sizes of the on-chip memories in bytes, by the names that `on_chip` has."""
    return {name.upper(): getattr(device, name) for name in ("ub", "l1", "l0a", "l0b", "l0c")}


def _atc(start: Before, model: Model, tools: Toolbox, pricer: Pricer | None) -> dict[str, Any]:
    """ATC's own passes as the report lists them; nothing where none is known of for the chip."""
    if pricer is None or pricer.estimate is None:
        return {}
    after = pricer.estimate.counts(model.scopes())
    found = []
    for rule in pricer.estimate.passes.rules:
        described = atc.described(rule)
        (times, saved), (times_after, saved_after) = start.passes[rule.name], after[rule.name]
        found.append(
            {
                "rule": rule.name,
                "name": rule.switch,
                "kind": rule.switch_kind,
                "state": "on" if rule.name in pricer.estimate.passes.on else "off",
                "why": explain_switch(tools.switches, rule.switch, rule.switch_kind),
                "makes": described.operator,
                "times": times,
                "launches_saved": saved,
                "times_after": times_after,
                "launches_saved_after": saved_after,
                "numerics": described.numerics or None,
                "source": described.source,
            }
        )
    return {"atc": {"basis": _ATC_BASIS, "passes": found}}


def _summary(
    start: Before,
    model: Model,
    after: Traffic,
    cost: ModelCost | None,
    both: ModelCost | None,
    claims: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    first = start.traffic
    against = None if start.after_atc is None or both is None else start.after_atc.launches - both.launches
    return {
        "nodes_before": start.nodes,
        "nodes_after": _node_count(model),
        "launches_before": first.launches,
        "launches_after": after.launches,
        "launches_elsewhere": first.launches - after.launches - sum(f["launches_saved"] or 0 for f in claims),
        "launches_elsewhere_after_atc": None if against is None else against - sum(map(_against_atc, claims)),
        "views_before": first.views,
        "views_after": after.views,
        "host_nodes_before": first.host,
        "host_nodes_after": after.host,
        "ddr_bytes_before": first.ddr_bytes,
        "ddr_bytes_after": after.ddr_bytes,
        **_estimated(start.after_atc, "after_atc"),
        **_estimated(both, "after_both"),
        **_costs(start.cost, "before"),
        **_costs(cost, "after"),
        "unsized_values": len(first.unsized),
        "assumed_dims": dict(sorted(start.sizes.used.items())),
    }


def _against_atc(claim: Mapping[str, Any]) -> int:
    """The launches that a fusion saves against ATC's own passes; a folding of weights is told as exported alone."""
    return int(claim.get("launches_saved_after_atc", claim["launches_saved"]) or 0)


def _costs(cost: ModelCost | None, side: str) -> dict[str, Any]:
    """A side's bytes and time; without kernels the bytes that `measure` counts stay, and no time is estimated."""
    if cost is None:
        return {f"time_us_{side}": None}
    return {
        f"ddr_bytes_{side}": cost.tensor_bytes,
        f"gm_bytes_{side}": cost.gm_bytes,
        f"l2_miss_bytes_{side}": cost.ddr_bytes,
        f"workspace_footprint_{side}": cost.workspace_footprint,
        f"conversions_{side}": cost.conversions,
        f"time_us_{side}": None if cost.time_us is None else as_list(cost.time_us),
    }


def _estimated(cost: ModelCost | None, side: str) -> dict[str, Any]:
    """The figures of a model after ATC's own passes, all None where those are not known."""
    if cost is None:
        return {f"{key}_{side}": None for key in ("launches", "ddr_bytes", "gm_bytes", "l2_miss_bytes", "time_us")}
    figures = _costs(cost, side)
    figures.pop(f"workspace_footprint_{side}")
    return {f"launches_{side}": cost.launches, **figures}


def _basis(tools: Toolbox) -> dict[str, str]:
    """Where the kinds of figures come from."""
    once = "computed from shapes: every operator reads its inputs and writes its outputs once"
    if not tools.options.kernels:
        return {"launches": "computed from the graph", "ddr_bytes": f"{once}, in the model's own element types"}
    device, mode = tools.device, tools.options.precision_mode
    soc = f"the SoC file of {device.name}"
    return {
        "launches": "computed from the graph",
        "ddr_bytes": f"{once}; a fused one what its tiles read again and hand over beyond L2. Element types as {mode} "
        "leaves them",
        "gm_bytes": "computed from shapes and tilings: all traffic at global memory, with repeated reads and workspace",
        "kernel_bytes": "computed from the kernel's tiling; the twin counts the same",
        "on_chip": f"computed from the kernel's tiling within {planned_share(device, tools.options):.0%} of UB and L1, "
        f"tile level {tools.options.tile_level}; the twin counts the same",
        "conversions": _conversions(device, mode),
        "after_atc": _ATC_BASIS,
        "l2_miss_bytes": f"estimated: what of memory traffic passes {device.l2:,} bytes of L2, "
        "least recently used out first",
        "time_us": f"estimated with the rates and overheads of {soc}; low and high of its ranges",
        "launch_us": f"{device.launch_us} µs; {device.origin('launch_us')}",
    }


def _conversions(device: Device, mode: str) -> str:
    """What launches that are no nodes are counted."""
    casts, layouts = narrows(mode), device.cube_layout == "fractal"
    if not casts and not layouts:
        return "none on this chip in this precision mode"
    if casts and layouts:
        found = "casts at the model's float32 inputs and outputs and changes of layout around unfused products"
    else:
        found = (
            "casts at the model's float32 inputs and outputs" if casts else "changes of layout around unfused products"
        )
    return f"estimated: {found}. In memory traffic, what passes L2 and time, in no other figure"


def _rules(tools: Toolbox, findings: Findings, effects: Mapping[str, int]) -> dict[str, Any]:
    """Every rule with what it did; those that play a part in this report explain themselves."""
    kept = {entry.rule.name for entry in findings.kept}
    found = {}
    for rule in tools.book.rules:
        times, made = unrolled.count(findings.matched.get(rule.name, ()), findings.unrolled), effects.get(rule.name, 0)
        entry = {"switch": "off" if tools.why_off(rule) else "on", "match_times": times, "effect_times": made}
        if times or made or rule.name in kept:
            entry |= {"summary": rule.summary, "why": rule.why, "limits": rule.limits}
        found[rule.name] = entry
    return found


def _plugins(model: Model) -> list[dict[str, Any]]:
    """Every operator whose ONNX plugin must be installed before ATC can read the model."""
    types = sorted({op.split("::")[1] for op in _ops(model) if op.startswith(f"{DOMAIN}::")})
    return [{"domain": DOMAIN, "opset": 1, "op_type": t, "key": f"{DOMAIN}::1::{t}"} for t in types]


def _ops(model: Model) -> set[str]:
    return {node.op for scope in model.scopes() for node in scope.nodes}


def _switches(tools: Toolbox) -> list[dict[str, Any]]:
    return [
        {
            "name": rule.switch,
            "rule": rule.name,
            "kind": rule.switch_kind,
            "state": "off" if tools.why_off(rule) else "on",
            "why": _why(tools, rule),
        }
        for rule in tools.book.rules
    ]


def _why(tools: Toolbox, rule: Any) -> str:
    off = tools.why_off(rule)
    if off is not None and not off.reason.startswith(rule.switch):
        return off.reason
    return explain_switch(tools.switches, rule.switch, rule.switch_kind)
