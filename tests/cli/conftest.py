"""Command lines in this process, through the same guard that the console script has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_support import SAMPLES, Outcome

from atcfuse.cli import run


@pytest.fixture
def atcfuse(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Runs a command line."""
    for variable in ("GF_AUTOFUSION_DEBUG", "GF_AUTOFUSION_DISABLE", "ATCFUSE_TRACEBACK"):
        monkeypatch.delenv(variable, raising=False)

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        streams = capsys.readouterr()
        return Outcome(code, streams.out, streams.err)

    return call


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A copy of a small BERT in a folder of its own."""
    path = tmp_path / "bert.onnx"
    path.write_bytes((SAMPLES / "bert_ts11_fp32_dynamic.onnx").read_bytes())
    return path
