"""ATC's own passes: what they take, in which order, on which chips, what they leave to claim."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

from atcfuse import atc
from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.device import device_names, load_device
from atcfuse.diagnostics import AtcfuseError
from atcfuse.graph.index import Model, Scope
from atcfuse.graph.infer import infer
from atcfuse.graph.merged import merged_work
from atcfuse.graph.store import load
from atcfuse.graph.text import parse_graph
from atcfuse.graph.traffic import Sizes, kinds
from atcfuse.graph.work import NodeWorks
from atcfuse.kernel import load_kernels
from atcfuse.loader import load_rules
from atcfuse.match.find import Lookup, RuleFinder
from atcfuse.match.required import required_operators
from atcfuse.options import Options
from atcfuse.report import to_line, to_markdown, to_text, validate
from atcfuse.resources import data_folder
from atcfuse.rule.model import CHIPS
from atcfuse.run import Toolbox
from atcfuse.switches import NO_SWITCHES, read_switches

TOOLS = toolbox(Options(dialect="portable"))
LOOKUP = Lookup.of(TOOLS.book)
RULES = {rule.name: rule for rule in TOOLS.book.atc}
ELEMENTWISE = frozenset({"elementwise"})
BY_NAME = frozenset(rule.name for rule in TOOLS.book.rules)
SAMPLES = Path(__file__).parents[2] / "sample_models"

NORM = """
  m = ReduceMean<axes=[-1]>(x)
  d = Sub(x, m)
  s = Pow(d, two)
  v = ReduceMean<axes=[-1]>(s)
  e = Add(v, eps)
  r = Sqrt(e)
  n = Div(d, r)
  w = Mul(n, g)
  y = Add(w, b)
"""
NUMBERS = "float eps = {1e-5}, float two = {2.0}, float[8] g = {1,2,3,4,5,6,7,8}, float[8] b = {1,2,3,4,5,6,7,8}"
RESIDUAL = (
    f"(float[4,8] p, float[4,8] q) => (float[4,8] y, float[4,8] z) <{NUMBERS}> {{ x = Add(p, q) {NORM} z = Relu(x) }}"
)
PACKED = f"""(float[2,4,8] x, float[8,5] wq, float[8,5] wk, float[8,5] wv) => (float[2,4,5] q, float[2,4,5] k, float[2,4,5] o)
<{NUMBERS}> {{ {NORM} q = MatMul(y, wq) k = MatMul(y, wk) o = MatMul(y, wv) }}"""


def scope_of(graph: str, opset: int = 17) -> Scope:
    model = Model(parse_graph(graph, opset), None)
    infer(model)
    return model.main


def groups_of(scope: Scope, chip: str = "910B", switches: Any = NO_SWITCHES) -> list[tuple[str, set[str]]]:
    """The operators that ATC makes, with the operators of their nodes."""
    passes = atc.passes(TOOLS.book, switches, chip)
    assert passes is not None
    found = atc.fused_by_atc(RuleFinder(scope, LOOKUP), passes.running, kinds(scope))
    return [(atc.described(g.rule).operator, {scope.nodes[i].outputs[0] for i in g.members}) for g in found]


def report_of(graph: str, tools: Toolbox = TOOLS, **options: Any) -> dict[str, Any]:
    given = replace(tools, options=replace(tools.options, min_saving_us=0.0, **options))
    return optimize_proto(parse_graph(graph, 17), given).report


def off(tmp_path: Path, *names: str, kinds: tuple[str, ...] = ("GraphFusion",)) -> Any:
    file = tmp_path / "sw.json"
    file.write_text(json.dumps({"Switch": {kind: dict.fromkeys(names, "off") for kind in kinds}}))
    return read_switches(file, {r.switch: r.switch_kind for r in TOOLS.book.rules})


# ---------------------------------------------------------------- rules


def test_passes_are_known_to_the_switch_reader_under_their_kind():
    text = (data_folder("rules").parent / "atcfuse" / "data" / "atc_passes.yaml").read_text(encoding="utf-8")
    lists = yaml.safe_load(text)
    for rule in RULES.values():
        kinds_of_name = {kind for kind in ("GraphFusion", "UBFusion") if rule.switch in lists[kind]}
        assert kinds_of_name <= {rule.switch_kind}, rule.name
        assert rule.switch in {name for names in lists.values() for name in names}, rule.name


def test_rules_of_atc_are_no_fusions_of_ours():
    assert all(rule.atc is None for rule in TOOLS.book.rules)
    assert not {rule.switch for rule in TOOLS.book.rules} & {rule.switch for rule in RULES.values()}
    assert TOOLS.book.rule("atc_layer_norm") is None
    assert TOOLS.book.atc_rule("atc_layer_norm") is RULES["atc_layer_norm"]


def test_passes_run_after_those_whose_results_they_take_in():
    order = [rule.name for rule in atc.in_order(RULES.values())]
    assert sorted(order) == sorted(RULES)
    for name in order:
        described = atc.described(RULES[name])
        for other in {*described.after, *described.joins} - {name}:
            assert order.index(other) < order.index(name)


def test_no_unified_buffer_pass_on_split_cores():
    assert all("910B" not in atc.described(r).chips for r in RULES.values() if r.switch_kind == "UBFusion")


def test_erf_gelu_tells_that_it_changes_results():
    assert "tanh" in atc.described(RULES["atc_gelu_erf"]).numerics
    assert not atc.described(RULES["atc_gelu_tanh"]).numerics


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("chips: [910B]", "chips: [920]"), "ATF207"),
        (("after: [atc_layer_norm]", "after: [atc_layer_nrom]"), "ATF210"),
        (("AddLayerNorm(a, b, gamma, beta, epsilon=epsilon)", "a"), "ATF215"),
        (("AddLayerNorm(a, b, gamma, beta", "AddLayerNorm(a, c, gamma, beta"), "ATF210"),
        (("source:", "kernel: attention\nsource:"), "ATF202"),
    ],
)
def test_mistakes_in_such_rules_are_told(tmp_path, change, code):
    text = (data_folder("rules") / "atc" / "add_layer_norm.yaml").read_text(encoding="utf-8")
    text = text.replace("atc: atc_add_layer_norm\n", "atc: mine\n").replace(*change)
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(AtcfuseError) as raised:
        load_rules([data_folder("rules"), tmp_path], load_kernels(data_folder("kernels")))
    assert raised.value.diagnostics[0].code == code


def test_required_operators_are_those_of_every_alternative():
    assert required_operators(RULES["atc_layer_norm"], TOOLS.book) == {
        "Add",
        "Mul",
        "Div",
        "Sub",
        "Sqrt",
        "ReduceMean",
        "Pow",
    }
    assert required_operators(RULES["atc_batch_mat_mul"], TOOLS.book) == {"MatMul", "Transpose"}
    assert required_operators(RULES["atc_elementwise"], TOOLS.book) == set()
    assert {"Tanh", "Pow", "Mul", "Add"} <= required_operators(RULES["atc_gelu_tanh"], TOOLS.book)


# ---------------------------------------------------------------- chips


def test_every_shipped_chip_has_a_name_for_rules():
    found = {name: atc.chip_of(load_device(name)) for name in device_names()}
    assert found["Ascend910B1"] == found["Ascend910B4"] == "910B"
    assert found["Ascend310P1"] == found["Ascend310P3"] == "310P"
    assert found["Ascend310B1"] == "310B"
    assert found["Ascend910A"] == found["Ascend910ProB"] == found["Ascend910PremiumA"] == "910"
    assert found["Ascend310"] is None
    assert found["published-attention"] == "310P"  # what its kernels are generated for
    assert set(found.values()) <= {None, *CHIPS}


def test_what_is_not_known_of_a_chip_is_not_told():
    tools = replace(TOOLS, device=load_device("Ascend310"))
    report = report_of(RESIDUAL, tools)
    assert "atc" not in report
    assert report["summary"]["launches_after_atc"] is report["summary"]["time_us_after_both"] is None
    assert "after ATC" not in to_text(report)


def test_without_kernels_nothing_is_estimated():
    report = report_of(RESIDUAL, kernels=False)
    assert "atc" not in report
    assert report["summary"]["launches_after_atc"] is None


# ---------------------------------------------------------------- passes together


def test_a_sum_and_its_norm_become_one_and_the_sum_stays_readable():
    scope = scope_of(RESIDUAL)
    ((operator, made),) = groups_of(scope)
    assert operator == "AddLayerNorm"
    assert made == set("xmdsvernwy")


def test_a_pass_that_works_on_another_one_falls_with_it(tmp_path):
    scope = scope_of(RESIDUAL)
    assert groups_of(scope, switches=off(tmp_path, "LayerNormONNXFusionPass")) == []
    ((operator, _),) = groups_of(scope, switches=off(tmp_path, "AddLayerNormFusionPass"))
    assert operator == "LayerNorm"


def test_a_pass_that_atc_keeps_on_stays_on(tmp_path):
    switches = off(tmp_path, "ABiasPass", "AReduceMeanFusionPass", "GeluFusionPass")
    assert switches.is_on_in_atc("AReduceMeanFusionPass")
    assert not switches.is_on("AReduceMeanFusionPass")
    assert not switches.is_on_in_atc("GeluFusionPass")
    kept = replace(switches, extras={"ExceptionalPassOfO1Level": ["GeluFusionPass"]})
    assert kept.is_on_in_atc("GeluFusionPass")


CHAIN = "(float[4,8] p, float[4,8] q) => (float[4,8] z) { a = Add(p, q) b = Relu(a) c = Mul(b, q) z = Exp(c) }"


def test_chains_grow_on_chips_that_have_the_pass():
    scope = scope_of(CHAIN)
    assert groups_of(scope, "310P") == [("Eltwise", {"a", "b", "c", "z"})]
    assert groups_of(scope, "910B") == []


def test_a_chain_does_not_reach_into_what_another_pass_made():
    graph = f"(float[4,8] x) => (float[4,8] z) <{NUMBERS}> {{ {NORM} z = Relu(y) }}"
    assert groups_of(scope_of(graph), "310P") == [("LayerNorm", set("mdsvernwy"))]


def test_only_constants_are_moved_no_launch_is_saved():
    graph = "(float[4,8] x) => (float[4,2] y) <float[2,8] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> { t = Transpose<perm=[1,0]>(w) y = MatMul(x, t) }"
    assert groups_of(scope_of(graph)) == []


@pytest.mark.parametrize("name", ["bart_ts15_fp32_dynamic", "nanogpt_ts17_fp16_static"])
@pytest.mark.parametrize("chip", ["910B", "310P"])
def test_the_quick_look_loses_no_match(name, chip):
    path = SAMPLES / f"{name}.onnx"
    model = Model(load(path), path)
    infer(model)
    for rule in (r for r in RULES.values() if chip in atc.described(r).chips):
        finder = RuleFinder(model.main, LOOKUP)
        slow = {m.members for m in finder.find(rule)[0]}
        assert slow <= {m.members for m in finder.matches_among(rule, lambda node: False)}
        assert not slow or finder.may_match(rule)


# ---------------------------------------------------------------- work


def test_one_launch_reads_and_writes_what_crosses_its_border():
    scope = scope_of(RESIDUAL)
    works = NodeWorks(Sizes({}))(scope)
    members = [n.index for n in scope.nodes if n.outputs[0] != "z"]
    work = merged_work(scope, members, works, "AddLayerNorm", 11)
    tensor = 4 * 8 * 4
    assert work.reads == {"p": tensor, "q": tensor, "two": 4, "eps": 4, "g": 32, "b": 32}
    assert work.writes == {"x": tensor, "y": tensor}
    assert (work.launches, work.vector_elements, work.dtype) == (1, 11 * 32, "float32")
    assert work.constants == {"two", "eps", "g", "b"}


def test_views_inside_are_passed_through_and_doubled_operands_read_once():
    graph = """(float[4,8] p) => (float[2,16] z) <int64[2] t = {2,16}> {
      a = Reshape(p, t) b = Mul(a, a) c = Relu(b) z = Reshape(c, t) }"""
    scope = scope_of(graph)
    work = merged_work(scope, range(4), NodeWorks(Sizes({}))(scope), "Eltwise")
    assert (dict(work.reads), dict(work.writes)) == ({"p": 128}, {"z": 128})
    assert work.vector_elements == 2 * 32


def test_a_product_takes_its_transposed_operand_as_it_lies():
    scope = scope_of("(float[4,8] q, float[6,8] k) => (float[4,6] y) { t = Transpose<perm=[1,0]>(k) y = MatMul(q, t) }")
    work = merged_work(scope, range(2), NodeWorks(Sizes({}))(scope), "BatchMatMul", 0)
    assert work.product is not None
    assert (work.product.a, work.product.b, set(work.reads)) == ("q", "k", {"q", "k"})
    assert work.cube_flops == 2 * 4 * 6 * 8


# ---------------------------------------------------------------- reports


def test_three_columns_and_the_claim_against_the_middle_one():
    report = report_of(PACKED)
    summary, (fusion,) = report["summary"], report["fusions"]
    assert (summary["launches_before"], summary["launches_after_atc"]) == (12, 4)
    assert (summary["launches_after"], summary["launches_after_both"]) == (1, 1)
    assert (fusion["launches_saved"], fusion["launches_saved_after_atc"]) == (11, 3)
    assert fusion["ddr_bytes_saved_after_atc"] < fusion["ddr_bytes_saved"]
    assert fusion["time_us_saved_after_atc"][1] < fusion["time_us_saved"][1]
    (norm,) = [p for p in report["atc"]["passes"] if p["rule"] == "atc_layer_norm"]
    assert (norm["times"], norm["launches_saved"], norm["times_after"]) == (1, 8, 0)
    assert "launches 12 → 4 with ATC → 1 with atcfuse too (-75.0%)" in to_line(report)
    assert "against ATC alone launches -3" in " ".join(to_text(report).split())
    assert "| launches | 12 | 4 | 1 | -75.0% |" in to_markdown(report)
    assert validate({**report, "files": {"model": None, "report": None}}) == []


def test_a_pass_switched_off_changes_the_columns(tmp_path):
    switches = off(tmp_path, "LayerNormONNXFusionPass")
    report = report_of(PACKED, replace(TOOLS, switches=switches))
    assert report["summary"]["launches_after_atc"] == report["summary"]["launches_before"] == 12
    assert report["fusions"][0]["launches_saved_after_atc"] == 11
    (state,) = {(p["state"], p["times"]) for p in report["atc"]["passes"] if p["name"] == "LayerNormONNXFusionPass"}
    assert state == ("off", 0)
    assert "LayerNormONNXFusionPass: off in sw.json" in to_text(report)


def test_all_off_by_the_file_is_off_in_the_estimate(tmp_path):
    switches = off(tmp_path, "ALL", kinds=("GraphFusion", "UBFusion"))
    report = report_of(PACKED, replace(TOOLS, switches=switches))
    assert report["fusions"] == []
    assert report["summary"]["launches_after_atc"] == report["summary"]["launches_after_both"] == 12


EVERYTHING = """
atc: mine
switch: MineFusionPass
summary: A norm and its three products become one operator.
limits: None.
source: this test
chips: [910B]
types: {T: [float32]}
inputs: {x: T, wq: any, wk: any, wv: any}
pattern:
  n: atc_layer_norm(x)
  q: MatMul(n, wq)
  k: MatMul(n, wk)
  v: MatMul(n, wv)
anchor: n
replace:
  (q, k, v): Everything(x, wq, wk, wv)
"""


def test_nothing_is_claimed_where_atc_does_it_all(tmp_path):
    text = EVERYTHING.replace("types:", "after: [atc_layer_norm]\ntypes:")
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    report = report_of(PACKED, toolbox(Options(dialect="portable", rules=(tmp_path,))))
    (fusion,) = report["fusions"]
    assert (fusion["launches_saved"], fusion["launches_saved_after_atc"]) == (11, 0)
    assert fusion["time_us_saved_after_atc"][0] <= 0
    assert report["summary"]["launches_after_atc"] == report["summary"]["launches_after_both"] == 1
    assert "against ATC alone launches 0" in " ".join(to_text(report).split())


def test_what_a_fusion_leaves_of_an_operator_of_atc_runs_on():
    graph = RESIDUAL.replace("(float[4,8] p", "(float[8,5] wq, float[8,5] wk, float[8,5] wv, float[4,8] p")
    graph = graph.replace("(float[4,8] y, ", "(float[4,5] h, float[4,5] k, float[4,5] o, ")
    graph = graph.replace("z = Relu(x)", "h = MatMul(y, wq) k = MatMul(y, wk) o = MatMul(y, wv) z = Relu(x)")
    report = report_of(graph, disabled=ELEMENTWISE | {"add_layer_norm_qkv"})
    summary, (fusion,) = report["summary"], report["fusions"]
    # AddLayerNorm, three products and Relu; then Add, the fused node and Relu.
    assert (summary["launches_after_atc"], summary["launches_after_both"]) == (5, 3)
    assert fusion["launches_saved_after_atc"] == 2


def test_an_operator_of_atc_that_several_fusions_break_up_is_claimed_once():
    graph = f"""(float[4,8] p, float[4,8] q, float[8,8] wa, float[8,5] wh, float[8,5] wk) => (float[4,5] h, float[4,5] k, float[4,8] z)
    <{NUMBERS}> {{ a = MatMul(p, wa) c = Mul(a, two) x = Add(c, q) {NORM} h = MatMul(y, wh) k = MatMul(y, wk) z = Relu(x) }}"""
    report = report_of(graph, disabled=ELEMENTWISE | {"layer_norm_ffn"})
    summary, saved = report["summary"], [f["launches_saved_after_atc"] for f in report["fusions"]]
    assert [f["rule"] for f in report["fusions"]] == ["linear_epilogue", "layer_norm_pair"]
    # MatMul, Mul, AddLayerNorm, two products and Relu; then both fused nodes and Relu.
    assert (summary["launches_after_atc"], summary["launches_after_both"]) == (6, 3)
    # The first leaves a norm, which ATC makes one operator of still, and only that is left to claim for the second.
    assert saved == [1, 2]


def test_what_is_computed_in_between_is_no_part_of_a_chain():
    graph = """(float[4,8] p, float[4,8] q, float[8,8] w) => (float[4,8] z)
    { a = Add(p, q) c = Cast<to=1>(a) m = MatMul(c, w) z = Add(c, m) }"""
    assert groups_of(scope_of(graph), "310P") == [("BatchMatMulV2", {"m", "z"})]


def no_ops_taken_away(path):
    model = Model(load(path), path)
    infer(model)
    return sum(len(atc.taken_away(scope, kinds(scope))) for scope in model.scopes())


@pytest.mark.parametrize("name", ["bert_ts11_fp32_dynamic", "bart_ts15_fp32_dynamic", "t5_ts14_fp32_dynamic"])
@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend310P3"])
def test_claims_add_up_to_the_columns_of_real_models(name, soc):
    path = SAMPLES / f"{name}.onnx"
    report = optimize_proto(load(path), replace(TOOLS, device=load_device(soc)), path, path.name).report
    summary = report["summary"]
    exported, claimed = (
        sum(f[key] for f in report["fusions"]) for key in ("launches_saved", "launches_saved_after_atc")
    )
    # What dies with several fusions, or is made for several, is in no fusion's figures: the same on both sides, but for
    # no-ops that ATC takes away.
    beside = summary["launches_before"] - summary["launches_after"] - exported
    taken = no_ops_taken_away(path)
    assert 0 <= beside - (summary["launches_after_atc"] - summary["launches_after_both"] - claimed) <= taken
    assert summary["launches_after_both"] <= summary["launches_after_atc"] <= summary["launches_before"]
    assert summary["launches_after_both"] <= summary["launches_after"]
    for fusion in report["fusions"]:
        assert fusion["launches_saved_after_atc"] <= fusion["launches_saved"]
    gone = sum(p["launches_saved"] for p in report["atc"]["passes"])
    assert summary["launches_before"] - summary["launches_after_atc"] == gone + taken


@pytest.mark.parametrize("name", ["bert_ts11_fp32_dynamic", "whisper_dynamo17_fp16_dynamic"])
def test_operators_known_from_before_a_change_are_those_found_anew(name):
    path = SAMPLES / f"{name}.onnx"
    passes = atc.passes(TOOLS.book, NO_SWITCHES, "910B")
    assert passes is not None
    tools = replace(
        TOOLS, options=replace(TOOLS.options, disabled=BY_NAME - {"attention", "layer_norm_pair", "linear_epilogue"})
    )
    told = known_as_anew(load(path), tools, passes)
    assert sum(told.values()) > 0


def known_as_anew(given: onnx.ModelProto, tools: Toolbox, passes: atc.Passes) -> dict[str, int]:
    """How often each pass acts on the optimized model: as the report tells, and as the passes find in it by itself."""
    result = optimize_proto(given, tools)
    assert result.report["fusions"]
    model = Model(deepcopy(result.model), None)
    infer(model)
    finder = RuleFinder(model.main, LOOKUP)
    fresh = [entry for g in atc.fused_by_atc(finder, passes.running, kinds(model.main)) for entry in g.applied]
    told = {p["rule"]: p["times_after"] for p in result.report["atc"]["passes"]}
    assert {name: sum(n == name for n, _ in fresh) for name in told} == told
    return told


def test_what_is_left_of_an_operator_may_be_more_once_a_launch_between_is_gone():
    """Two casts inside a GELU go: its parts are no chain of their own from then on, but the GELU again."""
    graph = """(float[8,8] x, float[8,8] w) => (float[8,8] y)
    <float[8] b = {1,2,3,4,5,6,7,8}, float root = {1.4142135}, float one = {1.0}, float half = {0.5}> {
      m = MatMul(x, w) a = Add(m, b) d = Div(a, root) e = Erf(d) away = Cast<to = 11>(e) back = Cast<to = 1>(away)
      s = Add(back, one) p = Mul(a, s) y = Mul(p, half) }"""
    passes = atc.passes(TOOLS.book, NO_SWITCHES, "310P")
    assert passes is not None
    options = replace(TOOLS.options, disabled=BY_NAME - {"no_op_cast_pair"})
    told = known_as_anew(
        parse_graph(graph, 17), replace(TOOLS, device=load_device("Ascend310P3"), options=options), passes
    )
    assert told["atc_gelu_erf"] == 1


def test_the_model_itself_is_fused_by_none_of_them():
    given = parse_graph(RESIDUAL, 17)
    tools = replace(TOOLS, options=replace(TOOLS.options, disabled=BY_NAME))
    result = optimize_proto(deepcopy(given), tools)
    assert [n.op_type for n in result.model.graph.node] == [n.op_type for n in given.graph.node]
    assert result.report["fusions"] == []
    assert result.report["summary"]["launches_after_atc"] == 2
