"""onnxruntime as the judge of what is claimed of values as functions of their index."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from infer_oracle import Judge, close

from atcfuse.dims import evaluate, symbols
from atcfuse.graph.index import Model
from atcfuse.match.bands import Known, Ramp
from atcfuse.match.indexed import Bands


def array_of(known: Known, shape: tuple[int, ...], sizes: Mapping[str, int]) -> np.ndarray:
    """The tensor that a claim describes at concrete sizes."""
    grid = np.full(shape, evaluate(known.start, sizes), np.int64)
    for axis, (slope, size) in enumerate(zip(known.slopes, shape, strict=True)):
        grid = grid + slope * np.arange(size).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return grid if isinstance(known, Ramp) else np.where(grid >= 0, known.inside, known.outside)


def contradictions(model: Model, values: Mapping[str, np.ndarray], sizes: Mapping[str, int] | None = None) -> list[str]:
    """Every claim that the values of one run refute; symbols get their numbers from the shapes of the run."""
    judge = Judge(model, values, dict(sizes or {}))
    judge.contradictions()
    bands = Bands(model.main)
    out = []
    for name in model.main.producers:
        known, value = bands.of(name), values.get(name)
        if known is None or value is None or any(not s.op and s.name not in judge.sizes for s in symbols(known.start)):
            continue
        claimed = array_of(known, value.shape, judge.sizes).astype(value.dtype)
        if not close(claimed, value):
            out.append(f"{name} is claimed to be {known}")
    return out
