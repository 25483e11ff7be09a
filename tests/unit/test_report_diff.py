"""Differences and the gate: what was lost is named, what was only renamed is not, and equality is empty."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atcfuse.diagnostics import UsageError, code_page
from atcfuse.report import (
    diff,
    diff_json,
    diff_markdown,
    diff_text,
    gate,
    is_empty,
    read_report,
    regressions,
    validate,
)

FIXTURES = Path(__file__).parents[1] / "golden" / "report"


def load(name: str) -> dict[str, Any]:
    return read_report(FIXTURES / f"{name}.json")


@pytest.fixture
def bert() -> dict[str, Any]:
    return load("bert")


def deep(layers: int) -> dict[str, Any]:
    """A model of equal layers: a norm and an attention each."""
    report = load("bert")
    norm, attention = report["fusions"][2:]
    text = json.dumps([norm, attention])
    report["fusions"] = [f for i in range(layers) for f in json.loads(text.replace(".1/", f".{i}/"))]
    return report


def renamed(report: dict[str, Any], seed: int, reuse: bool = True) -> dict[str, Any]:
    """The report with every name of a node exchanged, with `reuse` some for names that other nodes had before."""
    names = {n for f in report["fusions"] for n in [f["name"], *f["nodes"]]}
    names |= {entry["anchor"] for entry in report["kept"]}
    names |= {entry["value"] for entry in report["kept"] if "value" in entry}
    old = sorted(names)
    rng = random.Random(seed)
    new = [
        rng.choice([name if reuse else f"N{i}", f"Node_{i}", f"renamed/{name}", f"n{i}"]) for i, name in enumerate(old)
    ]
    rng.shuffle(new)
    table = dict(zip(old, new, strict=True))
    out = copy.deepcopy(report)
    for fusion in out["fusions"]:
        fusion["name"], fusion["nodes"] = table[fusion["name"]], [table[node] for node in fusion["nodes"]]
    for entry in out["kept"]:
        entry["anchor"] = table[entry["anchor"]]
        entry["reason"] = f'expected MatMul, found Gelu at "{new[0]}"' if "Gelu" in entry["reason"] else entry["reason"]
    out["model"]["sha256"] = "ab" * 32
    return out


def without(report: dict[str, Any], index: int) -> dict[str, Any]:
    out = copy.deepcopy(report)
    lost = out["fusions"].pop(index)
    out["summary"]["launches_after"] += lost["launches_saved"]
    out["summary"]["ddr_bytes_after"] += lost["ddr_bytes_saved"]
    return out


def codes(diagnostics):
    return [diagnostic.code for diagnostic in diagnostics]


def regressed(report: dict[str, Any]) -> dict[str, Any]:
    """One attention kept, another epsilon, another reason, a rule switched off and a new one."""
    lost = report["fusions"][1]
    out = without(report, 1)
    kept = {"rule": "attention", "anchor": lost["nodes"][6], "code": "ATF314", "hint": "broadcast the bias"}
    out["kept"].append({**kept, "reason": "the bias must not make the scores larger"})
    out["kept"][2].update(code="ATF316", reason="the step budget of one anchor is used up")
    for fusion in out["fusions"]:
        if fusion["rule"] == "layer_norm_qkv":
            fusion["attributes"]["epsilon"] = 1e-5
    new = {"name": "/pooler/FusedGelu", "rule": "bias_gelu", "op": "FusedGelu", "nodes": ["/pooler/Gelu"]}
    out["fusions"].append({**lost, **new, "choices": {}, "attributes": {}, "launches_saved": 1})
    out["rules"]["conv_batch_norm"]["switch"] = "off"
    out["plugins"].append({"domain": "atcfuse", "opset": 1, "op_type": "FusedGelu", "key": "atcfuse::1::FusedGelu"})
    out["summary"]["assumed_dims"]["batch"] = 2
    assert validate(out) == []
    return out


# ---------------------------------------------------------------- golden


def test_renderings_are_as_reviewed(bert, golden):
    difference = diff(bert, regressed(bert))
    golden("report/diff.txt", diff_text(difference, 80))
    golden("report/diff.color.txt", diff_text(difference, 100, color=True))
    golden("report/diff.md", diff_markdown(difference))
    golden("report/diff.json", diff_json(difference))
    nothing = diff(bert, bert)
    golden("report/diff.empty.txt", diff_text(nothing, 80))
    golden("report/diff.empty.md", diff_markdown(nothing))
    golden("report/gate.txt", "\n".join(map(str, gate(regressed(bert), bert, 5))) + "\n")


# ---------------------------------------------------------------- diff


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 6))
def test_pure_renames_are_no_difference(seed, layers):
    report = deep(layers)
    report["fusions"] += load("bert")["fusions"]
    difference = diff(report, renamed(report, seed))
    assert is_empty(difference), diff_text(difference)
    assert gate(renamed(report, seed), report, 0) == []


def test_fusions_in_another_order_are_no_difference():
    report = deep(4)
    for i, fusion in enumerate(report["fusions"]):
        fusion["ddr_bytes_saved"] = i  # one design, another size each
    after = renamed(report, 3)
    after["fusions"].reverse()
    assert is_empty(diff(report, after))


def test_a_renamed_node_in_a_reason_is_no_difference_even_without_quotes(bert):
    bert["kept"] = [dict(bert["kept"][2], anchor="softmax", reason="scores is read by probs outside", value="scores")]
    bert["fusions"][0]["nodes"].append("probs")
    after = copy.deepcopy(bert)
    after["kept"][0].update(anchor="s", reason="raw is read by p outside", value="raw")
    after["fusions"][0]["nodes"][-1] = "p"
    assert is_empty(diff(bert, after))


@pytest.mark.parametrize("names", [("Mean", "n9"), ("y", "a_long_name"), ("node_layer_norm_3", "is"), ("b", "x")])
def test_names_that_are_words_of_reasons_are_no_difference(bert, names):
    """A name that one report has and the other has not is a name in both."""
    first, second = copy.deepcopy(bert), copy.deepcopy(bert)
    for report, name in ((first, names[0]), (second, names[1])):
        report["kept"][0] |= {
            "anchor": name,
            "value": name,
            "reason": f'"{name}" is also read by Mean "{name}": no y is left',
        }
        report["kept"][1] |= {"reason": 'no y is computed from "y", which is read by Mean'}
    assert is_empty(diff(first, second))
    second["kept"][1]["reason"] = 'no y is computed from "y", which is read by Relu'
    assert not is_empty(diff(first, second))


def test_a_rule_switched_off_names_exactly_its_fusions(bert):
    off = copy.deepcopy(bert)
    off["fusions"] = [fusion for fusion in off["fusions"] if fusion["rule"] != "attention"]
    off["rules"]["attention"].update(switch="off", match_times=0, effect_times=0)
    found = diff(bert, off)
    assert [f["name"] for f in found["fusions"]["lost"]] == [
        f["name"] for f in bert["fusions"] if f["rule"] == "attention"
    ]
    assert found["fusions"]["lost"][0]["because"]["reason"] == "the rule is switched off"
    assert found["fusions"]["new"] == found["fusions"]["changed"] == []
    assert found["rules"] == {"attention": {"before": 2, "after": 0, "switch": {"before": "on", "after": "off"}}}


@pytest.mark.parametrize("layer", [0, 5, 11])
@pytest.mark.parametrize("rename", [False, True])
def test_of_equal_layers_the_lost_one_is_named_even_when_all_names_changed(layer, rename):
    report = deep(12)
    lost = report["fusions"][2 * layer + 1]
    after = without(report, 2 * layer + 1)
    if rename:
        for i, fusion in enumerate(after["fusions"]):
            fusion.update(name=f"fused_{i}", nodes=[f"n_{i}_{k}" for k in range(len(fusion["nodes"]))])
    found = diff(report, after)["fusions"]
    assert [f["name"] for f in found["lost"]] == [lost["name"]]
    assert found["new"] == found["changed"] == []
    back = diff(after, report)["fusions"]
    assert [f["name"] for f in back["new"]] == [lost["name"]]


def test_a_changed_attribute_is_a_change_with_both_values_whatever_the_names(bert):
    after = renamed(bert, 1, reuse=False)
    after["fusions"][3]["attributes"]["scale"] = 0.25
    found = diff(bert, after)["fusions"]
    assert found["lost"] == found["new"] == []
    (changed,) = found["changed"]
    assert changed["changes"] == {"attributes.scale": {"before": 0.125, "after": 0.25}}


def test_a_fusion_that_takes_in_more_nodes_is_changed(bert):
    after = copy.deepcopy(bert)
    after["fusions"][1].update(op="FusedAttention2", name="other")
    after["fusions"][1]["nodes"].append("/one/more")
    (changed,) = diff(bert, after)["fusions"]["changed"]
    assert changed["changes"] == {
        "nodes": {"before": 10, "after": 11},
        "op": {"before": "FusedAttention", "after": "FusedAttention2"},
    }


def test_a_kept_and_a_new_fusion_are_not_called_a_change(bert):
    lost = bert["fusions"][1]
    after = without(bert, 1)
    after["kept"].append({"rule": "attention", "anchor": lost["nodes"][0], "code": "ATF301", "reason": "r", "hint": ""})
    after["fusions"].append({**lost, "name": "elsewhere", "nodes": ["elsewhere/Softmax"], "op": "FusedAttention2"})
    found = diff(bert, after)["fusions"]
    assert found["changed"] == []
    assert [f["name"] for f in found["lost"]] == [lost["name"]]
    assert found["lost"][0]["because"] == {"code": "ATF301", "reason": "r"}
    assert [f["name"] for f in found["new"]] == ["elsewhere"]


def test_reasons_that_change_come_and_go(bert):
    after = copy.deepcopy(bert)
    after["kept"][0].update(code="ATF314", reason="the bias must not make the scores larger")
    del after["kept"][2]
    after["kept"].append({**bert["kept"][2], "anchor": "/other/Softmax", "code": "ATF316"})
    found = diff(bert, after)["kept"]
    assert [(c["before"]["code"], c["after"]["code"]) for c in found["changed"]] == [
        ("ATF310", "ATF314"),
        ("ATF301", "ATF316"),
    ]
    after["kept"].pop()
    found = diff(bert, after)["kept"]
    assert [entry["anchor"] for entry in found["lost"]] == ["/pooler/Softmax"]
    assert [entry["anchor"] for entry in diff(after, bert)["kept"]["new"]] == ["/pooler/Softmax"]


def test_another_condition_with_the_same_code_is_a_change(bert):
    after = copy.deepcopy(bert)
    after["kept"][2]["reason"] = "another condition of the rule"
    assert len(diff(bert, after)["kept"]["changed"]) == 1


def test_summary_has_only_what_differs_and_unknown_is_no_number(bert):
    after = copy.deepcopy(bert)
    after["summary"].update(launches_after=40, ddr_bytes_after=None, weight_bytes_after=1)
    assert diff(bert, after)["summary"] == {
        "launches_after": {"before": 34, "after": 40, "delta": 6},
        "ddr_bytes_after": {"before": 155713536, "after": None, "delta": None},
        "weight_bytes_after": {"before": 57671680, "after": 1, "delta": 1 - 57671680},
    }
    assert "not estimated" in diff_text(diff(bert, after))


def test_a_difference_can_be_rendered_after_a_round_trip_through_json(bert):
    difference = diff(bert, regressed(bert))
    again = json.loads(diff_json(difference))
    assert diff_markdown(again) == diff_markdown(difference)
    assert diff_text(again) == diff_text(difference)
    assert diff_json(again) == diff_json(difference)


def test_of_many_layers_several_lost_ones_are_named():
    report = deep(30)
    gone = [7, 20, 33, 34]
    after = copy.deepcopy(report)
    after["fusions"] = [fusion for i, fusion in enumerate(after["fusions"]) if i not in gone]
    for i, fusion in enumerate(after["fusions"]):
        fusion.update(name=f"fused_{i}", nodes=[f"n_{i}_{k}" for k in range(len(fusion["nodes"]))])
    found = diff(report, after)["fusions"]
    assert len(found["lost"]) == 4
    assert found["new"] == found["changed"] == []
    assert [report["fusions"][i]["rule"] for i in gone] == [f["rule"] for f in found["lost"]]


def test_three_thousand_fusions_are_compared_at_once():
    report = deep(1500)
    after = without(report, 1501)
    for i, fusion in enumerate(after["fusions"]):
        fusion["name"] = f"f{i}"
        fusion["nodes"] = [f"{i}.{k}" for k in range(len(fusion["nodes"]))]
    found = diff(report, after)["fusions"]
    assert [f["rule"] for f in found["lost"]] == ["attention"]
    assert found["new"] == found["changed"] == []


# ---------------------------------------------------------------- gate


def test_equal_and_better_reports_meet_the_gate(bert):
    better = copy.deepcopy(bert)
    better["summary"].update(launches_after=1, ddr_bytes_after=1)
    better["fusions"].append(dict(better["fusions"][1], name="one more"))
    assert gate(bert, bert, 0) == gate(better, bert, 0) == []


@pytest.mark.parametrize(
    ("launches", "allowed", "passes"),
    [(34, 0, True), (35, 0, False), (35, 2.9, False), (35, 3, True), (37, 10, True), (38, 10, False)],
)
def test_the_percentage_is_of_the_baseline(bert, launches, allowed, passes):
    after = copy.deepcopy(bert)
    after["summary"]["launches_after"] = launches
    assert codes(gate(after, bert, allowed)) == ([] if passes else ["ATF535"])


def test_the_limit_is_exact(bert):
    after = copy.deepcopy(bert)
    bert["summary"]["ddr_bytes_after"] = 10**17
    after["summary"]["ddr_bytes_after"] = 10**17 + 10**14
    assert gate(after, bert, 0.1) == []
    after["summary"]["ddr_bytes_after"] += 1
    assert codes(gate(after, bert, 0.1)) == ["ATF536"]


def test_from_nothing_to_something_exceeds_every_percentage(bert):
    after = copy.deepcopy(bert)
    bert["summary"]["launches_after"] = 0
    assert codes(gate(after, bert, 1e6)) == ["ATF535"]


def test_the_gate_says_by_how_much_and_what_was_lost(bert):
    found = {d.code: d for d in gate(without(bert, 1), bert, 5)}
    assert set(found) == {"ATF535", "ATF536", "ATF537"}
    assert found["ATF535"].message == "launches after fusion: 42, the baseline has 34: +23.5%, allowed +5%"
    assert "+9.1%" in found["ATF536"].message
    assert found["ATF537"].message == "rule attention: 1 fusion, the baseline has 2"
    (note,) = found["ATF537"].notes
    assert "/bert/encoder/layer.0/attention/self/FusedAttention" in note
    assert all(d.severity == "error" and d.hint and code_page(d.code) for d in found.values())


def test_fewer_fusions_fail_at_any_percentage(bert):
    after = copy.deepcopy(bert)
    del after["fusions"][1]
    assert codes(gate(after, bert, 100)) == ["ATF537"]
    assert regressions(diff(bert, after)) == ["rule attention: 1 fusion, the baseline has 2"]
    assert regressions(diff(after, bert)) == []


def test_what_another_rule_took_over_whole_is_not_lost(bert):
    after = copy.deepcopy(bert)
    taker = {**after["fusions"][1], "rule": "larger", "name": "taker"}
    after["fusions"][1] = taker
    taker["nodes"] = [*taker["nodes"], "one more"]
    (lost,) = diff(bert, after)["fusions"]["lost"]
    assert (lost["taken_over"], lost["because"]["reason"]) == ("larger", "larger takes all of its nodes for taker")
    assert gate(after, bert, 0) == []
    taker["nodes"] = taker["nodes"][1:]
    (lost,) = diff(bert, after)["fusions"]["lost"]
    assert lost["because"] == {"code": "ATF320", "reason": "larger takes some of its nodes for taker"}
    assert codes(gate(after, bert, 0)) == ["ATF537"]


@pytest.mark.parametrize(
    ("part", "key", "value", "note"),
    [
        ("model", "opset", 13, "opset: 17 → 13"),
        ("summary", "assumed_dims", {}, "assumed dims: batch=1, sequence=128 → none"),
        (None, "soc", None, "soc: Ascend910B1 → none"),
        ("settings", "precision_mode", "force_fp32", "precision mode: force_fp16 → force_fp32"),
        ("settings", "occupancy", 1.0, "occupancy: 0.8 → 1.0"),
        ("settings", "tile_level", "small", "tile level: auto → small"),
        (None, "basis", {"launches": "computed"}, "costs: estimated → none"),
    ],
)
def test_other_conditions_are_a_warning(bert, part, key, value, note):
    bert["settings"] = {"precision_mode": "force_fp16", "occupancy": 0.8, "tile_level": "auto"}
    bert["basis"] = {"launches": "computed", "time_us": "estimated"}
    after = copy.deepcopy(bert)
    (after[part] if part else after)[key] = value
    (diagnostic,) = gate(after, bert, 0)
    assert (diagnostic.code, diagnostic.severity, diagnostic.notes) == ("ATF538", "warning", (note,))
    assert code_page("ATF538")


@pytest.mark.parametrize("part", ["settings", "basis"])
def test_a_report_that_does_not_tell_its_conditions_is_taken_as_like(bert, part):
    told = {"settings": {"precision_mode": "force_fp32"}, "basis": {"launches": "computed", "time_us": "estimated"}}
    bert.pop(part, None)
    after = {**bert, part: told[part]}
    assert gate(after, bert, 0) == gate(bert, after, 0) == []


def test_the_last_digits_of_a_time_are_no_difference(bert):
    after = copy.deepcopy(bert)
    for report, low in ((bert, 66.717), (after, 66.716)):
        report["summary"]["time_us_after"] = [low, 431.959]
        report["fusions"][0]["time_us_saved"] = [low / 2, 200.0]
    assert is_empty(diff(bert, after))
    after["summary"]["time_us_after"] = [66.717, 433.0]
    after["fusions"][0]["time_us_saved"] = [30.0, 200.0]
    difference = diff(bert, after)
    assert list(difference["summary"]) == ["time_us_after"]
    (changed,) = difference["fusions"]["changed"]
    assert list(changed["changes"]) == ["time_us_saved"]
    after["summary"]["time_us_after"] = None
    assert "time_us_after" in diff(bert, after)["summary"]


def test_what_atc_adds_is_told_where_it_differs(bert):
    after = copy.deepcopy(bert)
    for side in ("after", "after_both"):
        bert["summary"][f"launches_{side}"], after["summary"][f"launches_{side}"] = 20, 21
    text = diff_text(diff(bert, after))
    assert "launches (after atcfuse) " in text
    assert "launches (after atcfuse + ATC)" not in text
    after["summary"]["launches_after_both"] = 20
    bert["summary"]["launches_after_both"] = 19
    assert "launches (after atcfuse + ATC)" in diff_text(diff(bert, after))


def test_what_cannot_be_compared_is_said(bert):
    after = copy.deepcopy(bert)
    after["summary"]["ddr_bytes_after"] = None
    (diagnostic,) = gate(after, bert, 0)
    assert (diagnostic.code, diagnostic.severity) == ("ATF539", "warning")
    assert "in this run, so" in diagnostic.message
    empty = load("empty")
    assert codes(gate(empty, empty, 0)) == ["ATF539", "ATF539"]
    assert code_page("ATF539")


@pytest.mark.parametrize("allowed", [-1, float("nan"), float("inf")])
def test_no_percentage_no_gate(bert, allowed):
    with pytest.raises(UsageError) as caught:
        gate(bert, bert, allowed)
    assert caught.value.diagnostics[0].code == "ATF540"
    assert code_page("ATF540")


def test_what_a_gate_lets_pass_is_not_told_as_worse() -> None:
    before, after = load("bert"), load("bert")
    after["summary"]["ddr_bytes_after"] = before["summary"]["ddr_bytes_after"] * 1005 // 1000
    difference = diff(before, after)
    assert "**worse**" in diff_markdown(difference)
    assert "**worse**" not in diff_markdown(difference, 1.0)
