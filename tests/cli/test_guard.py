"""The guard around every command, and what a start costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_support import SAMPLES, files

import atcfuse.api as api
from atcfuse import __version__

HEAVY = {"onnx", "numpy", "onnxruntime", "yaml", "jinja2", "onnx_graphsurgeon", "google.protobuf"}
RUN = "import sys; from atcfuse.cli import main; sys.argv[1:] = {arguments!r}; main()"


def _program(*arguments: str) -> list[str]:
    return [sys.executable, "-c", RUN.format(arguments=list(arguments))]


def test_an_unexpected_exception_becomes_a_coded_error(atcfuse, bert, monkeypatch):
    def broken(*given, **more):
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(api, "optimize_file", broken)
    outcome = atcfuse("optimize", bert)
    assert outcome.code == 1
    assert "error: ATF199: " in outcome.err
    assert "KeyError: 'a mistake of ours'" in outcome.err
    assert "Traceback" not in outcome.err
    monkeypatch.setenv("ATCFUSE_TRACEBACK", "1")
    assert "Traceback" in atcfuse("optimize", bert).err


def test_an_interrupt_leaves_nothing_behind(atcfuse, bert, monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(api.file, "to_json", interrupted)  # after the model has been staged
    before = files(bert.parent)
    outcome = atcfuse("optimize", bert)
    assert outcome.code == 130
    assert files(bert.parent) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_program_with_its_own_code(tmp_path, number, code):
    fifo = tmp_path / "sw.json"  # the program waits for its switch file
    os.mkfifo(fifo)
    program = _program("optimize", str(SAMPLES / "bert_ts11_fp32_dynamic.onnx"), "--fusion-switch-file", str(fifo))

    def heard() -> None:  # a shell ignores SIGINT for what it runs in the background
        signal.signal(number, signal.SIG_DFL)

    with subprocess.Popen(program, stderr=subprocess.PIPE, cwd=tmp_path, preexec_fn=heard) as process:
        writer = os.open(fifo, os.O_WRONLY)  # returns when the program has opened it
        time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(60) == code
        os.close(writer)
        assert b"Traceback" not in process.stderr.read()
    assert [p.name for p in tmp_path.iterdir()] == ["sw.json"]


def test_a_closed_pipe_ends_quietly():
    process = subprocess.Popen(_program("rules", "list"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.wait(60) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


def test_starting_imports_nothing_heavy():
    code = f"import sys, atcfuse, atcfuse.cli; print({HEAVY!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_help_of_every_command_imports_nothing_heavy():
    code = (
        "import sys; from atcfuse.cli import run; from atcfuse.cli.app import COMMANDS\n"
        "[run([c, '--help']) for c in COMMANDS]; run(['--help']); run(['--version'])\n"
        f"print({HEAVY!r} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_version(atcfuse):
    first, *libraries = atcfuse("--version").out.splitlines()
    assert first == f"atcfuse {__version__}"
    assert {line.split()[0] for line in libraries} >= {"onnx", "onnxruntime", "numpy"}


def test_the_console_script_is_this_command_line():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert 'atcfuse = "atcfuse.cli:main"' in text
