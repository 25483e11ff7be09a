"""Kernels from the command line: written beside the model, listed, generated again, and run in the twin."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from cli_support import Outcome, files

from atcfuse.verify import kernels as verify_kernels

Run = Callable[..., Outcome]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def rules_alone(atcfuse: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules' kernels are enough here: what no rule takes is not grouped."""
    monkeypatch.setenv("GF_AUTOFUSION_DISABLE", "elementwise")


@pytest.fixture(autouse=True)
def compiled_once(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands drop what they compiled; here it goes where the other tests find it."""
    run = verify_kernels.run_kernels
    monkeypatch.setattr(verify_kernels, "run_kernels", lambda *a, **more: run(*a, **{**more, "cache": compiled}))


NODE = "/bert/encoder/layer.0/attention/self/FusedAttention"


def test_optimize_writes_the_operator_project(atcfuse: Run, bert: Path) -> None:
    done = atcfuse("optimize", bert)
    assert done.code == 0
    folder = bert.with_name("bert.fused.kernels")
    assert os.access(folder / "build.sh", os.X_OK)
    assert (folder / ".atcfuse").is_file()
    assert "kernels: bert.fused.kernels" in done.out
    report = json.loads(bert.with_name("bert.fused.report.json").read_text())
    assert report["files"]["kernels"] == "bert.fused.kernels"


def test_a_second_run_and_generate_write_the_same_project(atcfuse: Run, bert: Path, tmp_path: Path) -> None:
    atcfuse("optimize", bert)
    first = files(bert.with_name("bert.fused.kernels"))
    fused = bert.with_name("bert.fused.onnx")
    for dialect in ("atc-flat", "portable"):
        assert atcfuse("optimize", fused, "-o", tmp_path / "again.onnx", "--dialect", dialect).code == 0
        assert files(tmp_path / "again.kernels") == first
        done = atcfuse("kernels", "generate", tmp_path / "again.onnx", "-o", tmp_path / "project")
        assert (done.code, done.out) == (0, f"{tmp_path / 'project'}\n")
        assert files(tmp_path / "project") == first


@pytest.mark.parametrize("option", [("--no-kernels",), ("--dry-run",), ("--soc", "Ascend310B1")])
def test_no_project_where_there_is_none_to_write(atcfuse: Run, bert: Path, option: tuple[str, ...]) -> None:
    assert atcfuse("optimize", bert, *option).code == 0
    assert not bert.with_name("bert.fused.kernels").exists()


def test_a_left_over_project_is_warned_of_and_kept(atcfuse: Run, bert: Path) -> None:
    assert "ATF146" not in atcfuse("optimize", bert).err
    before = files(bert.with_name("bert.fused.kernels"))
    done = atcfuse("optimize", bert, "--no-kernels")
    assert done.code == 0
    assert "warning: ATF146: bert.fused.kernels is of an earlier run" in done.err
    assert files(bert.with_name("bert.fused.kernels")) == before
    assert "ATF146" not in bert.with_name("bert.fused.report.json").read_text()


def test_a_folder_of_somebody_else_is_kept(atcfuse: Run, bert: Path) -> None:
    folder = bert.with_name("bert.fused.kernels")
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    done = atcfuse("optimize", bert)
    assert done.code == 1
    assert "ATF128" in done.err
    assert sorted(p.name for p in bert.parent.iterdir()) == ["bert.fused.kernels", "bert.onnx"]


def test_generate_follows_chip_and_precision_mode(atcfuse: Run, bert: Path, tmp_path: Path) -> None:
    atcfuse("optimize", bert)
    fused = bert.with_name("bert.fused.onnx")
    options = ("--soc", "Ascend310P3", "--precision-mode", "fp16")
    done = atcfuse("kernels", "generate", fused, "-o", tmp_path / "p", *options)
    assert done.code == 0
    assert re.search(r"warning: ATF738: \d+ fused nodes have no kernel on Ascend310P3", done.err)
    readme = (tmp_path / "p" / "README.md").read_text()
    assert "--soc_version=Ascend310P3 --precision_mode_v2=fp16" in readme
    assert "FusedLayerNormQKV" not in readme


PLANS = [("--tile-level", "small"), ("--tile-level", "large", "--occupancy", "1"), ("--occupancy", "0.3")]


@pytest.mark.parametrize("plan", PLANS)
def test_tile_level_and_occupancy_reach_every_command(
    atcfuse: Run, bert: Path, tmp_path: Path, plan: tuple[str, ...]
) -> None:
    """The report, the project and the project generated again from the fused model plan alike."""
    assert atcfuse("optimize", bert, *plan, "--assume", "batch=8,sequence=128").code == 0
    project = files(bert.with_name("bert.fused.kernels"))
    report = json.loads(bert.with_name("bert.fused.report.json").read_text())
    level = plan[1] if plan[0] == "--tile-level" else "auto"
    rows = {"small": 32, "large": 128, "auto": 0}[level]
    assert f"chip.tileRows = {rows};" in project["op_host/atcfuse_host.h"].decode()
    assert f"tile level {level}" in report["basis"]["on_chip"]
    taken = {f["tiling"]["rows"] for f in report["fusions"] if f["op"] == "FusedAttention"}
    assert taken == ({rows} if rows else taken)
    meant = {r for f in report["fusions"] for r in f["remarks"] if "meant for" in r}
    assert meant == ({"large tiles are meant for sequences from 2,048 and head dims from 64"} if rows == 128 else set())
    done = atcfuse("kernels", "generate", bert.with_name("bert.fused.onnx"), "-o", tmp_path / "project", *plan)
    assert done.code == 0
    assert files(tmp_path / "project") == project
    plain = atcfuse("kernels", "generate", bert.with_name("bert.fused.onnx"), "-o", tmp_path / "plain")
    assert plain.code == 0
    assert "ATF147: for the chip and options of bert.fused.report.json" in plain.err
    assert set(plan) <= set(plain.err.split())
    assert files(tmp_path / "plain") == project, "the report beside the model says how it was made"
    bert.with_name("bert.fused.report.json").unlink()
    assert atcfuse("kernels", "generate", bert.with_name("bert.fused.onnx"), "-o", tmp_path / "plain").err == ""
    assert files(tmp_path / "plain") != project


@needs_compiler
@pytest.mark.slow
def test_kernels_run_with_the_tiles_of_a_level(atcfuse: Run, bert: Path, tmp_path: Path) -> None:
    atcfuse("optimize", bert)
    fused, inputs = bert.with_name("bert.fused.onnx"), tmp_path / "inputs.npz"
    ids = np.arange(16, dtype=np.int64).reshape(1, 16)
    np.savez(inputs, input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=ids % 2)
    peaks = {}
    for level in ("small", "auto"):
        command = ("kernels", "run", fused, "--node", NODE, "--inputs", inputs, "--format", "json")
        done = atcfuse(*command, "--tile-level", level)
        assert done.code == 0, done.err
        (run,) = json.loads(done.out)["runs"]
        assert run["counted"] == run["predicted"]
        peaks[level] = run["counted"]["ub"]
    assert peaks["small"] != peaks["auto"]


def test_generate_says_why_there_is_nothing(atcfuse: Run, bert: Path) -> None:
    done = atcfuse("kernels", "generate", bert)
    assert done.code == 1
    assert "ATF736" in done.err
    atcfuse("optimize", bert)
    done = atcfuse("kernels", "generate", bert.with_name("bert.fused.onnx"), "--soc", "Ascend310B1")
    assert done.code == 1
    assert re.search(r"ATF738: \d+ fused nodes have no kernel on Ascend310B1", done.err)
    assert "ATF734" in done.err


def test_list_shows_chips_and_how_far_each_kernel_is_checked(atcfuse: Run) -> None:
    lines = atcfuse("kernels", "list").out.splitlines()
    attention = [" ".join(line.split()) for line in lines if line.startswith("attention ")]
    assert attention == [
        "attention FusedAttention Ascend910B*, Ascend910_93* float16, bfloat16 twin",
        "attention FusedAttention Ascend910B*, Ascend910_93* float32 checked in the twin only",
        "attention FusedAttention Ascend310P* float16 checked in the twin only",
    ]


def test_show_prints_the_contract(atcfuse: Run) -> None:
    assert "op: FusedAttention" in atcfuse("kernels", "show", "FusedAttention").out


@needs_compiler
def test_run_executes_a_node_in_the_twin(atcfuse: Run, bert: Path, tmp_path: Path) -> None:
    atcfuse("optimize", bert)
    shape = (1, 7)
    np.savez(
        tmp_path / "in.npz",
        input_ids=np.arange(7).reshape(shape),
        attention_mask=np.ones(shape, np.int64),
        token_type_ids=np.zeros(shape, np.int64),
    )
    arguments = (bert.with_name("bert.fused.onnx"), "--inputs", tmp_path / "in.npz", "--node", NODE)
    done = atcfuse("kernels", "run", *arguments, "--format", "json")
    assert done.code == 0, done.err
    (run,) = json.loads(done.out)["runs"]
    assert run["ok"]
    assert run["node"] == NODE
    assert run["counted"] == run["predicted"]
    assert run["counted"]["ub"] > 0
    assert run["max_rel"] < run["limit"] == 2e-2


@needs_compiler
def test_verify_runs_the_kernels_too(atcfuse: Run, bert: Path) -> None:
    atcfuse("optimize", bert)
    done = atcfuse("verify", bert, bert.with_name("bert.fused.onnx"), "--kernels")
    assert done.code == 0, done.err
    assert "models agree" in done.out
    fused = json.loads(bert.with_name("bert.fused.report.json").read_text())["fusions"]
    count, kernels = len(fused), len({f["kernel"] for f in fused})
    assert count > kernels > 3
    assert f"{count} fused nodes by {kernels} kernels in the twin: they agree with onnxruntime" in done.out


def test_without_a_compiler_the_message_says_what_to_do(
    atcfuse: Run, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    atcfuse("optimize", bert)
    monkeypatch.setenv("CXX", "no-such-compiler")
    done = atcfuse("kernels", "run", bert.with_name("bert.fused.onnx"))
    assert done.code == 1
    assert "ATF700" in done.err
    assert "install g++" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        ((), "ATF736", 1),
        (("--node", "nobody"), "ATF737", 2),
        (("--soc", "Ascend310B1"), "ATF738", 1),
        (("--precision-mode", "half"), "ATF153", 2),
        (("--tile-level", "medium"), "ATF159", 2),
        (("--occupancy", "80"), "ATF156", 2),
    ],
)
def test_mistakes_have_codes(atcfuse: Run, bert: Path, arguments: tuple[str, ...], code: str, exit_code: int) -> None:
    atcfuse("optimize", bert)
    model = bert if code == "ATF736" else bert.with_name("bert.fused.onnx")
    done = atcfuse("kernels", "run", model, *arguments)
    assert (done.code, code in done.err) == (exit_code, True)


@needs_compiler
def test_run_names_the_element_type_of_masks(atcfuse: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose first operand is a mask is a row of the table like any other."""
    monkeypatch.delenv("GF_AUTOFUSION_DISABLE")
    text = """<ir_version: 8, opset_import: ["" : 17]> masks (bool[2,40] m, float[2,40] x) => (float[2,40] y) {
      n = Not (m) \n a = Where (n, x, x) \n y = Relu (a)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "masks.onnx")
    done = atcfuse("optimize", tmp_path / "masks.onnx", "--force", "elementwise", "--min-saving", "0", "--no-kernels")
    assert done.code == 0
    shown = atcfuse("kernels", "run", tmp_path / "masks.fused.onnx")
    assert shown.code == 0
    assert re.search(r"AtcfuseElementwise\w{10} +bool +1 ", shown.out)


def assert_group_agrees(atcfuse: Run, model: Path, x: np.ndarray) -> None:
    """The kernel of the element-wise group that a model of one input becomes agrees with onnxruntime."""
    inputs, fused = model.with_name("x.npz"), model.with_suffix(".fused.onnx")
    np.savez(inputs, x=x)
    done = atcfuse("optimize", model, "--force", "elementwise", "--min-saving", "0", "--no-kernels")
    assert (done.code, "FusedElementwise" in done.out) == (0, True)
    done = atcfuse("verify", model, fused, "--kernels", "--inputs", inputs)
    assert done.code == 0, done.err
    assert "in the twin: they agree with onnxruntime" in done.out


@needs_compiler
@pytest.mark.parametrize(
    ("opset", "name", "axes"), [(17, "ReduceMax<axes = [-1]>(x)", ""), (18, "ReduceMax(x, last)", "last")]
)
def test_a_nan_anywhere_in_a_row_is_no_fault_of_a_kernel(
    atcfuse: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opset: int, name: str, axes: str
) -> None:
    """onnxruntime's extrema miss a NaN that is not the first of its row; kernels and ONNX do not."""
    monkeypatch.delenv("GF_AUTOFUSION_DISABLE")
    given = "<int64[1] last = {-1}>" if axes else ""
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
    rows (float[4,96] x) => (float[4,96] y, bool[4,96] z, float[4,96] s) {given} {{
      top = {name} \n low = {name.replace("Max", "Min")} \n y = Sub (x, top) \n z = Greater (x, low) \n s = Sign (x)
    }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "rows.onnx")
    x = np.random.default_rng(0).standard_normal((4, 96)).astype(np.float32)
    x[0, 0], x[1, 5], x[2, 95] = np.nan, np.nan, np.nan
    assert_group_agrees(atcfuse, tmp_path / "rows.onnx", x)


@needs_compiler
def test_halves_of_a_model_that_overflow_may_do_so_in_kernels(
    atcfuse: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half that overflows unforeseen breaks a rule of the twin; one that the model makes infinite as well does not."""
    monkeypatch.delenv("GF_AUTOFUSION_DISABLE")
    text = """<ir_version: 8, opset_import: ["" : 17]>
    halves (float16[4,96] x) => (float16[4,96] y) {
      m = Mul (x, x) \n a = Add (x, m) \n r = Sqrt (a) \n y = Add (r, a)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "halves.onnx")
    x = np.random.default_rng(0).standard_normal((4, 96)).astype(np.float16)
    x[0, 0], x[1, 5], x[2, 95], x[3, 3] = np.nan, np.inf, -np.inf, 65504
    assert_group_agrees(atcfuse, tmp_path / "halves.onnx", x)
