"""The forms of a report that other tools read: SARIF, JUnit, GitLab's code quality, ATC's fusion_result.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from atcfuse.diagnostics import error, warning
from atcfuse.report import findings, over_budget
from atcfuse.report.findings import Finding
from atcfuse.report.fusion_result import to_fusion_result

GOLDEN = Path(__file__).parents[1] / "golden" / "report"
HOSTILE = '"><&]]>\x00\x1b[31m\n\u202e' + "x" * 5000


def report() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((GOLDEN / "bert.json").read_text(encoding="utf-8"))
    return document


def test_a_report_gives_its_diagnostics_and_what_it_kept() -> None:
    found = findings.of_report(report())
    assert [f.code for f in found] == ["ATF601", "ATF301", "ATF310", "ATF310", "ATF301"]
    assert found[-1].node == "/pooler/Softmax"
    assert found[-1].rule == "attention"


def test_sarif_levels_rules_and_places() -> None:
    given = findings.of_diagnostics([error("ATF401", "an error"), warning("ATF402", "a warning", notes=["a note"])])
    run = json.loads(findings.sarif("a b/m.onnx", [*given, Finding("ATF301", "info", "kept", node="n")]))["runs"][0]
    assert [r["level"] for r in run["results"]] == ["error", "warning", "note"]
    rules = run["tool"]["driver"]["rules"]
    assert [rules[r["ruleIndex"]]["id"] for r in run["results"]] == ["ATF401", "ATF402", "ATF301"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%20b/m.onnx"
    assert run["results"][2]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "n"
    assert run["results"][1]["message"]["text"] == "a warning; a note"
    assert all(rule["shortDescription"]["text"] != rule["id"] for rule in rules)


def test_junit_fails_for_errors_alone() -> None:
    given = [Finding("ATF401", "error", "bad"), Finding("ATF301", "info", "kept", "drop it", "n", "attention")]
    suite = ElementTree.fromstring(findings.junit("m.onnx", given)).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "1")
    assert [child.tag for case in suite for child in case] == ["failure", "skipped"]
    assert suite[1][0].get("message") == "n: kept [attention]. drop it"


def test_junit_of_nothing_is_one_passed_test() -> None:
    suite = ElementTree.fromstring(findings.junit("m.onnx", [])).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), len(suite), len(suite[0])) == ("1", 1, 0)


def test_code_quality_has_stable_fingerprints_of_their_own() -> None:
    given = findings.of_report(report())
    first, again = (json.loads(findings.code_quality("m.onnx", given)) for _ in range(2))
    assert first == again
    assert len({entry["fingerprint"] for entry in first}) == len(given)


@pytest.mark.parametrize("form", [findings.sarif, findings.junit, findings.code_quality])
def test_hostile_names_stay_text(form: Any) -> None:
    text = form(HOSTILE, [Finding("ATF301", "error", HOSTILE, HOSTILE, HOSTILE, "rule")])
    assert not {c for c in text if not c.isprintable() and c != "\n"}
    if form is findings.junit:
        assert len(ElementTree.fromstring(text)) == 1
    else:
        json.loads(text)


def test_fusion_result_has_the_form_of_atc() -> None:
    document = report()
    document["switches"] = [
        {"name": "FusedAttentionFusionPass", "kind": "GraphFusion", "rule": "attention", "state": "on", "why": None},
        {"name": "SharedPass", "kind": "UBFusion", "rule": "gelu", "state": "on", "why": None},
        {"name": "SharedPass", "kind": "UBFusion", "rule": "layer_norm_qkv", "state": "on", "why": None},
    ]
    (graph,) = json.loads(to_fusion_result(document)).values()
    assert graph == {
        "graph_fusion": {"FusedAttentionFusionPass": {"effect_times": "2", "match_times": "2"}},
        "ub_fusion": {"SharedPass": {"effect_times": "2", "match_times": "2", "repository_hit_times": "0"}},
    }


def test_budgets() -> None:
    document = report()
    assert not over_budget(document, {"launches_after": 34, "ddr_bytes_after": None})
    (found,) = over_budget(document, {"launches_after": 33, "ddr_bytes_after": 155_713_536})
    assert found.code == "ATF541"
    assert "34, the budget is 33" in found.message
    document["summary"]["ddr_bytes_after"] = None
    (found,) = over_budget(document, {"ddr_bytes_after": 1})
    assert "not estimated" in found.message


def test_a_pass_that_is_switched_off_is_not_counted() -> None:
    document = report()
    switch = {"name": "FusedAttentionFusionPass", "kind": "GraphFusion", "rule": "attention", "why": None}
    document["switches"] = [{**switch, "state": "on"}]
    assert "FusedAttentionFusionPass" in to_fusion_result(document)
    document["switches"] = [{**switch, "state": "off"}]
    assert json.loads(to_fusion_result(document)) == {}
