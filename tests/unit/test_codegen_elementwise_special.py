"""Every step on NaN, infinities, both zeros, subnormals and the largest numbers: the twin against onnxruntime.

Many steps share a kernel: an operand numbers the elements, and each step gives those of its number.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from atcfuse.codegen import GeneratedKernel, render_kernel
from atcfuse.elementwise import (
    BOOL,
    CLIP_TO,
    COMPARISONS,
    FULL,
    OPERATORS,
    REDUCTIONS,
    SCALAR,
    SOFTMAXES,
    Expression,
    Input,
    Operand,
    Step,
)
from atcfuse.elementwise.expression import Argument
from atcfuse.graph.feeds import read_interface
from atcfuse.graph.single import keep_nan
from atcfuse.kernel import load_kernels
from atcfuse.reference import evaluate
from atcfuse.twin import run_kernel
from atcfuse.vectors import decode, encode, signature_model
from atcfuse.verify.session import Session

OLD = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 24)
ASTRAY = frozenset({"Erf", "PRelu"}) if OLD else frozenset[str]()
"""Of which onnxruntime 1.23 gives other results for NaN and infinities than the standard says."""

SPEC = load_kernels(Path(__file__).parents[2] / "kernels")["elementwise"]
FLOAT, FLOAT16, BFLOAT16 = 1, 10, 16
RELATIVE = {FLOAT: 2e-5, FLOAT16: 2e-3, BFLOAT16: 1.2e-2}
ABSOLUTE = {FLOAT: 3e-7, FLOAT16: 1e-5, BFLOAT16: 3e-7}
OPSET = 20
EXPONENTS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0)
SLOPES = {"LeakyRelu": (0.01, -0.5), "Elu": (1.0, -0.5), "Celu": (1.0, -0.5), "ThresholdedRelu": (1.0, -0.5)}
PAIRS = {"HardSigmoid": (0.2, 0.5), "Selu": (1.6732631921768188, 1.0507010221481323)}
X, Y, MASK, NUMBER = (Operand("x", i) for i in range(4))

BY_ORACLE = {"Celu": (FLOAT16,), CLIP_TO: (FLOAT, FLOAT16), "Sign": (FLOAT16,)}
"""What onnxruntime does not compute in a type, takes no tensors for, or (the sign of a NaN half) gets wrong."""
ZEROS = {"Min", "Max", "Relu", "Elu", "Celu", "Selu", "Clip", CLIP_TO, "Where", "PRelu", "ReduceMax", "ReduceMin"}
"""Steps whose zeros are of either sign: where onnxruntime itself decides by element type, and sums of both signs."""

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@dataclass(frozen=True)
class Case:
    """One step of X, Y and MASK."""

    op: str
    arguments: tuple[Argument, ...]
    dtype: int

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.arguments))})"


def specials(dtype: int) -> np.ndarray:
    """Numbers that a type has, as float64."""
    info = np.finfo(np.float16 if dtype == FLOAT16 else np.float32)
    large = float(info.max) if dtype != BFLOAT16 else 3.3895313892515355e38
    positive = [0.0, 0.5, 1.0, 2.5, 3.0, 20.0, 1000.0, math.inf, large, float(info.tiny), float(info.tiny) / 4]
    return np.array([math.nan, *positive, *(-p for p in positive)])


def cases(dtype: int) -> Iterator[Case]:
    """Every operator but casts, masks of masks and those of rows."""
    for op, operator in OPERATORS.items():
        if op == "Cast" or operator.rows or (operator.takes_bool and op != "Where"):
            continue
        made = BOOL if operator.result == "bool" else dtype
        yield from (Case(op, arguments, made) for arguments in arguments_of(op))
    yield Case("Cast", (X,), BOOL)


def arguments_of(op: str) -> list[tuple[Argument, ...]]:
    if op == "Where":
        return [(MASK, X, Y), (MASK, X, -1.5), (MASK, 0.0, Y)]
    if op == "Pow":
        return [(X, exponent) for exponent in EXPONENTS]
    if op == "Clip":
        return [(X, -0.5, 0.75), (X, -math.inf, 1.0), (X, 0.0, math.inf)]
    if op == CLIP_TO:
        return [(X, Y, 2.0), (X, -1.0, Y)]
    if op in SLOPES:
        return [(X, slope) for slope in SLOPES[op]]
    if op == "IsInf":
        return [(X, 1.0, 1.0), (X, 1.0, 0.0), (X, 0.0, 1.0)]
    if op in PAIRS:
        return [(X, *PAIRS[op])]
    if OPERATORS[op].values == 1:
        return [(X,)]
    if op == "Sum":
        return [(X, Y, 0.5)]
    return [(X, Y), (X, 0.5), (0.0, X), (X, 3.0), (X, math.inf)]


def operands(dtype: int, count: int) -> dict[str, np.ndarray]:
    """All pairs of special numbers, once for each of so many steps."""
    pairs = np.array(list(itertools.product(specials(dtype), repeat=2)))
    masks = np.arange(len(pairs)) % 3 > 0
    numbers = np.repeat(np.arange(count), len(pairs))
    found = {"x1": encode(np.tile(pairs[:, 0], count), dtype), "x2": encode(np.tile(pairs[:, 1], count), dtype)}
    return {**found, "x3": np.tile(masks, count), "x4": encode(numbers, dtype)}


def merged(all_cases: Sequence[Case], dtype: int) -> Expression:
    """One result, of which each case gives the elements of its number."""
    steps: list[Step] = []

    def add(op: str, arguments: tuple[Argument, ...], of: int) -> Operand:
        steps.append(Step(op, arguments, of))
        return Operand("t", len(steps) - 1)

    chosen: Argument = 7.0
    for number, case in enumerate(all_cases):
        value = add(case.op, case.arguments, case.dtype)
        if case.dtype == BOOL:
            value = add("Cast", (value,), dtype)
        chosen = add("Where", (add("Equal", (NUMBER, float(number)), BOOL), value, chosen), dtype)
    steps.append(Step("Where", (MASK, chosen, chosen), dtype))  # every operand is read
    inputs = (Input(dtype, FULL), Input(dtype, FULL), Input(BOOL, FULL), Input(dtype, FULL))
    return Expression(0, inputs, tuple(steps), (len(steps) - 1,))


def alone(step: Step, inputs: Sequence[Input], columns: int = 0) -> tuple[Expression, list[int]]:
    """An expression of one step, and which inputs it reads."""
    used = sorted({a.index for a in step.arguments if isinstance(a, Operand)})
    moved = tuple(Operand("x", used.index(a.index)) if isinstance(a, Operand) else a for a in step.arguments)
    return Expression(columns, tuple(inputs[i] for i in used), (Step(step.op, moved, step.dtype),), (0,)), used


def kernel_of(expression: Expression) -> GeneratedKernel:
    types = {f"x{i + 1}": x.dtype for i, x in enumerate(expression.inputs)}
    types |= {f"y{i + 1}": dtype for i, dtype in enumerate(expression.output_types)}
    return render_kernel(SPEC, {"expression": str(expression)}, types, "Ascend910B1")


def meant(expression: Expression, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """What a step means, by onnxruntime where that computes it, else by the oracle."""
    kernel, (step,) = kernel_of(expression), expression.steps
    types = kernel.signature.dtypes
    if BFLOAT16 in types.values() or types["x1"] in BY_ORACLE.get(step.op, ()):
        wide = {name: decode(value, types[name]) for name, value in inputs.items()}
        return encode(evaluate(kernel.signature, wide, 1, 1, 1)["y1"], types["y1"])
    model = signature_model(kernel.signature, {"expression": str(expression)}, OPSET)
    keep_nan(model)
    return np.asarray(Session(model, Path()).run(inputs, read_interface(model))["y1"])


def differences(
    case: Step | Case, dtype: int, got: np.ndarray, want: np.ndarray, given: Sequence[np.ndarray]
) -> Iterator[str]:
    """Where two results differ: in being NaN or infinite, by more than the tolerance, in the sign of zero."""
    finite = np.isfinite(got) & np.isfinite(want)
    with np.errstate(invalid="ignore"):
        near = np.abs(got - want) <= ABSOLUTE[dtype] + RELATIVE[dtype] * np.abs(want)
    same = (got == want) | (np.isnan(got) & np.isnan(want)) | (finite & near)
    if case.op not in ZEROS:
        both = (got == 0) & (want == 0)
        same &= ~both | (np.signbit(got) == np.signbit(want))
    if case.op in ("Sin", "Cos"):
        same |= np.abs(given[0]) > 65504  # not promised
    for at in np.flatnonzero(~same):
        yield f"{case} of {', '.join(str(x.flat[at]) for x in given)} is {got.flat[at]}, not {want.flat[at]}"


@needs_compiler
@pytest.mark.parametrize("dtype", [FLOAT, FLOAT16, BFLOAT16])
def test_every_step_takes_special_numbers_as_onnx_does(dtype: int, programs: Path) -> None:
    chosen = list(cases(dtype))
    assert {c.op for c in chosen} >= {op for op, of in OPERATORS.items() if not of.rows and of.result != "cast"} - {
        "And",
        "Or",
        "Xor",
        "Not",
    }
    chosen = [case for case in chosen if case.op not in ASTRAY]
    expression, inputs = merged(chosen, dtype), operands(dtype, len(chosen))
    made = run_kernel(kernel_of(expression), inputs, cache=programs, half_overflow=True).outputs["y1"]
    results = np.split(decode(made, dtype).astype(np.float64), len(chosen))
    one = {name: np.split(value, len(chosen))[0] for name, value in inputs.items()}
    given = [decode(one[name], dtype).astype(np.float64) for name in ("x1", "x2")]
    wrong: list[str] = []
    for case, got in zip(chosen, results, strict=True):
        single, used = alone(Step(case.op, case.arguments, case.dtype), expression.inputs)
        want = meant(single, {f"x{i + 1}": one[f"x{at + 1}"] for i, at in enumerate(used)})
        wrong += differences(case, dtype, got, decode(want, case.dtype).astype(np.float64), given)
    assert not wrong, "\n".join(wrong[:40])


BESIDE = tuple(
    op for op in ("Add", "Sub", "Mul", "Div", "Min", "Max", "PRelu", *sorted(COMPARISONS)) if op not in ASTRAY
)


@needs_compiler
@pytest.mark.parametrize("dtype", [FLOAT, FLOAT16])
def test_one_element_may_be_special(dtype: int, programs: Path) -> None:
    """Operands of one element are arguments of instructions, not planes."""
    pairs = [(X, Y), (Y, X)]
    chosen = [Case(op, pair, BOOL if op in COMPARISONS else dtype) for op in BESIDE for pair in pairs]
    whole = merged(chosen, dtype)
    inputs = (whole.inputs[0], Input(dtype, SCALAR), *whole.inputs[2:])
    kernel = kernel_of(Expression(0, inputs, whole.steps, whole.outputs))
    one = encode(specials(dtype), dtype)
    wrong: list[str] = []
    for scalar in one:
        count = len(chosen)
        fed = {
            "x1": np.tile(one, count),
            "x2": np.full((1,), scalar),
            "x3": np.ones(len(one) * count, bool),
            "x4": encode(np.repeat(np.arange(count), len(one)), dtype),
        }
        made = run_kernel(kernel, fed, cache=programs, half_overflow=True).outputs["y1"]
        results = np.split(np.asarray(made, np.float64), count)
        for case, got in zip(chosen, results, strict=True):
            single, used = alone(Step(case.op, case.arguments, case.dtype), inputs)
            want = meant(single, {f"x{i + 1}": (one, fed["x2"])[at] for i, at in enumerate(used)})
            given = [np.asarray(one, np.float64), np.full(len(one), float(scalar))]
            wrong += differences(case, dtype, got, np.asarray(want, np.float64), given)
    assert not wrong, "\n".join(wrong[:40])


def rows_of(dtype: int) -> np.ndarray:
    """Rows of few special numbers among others, each at another place."""
    found = np.random.default_rng(0).normal(size=(60, 70))
    found = decode(encode(found, dtype), dtype).astype(np.float64)
    marks = [math.nan, math.inf, -math.inf, 0.0, -0.0, float(specials(dtype)[10]), -float(specials(dtype)[11])]
    for row, (a, b) in enumerate(itertools.product(marks, repeat=2)):
        found[row, row], found[row, 69 - row] = a, b
    found[50], found[51], found[52], found[53], found[54] = math.nan, math.inf, -math.inf, 0.0, -0.0
    return encode(found, dtype)


@needs_compiler
@pytest.mark.parametrize("dtype", [FLOAT, FLOAT16])
@pytest.mark.parametrize("group", [REDUCTIONS[:4], REDUCTIONS[4:], SOFTMAXES])
def test_rows_may_have_special_numbers(dtype: int, group: Sequence[str], programs: Path) -> None:
    steps = tuple(Step(op, (X,), dtype) for op in group)
    kernel = kernel_of(Expression(1, (Input(dtype, FULL),), steps, tuple(range(len(steps)))))
    x = rows_of(dtype)
    made = run_kernel(kernel, {"x1": x}, cache=programs, half_overflow=True).outputs
    wrong: list[str] = []
    for at, step in enumerate(steps):
        got, want = (
            np.asarray(made[f"y{at + 1}"], np.float64),
            meant(alone(step, (Input(dtype, FULL),), 1)[0], {"x1": x}),
        )
        rows = [np.broadcast_to(np.arange(len(x))[:, None], got.shape)]
        wrong += differences(step, dtype, got, np.asarray(want, np.float64), rows)
    assert not wrong, "\n".join(wrong[:40])


@needs_compiler
def test_huge_numbers_become_infinite_halves_and_nan_stays(programs: Path) -> None:
    """Beside huge constants a kernel rounds to infinity by itself, as some chips end at the largest half."""
    steps = (Step("Cast", (X,), FLOAT16), Step("Mul", (X, 1e9), FLOAT), Step("Cast", (Operand("t", 1),), FLOAT16))
    kernel = kernel_of(Expression(0, (Input(FLOAT, FULL),), steps, (0, 2)))
    x = np.array([math.nan, math.inf, -math.inf, 1.0, -1.0, 0.0, -0.0, 6.55e-5, 6.552e-5, -6.552e-5], np.float32)
    made = run_kernel(kernel, {"x1": x}, cache=programs).outputs
    infinite = [math.nan, math.inf, -math.inf, math.inf, -math.inf, 0, 0, 65504, math.inf, -math.inf]
    np.testing.assert_array_equal(made["y2"], np.array(infinite, np.float16))
    np.testing.assert_array_equal(made["y1"], x.astype(np.float16))
