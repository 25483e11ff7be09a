"""What changed from one report to another, by structure: renaming nodes changes nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any, Literal, TypeAlias

from atcfuse.report.align import Alignment
from atcfuse.report.document import Report
from atcfuse.report.groups import Entry, fused_shape, template
from atcfuse.report.names import plain

DIFF_SCHEMA = "atcfuse.diff/1"

Diff: TypeAlias = Mapping[str, Any]
"""A difference document: JSON values only, of the schema `atcfuse.diff/1`."""

_COMPARED = ("op", "kernel", "launches_saved", "ddr_bytes_saved", "time_us_saved")
_COMPARED_WITHIN = ("attributes", "choices", "tiling")
_BRIEF = ("name", "rule", "op", "launches_saved", "ddr_bytes_saved")
_DECIDED = "ATF33"
"""How codes of decisions by hardware and costs begin."""
_CLOSE, _BARELY = 1e-3, 0.05
"""Share of a time, and microseconds, that make no difference."""
_KEPT_BRIEF = ("rule", "anchor", "code", "reason", "hint")


def diff(before: Report, after: Report) -> dict[str, Any]:
    """What changed between two reports, as a JSON document of the schema `atcfuse.diff/1`.

    `summary` holds the figures that differ, `rules` the rules whose number of fusions or switch differs, `fusions` and
    `kept` what is new, lost and changed, `plugins` what must be installed in addition or no longer, `caveats` why the
    two are not like with like. Entries are matched by structure and order, by name only where that decides between
    equals; reports that differ in the names of nodes alone give a difference for which `is_empty` holds.
    """
    return {
        "schema": DIFF_SCHEMA,
        "before": identity(before),
        "after": identity(after),
        "caveats": caveats(before, after),
        "summary": _summary(before["summary"], after["summary"]),
        "rules": _rules(before, after),
        "fusions": _fusions(before, after),
        "kept": _kept(before, after),
        "plugins": _plugins(before, after),
    }


def is_empty(difference: Diff) -> bool:
    """Whether nothing changed; which files were compared does not count."""
    parts = [difference["fusions"], difference["kept"], difference["plugins"]]
    lists = [entries for part in parts for entries in part.values()]
    return not any([difference["caveats"], difference["summary"], difference["rules"], *lists])


def caveats(before: Report, after: Report) -> list[str]:
    """Why figures of two reports do not compare like with like: another opset, other assumed dims, another chip, other
    settings, or costs in one alone, as without kernels bytes are counted in the model's own element types.
    """
    opsets = [_setting(report["model"]["opset"]) for report in (before, after)]
    dims = [_setting(report["summary"]["assumed_dims"]) for report in (before, after)]
    chips = [_setting(report["soc"]) for report in (before, after)]
    costs = _costs(before, after)
    modes, shares, tiles = (_option(before, after, k) for k in ("precision_mode", "occupancy", "tile_level"))
    told = (
        (opsets, f"opset: {opsets[0]} → {opsets[1]}"),
        (dims, f"assumed dims: {dims[0]} → {dims[1]}"),
        (chips, f"soc: {chips[0]} → {chips[1]}"),
        (costs, f"costs: {costs[0]} → {costs[1]}"),
        (modes, f"precision mode: {modes[0]} → {modes[1]}"),
        (shares, f"occupancy: {shares[0]} → {shares[1]}"),
        (tiles, f"tile level: {tiles[0]} → {tiles[1]}"),
    )
    return [text for (old, new), text in told if old != new]


def _costs(before: Report, after: Report) -> list[str]:
    """Whether each report is of a run that generates kernels and estimates costs; the same where one does not tell."""
    bases = [report.get("basis") for report in (before, after)]
    told = ["estimated" if basis and "time_us" in basis else "none" for basis in bases]
    return told if all(bases) else ["", ""]


def _option(before: Report, after: Report, key: str) -> list[str]:
    """An option that settles kernels and figures, of each report; the same where one does not tell."""
    told = [(report.get("settings") or {}).get(key) for report in (before, after)]
    return ["", ""] if None in told else [_setting(value) for value in told]


def _setting(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{dim}={value[dim]}" for dim in sorted(value)) or "none"
    return "none" if value is None else plain(value)


def identity(report: Report) -> dict[str, Any]:
    """What a difference says of a report itself: versions, chip, dialect, model."""
    model = report["model"]
    about = {key: report[key] for key in ("atcfuse", "soc", "dialect")}
    return {**about, "model": {key: model[key] for key in ("name", "sha256", "opset")}}


def _summary(before: Entry, after: Entry) -> dict[str, Any]:
    """Every figure that differs, with what was added (None where one side has no number)."""
    keys = sorted((set(before) | set(after)) - {"assumed_dims"})
    return {
        key: {"before": before.get(key), "after": after.get(key), "delta": _delta(before.get(key), after.get(key))}
        for key in keys
        if not _same(key, before.get(key), after.get(key))
    }


def _same(key: str, before: object, after: object) -> bool:
    """Equality; of times to a thousandth or what is shown, as their last digits depend on the order of nodes."""
    if before == after or not key.startswith("time_us"):
        return before == after
    ends = [time if isinstance(time, (list, tuple)) else [time] for time in (before, after)]
    known = all(isinstance(end, (int, float)) for end in (*ends[0], *ends[1]))
    if not known or len(ends[0]) != len(ends[1]):
        return False
    return all(math.isclose(a, b, rel_tol=_CLOSE, abs_tol=_BARELY) for a, b in zip(*ends, strict=True))


def _delta(before: object, after: object) -> float | None:
    return after - before if isinstance(before, (int, float)) and isinstance(after, (int, float)) else None


def _rules(before: Report, after: Report) -> dict[str, Any]:
    old, new = (Counter(fusion["rule"] for fusion in report["fusions"]) for report in (before, after))
    found = {}
    for rule in sorted({*old, *new, *before["rules"], *after["rules"]}):
        switches = [report["rules"].get(rule, {}).get("switch") for report in (before, after)]
        if old[rule] != new[rule] or (switches[0] != switches[1] and "off" in switches):
            switch = {"before": switches[0], "after": switches[1]}
            found[rule] = {"before": old[rule], "after": new[rule], "switch": switch}
    return found


# ---------------------------------------------------------------- fusions


def _fusions(before: Report, after: Report) -> dict[str, list[Any]]:
    known = _names(before), _names(after)
    found = (
        Alignment.of(before["fusions"], after["fusions"])
        .by_key(lambda fusion: (fused_shape(fusion), fusion["name"]))
        .by_sequence(fused_shape)
        .by_key(fused_shape)
        .by_key(lambda fusion: (_design(fusion), fusion["name"]))
        .by_key(_design)
        .by_shared_name(_rule_of, _fusion_names)
        .by_key_if_renamed(_rule_of, _fusion_names, known)
    )
    compared = [_changed(old, new) for old, new in found.pairs if fused_shape(old) != fused_shape(new)]
    changed = [entry for entry in compared if entry["changes"]]
    return {
        "new": [_brief(fusion) for fusion in found.after],
        "lost": [_brief(fusion) | _because(fusion, after) for fusion in found.before],
        "changed": sorted(changed, key=lambda entry: (entry["rule"], entry["before"], entry["after"])),
    }


def _design(fusion: Entry) -> Hashable:
    """What was fused into what, without the figures."""
    return tuple(plain(fusion.get(key) or "") for key in ("rule", "op", "attributes", "choices"))


def _rule_of(entry: Entry) -> Hashable:
    return str(entry["rule"])


def _fusion_names(fusion: Entry) -> list[str]:
    return [fusion["name"], *fusion["nodes"]]


def _names(report: Report) -> frozenset[str]:
    fused = (name for fusion in report["fusions"] for name in _fusion_names(fusion))
    return frozenset([*fused, *(entry["anchor"] for entry in report["kept"])])


def _brief(fusion: Entry) -> dict[str, Any]:
    extent = {"nodes": len(fusion["nodes"]), "choices": fusion["choices"], "attributes": fusion.get("attributes") or {}}
    return {key: fusion[key] for key in _BRIEF} | extent


def _because(fusion: Entry, after: Report) -> dict[str, Any]:
    """Why a fusion is gone, as far as the later report tells.

    Its rule is off, chip or costs speak against it, another fusion has its nodes, one of them was kept, or the chip has
    no kernels at all; `taken_over` names the rule of a fusion that has all of them.
    """
    rule = fusion["rule"]
    if after["rules"].get(rule, {}).get("switch") == "off":
        return {"because": {"code": None, "reason": "the rule is switched off"}}
    nodes = set(_fusion_names(fusion))
    kept = [entry for entry in after["kept"] if entry["anchor"] in nodes]
    kept.sort(key=lambda entry: (not entry["code"].startswith(_DECIDED), entry["rule"] != rule))
    reasons = [{key: entry[key] for key in ("code", "reason")} for entry in kept]
    mine = {name for name in fusion["nodes"] if name}
    takers = [other for other in after["fusions"] if other["rule"] != rule and not mine.isdisjoint(other["nodes"])]
    whole = [other for other in takers if set(fusion["nodes"]) == mine <= set(other["nodes"])]
    if whole:
        return {"because": _taken(whole[0], "all"), "taken_over": whole[0]["rule"]}
    if takers and not (kept and kept[0]["code"].startswith(_DECIDED)):
        return {"because": _taken(takers[0], "some")}
    return {"because": reasons[0]} if reasons else _no_kernels(after)


def _no_kernels(after: Report) -> dict[str, Any]:
    """The one reason told of all that was decided, where nothing fused: what is inside a larger place has none."""
    decided = {(k["code"], k["reason"]) for k in after["kept"] if k["code"].startswith(_DECIDED)}
    if after["fusions"] or len(decided) != 1:
        return {}
    code, reason = decided.pop()
    return {"because": {"code": code, "reason": reason}}


def _taken(other: Entry, share: Literal["all", "some"]) -> dict[str, Any]:
    reason = f"{other['rule']} takes {'all' if share == 'all' else 'some'} of its nodes for {other['name']}"
    return {"code": "ATF320", "reason": reason}


def _changed(before: Entry, after: Entry) -> dict[str, Any]:
    old, new = _features(before), _features(after)
    changes = {
        key: {"before": old.get(key), "after": new.get(key)}
        for key in sorted(set(old) | set(new))
        if not _same(key, old.get(key), new.get(key))
    }
    return {
        "rule": after["rule"],
        "op": after["op"],
        "before": before["name"],
        "after": after["name"],
        "changes": changes,
    }


def _features(fusion: Entry) -> dict[str, Any]:
    inner = {f"{part}.{key}": v for part in _COMPARED_WITHIN for key, v in (fusion.get(part) or {}).items()}
    return {key: fusion.get(key) for key in _COMPARED} | {"nodes": len(fusion["nodes"])} | inner


# ---------------------------------------------------------------- kept and plugins


def _kept(before: Report, after: Report) -> dict[str, list[Any]]:
    known = _names(before), _names(after)
    old, new = (_reasoned(report, known[0] | known[1]) for report in (before, after))
    found = (
        Alignment.of(old, new)
        .by_key(lambda entry: (*_reason_of(entry), entry["anchor"]))
        .by_key(_reason_of)
        .by_key(lambda entry: (entry["rule"], entry["anchor"]))
        .by_key_if_renamed(_rule_of, lambda entry: [entry["anchor"]], known)
    )
    changed = [pair for pair in found.pairs if _reason_of(pair[0]) != _reason_of(pair[1])]
    return {
        "new": [_kept_brief(entry) for entry in found.after],
        "lost": [_kept_brief(entry) for entry in found.before],
        "changed": [{"before": _kept_brief(a), "after": _kept_brief(b)} for a, b in changed],
    }


def _reasoned(report: Report, names: frozenset[str]) -> list[Entry]:
    return [{**entry, "template": template(entry, names)} for entry in report["kept"]]


def _reason_of(entry: Entry) -> tuple[str, ...]:
    return entry["rule"], entry["code"], entry["template"]


def _kept_brief(entry: Entry) -> dict[str, Any]:
    return {key: entry[key] for key in _KEPT_BRIEF}


def _plugins(before: Report, after: Report) -> dict[str, list[str]]:
    old, new = ({plugin["key"] for plugin in report["plugins"]} for report in (before, after))
    return {"new": sorted(new - old), "lost": sorted(old - new)}
