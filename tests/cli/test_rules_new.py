"""`atcfuse rules new` and what drafts do in the other commands."""

from __future__ import annotations

import pytest
from cli_support import SAMPLES

BERT = SAMPLES / "bert_ts17_fp32_dynamic.onnx"
GELU = "/bert/encoder/layer.0/intermediate/intermediate_act_fn/*"


@pytest.fixture
def draft(atcfuse, tmp_path):
    folder = tmp_path / "mine"
    outcome = atcfuse("rules", "new", "my_gelu", "--from", BERT, "--nodes", GELU, "-o", folder)
    assert outcome.code == 0, outcome.err
    assert "matches 2 places" in outcome.out
    return folder


def test_a_draft_passes_check_and_test(atcfuse, draft):
    checked = atcfuse("rules", "check", "--rules", draft)
    assert checked.code == 0
    assert "ATF223" in checked.err
    assert atcfuse("rules", "test", "my_gelu", "--rules", draft).out == "1 example, all right\n"
    assert any("(draft)" in line for line in atcfuse("rules", "list", "--rules", draft).out.splitlines())


def test_a_draft_fuses_nothing_and_hides_no_reason(atcfuse, draft):
    with_draft = atcfuse("optimize", BERT, "--dry-run", "--format", "json", "--rules", draft)
    without = atcfuse("optimize", BERT, "--dry-run", "--format", "json")
    import json

    ours, theirs = json.loads(with_draft.out), json.loads(without.out)
    assert ours["fusions"] == theirs["fusions"]
    assert [k for k in ours["kept"] if k["rule"] != "my_gelu"] == theirs["kept"]
    assert {k["code"] for k in ours["kept"] if k["rule"] == "my_gelu"} <= {"ATF345"}


def test_explain_shows_the_nearest_miss_of_a_users_rule(atcfuse, draft):
    vit = SAMPLES / "vit_dynamo18_fp32_static.onnx"
    told = atcfuse("explain", vit, "--rule", "my_gelu", "--rules", draft).out
    assert "ATF310 ×2 my_gelu" in told
    assert "x is already" in told
    gpt2 = SAMPLES / "gpt2_ts14_fp32_dynamic.onnx"
    told = atcfuse("explain", gpt2, "--rule", "my_gelu", "--rules", draft).out
    assert "nowhere in this model is what my_gelu begins at: Erf" in told


def test_a_rule_file_is_not_overwritten(atcfuse, draft):
    path = draft / "my_gelu.yaml"
    path.write_text("# mine\n")
    outcome = atcfuse("rules", "new", "my_gelu", "--from", BERT, "--nodes", GELU, "-o", path)
    assert outcome.code == 2
    assert "ATF178" in outcome.err
    assert path.read_text() == "# mine\n"


def test_a_kernel_is_described(atcfuse, tmp_path):
    path = tmp_path / "r.yaml"
    atcfuse("rules", "new", "mine", "--from", BERT, "--nodes", GELU, "-o", path, "--kernel", "layer_norm_qkv")
    assert "FusedLayerNormQKV(x, gamma?" in path.read_text()
    outcome = atcfuse(
        "rules", "new", "two", "--from", BERT, "--nodes", GELU, "-o", tmp_path, "--kernel", "layer_nrm_qkv"
    )
    assert outcome.code == 2
    assert 'did you mean "layer_norm_qkv"' in outcome.err


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("level: graph\nkernel: attention\ndraft: d\noutputs: {y: y}", "ATF207"),
        ("level: graph\nreplace: {y: Relu(x)}", "ATF206"),
        ("level: graph\ndraft: d", "ATF206"),
        ("level: constant\nreplace: {y: 'Relu(x, like=y)'}\nkernel: attention", "ATF215"),
        ("level: constant\nreplace: {y: 'Relu(x)'}", "ATF215"),
        ("level: constant\nreplace: {y: 'Relu(z, like=y)'}", "ATF210"),
        ("level: constant\nreplace: {y: 'Relu(t, like=y)'}\ntensors: {t: foo(x)}", "ATF209"),
    ],
)
def test_what_a_rule_becomes_is_said_in_one_way(atcfuse, tmp_path, lines, code):
    head = "rule: r\nswitch: RPass\nsummary: s\nwhy: w\nlimits: l\ntypes: {T: [float]}\ninputs: {x: T}\n"
    (tmp_path / "r.yaml").write_text(f"{head}pattern: {{y: Relu(x)}}\nanchor: y\n{lines}\n")
    outcome = atcfuse("rules", "check", "--rules", tmp_path)
    assert outcome.code == 1
    assert code in outcome.err
