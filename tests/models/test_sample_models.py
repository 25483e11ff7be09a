"""The main job on every shipped model: all attentions fuse, the numbers hold, the constants are the true ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml

from atcfuse.compiler import optimize_proto, toolbox
from atcfuse.graph.dialect import normalise
from atcfuse.graph.store import load
from atcfuse.options import Options
from atcfuse.verify import verify

FOLDER = Path(__file__).resolve().parents[2] / "sample_models"
MODELS = yaml.safe_load((FOLDER / "models.yaml").read_text(encoding="utf-8"))
NAMES = sorted(MODELS)


def fuse(name: str, dialect: str = "portable") -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A sample model optimized in memory, and its report."""
    proto = load(FOLDER / name)
    result = optimize_proto(proto, toolbox(Options(dialect=dialect)), FOLDER / name, name)  # type: ignore[arg-type]
    return proto, result.report


def of_op(report: dict[str, Any], op: str) -> list[dict[str, Any]]:
    """The fusions that made an operator."""
    return [f for f in report["fusions"] if f["op"] == op]


@pytest.mark.parametrize("name", NAMES)
def test_every_attention_fuses(name: str) -> None:
    _, report = fuse(name)
    assert len(of_op(report, "FusedAttention")) == MODELS[name]["attention"]


@pytest.mark.parametrize("name", NAMES)
def test_numbers_hold(name: str) -> None:
    proto, _ = fuse(name, "atc")
    found = verify(load(FOLDER / name), normalise(proto), base_dir_original=FOLDER, base_dir_optimized=FOLDER)
    assert found.ok, [d.message for d in found.diagnostics]
    assert found.feeds


@pytest.mark.parametrize("name", NAMES)
def test_portable_passes_the_full_checker(name: str) -> None:
    proto, _ = fuse(name)
    onnx.checker.check_model(proto, full_check=True)


@pytest.mark.parametrize("name", NAMES)
def test_every_softmax_and_norm_that_stays_has_a_reason(name: str) -> None:
    proto, report = fuse(name)
    kept = {k["anchor"] for k in report["kept"]}
    for node in proto.graph.node:
        if node.op_type in ("Softmax", "LayerNormalization", "RMSNormalization"):
            assert node.name in kept
    assert all(k["code"] and k["reason"] and k["hint"] for k in report["kept"])


@pytest.mark.parametrize("name", [n for n in NAMES if not MODELS[n]["family"].startswith("t5")])
def test_scales_are_one_over_the_root_of_the_head_dim(name: str) -> None:
    _, report = fuse(name)
    for fusion in of_op(report, "FusedAttention"):
        attributes = fusion["attributes"]
        assert attributes["scale"] == pytest.approx(1 / math.sqrt(attributes["head_dim"]), rel=2e-3)


def test_t5_has_no_scale() -> None:
    for name in (n for n in NAMES if MODELS[n]["family"].startswith("t5")):
        assert {f["attributes"]["scale"] for f in of_op(fuse(name)[1], "FusedAttention")} == {1.0}


def test_epsilon_is_the_models_own() -> None:
    epsilons = {f["attributes"]["epsilon"] for f in of_op(fuse("bert_ts17_fp32_dynamic.onnx")[1], "FusedLayerNormQKV")}
    assert epsilons == {float(np.float32(1e-12))}


def test_grouped_heads_are_recognised() -> None:
    for fusion in of_op(fuse("llama_dynamo18_fp32_dynamic.onnx")[1], "FusedAttention"):
        attributes = fusion["attributes"]
        assert attributes["num_kv_heads"] < attributes["num_heads"]
