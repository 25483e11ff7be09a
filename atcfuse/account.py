"""From what a run found to the report document: counting and naming, no decisions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import atcfuse
from atcfuse.codegen import render_kernel
from atcfuse.diagnostics import Diagnostic
from atcfuse.estimate import estimate
from atcfuse.graph.index import Model
from atcfuse.graph.traffic import Kind, Sizes, Traffic, element_bits, kinds, measure, node_bytes
from atcfuse.hints import hint_for
from atcfuse.kernel import DOMAIN
from atcfuse.match.values import Built
from atcfuse.options import Options
from atcfuse.rewrite import ORIGIN_CHOICES, ORIGIN_NODES, ORIGIN_RULE, operand_shape, operand_types
from atcfuse.switches import explain_switch

if TYPE_CHECKING:
    from atcfuse.compiler import Findings, Kept, Toolbox
    from atcfuse.rewrite import Fusion

SCHEMA = "atcfuse.report/1"


@dataclass(frozen=True)
class Before:
    """The model as it came."""

    nodes: int
    traffic: Traffic
    sizes: Sizes
    weight_bytes: int


def before(model: Model, assumed: Mapping[str, int]) -> Before:
    """Counts a model that is about to be changed."""
    sizes = Sizes(assumed)
    return Before(_node_count(model), measure(model.main, sizes), sizes, _weight_bytes(model))


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
    after = measure(model.main, start.sizes)
    counted: dict[int, dict[int, Kind]] = {}
    kernels = _Kernels(start.sizes, tools.options)
    fusions = [_fusion(f, n, start.sizes, counted, kernels) for f, n in findings.fusions]
    fusions += _earlier(model, {n for _, n in findings.fusions})
    effects: dict[str, int] = {}
    for fusion, _ in findings.fusions:
        effects[fusion.match.rule.name] = effects.get(fusion.match.rule.name, 0) + 1
    return {
        "schema": SCHEMA,
        "atcfuse": atcfuse.__version__,
        "soc": tools.options.soc,
        "dialect": tools.options.dialect,
        "model": {
            "name": name,
            "sha256": sha or None,
            "opset": model.opset,
            "nodes": start.nodes,
            "weight_bytes": start.weight_bytes,
        },
        "summary": _summary(start, after, model),
        "fusions": fusions,
        "kept": [_kept(k) for k in findings.kept],
        "rules": _rules(tools, findings, effects),
        "diagnostics": [d.as_dict() for d in diagnostics],
        "plugins": _plugins(model),
        "switches": _switches(tools),
        "files": {},
    }


def _summary(start: Before, after: Traffic, model: Model) -> dict[str, Any]:
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
        "time_us_before": None,
        "time_us_after": None,
        "unsized_values": len(first.unsized),
        "assumed_dims": dict(sorted(start.sizes.used.items())),
    }


def _fusion(
    fusion: Fusion, name: str, sizes: Sizes, counted: dict[int, dict[int, Kind]], kernels: _Kernels
) -> dict[str, Any]:
    match, scope = fusion.match, fusion.match.scope
    kind = counted.setdefault(id(scope), {})
    if not kind:
        kind.update(kinds(scope))
    members = sorted(match.members, key=lambda i: scope.positions[i])
    launched = [i for i in members if kind[i] == "launch"]
    unsized: set[str] = set()
    moved = sum(node_bytes(scope, [*scope.nodes[i].inputs, *scope.nodes[i].outputs], sizes, unsized) for i in launched)
    read = [_source(v) for v in fusion.inputs if v is not None]
    return {
        "name": name,
        "rule": match.rule.name,
        "op": fusion.spec.op,
        "nodes": [scope.nodes[i].name for i in members],
        "choices": dict(label.split("=", 1) for label in match.labels),
        "attributes": {k: _plain(v) for k, v in fusion.attributes.items()},
        "launches_saved": len(launched) - 1,
        "ddr_bytes_saved": moved - node_bytes(scope, [*read, *match.outputs], sizes, unsized),
        "shapes_rewritten": [scope.nodes[i].name for i in sorted(match.shapes)],
        "diagnostics": [],
        **kernels.describe(fusion),
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


class _Kernels:
    """Names and figures of generated kernels; layers that are alike are worked out once."""

    def __init__(self, sizes: Sizes, options: Options) -> None:
        self._sizes, self._options = sizes, options
        self._names: dict[str, str] = {}
        self._figures: dict[tuple[str, tuple[tuple[str, tuple[int, ...]], ...]], dict[str, Any]] = {}

    def describe(self, fusion: Fusion) -> dict[str, Any]:
        """Name, tiling, bytes and on-chip use of a fusion's kernel for the assumed sizes."""
        if not self._options.kernels:
            return {}
        dtypes = operand_types(fusion, self._options.precision_mode)
        key = fusion.signature.overload
        if key not in self._names:
            kernel = render_kernel(fusion.spec, fusion.attributes, dtypes, self._options.soc)
            self._names[key] = kernel.op_type
        shapes = self._shapes(fusion)
        alike = (key, tuple(shapes.items()))
        if alike not in self._figures:
            found = estimate(fusion.spec, fusion.attributes, dtypes, self._options.soc, shapes)
            refused: dict[str, Any] = {"tiling": {}, "kernel_note": found}
            self._figures[alike] = refused if isinstance(found, str) else found.as_dict()
        return {"kernel": self._names[key], **self._figures[alike]}

    def _shapes(self, fusion: Fusion) -> dict[str, tuple[int, ...]]:
        scope = fusion.match.scope
        given = zip(fusion.spec.inputs, fusion.inputs, strict=False)
        return {
            operand.name: tuple(self._sizes.number(d) for d in operand_shape(scope, value))
            for operand, value in given
            if value is not None
        }


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

