"""`optimize` of several models on several processes, resumed, with one merged report."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_support import files
from onnx.parser import parse_model

from atcfuse.diagnostics import AtcfuseError
from atcfuse.pool import run_all

TEXT = """<ir_version: 8, opset_import: ["" : 17]> m (float[64,WIDTH] x, float[WIDTH,WIDTH] w) => (float[64,WIDTH] y) {
  p = MatMul(x, w)
  a = ACT(p)
  b = Abs(a)
  y = Exp(b)
}"""
OPTIONS = ("-q", "--min-saving", "0")


@pytest.fixture
def four(tmp_path: Path) -> list[Path]:
    """Three small models that need different kernels, and a file that is none, second."""
    paths = []
    for name, width, act in (("a", 64, "Relu"), ("b", 0, ""), ("c", 128, "Tanh"), ("d", 64, "Sigmoid")):
        paths.append(tmp_path / f"{name}.onnx")
        if width:
            onnx.save(parse_model(TEXT.replace("WIDTH", str(width)).replace("ACT", act)), paths[-1])
        else:
            paths[-1].write_text("no model")
    return paths


def _alone(atcfuse, four: list[Path], *options: object) -> dict[str, bytes]:
    """What a run with the same options leaves, models one after the other."""
    folder = four[0].parent.with_name(f"{four[0].parent.name}-alone")
    folder.mkdir()
    for path in four:
        shutil.copy(path, folder)
    shared = ("--kernels-dir", folder / "k") if "--kernels-dir" in options else ()
    assert atcfuse("optimize", *(folder / p.name for p in four), *OPTIONS, *shared).code == 1
    return files(folder)


@pytest.mark.parametrize(
    "backend",
    [
        "loky",
        *(
            pytest.param(
                name,
                marks=[
                    pytest.mark.slow,
                    pytest.mark.skipif(not importlib.util.find_spec(package), reason=f"no {name}"),
                ],
            )
            for name, package in (("dask", "distributed"), ("ray", "ray"))
        ),
    ],
)
def test_processes_leave_what_one_run_leaves(atcfuse, tmp_path, four, backend):
    expected = _alone(atcfuse, four, "--kernels-dir")
    options = ("--jobs", 2, "--backend", backend, "--kernels-dir", tmp_path / "k")
    outcome = atcfuse("optimize", *four, *OPTIONS, *options)
    assert outcome.code == 1
    assert [line.split(":")[0] for line in outcome.out.splitlines()] == ["a.onnx", "c.onnx", "d.onnx"]
    assert "b.onnx: failed" in outcome.err
    assert "ATF107" in outcome.err
    assert files(tmp_path) == expected


def test_the_merged_report_tells_of_all(atcfuse, tmp_path, four):
    outcome = atcfuse(
        "optimize", *four, *OPTIONS, "--kernels-dir", tmp_path / "k", "--merged-report", tmp_path / "all.json"
    )
    assert outcome.code == 1
    document = json.loads((tmp_path / "all.json").read_text())
    assert document["schema"] == "atcfuse.models/1"
    assert [(m["name"], m["outcome"]) for m in document["models"]] == [
        ("a.onnx", "done"), ("b.onnx", "failed"), ("c.onnx", "done"), ("d.onnx", "done"),
    ]  # fmt: skip
    assert document["models"][1]["diagnostics"][0]["code"] == "ATF107"
    single = [json.loads((tmp_path / f"{n}.fused.report.json").read_text())["summary"] for n in "acd"]
    for key in ("launches_before", "launches_after", "ddr_bytes_after_both"):
        assert document["summary"][key] == sum(s[key] for s in single)
    assert document["outcomes"] == {"done": 3, "skipped": 0, "failed": 1}
    assert document["kernels"] == "k"
    page = (tmp_path / "all.md").read_text()
    assert "4 models: 3 done, 1 failed" in page
    assert "ATF107" in page


def test_a_run_is_resumed_where_nothing_changed(atcfuse, tmp_path, four):
    del four[1]
    run = ("optimize", *four, *OPTIONS, "--resume", "--kernels-dir", tmp_path / "k")
    first = atcfuse(*run)
    assert first.code == 0
    before = files(tmp_path)
    again = atcfuse(*run)
    assert (again.code, again.out) == (0, first.out)
    assert atcfuse(*(a for a in run if a != "-q")).err.count("ATF183") == 3
    assert files(tmp_path) == before
    merged = tmp_path / "all.json"

    def outcomes(*more: object) -> list[str]:
        assert atcfuse(*run, *more, "--merged-report", merged).code == 0
        return [m["outcome"] for m in json.loads(merged.read_text())["models"]]

    assert outcomes() == ["skipped"] * 3
    (tmp_path / "a.fused.onnx").write_bytes(b"changed")
    (tmp_path / "c.fused.report.html").unlink()
    onnx.save(parse_model(TEXT.replace("WIDTH", "64").replace("ACT", "Neg")), four[2])
    assert outcomes() == ["done"] * 3
    assert outcomes("--assume", "n=3") == ["done"] * 3
    whole = files(tmp_path / "k")
    shutil.rmtree(tmp_path / "k")
    assert outcomes("--assume", "n=3") == ["skipped"] * 3
    assert files(tmp_path / "k") == whole


def test_changed_weights_switches_and_rules_are_done_again(atcfuse, tmp_path, four):
    model = onnx.load(four[0])
    weight = onnx.numpy_helper.from_array(np.full((64, 64), 0.5, np.float32), "w")
    model.graph.initializer.append(weight)
    del model.graph.input[1]
    onnx.save(model, four[0], save_as_external_data=True, location="w.bin", size_threshold=0)
    switches = tmp_path / "sw.json"
    switches.write_text('{"Switch": {"GraphFusion": {}}}')
    run = ("optimize", four[0], *OPTIONS, "--resume", "--fusion-switch-file", switches, "--format", "json")

    def skipped() -> bool:
        record = tmp_path / "a.fused.resume.json"
        was = record.stat().st_mtime_ns if record.exists() else 0
        assert atcfuse(*run).code == 0
        return record.stat().st_mtime_ns == was

    assert [skipped(), skipped()] == [False, True]
    os.utime(tmp_path / "w.bin", ns=(1, 1))
    assert [skipped(), skipped()] == [False, True]
    switches.write_text('{"Switch": {"GraphFusion": {"ALL": "off"}}}')
    assert [skipped(), skipped()] == [False, True]


@pytest.mark.parametrize(("backend", "package"), [("dask", "distributed"), ("ray", "ray"), ("loky", "joblib")])
def test_a_backend_that_is_missing_says_what_to_install(atcfuse, tmp_path, four, monkeypatch, backend, package):
    import atcfuse.pool as pool

    real = pool.import_module

    def missing(name: str):
        if name == package:
            raise ImportError(name)
        return real(name) if name == "joblib" else None

    monkeypatch.setattr(pool, "import_module", missing)
    before = files(tmp_path)
    outcome = atcfuse("optimize", *four, "--jobs", 2, "--backend", backend)
    assert outcome.code == 2
    assert "ATF181" in outcome.err
    assert "pip install" in outcome.err
    assert files(tmp_path) == before


def _deadly(item: int) -> int:
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def test_a_process_that_dies_takes_one_item_with_it():
    found = list(run_all(_deadly, [0, 1, 2, 3], 2))
    assert [f for f in found if not isinstance(f, AtcfuseError)] == [0, 1, 9]
    assert isinstance(found[2], AtcfuseError)
    assert found[2].diagnostics[0].code == "ATF182"


def test_a_mistake_of_ours_in_one_model_is_that_models_error(atcfuse, tmp_path, four, monkeypatch):
    import atcfuse.compiler as compiler

    real = compiler.optimize_proto

    def broken(proto, *given, **more):
        if any(node.op_type == "Tanh" for node in proto.graph.node):
            raise KeyError("ours")
        return real(proto, *given, **more)

    monkeypatch.setattr(compiler, "optimize_proto", broken)
    outcome = atcfuse("optimize", *four, *OPTIONS)
    assert outcome.code == 1
    assert outcome.err.count("ATF199") == 1
    assert (tmp_path / "d.fused.onnx").is_file()
    assert not (tmp_path / "c.fused.onnx").exists()


def test_errors_travel_between_processes():
    import pickle

    from atcfuse.diagnostics import UsageError, error

    told = UsageError([error("ATF101", "one", notes=["n"]), error("ATF102", "two")])
    back = pickle.loads(pickle.dumps(told))
    assert type(back) is UsageError
    assert back.diagnostics == told.diagnostics


@pytest.mark.parametrize("missing", ["model", "weights"])
def test_a_resumed_run_tells_of_a_file_that_is_not_there(atcfuse, tmp_path, four, missing):
    path = tmp_path / "missing.onnx"
    if missing == "weights":
        model = parse_model(TEXT.replace("WIDTH", "64").replace("ACT", "Relu"))
        weight = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
        model.graph.initializer.append(weight)
        onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
        (tmp_path / "w.bin").unlink()
    done = atcfuse("optimize", four[0], path, *OPTIONS, "--resume")
    assert "ATF199" not in done.err
    assert missing == "weights" or "ATF101" in done.err
    assert (tmp_path / "a.fused.onnx").is_file()
