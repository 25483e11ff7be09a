"""Shell completion: the scripts, and what the program answers when a shell asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atcfuse.cli.app import COMMANDS
from atcfuse.cli.completion import SHELLS

BASH = shutil.which("bash")


def asked(words: str, at: int) -> list[str]:
    """What the program completes the word number `at` of a command line with."""
    environment = {**os.environ, "COMP_WORDS": words, "COMP_CWORD": str(at), "_ATCFUSE_COMPLETE": "bash_complete"}
    code = "from atcfuse.cli import main; main()"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": ":".join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stderr == ""
    return run.stdout.split()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_asks_the_program(atcfuse, shell):
    outcome = atcfuse("completion", shell)
    assert outcome.code == 0
    assert f"_ATCFUSE_COMPLETE={shell}_complete" in outcome.out
    assert outcome.err == ""


def test_another_shell_is_a_mistake(atcfuse):
    outcome = atcfuse("completion", "cmd")
    assert outcome.code == 2
    assert "ATF131" in outcome.err


@pytest.mark.parametrize(
    ("words", "at", "expected"),
    [
        ("atcfuse ", 1, {f"plain,{name}" for name in COMMANDS}),
        ("atcfuse op", 1, {"plain,optimize"}),
        ("atcfuse optimize --soc Ascend310P", 3, {"plain,Ascend310P1", "plain,Ascend310P3"}),
        ("atcfuse optimize --tile-level ", 3, {"plain,auto", "plain,small", "plain,large"}),
        ("atcfuse optimize --dialect atc-", 3, {"plain,atc-flat"}),
        ("atcfuse rules show layer_norm_p", 3, {"plain,layer_norm_packed_qkv", "plain,layer_norm_pair"}),
        ("atcfuse kernels show att", 3, {"plain,attention"}),
        ("atcfuse explain ATF30", 2, {"plain,ATF301", "plain,ATF302", "plain,ATF303", "plain,ATF305"}),
        ("atcfuse explain model", 2, {"file,model"}),
        ("atcfuse check --lang ", 3, {"plain,en", "plain,zh"}),
        ("atcfuse check --lang xx --", 4, None),
        ("atcfuse no-such-command x", 2, set()),
    ],
)
def test_what_completes_a_word(words, at, expected):
    found = set(asked(words, at))
    if expected is None:
        assert "plain,--format" in found
    else:
        assert found == expected


@pytest.mark.skipif(BASH is None, reason="no bash")
def test_bash_completes_with_the_script(atcfuse, tmp_path: Path):
    program = tmp_path / "atcfuse"
    paths = ":".join(p for p in sys.path if p)
    program.write_text(
        f"#!/bin/sh\nPYTHONPATH='{paths}' exec '{sys.executable}' -c 'from atcfuse.cli import main; main()' \"$@\"\n"
    )
    program.chmod(0o755)
    script = tmp_path / "completion.sh"
    script.write_text(atcfuse("completion", "bash").out)
    line = f"source {script}; COMP_WORDS=(atcfuse swi); COMP_CWORD=1; _atcfuse_completion {program}; echo ${{COMPREPLY[@]}}"
    run = subprocess.run([str(BASH), "-c", line], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "switches"
