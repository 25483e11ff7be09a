"""Optimizing and running models in generated tests, and judging what the fused model gives."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from atcfuse.compiler import Result, optimize_proto, toolbox
from atcfuse.options import Options
from atcfuse.rule.model import RuleBook
from atcfuse.run import Toolbox

Array = np.ndarray[Any, np.dtype[Any]]
TOLERANCE = {"float32": 2e-5, "float16": 4e-3}


@lru_cache(maxsize=1)
def tools() -> Toolbox:
    """All rules and kernels, dialect portable; what no rule takes is not grouped."""
    made = toolbox(Options(dialect="portable"))
    return replace(made, book=RuleBook(tuple(r for r in made.book.rules if r.steps), made.book.fragments))


def optimized(model: onnx.ModelProto) -> Result:
    """The optimized model; the given one stays as it is."""
    return optimize_proto(deepcopy(model), tools())


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    """onnxruntime on the CPU without optimizations, on one thread."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto, feed: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs by name."""
    made = session(model)
    wanted = {i.name for i in made.get_inputs()}
    names = [o.name for o in made.get_outputs()]
    return dict(zip(names, made.run(None, {k: v for k, v in feed.items() if k in wanted}), strict=True))


def difference(reference: Mapping[str, Array], got: Mapping[str, Array], dtype: str) -> str:
    """How two results differ beyond the tolerance of the element type, "" where they agree."""
    for name, want in reference.items():
        have = got[name]
        if want.shape != have.shape or want.dtype != have.dtype:
            return f"{name} is {have.dtype}{list(have.shape)} instead of {want.dtype}{list(want.shape)}"
        if want.dtype.kind != "f":
            if not np.array_equal(want, have):
                return f"{name} differs"
            continue
        wide, other = want.astype(np.float64), have.astype(np.float64)
        if not np.array_equal(np.isnan(wide), np.isnan(other)):
            return f"{name} is NaN in other places"
        if not np.array_equal(np.isinf(wide), np.isinf(other)):
            return f"{name} is infinite in other places"
        finite = np.isfinite(wide)
        scale = np.abs(wide[finite]).max(initial=0.0)
        delta = np.abs(wide[finite] - other[finite]).max(initial=0.0)
        if delta > TOLERANCE[dtype] * scale + 1e-12:
            return f"{name} is off by {delta:.3g}, relative {delta / max(scale, 1e-30):.3g}"
    return ""


def fused_ops(result: Result) -> list[str]:
    """The fused operators of a result, sorted."""
    return sorted(str(fusion["op"]) for fusion in result.report["fusions"])


def reasons(result: Result) -> list[tuple[str, str, str, str]]:
    """Why subgraphs were kept."""
    return [(k["rule"], k["code"], k["reason"], k["value"]) for k in result.report["kept"]]
