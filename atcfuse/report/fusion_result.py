"""`fusion_result.json`: how often passes matched and took effect, in the form in which ATC itself writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from atcfuse.report.document import Report

SECTIONS = {"GraphFusion": "graph_fusion", "UBFusion": "ub_fusion"}
_GRAPH = "session_and_graph_id_0_0"


def to_fusion_result(report: Report) -> str:
    """Counters of the rules of a report by switch name, as text each, sorted.

    A pass that matched nothing is absent, as is one that is switched off: ATC does not run it. Rules that share one are
    added up. Without any pass it is an empty object (ATC writes no file then).
    """
    sections: dict[str, dict[str, dict[str, int]]] = {}
    switches = {switch.get("rule"): switch for switch in report["switches"]}
    for rule, counted in report["rules"].items():
        switch = switches.get(rule)
        if switch is None or switch["state"] == "off" or not (counted["match_times"] or counted["effect_times"]):
            continue
        section = sections.setdefault(SECTIONS[switch["kind"]], {})
        entry = section.setdefault(switch["name"], {"effect_times": 0, "match_times": 0})
        for key in entry:
            entry[key] += counted[key] or 0
    texts = {kind: {name: _texts(kind, counts) for name, counts in passes.items()} for kind, passes in sections.items()}
    return json.dumps({_GRAPH: texts} if texts else {}, indent=4, sort_keys=True) + "\n"


def _texts(kind: str, counts: Mapping[str, int]) -> dict[str, str]:
    """ATC counts in text, and for UB fusion tells hits of its repository too."""
    more = {"repository_hit_times": "0"} if kind == "ub_fusion" else {}
    return {**{key: str(count) for key, count in counts.items()}, **more}
