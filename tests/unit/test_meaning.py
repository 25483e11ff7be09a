"""Meaning functions against numpy, rendered from attributes and run in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import helper

from atcfuse.kernel import DOMAIN, load_kernels
from atcfuse.meaning import Signature, number, render, signature_of
from atcfuse.resources import data_folder

Array = np.ndarray[Any, np.dtype[Any]]
KERNELS = load_kernels(data_folder("kernels"))
B, H, S, L, D = 2, 3, 4, 5, 8
RNG = np.random.default_rng(5)
ATTENTION: dict[str, Any] = {
    "num_heads": H, "num_kv_heads": H, "head_dim": D, "v_head_dim": D, "scale": 0.3, "softmax_precision": 1,
    **{f"{name}_layout": "BNSD" for name in ("q", "k", "v", "out")},
}  # fmt: skip


def run(
    kernel: str, given: Mapping[str, Any], feeds: Mapping[str, Array], outputs: list[str], opset: int = 17
) -> list[Array]:
    """A model of one fused node with its meaning, run on the feeds."""
    spec = KERNELS[kernel]
    attributes = {a.name: given.get(a.name, a.default) for a in spec.attributes}
    kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in feeds.items()}
    signature = signature_of(
        spec, attributes, {i.name: kinds[i.name] for i in spec.inputs if i.name in kinds}, outputs, opset
    )
    names = [i.name if i.name in feeds else "" for i in spec.inputs]
    while not names[-1]:
        names.pop()
    node = helper.make_node(spec.op, names, outputs, domain=DOMAIN, **attributes)
    node.overload = signature.overload
    inputs = [helper.make_tensor_value_info(n, kinds[n], x.shape) for n, x in feeds.items()]
    made = [onnx.ValueInfoProto(name=o) for o in outputs]
    graph = helper.make_graph([node], "g", inputs, made)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    function = onnx.parser.parse_function(render(spec, signature))
    model = helper.make_model(graph, opset_imports=imports, ir_version=10, functions=[function])
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(x) for x in session.run(None, dict(feeds))]


def operands(kv_heads: int = H) -> dict[str, Array]:
    return {
        "q": RNG.standard_normal([B, H, S, D]).astype(np.float32),
        "k": RNG.standard_normal([B, kv_heads, L, D]).astype(np.float32),
        "v": RNG.standard_normal([B, kv_heads, L, D]).astype(np.float32),
    }


def softmax(scores: Array) -> Array:
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)


def attended(feeds: Mapping[str, Array], **more: Any) -> Array:
    """Attention in numpy, float64, step by step as kernel.yaml describes it."""
    a: dict[str, Any] = {
        "softcap": 0.0,
        "mask_keeps": 1,
        "mask_first": 0,
        "mask_fill": -np.inf,
        "floor": -np.inf,
        **more,
    }
    q, k, v = (feeds[n].astype(np.float64) for n in "qkv")
    group = q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, group, 1).swapaxes(-1, -2) * 0.3
    if a["softcap"]:
        scores = a["softcap"] * np.tanh(scores / a["softcap"])
    for step in ("mask", "bias") if a["mask_first"] else ("bias", "mask"):
        if step == "bias" and "bias" in feeds:
            scores = scores + feeds["bias"]
        if step == "mask" and "mask" in feeds:
            scores = np.where(feeds["mask"] == bool(a["mask_keeps"]), scores, a["mask_fill"])
    if a.get("causal", "none") != "none":
        shift = L - S if a["causal"] == "bottom_right" else 0
        scores = np.where(np.arange(L)[None, :] > np.arange(S)[:, None] + shift, -np.inf, scores)
    scores = np.maximum(scores, a["floor"])
    probs = softmax(scores)
    if a.get("masked_rows") == "zero":
        probs = np.nan_to_num(probs)
    return np.asarray(probs @ np.repeat(v, group, 1))


MASK = RNG.random([B, 1, S, L]) < 0.6
MASK[0, 0, 0], MASK[1, 0, 2] = False, True
BIAS = RNG.standard_normal([B, 1, 1, L]).astype(np.float32)


@pytest.mark.parametrize(
    ("extra", "given"),
    [
        ({}, {}),
        ({}, {"softcap": 2.0}),
        ({"bias": BIAS}, {}),
        ({"bias": BIAS}, {"floor": -0.5}),
        ({"mask": MASK}, {}),
        ({"mask": MASK}, {"masked_rows": "zero"}),
        ({"mask": MASK}, {"mask_keeps": 0, "mask_fill": -1e4}),
        ({"mask": MASK, "bias": BIAS}, {"mask_fill": -3.0}),
        ({"mask": MASK, "bias": BIAS}, {"mask_fill": -3.0, "mask_first": 1}),
        ({"mask": MASK}, {"softcap": 1.5, "floor": -2.0}),
        ({}, {"causal": "top_left"}),
        ({}, {"causal": "bottom_right"}),
        ({"bias": BIAS}, {"causal": "top_left", "softcap": 1.5}),
        ({"mask": MASK, "bias": BIAS}, {"mask_fill": -3.0, "bias_cycles": 1, "mask_cycles": 1}),
    ],
)
@pytest.mark.parametrize("opset", [11, 17, 18])
def test_attention(extra: dict[str, Array], given: dict[str, Any], opset: int) -> None:
    feeds = {**operands(), **extra}
    (got,) = run("attention", {**ATTENTION, **given}, feeds, ["out"], opset)
    np.testing.assert_allclose(got, attended(feeds, **given), rtol=2e-5, atol=2e-6)


def test_windows_that_go_through_bias_and_mask_again_and_again() -> None:
    feeds = {**operands(), "bias": BIAS, "mask": MASK}
    for name in ("q", "k", "v"):
        feeds[name] = np.concatenate([feeds[name], feeds[name][::-1] * 2, feeds[name] + 1])
    given = {"mask_fill": -3.0, "bias_cycles": 1, "mask_cycles": 1}
    (got,) = run("attention", {**ATTENTION, **given}, feeds, ["out"], 17)
    whole = {**feeds, **{name: np.concatenate([feeds[name]] * 3) for name in ("bias", "mask")}}
    np.testing.assert_allclose(got, attended(whole, mask_fill=-3.0), rtol=2e-5, atol=2e-6)


def test_grouped_heads() -> None:
    feeds = operands(kv_heads=1)
    (got,) = run("attention", {**ATTENTION, "num_kv_heads": 1}, feeds, ["out"])
    np.testing.assert_allclose(got, attended(feeds), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("present", [("gamma", "beta", "b1", "b2"), ("gamma",), ()])
@pytest.mark.parametrize("opset", [11, 18])
def test_norm_and_projections(norm: str, present: tuple[str, ...], opset: int) -> None:
    sizes = {"x": [B, S, D], "gamma": [D], "beta": [D], "w1": [D, 6], "w2": [7, D], "b1": [6], "b2": [7]}
    feeds = {
        name: RNG.standard_normal(shape).astype(np.float32)
        for name, shape in sizes.items()
        if name in (*present, "x", "w1", "w2")
    }
    given = {"norm": norm, "epsilon": 0.1, "num_projections": 2, "transposed": [0, 1]}
    got = run("layer_norm_qkv", given, feeds, ["y1", "y2", "normalized"], opset)
    x = feeds["x"].astype(np.float64)
    centred = x - x.mean(-1, keepdims=True) if norm == "layer_norm" else x
    n = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 0.1) * feeds.get("gamma", 1.0) + feeds.get("beta", 0.0)
    want = [n @ feeds["w1"] + feeds.get("b1", 0.0), n @ feeds["w2"].T + feeds.get("b2", 0.0), n]
    for one, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(one, expected, rtol=2e-5, atol=2e-6)


def test_equal_signatures_have_one_name_and_different_ones_their_own() -> None:
    base = Signature("Op", (("scale", 0.5),), (("q", 1),), ("out",), 17)
    variants = [
        base, replace(base, attributes=(("scale", 0.25),)), replace(base, inputs=(("q", 10),)),
        replace(base, outputs=("out", "n")), replace(base, opset=18), replace(base, op="Other"),
    ]  # fmt: skip
    names = [v.overload for v in variants]
    assert len(set(names)) == len(names)
    assert replace(base).overload == base.overload
    assert all(len(n) == 10 and set(n) <= set("abcdefghijklmnop") for n in names)


@pytest.mark.parametrize("value", [0.1, 1e-12, -3.4028234663852886e38, float("inf"), float("-inf"), 1 / 3])
def test_numbers_are_read_back_exactly(value: float) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g () => (float y) {{ y = Constant <value = float {{{number(value)}}}> () }}'
    tensor = onnx.parser.parse_model(text).graph.node[0].attribute[0].t
    assert onnx.numpy_helper.to_array(tensor) == np.float32(value)
