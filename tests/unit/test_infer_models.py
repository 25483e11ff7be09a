"""Every claim about every value of the sample models holds in onnxruntime, at each of their sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from infer_oracle import Judge, inferred, session, values
from onnx import helper

from atcfuse.dims import evaluate, symbols
from atcfuse.graph.index import Model

FOLDER = Path(__file__).parents[2] / "sample_models"
MODELS: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "models.yaml").read_text(encoding="utf-8"))


def _feeds(model: Model, sizes: dict[str, int], ranges: dict[str, list[int]]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    out = {}
    for name in model.main.inputs:
        fact = model.main.facts[name]
        shape = [evaluate(d, sizes) for d in fact.shape or ()]
        dtype = helper.tensor_dtype_to_np_dtype(fact.dtype)
        low, high = ranges.get(name, [0, 1])
        if dtype.kind == "f":
            out[name] = rng.standard_normal(shape).astype(dtype)
        else:
            out[name] = rng.integers(low, high, shape, endpoint=True).astype(dtype)
    return out


@pytest.mark.parametrize("name", MODELS)
def test_no_claim_is_refuted(name: str) -> None:
    proto = onnx.load(FOLDER / name)
    model = inferred(proto)
    run = session(proto)
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    for sizes in MODELS[name].get("sizes") or [{}]:
        feeds = _feeds(model, sizes, MODELS[name].get("ranges") or {})
        judge = Judge(model, {**tensors, **values(run, feeds)}, dict(sizes))
        assert judge.contradictions() == []
        assert judge.compared > len(model.main.nodes)


@pytest.mark.parametrize("name", MODELS)
def test_matrix_products_and_softmaxes_are_known_in_terms_of_the_inputs(name: str) -> None:
    model = inferred(onnx.load(FOLDER / name))
    given = {s.name for i in model.main.inputs for d in model.main.facts[i].shape or () for s in symbols(d)}
    for node in model.main.nodes:
        if node.op in ("MatMul", "Softmax", "Gemm"):
            shape = model.main.facts[node.outputs[0]].shape
            assert shape is not None
            assert {s.name for d in shape for s in symbols(d) if not s.op} <= given, node
