"""The recipes of docs/ci.md, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_support import SAMPLES

PAGE = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
LOST = "FusedAttentionFusionPass"


def block(language: str, mark: str) -> str:
    """The code block of a language that contains a text."""
    (found,) = [b for b in re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S) if mark in b]
    return str(found)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A repository with model, switch file and baseline, and `atcfuse` on the path beside an `atc` that says its words."""
    (tmp_path / "model.onnx").write_bytes((SAMPLES / "bert_ts11_fp32_dynamic.onnx").read_bytes())
    (tmp_path / "sw.yaml").write_text(f"Switch:\n  GraphFusion:\n    {LOST}: on\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    command = f'#!/bin/sh\nexec "{sys.executable}" -c "from atcfuse.cli import main; main()" "$@"\n'
    for name, text in (
        ("atcfuse", command),
        ("atc", '#!/bin/sh\necho "$ASCEND_CUSTOM_OPP_PATH $@" > atc.log\n: > model.om\n'),
    ):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    first = block("sh", "cp model.fused.report.json")
    assert run(tmp_path, first).returncode == 0
    return tmp_path


def run(folder: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'tools'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    return subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)


def switch_off(folder: Path) -> None:
    """A pull request that loses all attention fusions."""
    (folder / "sw.yaml").write_text(f"Switch:\n  GraphFusion:\n    {LOST}: off\n")


def test_github_fails_on_a_regression_and_shows_it(job: Path) -> None:
    steps = {
        s["name"]: s["run"] for s in yaml.safe_load(block("yaml", "jobs:"))["jobs"]["fuse"]["steps"] if "name" in s
    }
    assert run(job, steps["fuse"]).returncode == 0
    switch_off(job)
    failed = run(job, steps["fuse"])
    assert failed.returncode == 1
    assert "ATF537" in failed.stderr
    shown = run(job, steps["show"], GITHUB_STEP_SUMMARY=str(job / "summary.md"))
    assert shown.returncode == 0, shown.stderr
    assert "FusedAttention" in (job / "summary.md").read_text()
    codes = [r["ruleId"] for r in json.loads((job / "atcfuse.sarif").read_text())["runs"][0]["results"]]
    assert "ATF321" in codes


def test_gitlab_leaves_its_artifacts(job: Path) -> None:
    recipe: Any = yaml.safe_load(block("yaml", "before_script"))["fuse"]
    switch_off(job)
    assert run(job, "\n".join(recipe["script"])).returncode == 1
    assert run(job, "set -e\n" + "\n".join(recipe["after_script"])).returncode == 0
    quality = json.loads((job / recipe["artifacts"]["reports"]["codequality"]).read_text())
    assert {"ATF321"} <= {entry["check_name"] for entry in quality}
    assert all((job / path).exists() for path in recipe["artifacts"]["paths"])


@pytest.mark.parametrize("worse", [False, True])
def test_the_shell_script_keeps_the_exit_code(job: Path, worse: bool) -> None:
    if worse:
        switch_off(job)
    done = run(job, block("bash", "--format junit"))
    assert done.returncode == int(worse)
    assert "<testsuite " in (job / "atcfuse.xml").read_text()
    assert "<testsuite " in (job / "check.xml").read_text()


def test_the_hook_refuses_what_atc_would(job: Path) -> None:
    (hook,) = yaml.safe_load(block("yaml", "hooks:"))["repos"][0]["hooks"]
    assert run(job, f"{hook['entry']} model.onnx model.onnx").returncode == 0
    (job / "bad.onnx").write_bytes(b"not a model")
    assert run(job, f"{hook['entry']} model.onnx bad.onnx").returncode == 1
    assert re.search(hook["files"], "a/model.onnx")
    assert re.search(hook["exclude"], "a/model.fused.onnx")


def test_make_chains_atcfuse_and_atc(job: Path) -> None:
    (job / "Makefile").write_text(
        block("make", "model.om:").replace("bash model.fused", "bash make_package.sh model.fused")
    )
    (job / "make_package.sh").write_text(PACKAGE)
    (job / "model.fused.onnx").unlink()
    done = run(job, "make model.om")
    assert done.returncode == 0, done.stderr
    words = (job / "atc.log").read_text()
    assert words.split()[0] == f"{job}/opp/vendors/v", "ATC was not told where the operators are"
    assert "--model=model.fused.onnx" in words
    assert "--soc_version=Ascend910B1" in words
    assert json.loads((job / "sw.json").read_text())["Switch"]


PACKAGE = """set -e
test -f "$1"
mkdir -p "$(dirname "$1")/build_out"
cat > "$(dirname "$1")/build_out/custom_opp_linux.run" <<'RUN'
#!/bin/sh
folder=${2#--install-path=}/vendors/v
mkdir -p "$folder/bin"
echo "export ASCEND_CUSTOM_OPP_PATH=$folder" > "$folder/bin/set_env.bash"
RUN
chmod +x "$(dirname "$1")/build_out/custom_opp_linux.run"
"""
"""In place of build.sh: a package that installs as those of the toolkit do."""

ELSEWHERE = ("python3 -m venv", ".venv/bin/", "cp sample_models/", "echo ", "atcfuse optimize sample_models/")
"""Lines that other tests run: set-up by .ci/run, the main job by test_docs, the gate below."""


@pytest.mark.parametrize("name", ["README.md", "docs/ci.md", pytest.param("README.zh.md", marks=pytest.mark.slow)])
def test_the_other_commands_of_a_page_run(job: Path, name: str) -> None:
    """In a folder with a model, its report as baseline, and ATC's file as it would write it."""
    text = (Path(__file__).parents[2] / name).read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S) for line in block.splitlines()]
    report = json.loads((job / "model.fused.report.json").read_text())
    (job / "main.report.json").write_text(json.dumps(report))
    (job / "models").mkdir()
    shutil.copy(job / "model.onnx", job / "models" / "a.onnx")
    passes = {p["name"]: p["times_after"] for p in report["atc"]["passes"] if p["times_after"]}
    counts = {key: {"match_times": str(n), "effect_times": str(n)} for key, n in passes.items()}
    (job / "fusion_result.json").write_text(json.dumps({"session_and_graph_id_0_0": {"graph_fusion": counts}}))
    done_before = block("sh", "cp model.fused.report.json").splitlines()
    wanted = [line for line in lines if not line.startswith(ELSEWHERE) and line not in done_before]
    wanted = [line for line in wanted if "sample_models" not in line]
    assert wanted
    for line in wanted:
        done = run(job, line)
        assert done.returncode == 0, f"{line}\n{done.stderr}"


def test_a_newcomer_gets_from_the_readme_to_a_failing_gate(job: Path) -> None:
    """Its commands as they stand there, in a checkout with the sample: a report, then a regression that exits with 1."""
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S) for line in block.splitlines()]
    (main,) = [line for line in lines if line.startswith(".venv/bin/atcfuse optimize")]
    start = next(i for i, line in enumerate(lines) if line.endswith("main.report.json") and line.startswith("cp "))
    (job / "sample_models").mkdir()
    sample = re.search(r"sample_models/(\w+)\.onnx", main)
    assert sample is not None
    (job / sample[0]).write_bytes((SAMPLES / f"{sample[1]}.onnx").read_bytes())
    (job / ".venv").mkdir()
    (job / ".venv" / "bin").symlink_to(job / "tools")
    done = [run(job, line) for line in (main, *lines[start : start + 4])]
    assert [d.returncode for d in done] == [0, 0, 0, 1, 0]
    assert (job / "sample_models" / f"{sample[1]}.fused.report.html").is_file()
    assert "ATF537" in done[3].stderr
    assert "**worse**" in done[4].stdout
