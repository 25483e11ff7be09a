"""A short run of the fuzzer with a fixed seed, and that it finds what it is there to find."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from judge import Said, Task, Wrong, _agree_by_definition, _judge, compare
from limits import run_limited
from networks import network
from onnx import ModelProto, TensorProto, helper, parser

from atcfuse.verify.compare import Tolerance

HERE = Path(__file__).resolve().parent


def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "run.py"), "--seed", "short", "--minutes", "2", "--cases", "12", "--out", "out"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 findings") == len(done.stdout.splitlines())


def test_what_a_case_may_take_is_bounded() -> None:
    def endless(phase: object) -> str:
        phase("turning")  # type: ignore[operator]
        while True:
            pass

    def greedy(phase: object) -> str:
        return str(len([bytearray(1 << 24) for _ in range(1 << 10)]))

    started = time.monotonic()
    outcome = run_limited(endless, 0.5)
    assert (outcome.text, outcome.phase) == ("", "turning")
    assert outcome.died
    assert time.monotonic() - started < 20
    assert "MemoryError" in run_limited(greedy, 5, memory=1 << 28).died
    assert run_limited(lambda phase: "fine", 5).text == "fine"


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (Said(0, "", "error: ATF199: an internal error"), "ATF199"),
        (Said(1, "", "Traceback (most recent call last)"), "Traceback"),
        (Said(-11, "", ""), "exit code -11"),
        (Said(1, "", "no"), "without a code"),
        (Said(1, "", "error: ATF999: no page"), "without a page"),
        (Said(1, "", "error: ATF101: \x1b[31m"), "control characters"),
    ],
)
def test_a_command_that_ends_badly_is_found(tmp_path: Path, said: Said, what: str) -> None:
    with pytest.raises(Wrong, match=what):
        _judge(Task(random.Random(0), tmp_path, SimpleNamespace()), said, set())  # type: ignore[arg-type]


def test_files_of_a_failed_run_are_found(tmp_path: Path) -> None:
    task = Task(random.Random(0), tmp_path, SimpleNamespace())  # type: ignore[arg-type]
    (tmp_path / "m.fused.onnx").touch()
    with pytest.raises(Wrong, match="a run that failed"):
        _judge(task, Said(1, "", "error: ATF101: x"), set())
    (tmp_path / ".atcfuse-1.tmp").touch()
    with pytest.raises(Wrong, match="temporary"):
        _judge(task, Said(0, "", ""), set())


def _scaled(model: ModelProto, factor: float) -> ModelProto:
    """The model with its first output times a number."""
    changed = ModelProto()
    changed.CopyFrom(model)
    name = changed.graph.output[0].name
    for node in changed.graph.node:
        node.output[:] = [f"{o}_before" if o == name else o for o in node.output]
        node.input[:] = [f"{i}_before" if i == name else i for i in node.input]
    dtype = changed.graph.input[0].type.tensor_type.elem_type
    changed.graph.initializer.append(helper.make_tensor("wrong_factor", dtype, [], [factor]))
    changed.graph.node.append(helper.make_node("Mul", [f"{name}_before", "wrong_factor"], [name]))
    return changed


def test_a_wrong_model_is_found(tmp_path: Path) -> None:
    told = []
    task = Task(random.Random(0), tmp_path, lambda phase: told.append(phase))  # type: ignore[arg-type]
    seed = next(
        s
        for s in range(100)
        if network(random.Random(s)).model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    )
    built = network(random.Random(seed))
    assert compare(task, built.model, lambda: built.model, tmp_path, built.feeds) == "equal"
    with pytest.raises(Wrong, match="off by"):
        compare(task, built.model, lambda: _scaled(built.model, 1.01), tmp_path, built.feeds)
    with pytest.raises(Wrong, match="onnxruntime runs the original only"):
        compare(task, built.model, lambda: ModelProto(), tmp_path, built.feeds)
    assert told


@pytest.mark.parametrize(("op", "same"), [("Max", True), ("Min", False)])
def test_models_of_16_bits_are_judged_by_what_their_operators_mean(op: str, same: bool) -> None:
    head = '<ir_version: 9, opset_import: ["" : 17]> g (float16[64] x, float16[64] z) => (bool[64] y)'
    plain = parser.parse_model(f"{head} {{ q = Div(x, z) m = Max(q, z) y = Equal(m, q) }}")
    rounded = f"r = Cast<to = 1>(q) s = Cast<to = 10>(r) m = {op}(s, z) y = Equal(m, q)"
    other = parser.parse_model(f"{head} {{ q = Div(x, z) {rounded} }}")
    feed = {n: np.random.default_rng(i).normal(2, 0.5, 64).astype(np.float16) for i, n in enumerate("xz")}
    assert _agree_by_definition(plain, other, feed, Tolerance(1e-3)) == same
