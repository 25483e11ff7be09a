"""Random shape arithmetic: whatever the evaluator claims of it holds in onnxruntime at every size, empty ones too."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from infer_oracle import (
    Judge,
    OnnxruntimeFail,
    inferred,
    is_meaningful,
    runs_random_programs,
    session,
    values,
)
from infer_programs import feeds, grow

SIZES = [(2, 3, 1), (3, 2, 2), (1, 1, 0), (0, 3, 1), (2, 0, -1), (3, 1, 5), (5, 7, -2), (0, 0, 0), (4, 4, 4)]


def _refuted(seed: int, steps: int) -> list[str]:
    proto = grow(seed, steps, feeds(*SIZES[seed % len(SIZES)]))
    model = inferred(proto)
    try:
        run = session(proto)
    except OnnxruntimeFail:  # its own shape inference refuses the combination
        return []
    out = []
    for a, b, n in SIZES:
        try:
            everything = values(run, feeds(a, b, n))
        except OnnxruntimeFail:  # the model does not run at this size, so nothing is claimed
            continue
        if is_meaningful(proto, everything):
            out += Judge(model, everything, {"a": a, "b": b}).contradictions()
    return out


pytestmark = runs_random_programs


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1))
def test_no_claim_about_a_random_program_is_refuted(seed: int) -> None:
    assert _refuted(seed, 20) == []


@pytest.mark.parametrize("seed", [14, 25, 44, 113, 123])
def test_programs_that_once_refuted_a_claim(seed: int) -> None:
    assert _refuted(seed, 25) == []
