"""A transformer block of real exports becomes four kernels and nothing else, whichever exporter wrote it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_blocks", ROOT / "bench" / "blocks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


blocks = _bench()
SAMPLES = ROOT / "sample_models"
FOUR = (
    "bert_dynamo18_fp16_dynamic",
    "bert_ts11_fp32_dynamic",
    "gpt2_dynamo18_fp16_dynamic",
    "nanogpt_ts17_fp16_static",
    "t5_encoder_dynamo18_fp32_dynamic",
    "torch_encoder_dynamo18_fp32_dynamic",
    "torch_encoder_ts17_fp32_static",
    "vit_dynamo18_fp32_static",
    "vit_ts14_fp16_dynamic",
)


@pytest.mark.parametrize("name", FOUR)
def test_a_self_attention_block_is_four_kernels(name: str) -> None:
    row = blocks.cover(SAMPLES / f"{name}.onnx")
    assert set(row.each) == {4}
    assert row.left == ()


def test_with_rotary_embeddings_it_is_five() -> None:
    row = blocks.cover(SAMPLES / "llama_dynamo18_fp32_dynamic.onnx")
    assert set(row.each) == {5}
    assert row.left == ()


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("bart_ts15_fp32_dynamic", ()),
        ("t5_ts14_fp32_dynamic", ()),
        ("whisper_dynamo17_fp16_dynamic", ("Clip",)),
    ],
)
def test_a_block_with_cross_attention_is_at_most_seven(name: str, left: tuple[str, ...]) -> None:
    row = blocks.cover(SAMPLES / f"{name}.onnx")
    assert row.left == left
    assert max(row.each) <= 7
    assert f"| {name} |" in blocks.table([row])


def test_shares_by_family_are_medians() -> None:
    rows = [
        blocks.Coverage("bert_ts17_fp32_dynamic", 100, 20, 40, 4, (4,), ()),
        blocks.Coverage("bert__optimum__O1", 100, 30, 40, 6, (4,), ()),
        blocks.Coverage("t5_encoder_dynamo18_fp32_dynamic", 100, 50, 50, 25, (4,), ()),
    ]
    lines = blocks.families(rows).splitlines()[2:]
    assert lines == ["| bert | 2 | 12 % | 25 % |", "| t5_encoder | 1 | 50 % | 50 % |", "| all | 3 | 15 % | 30 % |"]
