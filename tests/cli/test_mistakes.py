"""Every mistake of a user: a code, exit code 1 or 2, no traceback, and not a file more or less than before."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from cli_support import SAMPLES, files

from atcfuse.diagnostics import all_codes
from atcfuse.resources import data_folder


@pytest.fixture
def refused(atcfuse, tmp_path):
    """Runs a command line that must fail with a code and change nothing below `tmp_path`; returns its stderr."""

    def call(code: str, exit_code: int, *arguments: object) -> str:
        before = files(tmp_path)
        outcome = atcfuse(*arguments)
        assert code in outcome.err
        assert outcome.code == exit_code
        assert "Traceback" not in outcome.err
        assert outcome.out == ""
        assert set(re.findall(r"ATF\d{3}", outcome.err)) <= set(all_codes())
        assert files(tmp_path) == before
        return outcome.err

    return call


def _no_graph() -> bytes:
    return onnx.ModelProto(ir_version=8, producer_name="x").SerializeToString()


BROKEN: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "empty file": ("ATF104", lambda good: b""),
    "truncated protobuf": ("ATF105", lambda good: good[: len(good) // 2]),
    "text file": ("ATF107", lambda good: b"this is not a model\n"),
    "ONNX without graph": ("ATF108", lambda good: _no_graph()),
    "another format": ("ATF106", lambda good: b"PK\x03\x04" + bytes(100)),
    "a Git LFS pointer": ("ATF107", lambda good: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
}


@pytest.mark.parametrize("command", ["optimize", "check", "explain", "verify", "diff", "restore"])
@pytest.mark.parametrize("what", BROKEN)
def test_a_file_that_is_no_model(refused, tmp_path, command, what):
    code, spoil = BROKEN[what]
    path = tmp_path / "m.onnx"
    path.write_bytes(spoil((SAMPLES / "bert_ts11_fp32_dynamic.onnx").read_bytes()))
    more = {"verify": [path], "diff": [path], "restore": ["-o", tmp_path / "out.onnx"]}.get(command, [])
    refused(code, 1, command, path, *more)


@pytest.mark.parametrize("command", ["optimize", "check", "explain"])
def test_a_missing_file_and_a_directory(refused, bert, command):
    assert 'did you mean "bert.onnx"?' in refused("ATF101", 1, command, bert.parent / "bret.onnx")
    refused("ATF102", 1, command, bert.parent)


def test_missing_external_data(refused, tmp_path):
    model = onnx.load(SAMPLES / "bert_ts11_fp32_dynamic.onnx")
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    refused("ATF109", 1, "optimize", tmp_path / "m.onnx")


def test_an_output_folder_that_is_not_there_or_is_a_file(refused, bert):
    refused("ATF119", 1, "optimize", bert, "-o", bert.parent / "no" / "out.onnx")
    (bert.parent / "file").write_text("x")
    refused("ATF119", 1, "optimize", bert, "-o", bert.parent / "file" / "out.onnx")
    refused("ATF122", 1, "optimize", bert, "-o", bert.parent)


def test_an_output_folder_that_may_not_be_written(refused, bert, monkeypatch):
    locked = bert.parent / "locked"
    locked.mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked and access(path, mode))
    refused("ATF120", 1, "optimize", bert, "-o", locked / "out.onnx")


@pytest.mark.parametrize("full_after", [0, 1, 2])
def test_a_full_disk(refused, bert, monkeypatch, full_after):
    written = []
    write = os.write

    def full(descriptor, data):
        if os.fstat(descriptor).st_nlink and Path(f"/proc/self/fd/{descriptor}").resolve().suffix == ".tmp":
            written.append(len(data))
            if len(written) > full_after:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    refused("ATF121", 1, "optimize", bert)


SWITCHES = {
    "JSON syntax": ("sw.json", '{"Switch": ', "ATF255"),
    "JSON value": ("sw.json", '{"Switch": {"GraphFusion": {"ALL": "maybe"}}}', "ATF261"),
    "lines": ("sw.cfg", "FusedAttentionFusionPass:on\nFusedLayerNormQKVFusionPass:perhaps\n", "ATF261"),
    "YAML syntax": ("sw.yaml", "Switch: [\n", "ATF256"),
    "YAML shape": ("sw.yaml", "Switch:\n  - a\n", "ATF259"),
    "empty": ("sw.json", "", "ATF252"),
}


@pytest.mark.parametrize("what", SWITCHES)
def test_a_bad_switch_file(refused, bert, what):
    name, text, code = SWITCHES[what]
    path = bert.parent / name
    path.write_text(text)
    assert name in refused(code, 1, "optimize", bert, "--fusion-switch-file", path)
    refused(code, 1, "switches", path)


def test_a_missing_switch_file_is_wrong_usage(refused, bert):
    refused("ATF250", 2, "optimize", bert, "--fusion-switch-file", bert.parent / "sw.yaml")


RULES = {
    "YAML syntax": (lambda t: t.replace("pattern:", "pattern: [", 1), "ATF201"),
    "unknown key": (lambda t: t.replace("summary:", "sumary:", 1), "ATF202"),
    "duplicate key": (lambda t: f"{t}\nlevel: graph\n", "ATF203"),
    "anchor": (lambda t: t.replace("level: graph", "level: &a graph", 1), "ATF204"),
    "implicit boolean": (lambda t: t.replace("level: graph", "level: on", 1), "ATF205"),
    "missing key": (lambda t: t.replace("level: graph\n", "", 1), "ATF206"),
    "wrong kind of value": (lambda t: t.replace("level: graph", "level: galaxy", 1), "ATF207"),
    "pattern syntax": (
        lambda t: t.replace("(logits)), axis=-1)", "(logits)),, axis=-1)"),
        "ATF208",
    ),
    "unknown fragment": (lambda t: t.replace("weights(probs", "wieghts(probs"), "ATF209"),
    "unknown type": (lambda t: t.replace("float16", "float17", 1), "ATF214"),
    "unknown kernel": (lambda t: t.replace("kernel: attention", "kernel: atention", 1), "ATF218"),
    "second of a name": (lambda t: t.replace("rule: mine", "rule: attention", 1), "ATF211"),
}


@pytest.mark.parametrize("what", RULES)
def test_a_bad_rule_file(refused, bert, what):
    spoil, code = RULES[what]
    good = (data_folder("rules") / "attention" / "attention.yaml").read_text(encoding="utf-8")
    good = good.replace("rule: attention\n", "rule: mine\n").partition("\nexamples:")[0]
    folder = bert.parent / "mine"
    folder.mkdir()
    bad = spoil(good)
    assert bad != good
    (folder / "mine.yaml").write_text(bad, encoding="utf-8")
    told = refused(code, 1, "optimize", bert, "--rules", folder)
    assert re.search(r"mine/mine\.yaml:\d+:\d+: error: ATF2\d\d: ", told)
    assert code in refused(code, 1, "rules", "check", "--rules", folder)


def test_rules_check_reports_the_mistakes_of_all_files(refused, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.yaml").write_text(f"rule: {name}\nlevl: graph\n")
    told = refused("ATF202", 1, "rules", "check", "--rules", folder)
    assert "mine/a.yaml:2:1" in told
    assert "mine/b.yaml:2:1" in told


def test_a_rules_folder_that_is_not_there(refused, bert):
    refused("ATF200", 2, "optimize", bert, "--rules", bert.parent / "none")


def test_names_that_do_not_exist(refused, bert, monkeypatch):
    assert 'did you mean "Ascend910B2"?' in refused("ATF160", 2, "optimize", bert, "--soc", "ascend910b2")
    assert 'did you mean "portable"?' in refused("ATF150", 2, "optimize", bert, "--dialect", "portabel")
    assert 'did you mean "attention"?' in refused("ATF134", 2, "explain", bert, "--rule", "atention")
    refused("ATF134", 2, "rules", "show", "nothing")
    refused("ATF135", 2, "kernels", "show", "nothing")
    refused("ATF133", 2, "explain", bert, "--node", "nothing")
    monkeypatch.setenv("GF_AUTOFUSION_DISABLE", "atention")
    assert 'did you mean "attention"?' in refused("ATF152", 2, "optimize", bert)


def test_a_code_that_does_not_exist(atcfuse):
    outcome = atcfuse("explain", "atf999")
    assert outcome.code == 2
    assert "ATF132: there is no code ATF999" in outcome.err


def test_input_equal_to_output_under_any_name(refused, bert):
    refused("ATF123", 2, "optimize", bert, "-o", bert)
    (bert.parent / "link.onnx").symlink_to(bert)
    refused("ATF123", 2, "optimize", bert, "-o", bert.parent / "link.onnx")
    refused("ATF123", 2, "restore", bert, "-o", bert)
    switches = bert.parent / "sw.json"
    switches.write_text('{"Switch": {"GraphFusion": {}}}')
    refused("ATF123", 2, "switches", switches, "--for-atc", switches)
    refused("ATF123", 2, "optimize", bert, "--fusion-switch-file", switches, "--report", switches)


def test_two_outputs_at_one_path(refused, bert):
    out = bert.parent / "x.json"
    refused("ATF127", 2, "optimize", bert, "-o", out, "--report", out)


def test_a_command_line_that_cannot_be_read(refused, bert):
    assert 'did you mean "optimize"?' in refused("ATF131", 2, "optimise", bert)
    refused("ATF131", 2, "optimize")
    assert "--dialect" in refused("ATF131", 2, "optimize", bert, "--dialekt", "atc")
    refused("ATF131", 2, "optimize", bert, "--format", "xml")
    refused("ATF131", 2, "verify", bert, bert, "--rtol", "-1")
    refused("ATF151", 2, "optimize", bert, "--assume", "batch:4")
    refused("ATF143", 2, "optimize", bert, "--max-regression", "1")


def test_a_gate_without_a_proper_baseline(refused, bert):
    refused("ATF530", 2, "optimize", bert, "--baseline", bert.parent / "none.json")
    other = bert.parent / "other.json"
    other.write_text("{}")
    refused("ATF533", 1, "optimize", bert, "--baseline", other)


def test_inputs_that_are_no_archive(refused, bert):
    refused("ATF500", 2, "verify", bert, bert, "--inputs", bert.parent / "none.npz")
    (bert.parent / "bad.npz").write_text("x")
    refused("ATF501", 1, "verify", bert, bert, "--inputs", bert.parent / "bad.npz")


def test_restoring_a_model_whose_functions_were_dropped(refused, atcfuse, bert):
    fused = bert.parent / "bert.fused.onnx"
    atcfuse("optimize", bert)
    model = onnx.load(fused)
    del model.functions[:]
    onnx.save(model, fused)
    refused("ATF140", 1, "restore", fused, "-o", bert.parent / "out.onnx")


def test_restoring_a_model_of_another_opset_than_its_functions(refused, atcfuse, bert):
    fused = bert.parent / "bert.fused.onnx"
    atcfuse("optimize", bert)
    model = onnx.load(fused)
    model.opset_import[0].version = 13
    onnx.save(model, fused)
    refused("ATF141", 1, "restore", fused, "-o", bert.parent / "out.onnx")
