"""`optimize` of several models, one operator project for all, and the kernel cache."""

from __future__ import annotations

import json
import shutil

import pytest
from cli_support import SAMPLES, files

from atcfuse.diagnostics import UsageError
from atcfuse.many import optimize_files

BERT, NANO = SAMPLES / "bert_ts17_fp32_dynamic.onnx", SAMPLES / "nanogpt_ts16_fp32_dynamic.onnx"
FORCE = ("--min-saving", "0")


@pytest.fixture
def two(tmp_path):
    found = []
    for source in (BERT, NANO):
        found.append(tmp_path / source.name)
        shutil.copy(source, found[-1])
    return found


def test_each_model_is_done_as_if_it_were_alone(atcfuse, tmp_path, two):
    outcome = atcfuse("optimize", *two, "-q", *FORCE)
    assert outcome.code == 0, outcome.err
    assert [line.split(":")[0] for line in outcome.out.splitlines()] == [p.name for p in two]
    alone = tmp_path / "alone"
    alone.mkdir()
    for path in two:
        shutil.copy(path, alone)
        assert atcfuse("optimize", alone / path.name, "-q", *FORCE).code == 0
    together = {n: d for n, d in files(tmp_path).items() if not n.startswith("alone/")}
    assert together == files(alone)


def test_one_project_holds_the_kernels_of_all(atcfuse, tmp_path, two):
    shared = tmp_path / "k"
    outcome = atcfuse("optimize", *two, "--kernels-dir", shared, *FORCE)
    assert outcome.code == 0, outcome.err
    assert not list(tmp_path.glob("*.kernels"))
    reports = [json.loads(p.read_text()) for p in sorted(tmp_path.glob("*.report.json"))]
    assert {r["files"]["kernels"] for r in reports} == {"k"}
    wanted = {f["kernel"] for r in reports for f in r["fusions"] if f.get("kernel")}
    assert len(wanted) > 1
    ops = {op["op"] for op in json.loads((shared / "msopgen.json").read_text())}
    assert ops == wanted
    assert {p.name for p in (shared / "tests").iterdir()} == wanted
    assert (shared / "build.sh").stat().st_mode & 0o111


def test_the_shared_project_of_one_model_is_its_own(atcfuse, tmp_path):
    shutil.copy(BERT, tmp_path)
    model = tmp_path / BERT.name
    assert atcfuse("optimize", model, "-o", tmp_path / "a.onnx", *FORCE).code == 0
    assert atcfuse("optimize", model, "-o", tmp_path / "b.onnx", "--kernels-dir", tmp_path / "k", *FORCE).code == 0
    assert files(tmp_path / "k") == files(tmp_path / "a.kernels")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_one_that_fails_does_not_keep_the_others(atcfuse, tmp_path, two):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    outcome = atcfuse("optimize", two[0], broken, two[1], "--kernels-dir", tmp_path / "k", "-q")
    assert outcome.code == 1
    assert "broken.onnx: failed" in outcome.err
    assert "ATF107" in outcome.err
    assert len(outcome.out.splitlines()) == 2
    assert (tmp_path / "nanogpt_ts16_fp32_dynamic.fused.onnx").is_file()
    assert (tmp_path / "k" / "build.sh").is_file()


def test_kernels_that_cannot_be_told_apart_fail_the_second_model(atcfuse, tmp_path):
    import onnx
    from onnx.parser import parse_model

    paths = []
    for element in ("float", "float16"):
        text = f"""<ir_version: 8, opset_import: ["" : 17]>
        m ({element}[64,512] x, {element}[512] g, {element}[512,512] a, {element}[512,512] b)
          => ({element}[64,512] p, {element}[64,512] q) {{
          n = LayerNormalization(x, g)
          p = MatMul(n, a)
          q = MatMul(n, b)
        }}"""
        paths.append(tmp_path / f"{element}.onnx")
        onnx.save(parse_model(text), paths[-1])
    arguments = (
        "--kernels-dir",
        tmp_path / "k",
        "--precision-mode",
        "must_keep_origin_dtype",
        "--force",
        "layer_norm_pair",
    )
    outcome = atcfuse("optimize", *paths, *arguments)
    assert outcome.code == 1
    assert "ATF735" in outcome.err
    assert (tmp_path / "float.fused.onnx").is_file()
    assert not (tmp_path / "float16.fused.onnx").exists()
    assert (tmp_path / "k" / "build.sh").is_file()


def test_json_of_several_is_a_list_and_a_report_folder_has_one_each(atcfuse, tmp_path, two):
    outcome = atcfuse("optimize", *two, "--format", "json", "--report", tmp_path / "r", "--no-kernels")
    assert [r["model"]["name"] for r in json.loads(outcome.out)] == [p.name for p in two]
    assert sorted(files(tmp_path / "r")) == sorted(
        f"{p.stem}.fused/report.{e}" for p in two for e in ("html", "json", "md")
    )


@pytest.mark.parametrize(
    "arguments",
    [("-o", "x.onnx"), ("--baseline", "b.json"), ("--report", "r.json"), ("--kernels-dir", "k", "--no-kernels")],
)
def test_options_about_one_model_are_refused(atcfuse, two, arguments):
    outcome = atcfuse("optimize", *two, *arguments)
    assert outcome.code == 2
    assert "ATF179" in outcome.err


def test_a_model_given_twice_is_refused(atcfuse, two):
    outcome = atcfuse("optimize", two[0], two[0])
    assert outcome.code == 2
    assert "ATF179" in outcome.err


def test_outputs_of_an_earlier_run_are_no_models_of_the_next(atcfuse, tmp_path, two):
    assert atcfuse("optimize", *two, "-q", "--no-kernels", "--resume").code == 0
    written = files(tmp_path)
    every = sorted(tmp_path.glob("*.onnx"))
    assert len(every) == 4
    outcome = atcfuse("optimize", *every, "--no-kernels", "--resume", "--merged-report", tmp_path / "all.json")
    assert outcome.code == 0
    assert "ATF184: left out 2 of 4 models" in outcome.err
    assert {n: d for n, d in files(tmp_path).items() if not n.startswith("all.")} == written
    merged = json.loads((tmp_path / "all.json").read_text())
    assert [entry["name"] for entry in merged["models"]] == sorted(path.name for path in two)
    one = two[0].with_name(two[0].name.replace(".onnx", ".fused.onnx"))
    assert atcfuse("optimize", one, "-q", "--no-kernels").code == 0, "alone it is a model like any other"


def test_the_library_refuses_a_model_that_another_is_written_to(two):
    with pytest.raises(UsageError) as raised:
        optimize_files([two[0], two[0].with_name(two[0].name.replace(".onnx", ".fused.onnx"))])
    assert raised.value.diagnostics[0].code == "ATF179"


def test_a_cache_changes_nothing_but_time(atcfuse, tmp_path):
    shutil.copy(BERT, tmp_path)
    model, cache = tmp_path / BERT.name, tmp_path / "cache"
    assert atcfuse("optimize", model, "-o", tmp_path / "a.onnx", *FORCE).code == 0
    kept = []
    for name in ("b", "c"):
        outcome = atcfuse("optimize", model, "-o", tmp_path / f"{name}.onnx", "--kernel-cache", cache, *FORCE)
        assert outcome.code == 0, outcome.err
        assert files(tmp_path / f"{name}.kernels") == files(tmp_path / "a.kernels")
        kept.append(files(cache))
    assert kept[0] == kept[1]
    manifests = [json.loads(data) for name, data in kept[0].items() if name.endswith("/kernel.json")]
    used = {p.name for p in (tmp_path / "a.kernels" / "tests").iterdir()}
    assert used <= {m["op_type"] for m in manifests}, "candidates are there as well, and each once"
    assert len({m["op_type"] for m in manifests}) == len(manifests)


def test_a_folder_of_somebody_else_keeps_every_file_away(atcfuse, tmp_path, two):
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    before = files(tmp_path)
    outcome = atcfuse("optimize", *two, "--kernels-dir", other)
    assert outcome.code == 1
    assert "ATF128" in outcome.err
    assert files(tmp_path) == before
