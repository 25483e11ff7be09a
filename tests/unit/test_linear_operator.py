"""FusedLinear and FusedLayerNormLinear around their kernels: plans on chips, shapes of the nodes, test vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
from linear_cases import FLOAT, FLOAT16, Case, make_inputs

from atcfuse.device import load_device
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.graph.store import load
from atcfuse.match.values import Refusal
from atcfuse.planner import KernelWork, plan_linear
from atcfuse.tiling.linear_problem import Problem
from atcfuse.vectors import decode, signature_model, vector_files

B1, P3 = load_device("Ascend910B1"), load_device("Ascend310P3")
OUT = Problem(512, 768, 768, bias=True, residual=True)


def planned(problem: Problem, occupancy: float | None = None) -> KernelWork:
    work = plan_linear(problem, B1, occupancy)
    assert isinstance(work, KernelWork)
    return work


@pytest.mark.parametrize(
    "problem",
    [
        OUT,
        replace(OUT, prologue="gelu_erf", hidden=3072),
        replace(OUT, residual=False, norm="layer_norm", gamma_bytes=2, beta_bytes=2),
        replace(OUT, norm="rms_norm", gamma_bytes=4, hidden=8192, columns=50_000),
        replace(OUT, element_bytes=4, activation="tanh", gain=True),
        replace(OUT, gain2=True, shift=True),
        replace(OUT, rows=1, hidden=4096, columns=11_008, brain=True),
    ],
)
def test_a_plan_stays_under_the_bound_and_moves_at_least_its_operands(problem: Problem) -> None:
    work = planned(problem)
    assert work.peak["ub"] <= B1.occupancy * B1.ub
    assert work.peak["l1"] <= B1.occupancy * B1.l1
    assert work.reads["inputs"] >= work.sizes["inputs"] - problem.rows * problem.hidden * problem.element_bytes
    result = problem.rows * problem.columns * problem.element_bytes
    assert work.writes["outputs"] == result
    through = problem.rows * problem.hidden * problem.element_bytes * work.parameters["groups"] * problem.prepares
    assert work.workspace_written == result * problem.finishes + through


def test_what_follows_the_product_is_vector_work() -> None:
    plain, gelu = (planned(replace(OUT, activation=kind)).vector_elements for kind in ("none", "gelu_erf"))
    assert plain == 512 * 768 * 4  # to float32, the residual too, their sum, back
    assert gelu - plain == 512 * 768 * 27


def test_forms_tell_what_is_done_beside_the_product() -> None:
    assert planned(OUT).form == "epilogue"
    assert planned(replace(OUT, prologue="relu")).form == "prologue, epilogue"
    norm = replace(OUT, residual=False, norm="rms_norm", gamma_bytes=2)
    assert planned(norm).form == "whole rows"
    assert planned(norm).handover == "workspace"
    assert planned(replace(norm, hidden=20_000, residual=True)).form == "two reads, epilogue"


def test_caution_where_weights_are_read_more_often_than_unfused() -> None:
    assert not planned(OUT).cautious
    many = [planned(replace(OUT, rows=rows, activation="gelu_erf")) for rows in range(100, 3000, 100)]
    assert {work.cautious for work in many} == {False, True}


@pytest.mark.parametrize(
    ("problem", "device", "occupancy", "code"),
    [
        (OUT, P3, None, "ATF336"),
        (OUT, load_device("Ascend910A"), None, "ATF336"),
        (replace(OUT, hidden=70_000), B1, None, "ATF338"),
        (replace(OUT, columns=70_000), B1, None, "ATF338"),
        (OUT, B1, 0.02, "ATF338"),
        (replace(OUT, norm="layer_norm"), B1, 0.02, "ATF338"),
    ],
)
def test_refusals(problem: Problem, device, occupancy: float | None, code: str) -> None:  # type: ignore[no-untyped-def]
    work = plan_linear(problem, device, occupancy)
    assert isinstance(work, Refusal)
    assert work.code == code


CASES = [
    Case(FLOAT16, "bias gain residual", scale=0.5, activation="gelu_erf", transposed=True),
    Case(FLOAT, "bias", prologue="silu"),
    Case(FLOAT, "bias residual residual2", activation="relu_squared"),
    Case(FLOAT16, "residual residual2", folded=True),
    Case(FLOAT, "bias gain residual gain2 shift", activation="tanh"),
    Case(FLOAT16, "residual shift", folded=True),
    Case(FLOAT16, "bias residual", folded=True),
    Case(FLOAT, "gamma beta bias residual normalized", norm="layer_norm", affine=FLOAT, activation="tanh"),
    Case(FLOAT16, "gamma", norm="rms_norm", transposed=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shapes_of_a_fused_node_follow_from_its_operands(case: Case) -> None:
    inputs = make_inputs(case, (2, 3), 8, 6)
    shapes = {name: array.shape for name, array in inputs.items()} | {"y": (2, 3, 6), "normalized": (2, 3, 8)}
    proto = signature_model(case.render().signature, case.attributes, 17, shapes)
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    model = Model(proto, None)
    infer(model)
    (scope,) = model.scopes()
    for name in ("y", "normalized"):
        if name in case.dtypes:
            assert (scope.fact(name).dtype, scope.fact(name).shape) == (case.dtype, shapes[name])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vectors_expect_what_the_meaning_gives(case: Case, tmp_path) -> None:  # type: ignore[no-untyped-def]
    files = vector_files(case.render(), case.attributes, 17)
    (tmp_path / "model.onnx").write_bytes(files["model.onnx"])
    proto = load(tmp_path / "model.onnx")
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in proto.graph.input}
    numpy = {FLOAT: np.float32, FLOAT16: np.float16}
    feeds = {
        name: np.frombuffer(files[f"inputs/{name}.bin"], numpy[case.dtypes[name]]).reshape(shape)
        for name, shape in shapes.items()
    }
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for output, got in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        want = np.frombuffer(files[f"expected/{output.name}.bin"], numpy[case.dtype]).reshape(got.shape)
        tolerance = 2e-3 if case.dtype == FLOAT16 else 1e-5
        np.testing.assert_allclose(decode(got, case.dtype), want, rtol=tolerance, atol=tolerance)
