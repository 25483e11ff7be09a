"""What only a terminal sees: progress, colours; and what --quiet leaves. The program runs on a terminal of its own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import SAMPLES

from atcfuse.lang.width import display_width

REPORT = Path(__file__).parents[1] / "golden" / "report" / "atc.json"
BERT = SAMPLES / "bert_ts11_fp32_dynamic.onnx"
CODE = "from atcfuse.cli import console, main; console._PATIENCE = console._PAUSE = 0.0; main()"


def on_terminal(*line: object, **environment: str) -> tuple[str, str]:
    """Standard output, which is a pipe, and what a terminal on standard error got."""
    ours, theirs = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "ATCFUSE_LANG")}
    with subprocess.Popen(
        [sys.executable, "-c", CODE, *map(str, line)],
        env={**env, "PYTHONPATH": ":".join(p for p in sys.path if p), "LANG": "C.UTF-8", **environment},
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as run:
        os.close(theirs)
        seen = bytearray()
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            seen += piece
        assert run.stdout is not None
        out = run.stdout.read().decode()
    os.close(ours)
    return out, seen.decode()


def test_a_terminal_sees_phases_with_counts_and_the_line_goes_away() -> None:
    out, seen = on_terminal("optimize", BERT, "--dry-run")
    for phase in ("inferring shapes", "matching rules: 1/", "generating kernels", "writing the report"):
        assert phase in seen, seen
    assert seen.rindex("\r\x1b[K") > seen.rindex("writing the report")
    assert "\x1b" not in out
    assert "matching rules" not in out


def test_progress_is_told_in_the_readers_language() -> None:
    _, seen = on_terminal("optimize", BERT, "--dry-run", "--lang", "zh")
    assert "正在匹配规则：1/" in seen


def test_quiet_is_one_line_and_no_progress() -> None:
    out, seen = on_terminal("optimize", BERT, "--dry-run", "--quiet")
    assert len(out.splitlines()) == 1
    assert seen == ""


def test_a_pipe_sees_no_progress(atcfuse) -> None:
    outcome = atcfuse("optimize", BERT, "--dry-run")
    assert "matching rules" not in outcome.err
    assert "\x1b" not in outcome.out + outcome.err


@pytest.mark.parametrize(
    ("options", "environment", "painted"),
    [
        ([], {}, True),
        ([], {"NO_COLOR": "1"}, False),
        (["--color", "never"], {}, False),
        (["--color", "always", "--lang", "zh"], {"NO_COLOR": "1"}, True),
    ],
)
def test_colours_are_for_terminals_that_want_them(options, environment, painted, tmp_path: Path) -> None:
    switches = tmp_path / "sw.json"
    switches.write_text('{"Switch": {"GraphFusion": {"fusedAttentionFusionPas": "off"}}}')
    _, seen = on_terminal("switches", switches, *options, **environment)
    assert "ATF2" in seen
    assert ("\x1b[3" in seen) is painted


@pytest.mark.parametrize("line", [["rules", "list"], ["kernels", "list"], ["report", REPORT]])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_tables_fit_a_terminal_of_60_columns(line, lang) -> None:
    code = f"import os, shutil; shutil.get_terminal_size = lambda: os.terminal_size((60, 20)); {CODE}"
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, line), "--lang", lang, *(["--color", "never"] * (line[0] == "report"))],
        env={**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p)},
        stdout=theirs,
    ):
        os.close(theirs)
        seen = bytearray()
        try:
            while piece := os.read(ours, 65536):
                seen += piece
        except OSError:  # the other side is closed
            pass
    os.close(ours)
    lines = seen.decode().splitlines()
    assert len(lines) > 5
    assert [text for text in lines if display_width(text) > 60] == []
