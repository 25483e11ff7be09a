"""Names of a model that are code, markup, control sequences or books: they reach no shell, no path and no C++ source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest
from cli_support import files
from onnx.parser import parse_model

TEXT = """<ir_version: 8, opset_import: ["" : 17]> m (float[N,4,512] x, float[512] g, float[512,512] w) => (float[N,4,512] y) {
  n = LayerNormalization<epsilon = 1e-5>(x, g)
  p = MatMul(n, w)
  s = Sigmoid(p)
  q = Mul(p, s)
  a = Abs(q)
  y = Exp(a)
}"""
HOSTILE = {
    "all": "",
    "quotes": "\"'`\\",
    "C++": '*/ "); system("touch PWNED"); //\n#error "name" ??/\n#include </etc/passwd>',
    "shell": "$(touch PWNED); `touch PWNED` | touch PWNED & -rf %s%n",
    "controls": "\x1b[31mred\x07\r\b\x00\x7f\u202egnp\u2028\ufeff",
    "path": "../../../PWNED/\\..\\PWNED",
    "long": "n" * 10_000,
    "markup": "</script><img src=x onerror=boom()>{{ 7*7 }}{% raw %}${x}",
    "YAML": "a: &b [*b, !!python/object/apply:os.system ['touch PWNED']] # x",
}
HOSTILE["all"] = "".join(HOSTILE.values())
OPTIONS = ("--min-saving", "0", "--force", "linear_epilogue")


def _named(prefix: str) -> onnx.ModelProto:
    """The model with a prefix in front of every name that its file has."""
    model = parse_model(TEXT)
    graph = model.graph
    for index, node in enumerate(graph.node):
        node.name = f"{prefix}{index}"
        node.input[:] = [prefix + i for i in node.input]
        node.output[:] = [prefix + o for o in node.output]
    for value in (*graph.input, *graph.output):
        value.name = prefix + value.name
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = prefix + dim.dim_param
    graph.name, graph.doc_string, model.producer_name = prefix, prefix, prefix
    model.metadata_props.add(key=prefix, value=prefix)
    return model


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _said(outcome, code: int = 0) -> str:
    assert outcome.code == code, outcome.err
    odd = {c for c in outcome.out + outcome.err if not c.isprintable() and c != "\n"}
    assert odd == set()
    return outcome.out


def _formats(atcfuse, report: Path) -> None:
    for form in ("text", "markdown", "html", "sarif", "junit", "code-quality", "fusion-result"):
        _said(atcfuse("report", report, "--format", form))
    for form in ("text", "markdown", "json"):
        _said(atcfuse("diff", report, report, "--format", form))


@pytest.mark.parametrize("what", ["all", *(pytest.param(k, marks=pytest.mark.slow) for k in HOSTILE if k != "all")])
def test_names_stay_names(atcfuse, tmp_path, what):
    plain, folder = tmp_path / "plain", tmp_path / "hostile"
    for place, prefix in ((plain, "p"), (folder, HOSTILE[what])):
        place.mkdir()
        onnx.save(_named(prefix), place / "m.onnx")
        _said(atcfuse("optimize", place / "m.onnx", *OPTIONS, "-v"))
    report = json.loads((folder / "m.fused.report.json").read_text("utf-8"))
    assert len(report["fusions"]) == 2
    # The project is of the operators alone: whatever a model calls its tensors, its bytes are the same.
    assert files(folder / "m.fused.kernels") == files(plain / "m.fused.kernels")
    written = {name for name in files(folder) if not name.startswith("m.fused.kernels/")}
    assert written == {name for name in files(plain) if not name.startswith("m.fused.kernels/")}
    _formats(atcfuse, folder / "m.fused.report.json")
    _said(atcfuse("explain", folder / "m.onnx"))
    _said(atcfuse("explain", folder / "m.onnx", "--node", f"{HOSTILE[what]}1"))
    _said(atcfuse("check", folder / "m.onnx", "--format", "sarif"), atcfuse("check", folder / "m.onnx").code)
    _said(atcfuse("restore", folder / "m.fused.onnx", "-o", folder / "r.onnx"))
    _said(atcfuse("kernels", "generate", folder / "m.fused.onnx", "-o", folder / "k"))
    assert files(folder / "k") == files(plain / "m.fused.kernels")
    assert not list(tmp_path.rglob("PWNED"))


@pytest.mark.parametrize("what", ["C++", "controls", "YAML"])
def test_a_rule_drafted_from_such_a_model_is_data(atcfuse, tmp_path, what):
    onnx.save(_named(HOSTILE[what]), tmp_path / "m.onnx")
    model, out = tmp_path / "m.onnx", tmp_path / "mine" / "mine.yaml"
    outcome = atcfuse(
        "rules", "new", "mine", "--from", model, "--nodes", f"{HOSTILE[what]}4,{HOSTILE[what]}5", "-o", out
    )
    if outcome.code:
        assert "error: ATF1" in outcome.err
        assert not out.exists()
        return
    _said(outcome)
    _said(atcfuse("rules", "check", "--rules", out.parent))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_the_kernels_of_such_a_model_compile_and_run(atcfuse, tmp_path):
    text = '<ir_version: 8, opset_import: ["" : 17]> m (float[64,512] x) => (float[64,512] y) { a = Abs(x) y = Exp(a) }'
    model = parse_model(text)
    name = HOSTILE["C++"]
    model.graph.node[0].name, model.graph.node[0].output[0] = name, name
    model.graph.node[1].name, model.graph.node[1].input[0] = f"{name} ", name
    onnx.save(model, tmp_path / "m.onnx")
    _said(atcfuse("optimize", tmp_path / "m.onnx", "--min-saving", "0"))
    assert "FusedElementwise" in _said(atcfuse("kernels", "run", tmp_path / "m.fused.onnx"))
