"""docs/rules.md: everything on the page is done in its order, in an empty folder."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from atcfuse.cli import run as run_cli

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"
RULE = Path("my_rules/l2_norm_linear.yaml")


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    for language, body in blocks():
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


def test_commands_and_options_of_the_page_exist() -> None:
    from test_docs import commands_in, problem

    wrong = {" ".join(words): found for words in commands_in("docs/rules.md") if (found := problem(words))}
    assert wrong == {}
