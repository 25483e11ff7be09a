"""Extents that a Reshape leaves one number for."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from infer_oracle import inferred, session, values

import atcfuse
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.options import Options

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
TRACED = """
b = Shape<start = 1, end = 2>(x)
heads = Mul(b, four)
target = Concat<axis = 0>(length, heads, width)
"""
"""Heads of a traced nn.MultiheadAttention: the length is a number, the batch is not."""

CONSTANTS = "int64[1] four = {4}, int64[1] length = {11}, int64[1] width = {8}"


def traced(body: str = "y = Reshape(x, target)", outputs: str = "float[n,m,k] y", constants: str = CONSTANTS) -> Model:
    return inferred(
        onnx.parser.parse_model(
            f"{HEADER} g (float[sequence,batch,32] x) => ({outputs}) <{constants}> {{{TRACED}{body}}}"
        )
    )


def length_of(model: Model) -> object:
    shape = model.main.fact("x").shape
    assert shape is not None
    return shape[0]


def test_the_length_that_a_reshape_leaves_is_the_inputs_and_that_of_what_is_computed_from_it() -> None:
    model = traced("r = Relu(x)\ny = Reshape(r, target)")
    assert length_of(model) == 11
    shape = model.main.fact("r").shape
    assert str(shape) == "(11, batch, 32)"


def test_runs_agree_and_other_lengths_fail() -> None:
    run = session(traced().proto)
    assert values(run, {"x": np.zeros((11, 3, 32), np.float32)})["y"].shape == (11, 12, 8)
    with pytest.raises(Exception, match="cannot be reshaped"):
        values(run, {"x": np.zeros((7, 3, 32), np.float32)})


def test_a_name_that_two_inputs_declare_is_pinned_in_both() -> None:
    text = f"{HEADER} g (float[sequence,batch,32] x, bool[batch,sequence] mask) => (float[n,m,k] y, bool[n,m] z) "
    model = inferred(onnx.parser.parse_model(f"{text}<{CONSTANTS}> {{{TRACED}y = Reshape(x, target)\nz = Not(mask)}}"))
    assert str(model.main.fact("z").shape) == "(batch, 11)"


@pytest.mark.parametrize(
    ("body", "constants", "why"),
    [
        ("dead = Reshape(x, target)\ny = Relu(x)", CONSTANTS, "no output needs it"),
        ("y = Reshape(x, target)", CONSTANTS.replace("{11}", "{-1}"), "the length is what remains"),
        ("y = Reshape(x, target)", CONSTANTS.replace("{8}", "{5}"), "no whole length fits"),
        ("y = Reshape(x, target)", CONSTANTS.replace("{11}", "{0}"), "0 copies the length"),
        (
            """a = Reshape(x, target)
            b2 = Add(length, one)
            t2 = Concat<axis = 0>(b2, heads, width)
            c = Reshape(x, t2)
            y = Concat<axis = 0>(a, c)""",
            f"{CONSTANTS}, int64[1] one = {{1}}",
            "two lengths at odds",
        ),
    ],
)
def test_a_length_that_stays_open(body: str, constants: str, why: str) -> None:
    assert str(length_of(traced(body, "float y" if "Relu" in body else "float[n,m,k] y", constants))) == "sequence", why


def test_a_reshape_in_a_branch_need_not_run() -> None:
    branch = "then_branch = t () => (float[n,m,k] a) { a = Reshape(x, target) }, "
    other = "else_branch = e () => (float[n,m,k] c) { c = Relu(x) }"
    text = f"{HEADER} g (float[sequence,batch,32] x, bool flag) => (float[n,m,k] y) <{CONSTANTS}> "
    model = inferred(onnx.parser.parse_model(f"{text}{{{TRACED}y = If(flag) <{branch}{other}>}}"))
    assert str(length_of(model)) == "sequence"


def test_what_was_found_outlives_the_reshape() -> None:
    model = traced("r = Relu(x)\ny = Reshape(r, target)")
    known = {scope.path: scope for scope in model.scopes()}
    del model.proto.graph.node[-1]
    again = Model(model.proto)
    infer(again, known)
    assert length_of(again) == 11


@pytest.mark.parametrize(
    ("size", "told"), [(11, []), (7, ["--assume sequence=7: the model runs with sequence=11 alone"])]
)
def test_an_assumed_size_that_the_model_cannot_have_is_told(size: int, told: list[str]) -> None:
    result = atcfuse.optimize(traced().proto, Options(assume={"sequence": size, "batch": 2}))
    assert [d.message for d in result.diagnostics if d.code == "ATF145"] == told
