"""The benchmarks measure what they say: models that fuse and agree, a chain that does not fuse, real processes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from atcfuse import estimate
from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.options import Options
from atcfuse.planner import attention as planner_attention
from atcfuse.planner import ffn as planner_ffn
from atcfuse.planner import linear as planner_linear
from atcfuse.planner import norm as planner_norm
from atcfuse.planner import row_norm as planner_row_norm
from atcfuse.tiling import attention, ffn, layer_norm_qkv, linear, row_norm

CACHES = (
    planner_attention._attention,
    planner_norm._norm,
    planner_linear._linear,
    planner_ffn._ffn,
    planner_row_norm.plan_row_norm,
)

BENCH = Path(__file__).parents[2] / "bench"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


models, run, peers = _load("models"), _load("run"), _load("peers")
sys.modules["models"] = models  # as scripts beside it import it
llama = _load("llama")


@pytest.fixture
def session_options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return options


def test_reduced_rows_are_all_grouped(session_options: onnxruntime.SessionOptions) -> None:
    model = models.elementwise_rows(40)
    result = optimize_proto(onnx.ModelProto.FromString(model.SerializeToString()), toolbox(Options(dialect="portable")))
    assert all(n.domain == "atcfuse" for n in result.model.graph.node)
    x = np.random.default_rng(3).normal(size=(64, 64)).astype(np.float32)
    both = [
        onnxruntime.InferenceSession(m.SerializeToString(), session_options, ["CPUExecutionProvider"]).run(
            None, {"x": x}
        )
        for m in (model, result.model)
    ]
    np.testing.assert_array_equal(both[0][0], both[1][0])


def test_the_transformer_fuses_completely_and_agrees(session_options: onnxruntime.SessionOptions) -> None:
    model = models.transformer(3)
    onnx.checker.check_model(model, full_check=True)
    rng = np.random.default_rng(1)
    mask = np.ones((2, 7), np.int64)
    mask[1, 4:] = 0
    feeds = {"ids": rng.integers(0, models.TINY.vocabulary, (2, 7)), "attention_mask": mask}
    before = onnxruntime.InferenceSession(model.SerializeToString(), session_options).run(None, feeds)[0]
    assert before.shape == (2, 7, models.TINY.hidden)
    result = optimize_proto(model, toolbox(Options(dialect="portable")))
    by_rules = [f["op"] for f in result.report["fusions"] if f["rule"] != "elementwise"]
    layer = ["FusedLayerNormQKV", "FusedAttention", "FusedLinear", "FusedLayerNormFFN"]
    assert by_rules == ["FusedAddLayerNormQKV", *layer[1:], *layer * 2, "FusedLayerNorm"]
    after = onnxruntime.InferenceSession(model.SerializeToString(), session_options).run(None, feeds)[0]
    np.testing.assert_allclose(after, before, rtol=0, atol=2e-5 * np.abs(before).max())


def test_the_decoder_fuses_completely_and_agrees(session_options: onnxruntime.SessionOptions) -> None:
    model, size = llama.llama(3, llama.TINY)
    assert size == 0
    onnx.checker.check_model(model, full_check=True)
    rng = np.random.default_rng(1)
    feeds = {
        "ids": rng.integers(0, llama.TINY.vocabulary, (2, 7)),
        "position_ids": np.tile(np.arange(7), (2, 1)),
        "mask": np.broadcast_to(np.triu(np.full((7, 7), -65504.0), 1), (2, 1, 7, 7)).astype(np.float16),
    }
    before = onnxruntime.InferenceSession(model.SerializeToString(), session_options).run(None, feeds)[0]
    options = Options(dialect="portable", min_saving_us=0)
    report = optimize_proto(model, toolbox(options)).report
    attentions = sum(f["op"] == "FusedAttention" for f in report["fusions"])
    assert attentions == 3
    assert report["summary"]["launches_after"] <= 3 * 7 + 6
    after = onnxruntime.InferenceSession(model.SerializeToString(), session_options).run(None, feeds)[0]
    np.testing.assert_allclose(after, before, rtol=0, atol=5e-3 * np.abs(before).max())


def test_the_decoder_of_real_size_takes_no_room(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    nodes = llama.save_sparse(2, path)
    weights = tmp_path / "weights.bin"
    assert weights.stat().st_size > 1 << 30
    assert weights.stat().st_blocks * 512 + path.stat().st_size < 1 << 20
    model = onnx.load(path, load_external_data=False)
    assert len(model.graph.node) == nodes
    ends = [int(e.value) for t in model.graph.initializer for e in t.external_data if e.key == "offset"]
    assert ends == sorted(set(ends))


def test_the_table_of_peers_tells_times_in_those_of_atcfuse() -> None:
    rows = [
        ["atcfuse", 2.0, 10, 1, 2, 3],
        ["other (1.0)", 9.0, 20, 0, 1, 0],
        ["slow (2.0)", "more than 5 s", "", "", "", ""],
    ]
    lines = peers.document(rows, 100, 1).splitlines()
    assert "| other (1.0) | 9.00 | 20 | 0 | 1 | 0 | 4.5 |" in lines
    assert "| slow (2.0) | more than 5 s |  |  |  |  |  |" in lines


def test_a_peer_that_fails_or_takes_too_long_says_so() -> None:
    assert peers.timed([sys.executable, "-c", "raise SystemExit('no such pass')"], 60) == (None, "failed: no such pass")
    assert peers.timed([sys.executable, "-c", "import time; time.sleep(60)"], 0.2) == (None, "more than 0 s")


def test_every_layer_reads_computed_reshape_targets() -> None:
    nodes = models.transformer(1).graph.node
    made_by = {output: node.op_type for node in nodes for output in node.output}
    targets = [made_by[node.input[1]] for node in nodes if node.op_type == "Reshape"]
    assert targets == ["Concat"] * 4


@pytest.mark.parametrize("wanted", [200, 1000])
def test_transformer_of_comes_as_near_as_one_layer_allows(wanted: int) -> None:
    layers = sum(n.op_type == "Softmax" for n in models.transformer_of(wanted).graph.node)
    assert len(models.transformer(layers).graph.node) <= wanted < len(models.transformer(layers + 1).graph.node)


def test_the_chain_is_one_path_and_nothing_fuses() -> None:
    model = models.chain(41)
    onnx.checker.check_model(model, full_check=True)
    assert len(model.graph.node) == 41
    report = optimize_proto(model, toolbox(Options(dialect="portable"))).report
    assert report["fusions"] == []
    assert report["summary"]["nodes_after"] == 41


def test_models_are_reproducible() -> None:
    first, second = (models.transformer(2).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_external_weights_leave_a_small_model_file(tmp_path: Path) -> None:
    model = models.transformer(1, models.Size(hidden=64, heads=2, inner=64, vocabulary=64, positions=32))
    weights = sum(len(t.raw_data) for t in model.graph.initializer)
    path = tmp_path / "m.onnx"
    models.save_external(model, path)
    assert path.stat().st_size < weights / 2
    assert (tmp_path / "m.onnx.data").stat().st_size > weights / 2
    onnx.checker.check_model(str(path))


def measured(program: str) -> tuple[float, float, int]:
    """What `run.measure` tells of a program, from a process as small as the benchmarks' own: peaks are inherited."""
    asking = "import run, sys\nu = run.measure([sys.executable, '-c', sys.argv[1]])\nprint(u.wall, u.cpu, u.peak)"
    command = [sys.executable, "-c", asking, program]
    wall, cpu, peak = subprocess.run(command, cwd=BENCH, check=True, capture_output=True, text=True).stdout.split()
    return float(wall), float(cpu), int(peak)


def test_a_measurement_tells_seconds_and_bytes() -> None:
    busy = "import time\nblock = b'x' * (300 << 20)\nend = time.process_time() + 0.2\n"
    wall, cpu, peak = measured(f"{busy}while time.process_time() < end: pass")
    assert wall >= 0.2
    assert cpu >= 0.2 > measured("pass")[1]
    assert 300 << 20 <= peak < 400 << 20


def test_a_failing_command_is_an_error_with_its_output() -> None:
    with pytest.raises(RuntimeError, match="no luck"):
        run.measure([sys.executable, "-c", "raise SystemExit('no luck')"])


def test_the_median_is_taken_of_every_figure() -> None:
    usages = [run.Usage(1.0, 9.0, 5), run.Usage(2.0, 8.0, 4), run.Usage(3.0, 1.0, 6)]
    assert run.median(usages) == run.Usage(2.0, 8.0, 5)


def test_tilings_of_layers_that_are_alike_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty-two layers cost the planning of one, whatever the layers are called, and no problem is planned twice."""
    calls: dict[str, list[Any]] = {}

    def counted(name: str, real: Any) -> Any:
        def call(*args: Any) -> Any:
            calls.setdefault(name, []).append(args)
            return real(*args)

        return call

    watched = ((attention, "predict"), (layer_norm_qkv, "plan"), (linear, "plan"), (ffn, "plan"), (row_norm, "plan"))
    for module, name in (*watched, (estimate, "render_kernel")):
        monkeypatch.setattr(module, name, counted(f"{module.__name__}.{name}", getattr(module, name)))
    found = []
    for layers in (2, 32):
        for cache in CACHES:
            cache.cache_clear()
        calls.clear()
        report = optimize_proto(models.transformer(layers), toolbox(Options(dialect="portable"))).report
        assert len([f for f in report["fusions"] if f["op"] == "FusedAttention"]) == layers
        found.append({name: len(given) for name, given in calls.items()})
        for name, given in calls.items():
            assert len({repr(one) for one in given}) == len(given), f"{name} is asked the same again"
    assert found[0] == found[1]
    assert found[0].keys() == {f"{m.__name__}.{n}" for m, n in (*watched, (estimate, "render_kernel"))}
    assert found[0]["atcfuse.tiling.attention.predict"] == 1
