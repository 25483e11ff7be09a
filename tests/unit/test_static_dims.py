"""A kernel's declaration may ask for dims that are numbers when the model is built."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.diagnostics import AtcfuseError
from atcfuse.graph.text import parse_graph
from atcfuse.kernel import load_kernels
from atcfuse.options import Options
from atcfuse.resources import data_folder
from atcfuse.run import Toolbox

TEXT = """(float[B,S,64] x, float[64] g, float[64] b, float[64,64] v, float[64,64] w) => (float[B,S,64] y, float[B,S,64] z) {
  n = LayerNormalization(x, g, b)
  y = MatMul(n, v)
  z = MatMul(n, w)
}"""


def tools_with(static: dict[str, tuple[int, ...]]) -> Toolbox:
    """The rules and kernels, where those of a norm with one product and with several need these axes to be numbers."""
    tools = toolbox(Options(dialect="portable", disabled=frozenset({"layer_norm_operator"})))
    changed = {
        n: replace(tools.kernels[n], static=tuple(static.items())) for n in ("layer_norm_qkv", "layer_norm_linear")
    }
    return replace(tools, kernels={**tools.kernels, **changed})


@pytest.mark.parametrize(
    ("static", "reason"),
    [
        ({"x": (-1,), "gamma": (0,), "b1": (0,)}, ""),
        ({"x": (-2,)}, "layer_norm_qkv needs axis -2 of x (S) when the model is built"),
        ({"gamma": (0,), "x": (0, 1)}, "layer_norm_qkv needs axis 0 of x (B), axis 1 of x (S) when the model is built"),
    ],
)
def test_an_axis_that_must_be_a_number(static: dict[str, tuple[int, ...]], reason: str) -> None:
    report = optimize_proto(parse_graph(TEXT, 17), tools_with(static)).report
    if not reason:
        assert [f["op"] for f in report["fusions"]] == ["FusedLayerNormQKV"]
        return
    assert report["fusions"] == []
    assert [(k["code"], k["reason"]) for k in report["kept"]] == [("ATF334", reason)]


def declared(folder: Path, line: str) -> Path:
    target = folder / "layer_norm_qkv"
    target.mkdir()
    source = data_folder("kernels") / "layer_norm_qkv" / "kernel.yaml"
    shutil.copy(source, target)
    (target / "kernel.yaml").write_text(f"{source.read_text()}\n{line}\n")
    return folder


def test_a_declaration_lists_axes_by_input(tmp_path: Path) -> None:
    spec = load_kernels(declared(tmp_path, "static: {x: [-1], gamma: [0]}"))["layer_norm_qkv"]
    assert spec.static == (("x", (-1,)), ("gamma", (0,)))
    assert load_kernels(data_folder("kernels"))["layer_norm_qkv"].static == ()


@pytest.mark.parametrize(
    ("line", "code", "hint"),
    [
        ("static: {gama: [0]}", "ATF210", "gamma"),
        ("static: {x: [0.5]}", "ATF207", ""),
        ("static: {x: 1}", "ATF207", ""),
    ],
)
def test_mistakes_in_a_declaration(tmp_path: Path, line: str, code: str, hint: str) -> None:
    with pytest.raises(AtcfuseError) as caught:
        load_kernels(declared(tmp_path, line))
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert found.span is not None
    assert hint in (found.hint or "")


SOFTMAX = """(float[B,4,Q,8] q, float[B,4,8,KEYS] k, float[B,1,1,KEYS] m) => (float[B,4,Q,KEYS] p) <float c = {0.125}> {
  raw = MatMul(q, k)
  scaled = Mul(raw, c)
  masked = Add(scaled, m)
  p = Softmax<axis=-1>(masked)
}"""
GROUPS = """(float[B,64,H,W] x, float[64,1,1] g, float[64,1,1] b) => (float[B,64,H,W] y)
<int64[3] rows = {0,4,-1}, float[4] ones = {1,1,1,1}, float[4] zeros = {0,0,0,0}> {
  grouped = Reshape(x, rows)
  normal = InstanceNormalization<epsilon = 1e-5>(grouped, ones, zeros)
  shape = Shape(x)
  back = Reshape(normal, shape)
  scaled = Mul(back, g)
  shifted = Add(scaled, b)
  gate = Sigmoid(shifted)
  y = Mul(shifted, gate)
}"""


@pytest.mark.parametrize(
    ("text", "whole", "op", "code"),
    [
        (SOFTMAX, {"KEYS": "64"}, "FusedScaleMaskSoftmax", "ATF318"),
        (GROUPS, {",H,W]": ",16,16]"}, "FusedGroupNormSilu", "ATF334"),
    ],
)
def test_rows_of_unknown_length_where_only_whole_blocks_are_copied(
    text: str, whole: dict[str, str], op: str, code: str
) -> None:
    """The kernels of 310P refuse rows that do not fill blocks: what is not known when the model is built may not.

    Of a softmax the report tells why it is no attention: its own rule is one for leftovers.
    """

    def made(soc: str, sizes: dict[str, str]) -> tuple[set[str], set[str]]:
        graph = text
        for name, size in sizes.items():
            graph = graph.replace(name, size)
        options = Options(dialect="portable", soc=soc, min_saving_us=0)
        report = optimize_proto(parse_graph(graph, 17), toolbox(options)).report
        return {f["op"] for f in report["fusions"]}, {k["code"] for k in report["kept"] if k["rule"] != "elementwise"}

    assert op in made("Ascend910B1", {})[0]
    assert op in made("Ascend310P3", whole)[0]
    fused, codes = made("Ascend310P3", {})
    assert op not in fused
    assert codes == {code}
