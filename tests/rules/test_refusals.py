"""One small model a safety check (`refusals/ATFnnn_what.txt`): it is kept, with that code and a reason that says why."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from building import Builder
from onnx import parser
from running import reasons, session, tools

from atcfuse.compiler import Result, optimize_proto
from atcfuse.diagnostics import code_page
from atcfuse.expr import parse
from atcfuse.graph.text import parse_graph
from atcfuse.hints import hint_for
from atcfuse.kernel import Requirement
from atcfuse.options import Dialect, Options
from atcfuse.rule.model import RuleBook
from atcfuse.switches import read_switches

FILES = sorted((Path(__file__).parent / "refusals").glob("*.txt"))
SAFETY = {"ATF301", "ATF302", "ATF303", "ATF305"}
ATTENTION = """(float[2,3,4,8] q, float[2,3,6,8] k, float[2,3,6,8] v) => (float[2,3,4,8] y) {
  t = Transpose<perm = [0, 1, 3, 2]>(k)
  a = MatMul(q, t)
  p = Softmax<axis = -1>(a)
  y = MatMul(p, v)
}"""


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_model_is_kept_with_its_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    said = dict(re.findall(r"^# (\w+): ?(.*)$", text, re.MULTILINE))
    rule = tools().book.rule(said["rule"])
    assert rule is not None
    model = parse_graph(re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), int(said["opset"]))
    session(model)  # the model is a valid one
    alone = replace(tools(), book=RuleBook((rule,), tools().book.fragments))
    result = optimize_proto(deepcopy(model), alone)
    assert result.report["fusions"] == []
    assert [n.SerializeToString() for n in result.model.graph.node] == [n.SerializeToString() for n in model.graph.node]
    code = path.name.partition("_")[0]
    found = [(kept["code"], kept["reason"]) for kept in result.report["kept"]]
    assert any(c == code and said["says"] in reason for c, reason in found), found


def test_every_safety_check_has_a_file() -> None:
    assert {f.name.partition("_")[0] for f in FILES} >= SAFETY


@pytest.mark.parametrize("code", sorted({f.name.partition("_")[0] for f in FILES}))
def test_every_refusal_has_a_page_and_a_hint_of_a_line(code: str) -> None:
    page = code_page(code)
    assert page is not None
    assert re.match(rf"# {code}: .+\n\n\*\*Found\*\* ", page)
    assert 0 < len(hint_for(code)) < 250


def _kept(result: Result) -> set[tuple[str, str]]:
    return {(code, reason) for _, code, reason, _ in reasons(result)}


def test_a_rule_that_is_switched_off(tmp_path: Path) -> None:
    file = tmp_path / "sw.yaml"
    file.write_text("Switch: {GraphFusion: {FusedAttentionFusionPass: off}}\n")
    switches = read_switches(file, {r.switch: r.switch_kind for r in tools().book.rules})
    result = optimize_proto(parse_graph(ATTENTION, 17), replace(tools(), switches=switches))
    assert [code for code, _ in _kept(result)] == ["ATF321"]


MERGED = """<ir_version: 8, opset_import: ["" : 17]>
g (bool c, float[2,3,8] x, float[2,3,8] r, float[8,8] w) => (float[2,3,8] y) {
  y = If (c) <
    then_branch = yes () => (float[2,3,8] t) { m = MatMul(x, w) t = Add(m, r) },
    else_branch = no () => (float[2,3,8] e) { e = Neg(x) }
  >
}"""


@pytest.mark.parametrize(("dialect", "codes"), [("portable", []), ("atc", ["ATF347"]), ("atc-flat", ["ATF347"])])
def test_no_operand_is_absent_in_front_of_others_in_a_branch_that_atc_reads(dialect: Dialect, codes: list[str]) -> None:
    model = parser.parse_model(MERGED)
    made = optimize_proto(deepcopy(model), replace(tools(), options=Options(dialect=dialect, kernels=False)))
    assert [code for code, _ in _kept(made) if code == "ATF347"] == codes
    branch = next(a.g for a in made.model.graph.node[0].attribute if a.name == "then_branch")
    assert [n.op_type for n in branch.node] == (["MatMul", "Add"] if codes else ["FusedLinear"])
    # The same in the main graph: there an absent operand is one to ATC too.
    flat = parse_graph(
        "(float[2,3,8] x, float[2,3,8] r, float[8,8] w) => (float[2,3,8] y) { m = MatMul(x, w) y = Add(m, r) }", 17
    )
    made = optimize_proto(flat, replace(tools(), options=Options(dialect=dialect, kernels=False)))
    assert [n.op_type for n in made.model.graph.node] == ["FusedLinear"]


def test_a_rule_that_the_environment_disables() -> None:
    off = replace(tools(), options=Options(dialect="portable", disabled=frozenset({"attention"})))
    result = optimize_proto(parse_graph(ATTENTION, 17), off)
    assert _kept(result) == {("ATF321", "GF_AUTOFUSION_DISABLE turns the rule attention off")}


def test_debugging_keeps_every_operator() -> None:
    off = replace(tools(), options=Options(dialect="portable", keep_all=True))
    result = optimize_proto(parse_graph(ATTENTION, 17), off)
    assert [code for code, _ in _kept(result)] == ["ATF322"]


def test_a_requirement_of_the_kernel() -> None:
    spec = tools().kernels["attention"]
    needs = Requirement(parse("head_dim % 16 == 0", spec.span), "the head dim is no multiple of 16")
    kernels = {**tools().kernels, "attention": replace(spec, requires=(needs,))}
    result = optimize_proto(parse_graph(ATTENTION, 17), replace(tools(), kernels=kernels))
    assert _kept(result) == {("ATF323", "the head dim is no multiple of 16")}


def test_a_search_without_end_is_given_up() -> None:
    b = Builder(17)
    scores = b.op("MatMul", b.input("q", [2, 3, 4, 8]), b.input("k", [2, 3, 8, 6]))
    for _ in range(80):
        scores = b.op("Add", scores, b.constant(np.ones([1, 6])))
    b.output(b.op("MatMul", b.op("Softmax", scores, axis=-1), b.input("v", [2, 3, 6, 8])), 4)
    result = optimize_proto(b.model(), tools())
    assert {kept["code"] for kept in result.report["kept"] if kept["rule"] == "attention"} == {"ATF316"}


def test_the_lesser_of_two_fusions_names_the_greater() -> None:
    graph = """(float[2,4,8] x, float[8] g, float[8,6] wq, float[8,6] wk, float[8,6] wv)
      => (float[2,4,6] q, float[2,4,6] k, float[2,4,6] v) {
        n = LayerNormalization<axis = -1>(x, g)
        q = MatMul(n, wq)
        k = MatMul(n, wk)
        v = MatMul(n, wv)
      }"""
    result = optimize_proto(parse_graph(graph, 17), tools())
    assert [f["rule"] for f in result.report["fusions"]] == ["layer_norm_qkv"]
    assert _kept(result) == set()
