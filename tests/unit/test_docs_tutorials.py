"""The tutorials in docs/: everything on a page is done in its order, in a folder of its own."""

from __future__ import annotations

import doctest
import re
import shlex
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import onnx
import pytest

from atcfuse.cli import run as run_cli

ROOT = Path(__file__).parents[2]
RULE = Path("my_rules/l2_norm_linear.yaml")


def blocks(name: str) -> list[tuple[str, str]]:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_a_rule_is_written_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    for language, body in blocks("write-a-rule.md"):
        if language == "python":
            subprocess.run([sys.executable, "-c", body], check=True)
        elif language == "yaml":
            RULE.write_text(body, encoding="utf-8")
        else:
            for line in body.splitlines():
                assert run_cli(shlex.split(line)[1:]) == 0, line
                said.append("".join(capfd.readouterr()))
    everything = "\n".join(said)
    assert "a draft that matches 1 place in model.onnx" in said[0]
    assert "ATF345 ×1 l2_norm_linear" in everything
    assert "2 examples, all right" in everything
    assert "FusedLayerNormQKV" in said[-2]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_fused_model_is_debugged_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], compiled: bool
) -> None:
    """Those commands that compile kernels take a minute, so an ordinary run leaves them out."""
    if compiled and shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "sample_models/bert_ts11_fp32_dynamic.onnx", "model.onnx")
    page = blocks("debug-a-fused-model.md")
    (yaml,) = [body for language, body in page if language == "yaml"]
    Path("sw.yaml").write_text(yaml)
    said: dict[str, str] = {}
    for line in [line for language, body in page if language == "sh" for line in body.splitlines()]:
        words = shlex.split(line)
        given = dict(word.split("=") for word in takewhile(lambda word: word.startswith("GF_"), words))
        if compiled or not {"--kernels", "kernels"} & set(words):
            with monkeypatch.context() as patch:
                for name, value in given.items():
                    patch.setenv(name, value)
                assert run_cli(words[len(given) + 1 :]) == 0, line
        said[line] = "".join(capfd.readouterr())
    assert {"--kernels", "kernels"} <= {word for line in said for word in line.split()}

    def told(part: str) -> str:
        return next(text for line, text in said.items() if part in line)

    assert "scale=0.25" in told("explain model.onnx")
    assert "against ATC alone" in told("explain model.onnx")
    assert "ATF325" in told("kept.report")
    assert "attention: 2 → 0" in told("half.report")
    assert "FusedAttention" not in {node.op_type for node in onnx.load("off.onnx").graph.node}
    assert not any(node.op_type.startswith("Fused") for node in onnx.load("plain.onnx").graph.node)


def test_the_examples_in_python_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import atcfuse.api.memory

    (tmp_path / "sample_models").symlink_to(ROOT / "sample_models")
    monkeypatch.chdir(tmp_path)
    page = str(ROOT / "docs" / "python.md")
    assert doctest.testfile(page, module_relative=False).failed == 0
    ran = doctest.testmod(atcfuse.api.memory)
    assert (ran.failed, ran.attempted) == (0, 2)
