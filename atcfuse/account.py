"""From what a run found to the report document: counting and naming, no decisions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import atcfuse
from atcfuse.cost.model import as_list
from atcfuse.decide import Pricer
from atcfuse.diagnostics import Diagnostic
from atcfuse.estimate import ModelCost, model_cost
from atcfuse.graph.index import Model
from atcfuse.graph.traffic import KindsOf, Remembered, Sizes, Traffic, element_bits, kinds, measure, node_bytes
from atcfuse.hints import hint_for
from atcfuse.kernel import DOMAIN
from atcfuse.match.values import Built
from atcfuse.rewrite import ORIGIN_CHOICES, ORIGIN_NODES, ORIGIN_RULE
from atcfuse.switches import explain_switch

if TYPE_CHECKING:
    from atcfuse.compiler import Findings, Kept, Toolbox
    from atcfuse.rewrite import Fusion

SCHEMA = "atcfuse.report/1"


@dataclass(frozen=True)
class Before:
    """The model as it came; `cost` is None where no kernels are wanted."""

    nodes: int
    traffic: Traffic
    sizes: Sizes
    weight_bytes: int
    cost: ModelCost | None
    fused: int


def before(model: Model, tools: Toolbox, sizes: Sizes, pricer: Pricer | None) -> Before:
    """Counts a model that is about to be changed."""
    fused = sum(node.op.startswith(f"{DOMAIN}::") for scope in model.scopes() for node in scope.nodes)
    traffic = measure(model.main, sizes, pricer.kinds_of if pricer else kinds)
    return Before(_node_count(model), traffic, sizes, _weight_bytes(model), _cost(model, tools, sizes, pricer), fused)


def _cost(model: Model, tools: Toolbox, sizes: Sizes, pricer: Pricer | None) -> ModelCost | None:
    if pricer is None:
        return None
    return model_cost(model.main, pricer.kernels, tools.kernels, sizes, pricer.kinds_of)


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
    kinds_of = pricer.kinds_of if pricer else Remembered()
    cost = _cost(model, tools, start.sizes, pricer)
    fusions = [
        {**_fusion(f, n, start.sizes, kinds_of), **(pricer.describe(f, tools.stages) if pricer else {})}
        for f, n in findings.fusions
    ]
    fusions += _earlier(model, {n for _, n in findings.fusions})
    effects: dict[str, int] = {}
    for fusion, _ in findings.fusions:
        effects[fusion.match.rule.name] = effects.get(fusion.match.rule.name, 0) + 1
    return {
        "schema": SCHEMA,
        "atcfuse": atcfuse.__version__,
        "soc": tools.device.name,
        "dialect": tools.options.dialect,
        "model": {
            "name": name,
            "sha256": sha or None,
            "opset": model.opset,
            "nodes": start.nodes,
            "weight_bytes": start.weight_bytes,
        },
        "summary": _summary(start, model, measure(model.main, start.sizes, kinds_of), cost),
        "basis": _basis(tools),
        "fusions": fusions,
        "kept": [_kept(k) for k in findings.kept],
        "rules": _rules(tools, findings, effects),
        "diagnostics": [d.as_dict() for d in diagnostics],
        "plugins": _plugins(model),
        "switches": _switches(tools),
        "files": {},
    }


def _summary(start: Before, model: Model, after: Traffic, cost: ModelCost | None) -> dict[str, Any]:
    first = start.traffic
    return {
        "nodes_before": start.nodes,
        "nodes_after": _node_count(model),
        "launches_before": first.launches,
        "launches_after": after.launches,
        "views_before": first.views,
        "views_after": after.views,
        "host_nodes_before": first.host,
        "host_nodes_after": after.host,
        "ddr_bytes_before": first.ddr_bytes,
        "ddr_bytes_after": after.ddr_bytes,
        "launches_after_atc": None,
        "ddr_bytes_after_atc": None,
        **_costs(start.cost, "before"),
        **_costs(cost, "after"),
        "unsized_values": len(first.unsized),
        "assumed_dims": dict(sorted(start.sizes.used.items())),
    }


def _costs(cost: ModelCost | None, side: str) -> dict[str, Any]:
    """A side's bytes and time; without kernels the bytes that `measure` counts stay, and no time is estimated."""
    if cost is None:
        return {f"time_us_{side}": None}
    return {
        f"ddr_bytes_{side}": cost.tensor_bytes,
        f"gm_bytes_{side}": cost.gm_bytes,
        f"l2_miss_bytes_{side}": cost.ddr_bytes,
        f"workspace_footprint_{side}": cost.workspace_footprint,
        f"time_us_{side}": None if cost.time_us is None else as_list(cost.time_us),
    }


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
        "on_chip": "computed from the kernel's tiling; the twin counts the same",
        "l2_miss_bytes": f"estimated: what of gm_bytes passes {device.l2:,} bytes of L2, least recently used out first",
        "time_us": f"estimated with the rates and overheads of {soc}; low and high of its ranges",
        "launch_us": f"{device.launch_us} µs; {device.origin('launch_us')}",
    }


def _fusion(fusion: Fusion, name: str, sizes: Sizes, kinds_of: KindsOf) -> dict[str, Any]:
    match, scope = fusion.match, fusion.match.scope
    kind = kinds_of(scope)
    members = sorted(match.members, key=lambda i: scope.positions[i])
    launched = [i for i in members if kind[i] == "launch"]
    unsized: set[str] = set()
    moved = sum(node_bytes(scope, [*scope.nodes[i].inputs, *scope.nodes[i].outputs], sizes, unsized) for i in launched)
    read = [_source(v) for v in fusion.inputs if v is not None]
    return {
        "name": name,
        "rule": match.rule.name,
        "op": fusion.op,
        "nodes": [scope.nodes[i].name for i in members],
        "choices": dict(label.split("=", 1) for label in match.labels),
        "attributes": {k: _plain(v) for k, v in fusion.attributes.items()},
        "launches_saved": len(launched) - 1,
        "ddr_bytes_saved": moved - node_bytes(scope, [*read, *match.outputs], sizes, unsized),
        "shapes_rewritten": [scope.nodes[i].name for i in sorted(match.shapes)],
        "diagnostics": [],
    }


def _earlier(model: Model, fresh: set[str]) -> list[dict[str, Any]]:
    """Fused nodes that an earlier run made, as far as they themselves tell."""
    found = []
    for scope in model.scopes():
        for node in scope.nodes:
            if not node.op.startswith(f"{DOMAIN}::") or node.proto.name in fresh:
                continue
            origin = {p.key: p.value for p in node.proto.metadata_props}
            written = {k: v for k, v in node.attributes.items() if not k.endswith("_hex")}
            found.append(
                {
                    "name": node.name,
                    "rule": origin.get(ORIGIN_RULE, ""),
                    "op": node.op.split("::")[1],
                    "nodes": _texts(origin.get(ORIGIN_NODES)),
                    "choices": dict(c.split("=", 1) for c in _texts(origin.get(ORIGIN_CHOICES)) if "=" in c),
                    "attributes": {k: _plain(v) for k, v in written.items()},
                    "launches_saved": None,
                    "ddr_bytes_saved": None,
                    "diagnostics": [],
                    "earlier": True,
                }
            )
    return found


def _texts(text: str | None) -> list[str]:
    """A JSON list of texts; empty for anything else that a foreign tool may have left there."""
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return []
    return [str(item) for item in found] if isinstance(found, list) else []


def _plain(value: Any) -> Any:
    """An attribute as JSON has it: infinities as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return list(value) if isinstance(value, tuple) else value


def _source(value: Any) -> str:
    while isinstance(value, Built):
        value = value.inputs[0]
    return str(value)


def _kept(entry: Kept) -> dict[str, Any]:
    refusal = entry.refusal
    return {
        "rule": entry.rule.name,
        "anchor": entry.anchor,
        "code": refusal.code,
        "reason": refusal.reason,
        "hint": hint_for(refusal.code),
        "value": refusal.where,
        "depth": refusal.depth,
    }


def _rules(tools: Toolbox, findings: Findings, effects: Mapping[str, int]) -> dict[str, Any]:
    return {
        rule.name: {
            "switch": "off" if tools.why_off(rule) else "on",
            "match_times": findings.matched.get(rule.name, 0),
            "effect_times": effects.get(rule.name, 0),
        }
        for rule in tools.book.rules
    }


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
