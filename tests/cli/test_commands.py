"""The other commands: what they print, in text and JSON, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_support import SAMPLES, files

from atcfuse.diagnostics import code_page
from atcfuse.graph import schema
from atcfuse.resources import data_folder

DIALECTS = ["atc", "atc-flat", "portable"]
SOFTMAX = "/bert/encoder/layer.0/attention/self/Softmax"


@pytest.fixture
def fused(atcfuse, bert) -> Path:
    """The optimized BERT, its reports beside it."""
    assert atcfuse("optimize", bert).code == 0
    return bert.parent / "bert.fused.onnx"


@pytest.fixture
def small(tmp_path) -> Path:
    """A model that ATC would refuse and no rule covers, small enough to read whole output."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { h = Neg(x) y = Sinh(h) }'
    model = onnx.parser.parse_model(text)
    model.graph.node[0].name = model.graph.node[1].name = "same"
    path = tmp_path / "small.onnx"
    onnx.save(model, path)
    return path


def test_check_tells_what_atc_would_refuse(atcfuse, small, fused, golden):
    outcome = atcfuse("check", small)
    assert outcome.code == 1
    golden("cli/check.txt", outcome.out)
    document = json.loads(atcfuse("check", small, "--format", "json").out)
    assert document["schema"] == "atcfuse.check/1"
    assert document["summary"]["errors"] >= 1
    assert atcfuse("check", fused).code == 0


def test_explain_groups_what_was_kept_by_reason(atcfuse, bert):
    outcome = atcfuse("explain", bert, "--soc", "Ascend310P3")
    report = json.loads(atcfuse("explain", bert, "--soc", "Ascend310P3", "--format", "json").out)
    assert outcome.code == 0
    assert len({entry["rule"] for entry in report["kept"]}) > 1
    assert set(files(bert.parent)) == {"bert.onnx"}
    for entry in report["kept"]:
        assert entry["anchor"] in outcome.out
        assert entry["code"] in outcome.out


def test_explain_a_fused_node_by_any_of_its_names(atcfuse, bert):
    found = json.loads(atcfuse("explain", bert, "--node", SOFTMAX, "--format", "json").out)
    assert found["status"] == "fused"
    fusion = found["fusions"][0]
    assert (fusion["op"], fusion["attributes"]["num_heads"]) == ("FusedAttention", 2)
    assert SOFTMAX in fusion["nodes"]
    by_fused_name = json.loads(atcfuse("explain", bert, "--node", fusion["name"], "--format", "json").out)
    assert by_fused_name["fusions"] == [fusion]
    by_value = json.loads(atcfuse("explain", bert, "--node", f"{SOFTMAX}_output_0", "--format", "json").out)
    assert by_value["node"] == SOFTMAX
    outcome = atcfuse("explain", bert, "--node", SOFTMAX)
    assert "attention fused" in outcome.out
    assert "scale=" in outcome.out


def test_explain_a_kept_node_in_full(atcfuse, bert):
    chip = ("--soc", "Ascend310P3")  # where kernels between cube and vector cores have no form
    entry = json.loads(atcfuse("explain", bert, *chip, "--format", "json").out)["kept"][0]
    assert 2 <= entry["depth"] < 50
    outcome = atcfuse("explain", bert, *chip, "--node", entry["anchor"])
    text = " ".join(outcome.out.split())
    assert f"{entry['rule']} at {entry['anchor']}: kept" in text
    assert f"{entry['code']}: {' '.join(entry['reason'].split())}" in text
    assert f"got as far as {entry['depth']} matched nodes" in text
    assert " ".join(entry["hint"].split()) in text


def test_explain_a_node_that_no_rule_covers(atcfuse, bert, tmp_path):
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Sinh(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "floor.onnx")
    outcome = atcfuse("explain", tmp_path / "floor.onnx", "--node", "y")
    assert "no rule covers the operator Sinh" in outcome.out
    found = json.loads(
        atcfuse("explain", bert, "--node", "/bert/encoder/layer.0/attention/self/Concat", "--format", "json").out
    )
    assert found["status"] == "untouched"
    assert found["rules"]
    near = found["near"]
    assert 1 <= len(near) <= 3
    assert [n["steps"] for n in near] == sorted(n["steps"] for n in near)


def test_explain_one_rule_shows_what_others_would_hide(atcfuse, bert):
    report = json.loads(atcfuse("explain", bert, "--rule", "layer_norm_pair", "--format", "json").out)
    assert set(report["rules"]) == {"layer_norm_pair"}
    assert {f["rule"] for f in report["fusions"]} == {"layer_norm_pair"}


def test_explain_an_optimized_model(atcfuse, fused):
    name = next(n.name for n in onnx.load(fused).graph.node if n.op_type == "FusedAttention")
    shown = atcfuse("explain", fused, "--node", name).out
    assert "a fused node that the model came with" in shown.replace("\n", " ")
    assert shown.count("dma wait") == 1, "what it replaced is not known any more"
    assert "by AtcfuseAttention" in shown


def test_explain_takes_the_options_that_settle_a_kernel(atcfuse, bert):
    report = json.loads(atcfuse("optimize", bert, "--dry-run", "--format", "json").out)
    name = next(f["name"] for f in report["fusions"] if f["op"] == "FusedAttention")

    def told(*options):
        done = atcfuse("explain", bert, "--node", name, "--format", "json", "--assume", "sequence=1024", *options)
        assert done.code == 0, done.err
        (fusion,) = json.loads(done.out)["fusions"]
        return fusion

    assert told("--tile-level", "small")["tiling"]["rows"] == 32
    assert told("--occupancy", "0.3")["on_chip"]["UB"] <= 0.3 * 196_608
    assert told()["chip_status"] == "twin"
    assert told("--precision-mode", "must_keep_origin_dtype")["chip_status"] == "checked in the twin only"
    assert told("--soc", "Ascend310P3")["tiling"]["form"] == "shared_core"
    for option, code in (("--tile-level", "ATF159"), ("--precision-mode", "ATF153")):
        done = atcfuse("explain", bert, "--node", name, option, "wide")
        assert (done.code, code in done.err) == (2, True)


def test_explain_shows_both_savings_and_fuses_as_without_kernels(atcfuse, bert):
    norm = "/bert/encoder/layer.0/attention/output/LayerNorm/ReduceMean"
    text = " ".join(atcfuse("explain", bert, "--node", norm).out.split())
    (fusion,) = json.loads(atcfuse("explain", bert, "--node", norm, "--format", "json").out)["fusions"]
    assert fusion["launches_saved_after_atc"] < fusion["launches_saved"]
    for kind, key in (("as exported", "launches_saved"), ("against ATC alone (estimated)", "launches_saved_after_atc")):
        assert f"saves, {kind}: {fusion[key]} launch" in text
    chip = ("--soc", "Ascend310P3", "--node", norm)
    with_kernels, without = (
        json.loads(atcfuse("explain", bert, *chip, *more, "--format", "json").out)["fusions"]
        for more in ((), ("--no-kernels",))
    )
    assert with_kernels[0]["rule"] != without[0]["rule"]


def test_explain_a_code_prints_its_page(atcfuse):
    assert atcfuse("explain", "atf101").out == code_page("ATF101")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_verify_reads_every_dialect(atcfuse, bert, dialect):
    out = bert.parent / "out.onnx"
    atcfuse("optimize", bert, "--dialect", dialect, "-o", out)
    outcome = atcfuse("verify", bert, out, "--format", "json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["ok"] is True


def test_verify_given_inputs_and_a_tolerance(atcfuse, bert, fused):
    ids = np.arange(6, dtype=np.int64).reshape(2, 3)
    values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    np.savez(bert.parent / "in.npz", **values)
    outcome = atcfuse("verify", bert, fused, "--inputs", bert.parent / "in.npz")
    assert outcome.code == 0
    assert "models agree on 1 input set" in outcome.out


def test_verify_tells_models_apart(atcfuse, bert):
    model = onnx.load(bert)
    bias = next(t for t in model.graph.initializer if t.name.endswith("pooler.dense.bias"))
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 0.5, bias.name))
    other = bert.parent / "other.onnx"
    onnx.save(model, other)
    outcome = atcfuse("verify", bert, other)
    assert outcome.code == 1
    assert "ATF508" in outcome.err
    assert atcfuse("verify", bert, other, "--rtol", "10", "--atol", "10").code == 0


def test_diff_takes_reports_and_models(atcfuse, bert, fused):
    report = bert.parent / "bert.fused.report.json"
    assert "No difference" in atcfuse("diff", report, bert).out
    switches = bert.parent / "sw.json"
    switches.write_text('{"Switch": {"GraphFusion": {"FusedAttentionFusionPass": "off"}}}')
    worse = bert.parent / "worse.json"
    atcfuse("optimize", bert, "--fusion-switch-file", switches, "--report", worse)
    outcome = atcfuse("diff", report, worse, "--fail-on", "regression")
    assert outcome.code == 1
    assert "ATF537" in outcome.err
    better = atcfuse("diff", worse, report, "--fail-on", "regression")
    assert better.code == 0, "what attention takes over whole is not lost"
    assert "scale_mask_softmax" in better.out
    assert json.loads(atcfuse("diff", report, worse, "--format", "json").out)["schema"] == "atcfuse.diff/1"
    assert atcfuse("diff", report, worse, "--format", "markdown").out.startswith("## ")


def test_diff_writes_nothing(atcfuse, bert):
    before = files(bert.parent)
    atcfuse("diff", bert, bert)
    assert files(bert.parent) == before


def test_rules_list_and_show(atcfuse):
    listed = atcfuse("rules", "list").out.splitlines()
    assert listed[0].split() == ["rule", "switch", "level", "kernel", "summary"]
    assert any(line.startswith("attention ") and "FusedAttentionFusionPass" in line for line in listed)
    outcome = atcfuse("rules", "show", "attention")
    path = data_folder("rules") / "attention" / "attention.yaml"
    assert outcome.out == path.read_text(encoding="utf-8")
    assert outcome.err.strip() == str(path)


def test_rules_show_a_fragment_out_of_its_file(atcfuse):
    outcome = atcfuse("rules", "show", "gelu_quick")
    path, _, line = outcome.err.strip().rpartition(":")
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    assert lines[int(line) - 1] == "fragment: gelu_quick(x)"
    shown = outcome.out.splitlines()
    assert "fragment: gelu_quick(x)" in shown
    assert sum(one.startswith("fragment:") for one in shown) == 1
    assert "---" not in shown
    wrong = atcfuse("rules", "show", "gelu_quik")
    assert (wrong.code, 'did you mean "gelu_quick"?' in wrong.err) == (2, True)
    assert "a fragment of this name is in" in atcfuse("rules", "show", "layer_norm").err


def test_rules_check_finds_what_onnx_does_not_have(atcfuse, tmp_path):
    text = (data_folder("rules") / "linear" / "linear_epilogue.yaml").read_text(encoding="utf-8")
    text = text.replace("rule: linear_epilogue", "rule: mine").partition("\nexamples:")[0]
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "mine.yaml").write_text(text.replace("\npattern:\n", "\npattern:\n  odd: Mull(x, axs=1)\n"))
    outcome = atcfuse("rules", "check", "--rules", folder)
    line = text[: text.index("pattern:")].count("\n") + 2
    assert outcome.code == 1
    assert f"own/mine.yaml:{line}:8: error: ATF209: ONNX has no operator 'Mull'" in outcome.err
    assert 'did you mean "Mul"?' in outcome.err


def test_rules_may_name_operators_newer_than_the_onnx_at_hand(atcfuse, monkeypatch):
    """An installed ONNX may be as old as pyproject.toml allows: 1.18, which ends with opset 23."""
    first = {}
    for operator in onnx.defs.get_all_schemas_with_history():
        first[operator.name] = min(operator.since_version, first.get(operator.name, operator.since_version))
    known = {name: found for name, found in schema.all_parameters().items() if first.get(name, 0) <= 23}
    monkeypatch.setattr(schema, "all_parameters", lambda: known)
    assert atcfuse("rules", "check").code == 0


def test_rules_of_a_user(atcfuse, tmp_path, bert):
    text = (data_folder("rules") / "attention" / "attention.yaml").read_text(encoding="utf-8")
    text = text.replace("rule: attention\n", "rule: mine\n").replace("FusedAttentionFusionPass", "MineFusionPass")
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "mine.yaml").write_text(text, encoding="utf-8")
    assert any(line.startswith("mine ") for line in atcfuse("rules", "list", "--rules", folder).out.splitlines())
    assert atcfuse("rules", "show", "mine", "--rules", folder).out == text
    assert atcfuse("rules", "check", "--rules", folder).code == 0
    switches = tmp_path / "sw.json"
    switches.write_text('{"Switch": {"GraphFusion": {"FusedAttentionFusionPass": "off"}}}')
    arguments = ("--rules", folder, "--fusion-switch-file", switches, "--format", "json")
    report = json.loads(atcfuse("optimize", bert, *arguments).out)
    assert {f["rule"] for f in report["fusions"] if f["op"] == "FusedAttention"} == {"mine"}


def test_rules_test_tells_what_is_wrong_with_an_example(atcfuse, tmp_path):
    text = (data_folder("rules") / "attention" / "attention.yaml").read_text(encoding="utf-8")
    text = text.replace("rule: attention\n", "rule: mine\n").partition("\nexamples:")[0]
    folder = tmp_path / "own"
    folder.mkdir()
    example = """
examples:
  fuses:
    nothing to see:
      graph: |
        (float[2,3] x) => (float[2,3] y) { y = Relu(x) }
      gives: [FusedAttention]
"""
    (folder / "mine.yaml").write_text(f"{text}\n{example}", encoding="utf-8")
    outcome = atcfuse("rules", "test", "mine", "--rules", folder)
    assert outcome.code == 1
    assert "FAILED mine: nothing to see" in outcome.out
    assert "1 failed" in outcome.out


def test_kernels_list_and_show(atcfuse):
    assert "FusedAttention" in atcfuse("kernels", "list").out
    text = (data_folder("kernels") / "attention" / "kernel.yaml").read_text(encoding="utf-8")
    assert atcfuse("kernels", "show", "attention").out == text
    assert atcfuse("kernels", "show", "FusedAttention").out == text


def test_switches_shows_every_state_and_writes_json_for_atc(atcfuse, tmp_path, golden):
    path = tmp_path / "sw.yaml"
    path.write_text("Switch:\n  GraphFusion:\n    ALL: off\n    FusedAttentionFusionPass: on\n    TheirPass: off\n")
    out = tmp_path / "atc.json"
    outcome = atcfuse("switches", path, "--for-atc", out)
    assert outcome.code == 0
    lines = {line.split()[0]: line for line in outcome.out.splitlines()}
    assert "on in sw.yaml" in lines["FusedAttentionFusionPass"]
    assert "off by ALL in sw.yaml" in lines["FusedLayerNormQKVFusionPass"]
    assert lines["TheirPass"].split()[2] == "off"
    golden("cli/switches_for_atc.json", out.read_text())
    states = json.loads(atcfuse("switches", path, "--format", "json").out)
    assert {"name": "TheirPass", "kind": "GraphFusion", "state": "off", "why": "off in sw.yaml"} in states


@pytest.mark.parametrize("dialect", DIALECTS)
def test_restore_gives_standard_operators_that_agree(atcfuse, bert, dialect):
    fused, restored = bert.parent / "fused.onnx", bert.parent / "restored.onnx"
    atcfuse("optimize", bert, "--dialect", dialect, "-o", fused)
    outcome = atcfuse("restore", fused, "-o", restored)
    assert outcome.code == 0
    count = sum(node.op_type.startswith("Fused") for node in onnx.load(fused).graph.node)
    assert outcome.out == f"restored.onnx: {count} fused nodes replaced by standard operators\n"
    model = onnx.load(restored)
    assert not any(node.op_type.startswith("Fused") for node in model.graph.node)
    assert [entry.domain for entry in model.opset_import] == [""]
    onnx.checker.check_model(model, full_check=True)
    assert atcfuse("verify", bert, restored).code == 0


def test_restore_without_fused_nodes_says_so(atcfuse, bert):
    outcome = atcfuse("restore", bert, "-o", bert.parent / "same.onnx")
    assert outcome.code == 0
    assert "ATF142" in outcome.err
    assert (bert.parent / "same.onnx").read_bytes() == (SAMPLES / "bert_ts11_fp32_dynamic.onnx").read_bytes()


def test_help_lists_the_commands_with_what_they_do(atcfuse, golden):
    golden("cli/help.txt", atcfuse("--help").out)
