"""The entries of a report: what was fused, folded, came fused already or was kept, each as plain data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atcfuse.decide import DEPTH, Pricer
from atcfuse.graph.index import Model
from atcfuse.graph.traffic import KindsOf, Sizes, node_bytes
from atcfuse.hints import hint_for
from atcfuse.kernel import DOMAIN
from atcfuse.match.values import Built
from atcfuse.rewrite import ORIGIN_CHOICES, ORIGIN_NODES, ORIGIN_RULE

if TYPE_CHECKING:
    from atcfuse.fold import Folding
    from atcfuse.match.find import Match
    from atcfuse.rewrite import Fusion
    from atcfuse.run import Kept, Toolbox


def of_fusion(fusion: Fusion, name: str, sizes: Sizes, kinds_of: KindsOf) -> dict[str, Any]:
    """What became one fused node of that name; bytes are those of `sizes`."""
    match = fusion.match
    read = [_source(v) for v in fusion.inputs if v is not None]
    attributes = {k: _plain(v) for k, v in fusion.attributes.items()}
    left = 1, node_bytes(match.scope, [*read, *match.outputs], sizes, set())
    return _entry(match, name, fusion.op, attributes, left, sizes, kinds_of)


def of_folding(
    folding: Folding, name: str, model: Model, sizes: Sizes, kinds_of: KindsOf, pricer: Pricer | None
) -> dict[str, Any]:
    """What a rule of level `constant` did: an operator stays, with other weights, or none that is launched."""
    match = folding.match
    rebuilt = match.rule.rebuilt
    read = [str(match.env[n]) for n in (rebuilt.names if rebuilt else ()) if match.env.get(n) is not None]
    still = [] if match.rule.removes else [*read, *match.outputs]
    left = node_bytes(match.scope, still, sizes, set()) + sum(t.nbytes for t in folding.tensors.values())
    made = 0 if match.rule.removes else sum(1 for n in rebuilt.nodes if n.op) if rebuilt else 1
    entry = _entry(match, name, folding.op, {}, (made, left), sizes, kinds_of)
    return entry | (pricer.describe_folding(match, model, name) if pricer else {})


def _entry(
    match: Match,
    name: str,
    op: str,
    attributes: Mapping[str, Any],
    left: tuple[int, int],
    sizes: Sizes,
    kinds_of: KindsOf,
) -> dict[str, Any]:
    """What became an operator; `left` are its launches and bytes, against those of the nodes in whose place it is."""
    scope, kind = match.scope, kinds_of(match.scope)
    members = sorted(match.members, key=scope.positions.__getitem__)
    launched = [scope.nodes[i] for i in members if kind[i] == "launch"]
    moved = sum(node_bytes(scope, [*node.inputs, *node.outputs], sizes, set()) for node in launched)
    return {
        "name": name,
        "rule": match.rule.name,
        "op": op,
        "nodes": [scope.nodes[i].name for i in members if kind[i] != "idle"],
        "choices": dict(label.split("=", 1) for label in match.labels),
        "attributes": attributes,
        "launches_saved": len(launched) - left[0],
        "ddr_bytes_saved": moved - left[1],
        "shapes_rewritten": [scope.nodes[i].name for i in sorted(match.shapes)],
        "diagnostics": [],
    }


def earlier(model: Model, fresh: set[str], tools: Toolbox, pricer: Pricer | None) -> list[dict[str, Any]]:
    """Fused nodes that an earlier run made, as far as they themselves tell."""
    by_op = {f"{DOMAIN}::{spec.op}": spec for spec in tools.kernels.values()}
    found = []
    for scope in model.scopes():
        for node in scope.nodes:
            if not node.op.startswith(f"{DOMAIN}::") or node.proto.name in fresh:
                continue
            spec = by_op.get(node.op)
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
                    **(pricer.describe_node(scope, node, spec, tools.stages) if pricer and spec else {}),
                }
            )
    return found


def _texts(text: str | None) -> list[str]:
    """A JSON list of texts; empty for anything else that a foreign tool may have left there."""
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError):
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


def of_kept(entry: Kept) -> dict[str, Any]:
    """A place that stays as it was, and why."""
    refusal = entry.refusal
    return {
        "rule": entry.rule.name,
        "anchor": entry.anchor,
        "code": refusal.code,
        "reason": refusal.reason,
        "hint": hint_for(refusal.code),
        "value": refusal.where,
        "depth": refusal.depth - DEPTH if refusal.depth > DEPTH else refusal.depth,
    }
