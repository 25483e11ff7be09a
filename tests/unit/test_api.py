"""The Python API: models in memory, paths and graphsurgeon graphs; what changes and what does not."""

from __future__ import annotations

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

import atcfuse
from atcfuse.api import default_output, optimize_file, report_files
from atcfuse.diagnostics import AtcfuseError, UsageError
from atcfuse.report import validate

SAMPLE = Path(__file__).parents[2] / "sample_models" / "bert_ts11_fp32_dynamic.onnx"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("GF_AUTOFUSION_DEBUG", raising=False)
    monkeypatch.delenv("GF_AUTOFUSION_DISABLE", raising=False)


def _fused(model: onnx.ModelProto) -> list[str]:
    """What rules fused; leftover element-wise operators are grouped in any case."""
    fused = (n.op_type for n in model.graph.node if n.op_type.startswith("Fused"))
    return sorted(op for op in fused if not op.startswith("FusedElementwise"))


def test_what_the_caller_froze_stays_frozen():
    """A server freezes what it has loaded before it forks; thawed, collections would write to memory that is shared."""
    gc.freeze()
    frozen = gc.get_freeze_count()
    atcfuse.optimize(onnx.load(SAMPLE))
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen // 2  # some may have been freed in the meantime


def test_a_model_in_memory_is_not_changed():
    model = onnx.load(SAMPLE)
    before = model.SerializeToString()
    result = atcfuse.optimize(model)
    assert model.SerializeToString() == before
    layer = ["FusedAttention", "FusedLayerNormFFN", "FusedLinear"]
    projections = ["FusedAddLayerNormQKV", "FusedLayerNormQKV"]  # of the embeddings' sum, and of a layer's
    assert _fused(result.model) == sorted([*layer, *layer, *projections, "FusedLayerNorm", "FusedLinear"])
    assert result.graph is None


def test_a_path_and_its_model_give_the_same():
    by_path = atcfuse.optimize(SAMPLE, dialect="portable")
    by_text = atcfuse.optimize(str(SAMPLE), dialect="portable")
    by_model = atcfuse.optimize(onnx.load(SAMPLE), dialect="portable")
    assert by_path.model.SerializeToString() == by_model.model.SerializeToString() == by_text.model.SerializeToString()
    assert by_path.report["model"]["sha256"] is not None
    assert by_model.report["model"]["sha256"] is None


def test_options_and_overrides_say_the_same(tmp_path):
    options = atcfuse.Options(dialect="portable", soc="Ascend310P3", assume={"batch": 2})
    one = atcfuse.optimize(SAMPLE, options)
    two = atcfuse.optimize(SAMPLE, dialect="portable", soc="Ascend310P3", assume={"batch": 2})
    assert one.report == two.report
    assert (one.report["soc"], one.report["dialect"]) == ("Ascend310P3", "portable")
    assert one.report["summary"]["assumed_dims"]["batch"] == 2


def test_paths_in_options_may_be_text(tmp_path):
    switches = tmp_path / "sw.json"
    switches.write_text('{"Switch": {"GraphFusion": {"ALL": "off"}, "UBFusion": {"ALL": "off"}}}')
    result = atcfuse.optimize(SAMPLE, switch_file=str(switches))
    assert result.report["fusions"] == []
    assert "ATF273" in {d.code for d in result.diagnostics}
    with pytest.raises(AtcfuseError, match="ATF200"):
        atcfuse.optimize(SAMPLE, rules=str(tmp_path / "none"))


@pytest.mark.parametrize(("wrong", "code"), [({"soc": "Ascend999"}, "ATF160"), ({"dialect": "atcflat"}, "ATF150")])
def test_a_name_that_does_not_exist_is_refused(wrong, code):
    with pytest.raises(UsageError, match=code):
        atcfuse.optimize(SAMPLE, **wrong)


def test_what_is_no_option_or_no_model_is_a_type_error():
    with pytest.raises(TypeError, match="dialekt"):
        atcfuse.optimize(SAMPLE, dialekt="atc")
    with pytest.raises(TypeError, match="found int"):
        atcfuse.optimize(3)


def _run(model: onnx.ModelProto) -> list[np.ndarray]:
    import onnxruntime as ort

    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ids = np.arange(12, dtype=np.int64).reshape(2, 6)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return session.run(None, feeds)


def test_a_graphsurgeon_graph_comes_back_as_one():
    graph = gs.import_onnx(onnx.load(SAMPLE))
    nodes = len(graph.nodes)
    result = atcfuse.optimize(graph, dialect="portable")
    assert len(graph.nodes) == nodes
    assert isinstance(result.graph, gs.Graph)
    fused = [node for node in result.graph.nodes if node.op.startswith("Fused")]
    assert sorted(node.op for node in fused) == sorted(
        n.op_type for n in result.model.graph.node if "Fused" in n.op_type
    )
    assert {node.domain for node in fused} == {"atcfuse"}
    assert not result.graph.functions
    for wanted, got in zip(_run(onnx.load(SAMPLE)), _run(result.model), strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-5)


def test_a_graph_that_graphsurgeon_cannot_export_has_a_code():
    x = gs.Variable("x")  # without a dtype it can be no graph input
    graph = gs.Graph([gs.Node("Relu", inputs=[x], outputs=[gs.Variable("y")])], inputs=[x], outputs=[])
    with pytest.raises(AtcfuseError, match="ATF136"):
        atcfuse.optimize(graph)


def test_reports_fulfil_their_contract(tmp_path):
    assert validate(optimize_file(SAMPLE, tmp_path / "o.onnx").report) == []


def test_a_file_result_names_what_is_in_place(tmp_path):
    result = optimize_file(SAMPLE, tmp_path / "o.onnx")
    assert not result.failed
    assert set(result.written) == set(tmp_path.iterdir())
    assert result.written[0] == tmp_path / "o.onnx"
    dry = optimize_file(SAMPLE, tmp_path / "p.onnx", dry_run=True)
    assert dry.written == ()
    assert set(result.written) == set(tmp_path.iterdir())


def test_default_names():
    assert default_output(Path("a/bert.onnx")) == Path("a/bert.fused.onnx")
    assert default_output(Path("a/bert")) == Path("a/bert.fused.onnx")
    beside = (Path("a/o.report.json"), Path("a/o.report.md"), Path("a/o.report.html"))
    assert report_files(Path("a/o.onnx")) == beside
    assert report_files(Path("a/o.onnx"), Path("r.json")) == (Path("r.json"),)
    assert report_files(Path("a/o.onnx"), Path("r")) == tuple(
        Path("r", f"report.{form}") for form in ("json", "md", "html")
    )
    with pytest.raises(UsageError) as raised:
        report_files(Path("a/o.onnx"), Path("r.md"))
    assert raised.value.diagnostics[0].code == "ATF122"


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, atcfuse; atcfuse.Options; print({'onnx', 'numpy', 'onnxruntime'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_what_the_package_exports():
    assert set(atcfuse.__all__) <= set(dir(atcfuse))
    assert all(getattr(atcfuse, name) for name in atcfuse.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        atcfuse.nothing  # noqa: B018


def test_a_notebook_shows_the_report_in_a_frame():
    shown = atcfuse.optimize(SAMPLE)._repr_html_()
    assert shown.startswith("<iframe ")
    assert shown.count("<iframe") == 1
    assert "&lt;h1&gt;" in shown
    assert "<script>" not in shown


def test_a_result_has_the_operator_project_of_its_run(tmp_path):
    optimize_file(SAMPLE, tmp_path / "m.onnx")
    written = {
        p.relative_to(tmp_path / "m.kernels").as_posix(): p.read_bytes()
        for p in (tmp_path / "m.kernels").rglob("*")
        if p.is_file()
    }
    result = atcfuse.optimize(SAMPLE)
    before = result.model.SerializeToString()
    project = {path: data.encode() if isinstance(data, str) else data for path, data in result.kernels.items()}
    assert project == written
    assert result.kernels is result.kernels
    assert result.model.SerializeToString() == before
    assert atcfuse.optimize(SAMPLE, kernels=False).kernels == {}


def test_runs_in_threads_do_not_meet():
    """Every run gives what it gives alone, whatever runs beside it: other models, chips, switches and rules."""
    folder = SAMPLE.parent
    jobs = [
        (SAMPLE, {"soc": "Ascend310P3", "assume": {"batch": 4}}),
        (folder / "nanogpt_ts17_fp16_static.onnx", {"dialect": "portable", "kernels": False}),
        (SAMPLE, {"kernels": False, "disabled": frozenset({"attention"})}),
    ]

    def run(job):
        result = atcfuse.optimize(job[0], **job[1])
        return result.model.SerializeToString(), result.report, [d.as_dict() for d in result.diagnostics]

    alone = [run(job) for job in jobs]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(run, jobs[::-1]))
    assert together[::-1] == alone
