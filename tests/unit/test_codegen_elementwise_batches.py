"""Operands of the elementwise kernel that tell batches apart or are the same in all of them: in the twin, on 910B."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from test_codegen_elementwise import BFLOAT16, FLOAT, FLOAT16, SPEC, check, kernel_of, needs_compiler

from atcfuse.codegen import refusal_of
from atcfuse.elementwise import (
    BATCH_ROW,
    BATCH_SCALAR,
    BOOL,
    COLUMN,
    FULL,
    MATRIX,
    ROW,
    SCALAR,
    SHARED_COLUMN,
    VARIES,
    Expression,
    Input,
    Kind,
    Operand,
    Step,
    parse_expression,
)
from atcfuse.tiling import Platform
from atcfuse.vectors import encode

X, T = (lambda i: Operand("x", i)), (lambda i: Operand("t", i))
SMALL = Platform(2, 4, 60_000, 524_032, 65_536, 65_536, 131_072)
MASKED = Expression(
    1,
    (Input(BOOL, BATCH_ROW), Input(BOOL, SHARED_COLUMN), Input(FLOAT16, FULL)),
    (
        Step("And", (X(0), X(1)), BOOL),
        Step("Where", (T(0), X(2), -10000.0), FLOAT16),
        Step("ReduceMax", (T(1),), FLOAT16),
        Step("Sub", (T(1), T(2)), FLOAT16),
    ),
    (3, 2),
    1,
)
"""A padding mask and the positions that see it, as exporters combine them, and what a softmax begins with."""


def every_kind(seed: int) -> Expression:
    """A sum of operands of every kind, in any order and of several element types."""
    source = random.Random(seed)
    kinds: list[Kind] = list(VARIES)
    source.shuffle(kinds)
    dtype = source.choice([FLOAT, FLOAT16, BFLOAT16])
    inputs = tuple(Input(BOOL if source.random() < 0.3 else dtype, kind) for kind in kinds)
    steps: list[Step] = []
    total = None
    for at, given in enumerate(inputs):
        value = X(at)
        if given.dtype == BOOL:
            steps.append(Step("Where", (X(at), 0.25, -0.5), dtype))
            value = T(len(steps) - 1)
        if total is not None:
            steps.append(Step(source.choice(["Add", "Sub", "Max"]), (total, value), dtype))
            value = T(len(steps) - 1)
        total = value
    return Expression(1, inputs, tuple(steps), (len(steps) - 1,), 1)


def inputs_of(
    expression: Expression, sizes: tuple[int, int, int], types: dict[str, int], seed: int
) -> dict[str, np.ndarray]:
    source = np.random.default_rng(seed)
    found = {}
    for i, given in enumerate(expression.inputs):
        shape = tuple(s if wide else 1 for s, wide in zip(sizes, VARIES[given.kind], strict=True))
        drawn = source.normal(size=shape) if given.dtype != BOOL else source.random(shape) > 0.4
        found[f"x{i + 1}"] = encode(drawn, types[f"x{i + 1}"])
    return found


SIZES = [(3, 5, 33), (2, 300, 64), (1, 1, 1), (50, 2, 7), (3, 2, 20000), (2, 0, 64), (0, 3, 64), (3, 40, 768)]


@needs_compiler
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_every_kind_at_every_size(seed: int, sizes: tuple[int, int, int], programs: Path) -> None:
    expression = every_kind(seed)
    kernel = kernel_of(expression)
    inputs = inputs_of(expression, sizes, kernel.signature.dtypes, seed)
    check(kernel, inputs, programs)
    check(kernel, inputs, programs, SMALL)


@needs_compiler
@pytest.mark.parametrize("sizes", [(3, 5, 33), (2, 300, 64), (4, 1, 96)])
def test_masks_of_a_batch_and_of_positions(sizes: tuple[int, int, int], programs: Path) -> None:
    kernel = kernel_of(MASKED)
    check(kernel, inputs_of(MASKED, sizes, kernel.signature.dtypes, 1), programs)


@pytest.mark.parametrize("kind", [MATRIX, BATCH_ROW, SHARED_COLUMN, BATCH_SCALAR])
def test_without_rows_there_are_no_batches(kind: Kind) -> None:
    steps = (Step("Add", (X(0), X(1)), FLOAT),)
    text = str(Expression(1, (Input(FLOAT, FULL), Input(FLOAT, kind)), steps, (0,)))
    with pytest.raises(ValueError, match="tell batches apart"):
        parse_expression(text)


def test_what_is_the_same_in_all_batches_is_not_reduced() -> None:
    steps = (Step("ReduceSum", (X(0),), FLOAT), Step("Add", (T(0), X(1)), FLOAT))
    with pytest.raises(ValueError, match="no whole row"):
        parse_expression(str(Expression(1, (Input(FLOAT, MATRIX), Input(FLOAT, FULL)), steps, (1,), 1)))


def test_batches_are_part_of_the_operator() -> None:
    one = Expression(1, (Input(FLOAT, FULL), Input(FLOAT, ROW)), (Step("Add", (X(0), X(1)), FLOAT),), (0,))
    other = Expression(1, one.inputs, one.steps, one.outputs, 1)
    assert parse_expression(str(other)) == other
    assert kernel_of(one).op_type != kernel_of(other).op_type
    assert [parse_expression(str(one)).kind_of(X(i)) for i in (0, 1)] == [FULL, ROW]


def test_forms_are_what_a_kernel_holds() -> None:
    kinds = [every_kind(0).inputs[at].kind for at in every_kind(0).of_form(COLUMN)]
    assert sorted(kinds) == sorted([COLUMN, SHARED_COLUMN])
    assert [every_kind(0).inputs[at].kind for at in every_kind(0).of_kind(SCALAR)] == [SCALAR]


def test_310p_says_that_it_has_one_batch() -> None:
    expression = Expression(
        1, (Input(FLOAT16, FULL), Input(FLOAT16, BATCH_ROW)), (Step("Add", (X(0), X(1)), FLOAT16),), (0,), 1
    )
    types = {"x1": FLOAT16, "x2": FLOAT16, "y1": FLOAT16}
    assert "910B alone" in str(refusal_of(SPEC, {"expression": str(expression)}, types, "Ascend310P3"))
