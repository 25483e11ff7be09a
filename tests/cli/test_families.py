"""One model a family, optimized and verified: in onnxruntime as a whole, and kernel by kernel in the twin."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_support import Outcome

Run = Callable[..., Outcome]
SAMPLES = Path(__file__).parents[2] / "sample_models"
FAMILIES = {
    "bart": "bart_ts15_fp32_dynamic",
    "bert": "bert_dynamo18_fp16_dynamic",
    "gpt2": "gpt2_ts14_fp32_dynamic",
    "llama": "llama_past_ts17_fp16_dynamic",
    "nanogpt": "nanogpt_ts17_fp16_static",
    "t5": "t5_ts14_fp32_dynamic",
    "torch encoder": "torch_encoder_ts17_fp32_static",
    "vit": "vit_dynamo18_fp32_static",
    "whisper": "whisper_dynamo17_fp16_dynamic",
}


def test_every_family_of_the_samples_is_here() -> None:
    of = {name.replace("torch_encoder", "torch encoder") for name in (p.name for p in SAMPLES.glob("*.onnx"))}
    assert {name.split("_")[0].split(" ")[0] for name in of} == {family.split(" ")[0] for family in FAMILIES}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_kernel_by_kernel(atcfuse: Run, family: str, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    shutil.copyfile(SAMPLES / f"{FAMILIES[family]}.onnx", model)
    # With every fusion, also those that do not pay at these sizes: each kernel has to be right.
    assert atcfuse("optimize", model, "--min-saving", "0").code == 0
    done = atcfuse("verify", model, model.with_name("model.fused.onnx"), "--kernels", "--format", "json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["kernels"]["ok"], found["kernels"]
