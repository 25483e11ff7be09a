"""`atcfuse optimize`: what it writes and where, byte for byte, and when it writes nothing."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path

import onnx
import pytest
from cli_support import SAMPLES, files

from atcfuse.resources import data_folder

FUSED = {"FusedAttention", "FusedLayerNormFFN", "FusedLayerNormQKV", "FusedLinear"}
CONVERTED = ["bert_ts17_fp32_dynamic", "nanogpt_ts17_fp16_static"]


def by_rules(ops: Iterable[str]) -> set[str]:
    """The fused operators that rules made; leftover element-wise ones are grouped in any case."""
    return {op for op in ops if not op.startswith("FusedElementwise")}


def top(folder: Path) -> set[str]:
    """Names in a folder."""
    return {p.name for p in folder.iterdir()}


def test_writes_the_model_and_its_reports_beside_the_input(atcfuse, bert):
    original = bert.read_bytes()
    outcome = atcfuse("optimize", bert)
    assert outcome.code == 0
    reports = {f"bert.fused.report.{form}" for form in ("json", "md", "html")}
    assert top(bert.parent) == {"bert.onnx", "bert.fused.onnx", "bert.fused.kernels", *reports}
    assert bert.read_bytes() == original
    model = onnx.load(bert.parent / "bert.fused.onnx")
    assert {n.op_type for n in model.graph.node if n.domain == "atcfuse"} >= FUSED
    report = json.loads((bert.parent / "bert.fused.report.json").read_text())
    assert report["files"] == {
        "model": "bert.fused.onnx",
        "report": "bert.fused.report.json",
        "kernels": "bert.fused.kernels",
        "page": "bert.fused.report.html",
    }
    assert [f["op"] for f in report["fusions"]].count("FusedAttention") == 2
    assert "launches 113 → " in outcome.out


def test_a_second_run_gives_the_same_bytes(atcfuse, bert):
    atcfuse("optimize", bert)
    first = files(bert.parent)
    atcfuse("optimize", bert)
    assert files(bert.parent) == first


def test_no_file_tells_where_or_when_it_was_made(atcfuse, bert):
    atcfuse("optimize", bert)
    for name, data in files(bert.parent).items():
        assert str(bert.parent).encode() not in data, name
        assert not re.search(rb"20\d\d-\d\d-\d\d", data), name


@pytest.mark.parametrize("name", CONVERTED)
def test_its_own_output_stays_the_same_and_converts(atcfuse, tmp_path, name):
    made = {d: tmp_path / f"{d}.onnx" for d in ("atc", "atc-flat", "portable")}
    for dialect, path in made.items():
        assert atcfuse("optimize", SAMPLES / f"{name}.onnx", "--dialect", dialect, "-o", path).code == 0
    again = tmp_path / "again.onnx"
    for (source, given), (dialect, wanted) in itertools.product(made.items(), repeat=2):
        assert atcfuse("optimize", given, "--dialect", dialect, "-o", again).code == 0
        assert again.read_bytes() == wanted.read_bytes(), f"{source} to {dialect}"


@pytest.mark.parametrize("dialect", ["atc", "atc-flat", "portable"])
def test_its_own_output_stays_the_same_where_domains_are_spelled_empty(atcfuse, tmp_path, dialect):
    # The dynamo exporter writes an explicit empty domain on every node, which portable keeps.
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    atcfuse("optimize", SAMPLES / "torch_encoder_dynamo18_fp32_dynamic.onnx", "--dialect", dialect, "-o", first)
    atcfuse("optimize", first, "--dialect", dialect, "-o", second)
    assert second.read_bytes() == first.read_bytes()


def test_a_report_folder_is_made_and_gets_every_report(atcfuse, bert):
    assert atcfuse("optimize", bert, "--no-kernels", "--report", bert.parent / "deep" / "reports").code == 0
    written = set(files(bert.parent)) - {"bert.onnx"}
    assert written == {"bert.fused.onnx", *(f"deep/reports/report.{form}" for form in ("json", "md", "html"))}


def test_a_report_file_is_the_only_report(atcfuse, bert):
    assert atcfuse("optimize", bert, "--no-kernels", "--report", bert.parent / "r.json").code == 0
    assert set(files(bert.parent)) == {"bert.onnx", "bert.fused.onnx", "r.json"}


def test_dry_run_reports_and_writes_nothing(atcfuse, bert):
    outcome = atcfuse("optimize", bert, "--dry-run", "--format", "json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["files"] == dict.fromkeys(("model", "report", "kernels", "page"))
    assert set(files(bert.parent)) == {"bert.onnx"}


def test_json_on_stdout_is_the_report_that_is_written(atcfuse, bert):
    outcome = atcfuse("optimize", bert, "--format", "json")
    assert outcome.out == (bert.parent / "bert.fused.report.json").read_text()


def test_quiet_is_one_line_and_verbose_names_every_node(atcfuse, bert):
    assert atcfuse("optimize", bert, "-q").out.count("\n") == 1
    outcome = atcfuse("optimize", bert, "-v")
    assert "attention fused" in outcome.out
    assert "/bert/encoder/layer.1/attention/self/Softmax" in outcome.out


def test_color_only_where_asked_for(atcfuse, bert):
    assert "\x1b[" not in atcfuse("optimize", bert).out
    assert "\x1b[" in atcfuse("optimize", bert, "--color", "always").out


def test_switches_and_environment_turn_rules_off(atcfuse, bert, monkeypatch):
    switches = bert.parent / "sw.yaml"
    switches.write_text("Switch:\n  GraphFusion:\n    FusedAttentionFusionPass: off\n")
    report = json.loads(atcfuse("optimize", bert, "--fusion-switch-file", switches, "--format", "json").out)
    made = {f["op"] for f in report["fusions"]}
    assert "FusedLayerNormQKV" in made
    assert "FusedAttention" not in made
    assert {k["code"] for k in report["kept"] if k["rule"] == "attention"} == {"ATF321"}
    monkeypatch.setenv("GF_AUTOFUSION_DISABLE", "attention, layer_norm_qkv")
    report = json.loads(atcfuse("optimize", bert, "--format", "json").out)
    assert report["rules"]["layer_norm_qkv"]["switch"] == "off"
    monkeypatch.setenv("GF_AUTOFUSION_DEBUG", "1")
    report = json.loads(atcfuse("optimize", bert, "--format", "json").out)
    assert report["fusions"] == []


def test_assumed_sizes_reach_the_figures(atcfuse, bert):
    def summary(*arguments):
        return json.loads(atcfuse("optimize", bert, "--dry-run", "--format", "json", *arguments).out)["summary"]

    larger = summary("--assume", "batch=4,sequence=256")
    assert larger["assumed_dims"] == {"batch": 4, "sequence": 256}
    assert larger["ddr_bytes_before"] > summary()["ddr_bytes_before"]


def test_external_data_comes_along(atcfuse, tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    target.mkdir()
    model = onnx.load(SAMPLES / "bert_ts11_fp32_dynamic.onnx")
    onnx.save(model, source / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert atcfuse("optimize", source / "m.onnx", "-o", target / "m.onnx").code == 0
    assert (target / "m.data").read_bytes() == (source / "m.data").read_bytes()
    assert json.loads((target / "m.report.json").read_text())["files"]["data"] == ["m.data"]
    assert atcfuse("verify", source / "m.onnx", target / "m.onnx").code == 0


def test_verify_agrees_and_tells_the_deviation(atcfuse, bert):
    outcome = atcfuse("optimize", bert, "--verify")
    assert outcome.code == 0
    assert "models agree on" in outcome.err
    assert (bert.parent / "bert.fused.onnx").exists()


def test_a_wrong_rule_is_caught_by_verify_and_nothing_is_written(atcfuse, bert):
    folder = _wrong_attention(bert.parent / "rules")
    switches = bert.parent / "sw.json"
    switches.write_text('{"Switch": {"GraphFusion": {"FusedAttentionFusionPass": "off"}}}')
    before = files(bert.parent)
    arguments = ("--rules", folder, "--fusion-switch-file", switches)
    outcome = atcfuse("optimize", bert, *arguments, "--verify")
    assert outcome.code == 1
    assert "ATF138" in outcome.err
    assert "ATF508" in outcome.err
    assert files(bert.parent) == before
    assert atcfuse("optimize", bert, *arguments).code == 0  # only the proof keeps it out


def _wrong_attention(folder: Path) -> Path:
    """The shipped attention rule under another name, with twice the scale."""
    text = (data_folder("rules") / "attention" / "attention.yaml").read_text(encoding="utf-8")
    text = text.replace("rule: attention\n", "rule: wrong\n").replace("FusedAttentionFusionPass", "WrongFusionPass")
    changed = re.sub(r"^  scale: (.*)$", r"  scale: (\1) * 2", text, count=1, flags=re.M)
    assert changed != text
    folder.mkdir()
    (folder / "wrong.yaml").write_text(changed.partition("\nexamples:")[0] + "\n", encoding="utf-8")
    return folder


def test_an_original_that_cannot_run_is_only_a_warning(atcfuse, tmp_path):
    model = onnx.load(SAMPLES / "bert_ts11_fp32_dynamic.onnx")
    model.graph.node.add(op_type="NoSuchOperator", domain="elsewhere", name="n", input=["input_ids"], output=["z"])
    model.opset_import.add(domain="elsewhere", version=1)
    onnx.save(model, tmp_path / "m.onnx")
    outcome = atcfuse("optimize", tmp_path / "m.onnx", "--verify")
    assert outcome.code == 0
    assert "warning: ATF505" in outcome.err
    assert (tmp_path / "m.fused.onnx").exists()


def test_the_gate_keeps_a_worse_model_out(atcfuse, bert):
    baseline = bert.parent / "base.json"
    atcfuse("optimize", bert, "--report", baseline)
    (bert.parent / "bert.fused.onnx").unlink()
    gate = ("--baseline", baseline, "--max-regression", "1")
    assert atcfuse("optimize", bert, *gate, "-o", bert.parent / "same.onnx").code == 0
    switches = bert.parent / "sw.json"
    switches.write_text('{"Switch": {"GraphFusion": {"FusedAttentionFusionPass": "off"}}}')
    before = files(bert.parent)
    outcome = atcfuse("optimize", bert, *gate, "--fusion-switch-file", switches)
    assert outcome.code == 1
    assert "ATF535" in outcome.err
    assert "ATF537" in outcome.err
    assert "ATF144" in outcome.err
    after = files(bert.parent)
    assert set(after) - set(before) <= {f"bert.fused.report.{form}" for form in ("json", "md", "html")}
    assert "bert.fused.report.md" in after
    assert "bert.fused.onnx is of an earlier run" not in outcome.err
    assert "bert.fused.kernels is of an earlier run" in outcome.err
    for form, mark in (
        ("junit", 'failures="3"'),
        ("sarif", '"level": "error"'),
        ("code-quality", '"severity": "major"'),
    ):
        told = atcfuse("report", bert.parent / "bert.fused.report.json", "--format", form).out
        assert mark in told
        assert "ATF537" in told


def test_nothing_to_fuse_is_no_failure(atcfuse, tmp_path):
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    outcome = atcfuse("optimize", tmp_path / "m.onnx", "-q")
    assert outcome.code == 0
    assert "0 fusions" in outcome.out


# ---------------------------------------------------------------- costs


def report_of(atcfuse, bert, *arguments):
    outcome = atcfuse("optimize", bert, "--dry-run", "--format", "json", *arguments)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_savings_bound_forced_rules_and_kept_nodes_through_options(atcfuse, bert, tmp_path):
    assert report_of(atcfuse, bert, "--min-saving", "1e6")["fusions"] == []
    forced = report_of(atcfuse, bert, "--min-saving", "1e6", "--force", "attention")
    assert {f["op"] for f in forced["fusions"]} == {"FusedAttention"}
    without = report_of(atcfuse, bert, "--keep-nodes", "none*", "--min-saving", "1e6", "--force")
    assert (
        without["fusions"]
        == json.loads(atcfuse("optimize", "--dry-run", "--format", "json", "--force", bert).out)["fusions"]
    )
    assert without == report_of(atcfuse, bert, "--force", "--keep-nodes", "none*", "--min-saving", "1e6")
    assert len({f["rule"] for f in without["fusions"]}) > 3
    kept = report_of(atcfuse, bert, "--keep-nodes", "*/attention/self/Softmax")
    assert {k["code"] for k in kept["kept"] if k["rule"] == "attention"} == {"ATF325"}
    file = tmp_path / "keep.ini"
    file.write_text("[ByNodeType]\nSoftmax\n")
    left = {f["op"] for f in report_of(atcfuse, bert, "--keep-nodes", file)["fusions"]}
    assert "FusedLayerNormQKV" in left
    assert "FusedAttention" not in left
    assert report_of(atcfuse, bert, "--keep-fp32", "Softmax,LayerNormalization")["fusions"], "kernels keep float32"


@pytest.mark.parametrize("soc", ["Ascend310P3", "published-attention", "published-autofusion", "published-elementwise"])
def test_chips_by_name(atcfuse, bert, soc):
    report = report_of(atcfuse, bert, "--soc", soc)
    assert report["soc"] == soc
    assert f"SoC file of {soc}" in report["basis"]["time_us"]
    assert atcfuse("optimize", bert, "--soc", soc).code == 0


def test_explain_prints_the_stages_of_a_fused_node(atcfuse, bert):
    name = next(f["name"] for f in report_of(atcfuse, bert)["fusions"] if f["op"] == "FusedAttention")
    shown = atcfuse("explain", bert, "--node", name).out
    head = next(line for line in shown.splitlines() if "dma wait" in line)
    assert head.split() == ["load", "cube", "vector", "store", "dma", "wait", "total"]
    assert shown.count("dma wait") == 2, "as it stands, and fused"
    other = atcfuse("explain", bert, "--node", name, "--soc", "Ascend910B2", "--assume", "sequence=4096").out
    assert "flash" in other
