"""Reductions of rows in the elementwise kernel: in the twin against the oracle, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from test_codegen_elementwise import BFLOAT16, FLOAT, FLOAT16, check, inputs_of, kernel_of, needs_compiler

from atcfuse.codegen import GeneratedKernel, predict
from atcfuse.codegen.elementwise import program_of
from atcfuse.device import load_device
from atcfuse.elementwise import (
    BOOL,
    COLUMN,
    FULL,
    REDUCTIONS,
    ROW,
    SCALAR,
    Expression,
    Input,
    Operand,
    Step,
    parse_expression,
)
from atcfuse.estimate import Kernels
from atcfuse.match.values import Refusal
from atcfuse.options import Options
from atcfuse.tiling import Platform, planned_platform
from atcfuse.twin import run_kernel

X, T = (lambda i: Operand("x", i)), (lambda i: Operand("t", i))


def norm(dtype: int = FLOAT) -> Expression:
    """A layer norm spelled out: two reductions, column arithmetic, a row for its scale."""
    steps = (
        Step("ReduceMean", (X(0),), dtype),
        Step("Sub", (X(0), T(0)), dtype),
        Step("Mul", (T(1), T(1)), dtype),
        Step("ReduceMean", (T(2),), dtype),
        Step("Add", (T(3), 1e-5), dtype),
        Step("Sqrt", (T(4),), dtype),
        Step("Div", (T(1), T(5)), dtype),
        Step("Mul", (T(6), X(1)), dtype),
    )
    return Expression(1, (Input(dtype, FULL), Input(dtype, ROW)), steps, (7,))


def softmax(dtype: int = FLOAT) -> Expression:
    """Softmax spelled out, and its largest exponent as a second output, one value a row."""
    steps = (
        Step("ReduceMax", (X(0),), dtype),
        Step("Sub", (X(0), T(0)), dtype),
        Step("Exp", (T(1),), dtype),
        Step("ReduceSum", (T(2),), dtype),
        Step("Div", (T(2), T(3)), dtype),
    )
    return Expression(1, (Input(dtype, FULL),), steps, (0, 4))


def masked() -> Expression:
    """Columns of every sort: a mask and a number loaded, compared, chosen, stored as a mask and as numbers."""
    steps = (
        Step("ReduceMin", (X(0),), FLOAT16),
        Step("Less", (T(0), X(2)), BOOL),
        Step("And", (T(1), X(1)), BOOL),
        Step("Where", (T(2), X(2), X(3)), FLOAT16),
        Step("Erf", (T(3),), FLOAT16),
        Step("Where", (T(2), X(0), T(4)), FLOAT16),
        Step("Not", (X(1),), BOOL),
        Step("Cast", (T(6),), FLOAT),
    )
    inputs = (Input(FLOAT16, FULL), Input(BOOL, COLUMN), Input(FLOAT16, COLUMN), Input(FLOAT16, SCALAR))
    return Expression(1, inputs, steps, (2, 4, 5, 7))


def each_reduction() -> Expression:
    steps = tuple(Step(op, (X(0),), FLOAT) for op in REDUCTIONS)
    total = tuple(Step("Add", (T(0 if i == 1 else len(REDUCTIONS) + i - 2), T(i)), FLOAT) for i in range(1, len(steps)))
    return Expression(1, (Input(FLOAT, FULL),), (*steps, *total), (len(steps) + len(total) - 1, 2))


def operators(dtype: int = FLOAT) -> Expression:
    """Softmax and its logarithm as operators, of rows that were scaled and shifted."""
    steps = (
        Step("Mul", (X(0), 2.0), dtype),
        Step("Add", (T(0), X(1)), dtype),
        Step("Softmax", (T(1),), dtype),
        Step("LogSoftmax", (T(1),), dtype),
    )
    return Expression(1, (Input(dtype, FULL), Input(dtype, ROW)), steps, (2, 3))


SIZES = [(3, 64), (7, 96), (300, 7), (1, 1), (5, 33), (40, 768), (9, 1001), (2, 2500), (0, 64)]
CASES = {
    "norm": norm(),
    "half norm": norm(FLOAT16),
    "bfloat16 norm": norm(BFLOAT16),
    "softmax": softmax(),
    "half softmax": softmax(FLOAT16),
    "masked": masked(),
    "each reduction": each_reduction(),
    "operators": operators(),
    "half operators": operators(FLOAT16),
}


ORDINARY = ("norm", "softmax", "masked", "operators")
"""What an ordinary run compiles."""


@needs_compiler
@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("name", [n if n in ORDINARY else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_rows_are_reduced_as_the_oracle_does(name: str, rows: int, columns: int, programs: Path) -> None:
    kernel = kernel_of(CASES[name])
    check(kernel, inputs_of(CASES[name], rows, columns, rows, kernel.signature.dtypes), programs)


@needs_compiler
def test_one_value_a_row_may_be_all_that_is_computed(programs: Path) -> None:
    """No instruction takes all elements of a tile then."""
    expression = Expression(
        1, (Input(FLOAT, FULL),), (Step("ReduceMax", (X(0),), FLOAT), Step("Neg", (T(0),), FLOAT)), (1,)
    )
    kernel = kernel_of(expression)
    check(kernel, inputs_of(expression, 7, 96, 1, kernel.signature.dtypes), programs)


@needs_compiler
def test_infinities_are_the_models_own(programs: Path) -> None:
    x = np.zeros((4, 70), np.float32)
    x[0, 3], x[1, 5], x[2] = np.inf, -np.inf, -np.inf
    result = run_kernel(kernel_of(softmax()), {"x1": x}, cache=programs)
    np.testing.assert_array_equal(result.outputs["y1"][:, 0], [np.inf, 0, -np.inf, 0])
    assert np.isnan(result.outputs["y2"][2]).all()
    np.testing.assert_allclose(result.outputs["y2"][[1, 3]].sum(axis=1), 1, rtol=1e-6)


@needs_compiler
def test_what_the_planner_counts_is_what_the_twin_runs(programs: Path) -> None:
    """Calls for whole tiles, for values of rows, and for rows one by one; elements as they follow from these."""
    kernel, shape = kernel_of(norm()), (300, 768)
    inputs = {"x1": np.ones(shape, np.float32), "x2": np.ones(768, np.float32)}
    chip = planned_platform("910B")
    calls = run_kernel(kernel, inputs, platform=chip, cache=programs).counters["calls"]
    program = program_of(kernel.signature)
    assert (program.passes, program.row_passes, program.row_calls) == (5, 4, 4)
    work = planned(kernel, {name: value.shape for name, value in inputs.items()})
    assert not isinstance(work, Refusal)
    rows = calls["ReduceSum"] // 2
    assert rows == 300
    assert calls["Sub"] == calls["Sqrt"] == work.tasks
    pitch, tiles = work.parameters["tile_columns"], work.tasks * work.parameters["tile_rows"]
    columns = work.tasks * -(-work.parameters["tile_rows"] // 64) * 64
    assert work.vector_elements == 5 * tiles * pitch + 4 * columns + 4 * tiles * pitch


def planned(kernel: GeneratedKernel, shapes: Mapping[str, tuple[int, ...]]):  # type: ignore[no-untyped-def]
    signature = kernel.signature
    planner = Kernels(load_device("Ascend910B1"), Options())
    return planner.work(signature.spec, signature.attributes, signature.dtypes, shapes)


def test_rows_that_do_not_fit_are_refused() -> None:
    kernel = kernel_of(norm())
    refused = predict(kernel, {"x1": (8, 20000), "x2": (20000,)}, planned_platform("910B"))
    assert "whole on chip" in str(refused)
    assert "have 20000" in str(refused)


@needs_compiler
def test_the_host_refuses_such_rows_too(programs: Path) -> None:
    kernel = kernel_of(norm())
    small = Platform(2, 4, 40_000, 524_032, 65_536, 65_536, 131_072)
    with pytest.raises(Exception, match="whole"):
        run_kernel(
            kernel, {"x1": np.ones((8, 4000), "<f4"), "x2": np.ones(4000, "<f4")}, platform=small, cache=programs
        )


def test_310p_reduces_nothing() -> None:
    with pytest.raises(Exception, match="910B alone"):
        kernel_of(norm(), "310P")


@pytest.mark.parametrize(
    "text",
    [
        str(norm()).replace("columns 1", "columns 0"),
        str(softmax()).replace("ReduceSum(t3)", "ReduceSum(t1)"),
        str(softmax()).replace("x1: float32 full", "x1: float32 row"),
    ],
)
def test_only_whole_rows_are_reduced(text: str) -> None:
    with pytest.raises(ValueError, match=r"whole row|as atcfuse"):
        parse_expression(text)
