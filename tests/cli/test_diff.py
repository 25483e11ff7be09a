"""`atcfuse diff` of real models: renamed nodes, a rule switched off, budgets, and ATC's own file."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from cli_support import SAMPLES

GRAPH = "session_and_graph_id_0_0"


def renamed(source: Path, target: Path) -> Path:
    """A copy of a model in which every node and every value inside has another name."""
    model = onnx.load(source)
    border = {v.name for v in (*model.graph.input, *model.graph.output)}
    names = {name: f"v{i}" for i, name in enumerate(dict.fromkeys(o for n in model.graph.node for o in n.output if o))}
    names = {old: old if old in border else new for old, new in names.items()}
    for i, node in enumerate(model.graph.node):
        node.name = f"layers/{i}"
        for values in (node.input, node.output):
            values[:] = [names.get(v, v) for v in values]
    del model.graph.value_info[:]
    onnx.save(model, target)
    return target


@pytest.mark.parametrize(
    "sample", ["bert_ts11_fp32_dynamic", pytest.param("llama_dynamo18_fp32_dynamic", marks=pytest.mark.slow)]
)
def test_renamed_nodes_are_no_difference(atcfuse, tmp_path, sample) -> None:
    before = SAMPLES / f"{sample}.onnx"
    after = renamed(before, tmp_path / before.name)
    outcome = atcfuse("diff", before, after, "--fail-on", "regression", "--format", "json")
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    lists = [entries for part in ("fusions", "kept", "plugins") for entries in found[part].values()]
    assert [found["summary"], found["rules"], *lists] == [{}, {}] + [[]] * 8


def test_a_rule_switched_off_loses_exactly_its_fusions(atcfuse, bert) -> None:
    folder = bert.parent
    assert atcfuse("optimize", bert, "--no-kernels", "--report", folder / "before.json").code == 0
    before = json.loads((folder / "before.json").read_text())
    by_rule: dict[str, list[str]] = {}
    for fusion in before["fusions"]:
        by_rule.setdefault(fusion["rule"], []).append(fusion["name"])
    switches = {s["rule"]: {s["kind"]: {s["name"]: "off"}} for s in before["switches"] if "rule" in s}
    assert len(by_rule) > 2
    for rule, names in by_rule.items():
        (folder / "sw.json").write_text(json.dumps({"Switch": switches[rule]}))
        arguments = ("--no-kernels", "--fusion-switch-file", folder / "sw.json", "--report", folder / "after.json")
        assert atcfuse("optimize", bert, *arguments).code == 0
        found = json.loads(atcfuse("diff", folder / "before.json", folder / "after.json", "--format", "json").out)
        lost = {f["name"]: f["because"]["reason"] for f in found["fusions"]["lost"] if f["rule"] == rule}
        assert lost == dict.fromkeys(names, "the rule is switched off")


def test_budgets_fail_above_and_not_at_the_figure(atcfuse, bert) -> None:
    report = bert.parent / "r.json"
    atcfuse("optimize", bert, "--no-kernels", "--report", report)
    launches = json.loads(report.read_text())["summary"]["launches_after"]
    assert atcfuse("diff", report, report, "--max-launches", launches).code == 0
    outcome = atcfuse("diff", report, report, "--max-launches", launches - 1)
    assert (outcome.code, "ATF541" in outcome.err) == (1, True)


# ---------------------------------------------------------------- ATC's file


@pytest.fixture
def handed_over(atcfuse, bert) -> Path:
    """The report of a run, beside it a fusion_result.json as ATC would write it for exactly what is expected."""
    report = bert.parent / "bert.report.json"
    assert atcfuse("optimize", bert, "--report", report).code == 0
    write_result(report, "times_after")
    return report


def write_result(report: Path, side: str) -> Path:
    passes = json.loads(report.read_text())["atc"]["passes"]
    counts = {p["name"]: {"match_times": str(p[side]), "effect_times": str(p[side])} for p in passes if p[side]}
    path = report.parent / "fusion_result.json"
    path.write_text(json.dumps({GRAPH: {"graph_fusion": counts}}, indent=4))
    return path


def test_what_atc_did_as_expected_meets_the_gate(atcfuse, handed_over) -> None:
    outcome = atcfuse("diff", handed_over, handed_over.parent / "fusion_result.json", "--fail-on", "regression")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("What ATC did on top of bert.onnx")


def test_atc_given_the_model_as_exported_fails_the_gate(atcfuse, handed_over) -> None:
    given = write_result(handed_over, "times")
    outcome = atcfuse("diff", handed_over, given, "--fail-on", "regression", "--format", "json")
    assert (outcome.code, "ATF551" in outcome.err) == (1, True)
    found = json.loads(outcome.out)
    assert found["schema"] == "atcfuse.diff-atc/1"
    assert "on_fused" in {row["verdict"] for row in found["passes"]}
    assert any("as exported" in caveat for caveat in found["caveats"])
    text = atcfuse("diff", handed_over, given, "--format", "markdown").out
    assert "### Took effect where atcfuse may fuse" in text


def test_our_own_fusions_in_the_form_of_atc_are_told_as_ours(atcfuse, handed_over) -> None:
    own = handed_over.parent / "own.json"
    own.write_text(atcfuse("report", handed_over, "--format", "fusion-result").out)
    found = json.loads(atcfuse("diff", handed_over, own, "--format", "json").out)
    assert "FusedAttentionFusionPass" in {row["name"] for row in found["passes"] if row["verdict"] == "own"}


def test_files_and_gates_that_do_not_fit_are_usage_errors(atcfuse, handed_over) -> None:
    given = handed_over.parent / "fusion_result.json"
    assert "as often as before" in atcfuse("diff", given, given).out
    for arguments in (
        (given, handed_over),
        (handed_over, given, "--max-launches", 3),
        (given, given, "--fail-on", "regression"),
    ):
        outcome = atcfuse("diff", *arguments)
        assert (outcome.code, "ATF552" in outcome.err, outcome.out) == (2, True, "")
    given.write_text("{")
    outcome = atcfuse("diff", handed_over, given)
    assert (outcome.code, "fusion_result.json:1:2: error: ATF550" in outcome.err, outcome.out) == (1, True, "")
