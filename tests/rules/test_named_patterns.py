"""The patterns that the automatic-fusion article names, and its block of twelve operators."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from running import difference, fused_ops, optimized, run, tools

import atcfuse
from atcfuse.cli import run as cli_run
from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.diagnostics import UsageError
from atcfuse.graph.text import parse_graph
from atcfuse.options import Options

NAMED = {
    "layernorm_dropout_linear": "FusedLayerNormLinearFusionPass",
    "gelu_linear_residual": "FusedGeluLinearResidualFusionPass",
    "attention_core": "FusedAttentionFusionPass",
    "layernorm_qkv_linear": "FusedLayerNormQKVFusionPass",
}
BLOCK = """(float[2,S,8] x, float[8] g, float[8] b, float[8,24] w, float[24] c, float[8,8] o, float[8] h, float[8] d,
  float[8,16] up, float[16,8] down) => (float[2,S,8] y)
  <int64[3] parts = {8, 8, 8}, int64[4] heads = {0, 0, 2, 4}, int64[3] merged = {0, 0, 8}> {
    n = LayerNormalization<axis = -1>(x, g, b)
    p = MatMul(n, w)
    packed = Add(p, c)
    q0, k0, v0 = Split<axis = 2>(packed, parts)
    q1 = Reshape(q0, heads)
    k1 = Reshape(k0, heads)
    v1 = Reshape(v0, heads)
    q = Transpose<perm = [0, 2, 1, 3]>(q1)
    k = Transpose<perm = [0, 2, 3, 1]>(k1)
    v = Transpose<perm = [0, 2, 1, 3]>(v1)
    scores = MatMul(q, k)
    weights = Softmax<axis = -1>(scores)
    context = MatMul(weights, v)
    back = Transpose<perm = [0, 2, 1, 3]>(context)
    joined = Reshape(back, merged)
    projected = MatMul(joined, o)
    r = Add(x, projected)
    m = LayerNormalization<axis = -1>(r, h, d)
    u = MatMul(m, up)
    a = Gelu(u)
    y = MatMul(a, down)
  }"""


@pytest.mark.parametrize("name", NAMED)
def test_a_named_pattern_has_a_rule_examples_and_a_switch(name: str, tmp_path: Path) -> None:
    rule = tools().book.rule(name)
    assert rule is not None
    assert rule.switch == NAMED[name]
    assert rule.fuses
    assert rule.keeps
    model = parse_graph(rule.fuses[0].graph, rule.fuses[0].opset)
    made = {fusion["rule"] for fusion in optimized(model).report["fusions"]}
    assert rule.name in made
    switches = tmp_path / "switches.json"
    switches.write_text(json.dumps({"Switch": {"GraphFusion": {rule.switch: "off"}}}), encoding="utf-8")
    options = Options(dialect="portable", switch_file=switches)
    assert rule.name not in {f["rule"] for f in atcfuse.optimize(model, options).report["fusions"]}


def test_an_alias_is_a_name_of_the_rule_wherever_one_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    model = parse_graph(BLOCK, 20)
    made = toolbox(Options(dialect="portable", forced=frozenset({"attention_core"})))
    assert made.options.forced == {"attention"}
    made = toolbox(Options(dialect="portable", disabled=frozenset({"attention_core"})))
    rules = {f["rule"] for f in optimize_proto(model, made).report["fusions"]}
    assert "attention" not in rules
    assert "layer_norm_ffn" in rules
    assert cli_run(["rules", "show", "layernorm_qkv_linear"]) == 0
    assert "rule: layer_norm_qkv" in capsys.readouterr().out
    with pytest.raises(UsageError, match="attention_cor"):
        toolbox(Options(forced=frozenset({"attention_cor"})))


def test_the_block_of_twelve_operators_becomes_its_four_groups() -> None:
    model = parse_graph(BLOCK, 20)
    views = {"Split", "Reshape", "Transpose"}
    assert sum(n.op_type not in views for n in model.graph.node) == 12
    result = optimized(model)
    groups = [n.op_type for n in result.model.graph.node]
    assert groups == ["FusedLayerNormQKV", "FusedAttention", "FusedLinear", "FusedLayerNormFFN"]
    assert len(fused_ops(result)) == 4
    rng = np.random.default_rng(7)
    feed = {
        i.name: rng.normal(size=[d.dim_value or 5 for d in i.type.tensor_type.shape.dim]).astype(np.float32)
        for i in model.graph.input
    }
    assert difference(run(model, feed), run(result.model, feed), "float32") == ""
