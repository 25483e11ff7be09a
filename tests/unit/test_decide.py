"""From fusions to decisions: one model on several chips, thresholds, forced rules, nodes left alone, whole models."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.device import device_names, load_device
from atcfuse.diagnostics import AtcfuseError, UsageError
from atcfuse.estimate import Kernels, build_name, built_for
from atcfuse.graph.dialect import normalise
from atcfuse.graph.store import load
from atcfuse.graph.text import parse_graph
from atcfuse.keep_nodes import parse_keep_nodes
from atcfuse.kernel import load_kernels
from atcfuse.options import Options, check_figures
from atcfuse.resources import data_folder
from atcfuse.run import Toolbox

SAMPLES = Path(__file__).parents[2] / "sample_models"
BERT = "bert_ts17_fp32_dynamic.onnx"


def report_of(tools: Toolbox, name: str = BERT) -> dict[str, Any]:
    return optimize_proto(load(SAMPLES / name), tools, SAMPLES / name, name).report


def run(name: str = BERT, **options: Any) -> dict[str, Any]:
    return report_of(toolbox(Options(dialect="portable", **options)), name)


def fused(report: dict[str, Any]) -> list[str]:
    """What rules fused; element-wise operators between them are grouped in any case."""
    return [f["op"] for f in report["fusions"] if f["rule"] != "elementwise"]


def codes(report: dict[str, Any], rule: str) -> list[str]:
    return [k["code"] for k in report["kept"] if k["rule"] == rule]


@pytest.fixture(scope="module")
def bert() -> dict[str, Any]:
    return run()


# ---------------------------------------------------------------- against ATC

WIDE = """(float[2,1000,64] x, float[64,6625] w) => (float[2,1000,6625] y) <float[6625] b> {
  p = MatMul(x, w)
  z = Add(p, b)
  y = Softmax<axis=-1>(z)
}"""


def wide_softmax(**options: Any) -> dict[str, Any]:
    """A product, a bias and a softmax: ATC adds the bias in the product, the fused softmax before its exponents."""
    model = parse_graph(WIDE.replace("float[6625] b", "float[6625] b = {" + ",".join(["1"] * 6625) + "}"), 17)
    return optimize_proto(model, toolbox(Options(dialect="portable", **options))).report


def test_what_atc_alone_does_faster_is_left_to_it() -> None:
    report = wide_softmax()
    (kept,) = [k for k in report["kept"] if k["code"] == "ATF339"]
    assert kept["rule"] == "scale_mask_softmax"
    assert re.fullmatch(
        r"what ATC makes of these nodes by itself \(launches: 2\) is .* µs less than with Fused\w+", kept["reason"]
    )
    summary = report["summary"]
    assert summary["launches_after_both"] == summary["launches_after_atc"] == 2
    assert summary["time_us_after_both"] == summary["time_us_after_atc"]


def test_forced_or_without_the_pass_it_is_fused(tmp_path: Path) -> None:
    off = tmp_path / "sw.json"
    off.write_text('{"Switch": {"GraphFusion": {"MatMulBiasAddFusionPass": "off"}}}')
    for report in (wide_softmax(forced=frozenset({"scale_mask_softmax"})), wide_softmax(switch_file=off)):
        assert [f["rule"] for f in report["fusions"]] == ["scale_mask_softmax"]


def test_a_pass_that_changes_results_is_no_reason() -> None:
    """On 310P ATC makes tanh GELU of the spelled-out one, in fewer launches: it is not the same function."""
    report = run(soc="Ascend310P3", assume={"batch": 1, "sequence": 4096})
    assert {k["rule"] for k in report["kept"] if k["code"] == "ATF339"} == {"add_layer_norm"}
    assert len([f for f in report["fusions"] if f["rule"] == "elementwise" and "Erf" in str(f["attributes"])]) == 2


# ---------------------------------------------------------------- chips


def test_three_chips_decide_differently_and_say_why(bert: dict[str, Any]) -> None:
    products = ["FusedLayerNormFFN", "FusedLayerNormQKV", "FusedLinear"]
    assert sorted(set(fused(bert))) == ["FusedAddLayerNormQKV", "FusedAttention", "FusedLayerNorm", *products]
    assert set(fused(run(soc="Ascend310P3"))) == {"FusedAddLayerNorm", "FusedAttention"}
    spec = load_kernels(data_folder("kernels"))["layer_norm_qkv"]
    attributes = {"norm": "layer_norm", "epsilon": 1e-5, "num_projections": 1, "transposed": (0,)}
    types = dict.fromkeys(("x", "w1", "y1"), 10)
    norm = Kernels(load_device("Ascend310P3"), Options(precision_mode="force_fp16")).refusal(spec, attributes, types)
    assert norm is not None
    assert norm.code == "ATF336"
    assert "Ascend310P3" in norm.reason
    assert "cube cores" in norm.reason
    old = run(soc="Ascend910A")
    assert fused(old) == []
    assert set(codes(old, "attention")) == {"ATF336"}


def test_scores_stay_on_chip_on_310p_and_travel_on_910b(bert: dict[str, Any]) -> None:
    def attention(report: dict[str, Any]) -> dict[str, Any]:
        return next(f for f in report["fusions"] if f["op"] == "FusedAttention")

    assert attention(bert)["kernel_bytes"]["workspace"] > 0
    apart = attention(run(soc="Ascend310P3"))
    assert apart["kernel_bytes"]["workspace"] == 0
    assert apart["gm_bytes_after"] == apart["kernel_bytes"]["tensor"]


@pytest.mark.parametrize("soc", [n for n in device_names() if n.startswith("published")])
def test_published_chips_fuse_and_are_built_for_a_real_one(soc: str) -> None:
    assert "FusedAttention" in fused(run(soc=soc))
    assert built_for(soc) in device_names()
    assert not built_for(soc).startswith("published")


def test_a_soc_file_of_ones_own(tmp_path: Path) -> None:
    """Where launches cost nothing and cores wait for nothing, nothing is worth ten microseconds."""
    path = tmp_path / "free.yaml"
    launch = "launch_us: {value: 0, assumed: true, why: a thought experiment}"
    access = "ddr_access_us: {value: 0, assumed: true, why: a thought experiment}"
    path.write_text(f"soc: Free\nsummary: no overhead\nlike: Ascend910B1\nfigures:\n  {launch}\n  {access}\n")
    report = run(soc=str(path))
    assert report["soc"] == "Free"
    assert fused(report) == []
    assert set(codes(report, "attention")) == {"ATF330"}
    assert build_name(load_device(str(path))) == "Ascend910B1"


def test_the_article_with_32_kb_of_l1_refuses_long_sequences() -> None:
    report = run(soc="published-autofusion", assume={"sequence": 4096})
    assert "FusedAttention" not in fused(report)
    reasons = {k["reason"] for k in report["kept"] if k["rule"] == "attention"}
    assert reasons == {"attention holds 30,720 of 32,768 bytes of L1, 93.8%; the bound is 80%"}
    assert "FusedAttention" in fused(run(soc="published-autofusion", assume={"sequence": 4096}, occupancy=1.0))


# ---------------------------------------------------------------- policy


def test_the_threshold_is_held_against_the_high_end(bert: dict[str, Any]) -> None:
    best = max(bert["fusions"], key=lambda f: f["time_us_saved"][1])
    highest = best["time_us_saved"][1]
    assert fused(run(min_saving_us=highest * 1.01)) == []
    kept = run(min_saving_us=highest * 0.99)
    assert set(fused(kept)) == {best["op"]}
    (reason, *_) = [k["reason"] for k in kept["kept"] if k["rule"] == "add_layer_norm_qkv"]
    norm = next(f for f in bert["fusions"] if f["op"] == "FusedAddLayerNormQKV")
    assert f"{norm['time_us_saved'][1]:,.1f} µs by {norm['launches_saved']} launches" in reason


def test_force_is_about_profit_alone() -> None:
    forced = run(min_saving_us=1e6, forced=frozenset({"attention"}))
    assert set(fused(forced)) == {"FusedAttention"}
    assert fused(run(soc="Ascend910A", forced=frozenset({"attention"}))) == []


def test_occupancy_bounds_what_kernels_hold() -> None:
    device = load_device("Ascend910B1")
    for share in (0.2, 0.8):
        found = [f["on_chip"] for f in run(occupancy=share)["fusions"]]
        assert found
        assert all(f["UB"] <= share * device.ub and f.get("L1", 0) <= share * device.l1 for f in found)
    assert "ATF338" in codes(run(occupancy=0.01), "attention")


def test_no_kernels_means_no_times_and_no_threshold() -> None:
    report = run(soc="Ascend910A", kernels=False, min_saving_us=1e6)
    assert "FusedAttention" in fused(report)
    assert report["summary"]["time_us_before"] is None
    assert "time_us_saved" not in report["fusions"][0]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"forced": frozenset({"atention"})}, "ATF157"),
        ({"keep_fp32": frozenset({"Sofmax"})}, "ATF158"),
        ({"soc": "Ascend910B9"}, "ATF160"),
    ],
)
def test_names_that_mean_nothing(options: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        toolbox(Options(**options))
    assert caught.value.diagnostics[0].code == code
    assert "did you mean" in (caught.value.diagnostics[0].hint or "")


@pytest.mark.parametrize(
    "options", [{"min_saving_us": -1.0}, {"min_saving_us": float("nan")}, {"occupancy": 0.0}, {"occupancy": 80.0}]
)
def test_bounds_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        check_figures(Options(**options))
    assert caught.value.diagnostics[0].code == "ATF156"


# ---------------------------------------------------------------- nodes left alone

SOFTMAX = "/bert/encoder/layer.0/attention/self/Softmax"


def test_one_node_by_name_keeps_its_fusion_only() -> None:
    report = run(keep_nodes=(SOFTMAX,))
    assert fused(report).count("FusedAttention") == 1
    (entry,) = [k for k in report["kept"] if k["code"] == "ATF325"]
    assert entry["anchor"] == SOFTMAX
    assert "--keep-nodes" in entry["reason"]


def test_patterns_and_sections(tmp_path: Path) -> None:
    assert "FusedAttention" not in fused(run(keep_nodes=("*/Softmax",)))
    path = tmp_path / "keep.ini"
    path.write_text(f"# left alone\n[ByNodeName]\n{SOFTMAX}\n\n[ByNodeType]\nLayerNormalization\n")
    apart = fused(run(keep_nodes=(str(path),)))
    assert apart.count("FusedAttention") == 1
    assert set(apart) == {"FusedAttention", "FusedFFN", "FusedLinear", "FusedQKV"}, "no norm is in any"


def test_an_entry_that_means_no_node_is_a_warning() -> None:
    report = run(keep_nodes=("/bert/encoder/layer.9/*",))
    assert [d["code"] for d in report["diagnostics"] if d["severity"] == "warning"] == ["ATF155"]


@pytest.mark.parametrize("text", ["Softmax\n", "[ByName]\nSoftmax\n"])
def test_mistakes_in_a_file_have_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keep.ini"
    path.write_text(text)
    with pytest.raises(AtcfuseError) as caught:
        parse_keep_nodes([str(path)])
    assert caught.value.diagnostics[0].code == "ATF154"
    assert caught.value.diagnostics[0].span is not None
    with pytest.raises(UsageError):
        parse_keep_nodes([str(tmp_path / "none.ini")])


# ---------------------------------------------------------------- figures


def test_layers_that_are_alike_are_costed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from atcfuse import decide

    calls, asked, against = [], [], []
    real, real_cost = decide.fusion_cost, decide.Pricer._worked_out
    monkeypatch.setattr(decide, "fusion_cost", lambda *args: calls.append(1) or real(*args))
    monkeypatch.setattr(decide.Pricer, "_worked_out", lambda *args: asked.append(1) or real_cost(*args))
    monkeypatch.setattr(decide, "saved_against", lambda *args: against.append(1) or {})
    report = run("gpt2_ts14_fp32_dynamic.onnx")
    assert len(asked) > len(calls)
    assert len(report["fusions"]) > len(against) > 0
    made = [f for f in report["fusions"] if "tiling" in f]
    kinds = {(f["op"], str(f["tiling"]), str(f["time_us_saved"])) for f in made}
    assert len(calls) >= len(kinds)


def test_a_model_saves_what_its_fusions_save(bert: dict[str, Any]) -> None:
    summary = bert["summary"]
    assert summary["launches_before"] - summary["launches_after"] == sum(f["launches_saved"] for f in bert["fusions"])
    saved = summary["ddr_bytes_before"] - summary["ddr_bytes_after"]
    assert saved == pytest.approx(sum(f["ddr_bytes_saved"] for f in bert["fusions"]), rel=0.01)
    for end in (0, 1):
        total = summary["time_us_before"][end] - summary["time_us_after"][end]
        # A region alone starts with a memory round trip and a cold L2, one within a model does not.
        assert total == pytest.approx(sum(f["time_us_saved"][end] for f in bert["fusions"]), rel=0.15)


def test_fused_nodes_of_an_earlier_run_are_costed_from_the_nodes_alone(bert: dict[str, Any]) -> None:
    tools = toolbox(Options(dialect="portable"))
    first = optimize_proto(load(SAMPLES / BERT), tools, SAMPLES / BERT, BERT)
    again = optimize_proto(normalise(onnx.ModelProto.FromString(first.model.SerializeToString())), tools).report[
        "summary"
    ]
    for figure in ("time_us", "gm_bytes", "ddr_bytes", "workspace_footprint"):
        assert again[f"{figure}_before"] == first.report["summary"][f"{figure}_after"]


def test_the_planner_and_the_report_speak_of_one_kernel(bert: dict[str, Any]) -> None:
    """Tensor and workspace bytes together are what the fused node moves at global memory."""
    for entry in bert["fusions"]:
        assert entry["gm_bytes_after"] == entry["kernel_bytes"]["tensor"] + entry["kernel_bytes"]["workspace"]
        assert entry["l2_miss_bytes_after"] <= entry["gm_bytes_after"]


def test_stages_only_where_asked_for(bert: dict[str, Any]) -> None:
    assert "cost" not in bert["fusions"][0]
    report = report_of(replace(toolbox(Options(dialect="portable")), stages=True))
    assert report["fusions"][0]["cost"]["after"]["stages"]


def test_every_kind_of_figure_says_where_it_comes_from(bert: dict[str, Any]) -> None:
    for key in ("launches", "ddr_bytes", "gm_bytes", "l2_miss_bytes", "time_us", "kernel_bytes", "on_chip"):
        assert bert["basis"][key].startswith(("computed", "estimated"))


@pytest.mark.parametrize("odd", ["\t", "\x1b[31m", "\u202e", "\x07"])
def test_what_a_file_says_moves_no_terminal(tmp_path: Path, odd: str) -> None:
    (tmp_path / "keep.ini").write_text(f"[ByNode{odd}Name]\n", encoding="utf-8")
    with pytest.raises(AtcfuseError) as caught:
        parse_keep_nodes([str(tmp_path / "keep.ini")])
    assert all(line.isprintable() for line in caught.value.diagnostics[0].lines())
