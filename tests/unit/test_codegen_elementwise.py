"""The elementwise kernel: random expressions in the twin against onnxruntime and the oracle, on both chip families."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from atcfuse.codegen import GeneratedKernel, predict, refusal_of, render_kernel
from atcfuse.codegen.elementwise import problem_of
from atcfuse.diagnostics import AtcfuseError
from atcfuse.elementwise import (
    BOOL,
    COLUMN,
    FULL,
    ROW,
    SCALAR,
    Expression,
    Input,
    Kind,
    Operand,
    Step,
    parse_expression,
)
from atcfuse.elementwise.expression import OPERATORS, Argument
from atcfuse.graph.dialect import to_dialect
from atcfuse.kernel import load_kernels
from atcfuse.reference import evaluate
from atcfuse.tiling import PLATFORM_910B, Platform, planned_platform
from atcfuse.tiling import elementwise as tiling
from atcfuse.twin import TwinResult, run_kernel
from atcfuse.vectors import decode, encode, signature_model

SPEC = load_kernels(Path(__file__).parents[2] / "kernels")["elementwise"]
FLOAT, FLOAT16, BFLOAT16, INT32, INT64 = 1, 10, 16, 6, 7
TOLERANCE = {FLOAT: 2e-5, FLOAT16: 2e-3, BFLOAT16: 1.2e-2}
SOCS = {"910B": "Ascend910B1", "310P": "Ascend310P3"}
JUMPS = ("Floor", "Ceil", "Round", "Sign", "ThresholdedRelu")  # of exact values only
FUNCTIONS = [
    op
    for op, of in OPERATORS.items()
    if of.result == "same" and not of.takes_bool and not of.reduces and op not in ("Log", "Sqrt", *JUMPS)
]

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


def kernel_of(expression: Expression, family: str = "910B", types: Mapping[str, int] | None = None) -> GeneratedKernel:
    given = {f"x{i + 1}": x.dtype for i, x in enumerate(expression.inputs)}
    given |= {f"y{i + 1}": dtype for i, dtype in enumerate(expression.output_types)}
    return render_kernel(SPEC, {"expression": str(expression)}, {**given, **(types or {})}, SOCS[family])


def shape_of(kind: Kind, rows: int, columns: int) -> tuple[int, ...]:
    return {FULL: (rows, columns), ROW: (columns,), COLUMN: (rows, 1), SCALAR: (1,)}[kind]


def inputs_of(
    expression: Expression, rows: int, columns: int, seed: int, types: Mapping[str, int]
) -> dict[str, np.ndarray]:
    source = np.random.default_rng(seed)
    found = {}
    for i, given in enumerate(expression.inputs):
        name, shape = f"x{i + 1}", shape_of(given.kind, rows, columns)
        found[name] = source.random(shape) > 0.4 if given.dtype == BOOL else source.normal(size=shape)
        found[name] = encode(found[name], types[name])
    return found


def check(
    kernel: GeneratedKernel, inputs: Mapping[str, np.ndarray], cache: Path, chip: Platform | None = None
) -> TwinResult:
    """Runs a kernel; its numbers must be the oracle's, its traffic and memory those predicted."""
    signature = kernel.signature
    chip = chip or planned_platform(signature.family)
    result = run_kernel(kernel, inputs, platform=chip, cache=cache)
    expected = evaluate(signature, {n: decode(v, signature.dtypes[n]) for n, v in inputs.items()}, 1, 1, 1)
    for name, got in result.outputs.items():
        dtype = signature.dtypes[name]
        if dtype == BOOL:
            np.testing.assert_array_equal(got, expected[name])
            continue
        scale = float(np.abs(expected[name]).max(initial=1.0))
        np.testing.assert_allclose(decode(got, dtype), expected[name], rtol=0, atol=TOLERANCE[dtype] * scale)
    predicted = predict(kernel, {n: v.shape for n, v in inputs.items()}, chip)
    assert not isinstance(predicted, str)
    counted = {**result.counters, **result.counters["peak"]}
    assert {name: counted[name] for name in predicted} == predicted
    return result


def random_expression(seed: int, family: str) -> Expression:
    """Steps that stay near 1, so that errors can be told; comparisons are of exact values."""
    source = random.Random(seed)
    dtype = source.choice([FLOAT, FLOAT16] if family == "310P" else [FLOAT, FLOAT16, BFLOAT16])
    spread = source.random() < 0.6
    kinds: list[Kind] = [
        FULL,
        *([] if spread and family == "310P" else [SCALAR]),  # a step of scalars is a column there, which is not stored
        *([ROW, ROW] if spread else []),
        *([COLUMN] if spread and family == "910B" else []),
    ]
    inputs = [
        Input(dtype, FULL),
        Input(BOOL, FULL),
        *(Input(source.choice([dtype, dtype, BOOL]), k) for k in kinds[1:]),
    ]
    steps: list[Step] = []
    numbers = [Operand("x", i) for i, x in enumerate(inputs) if x.dtype != BOOL]
    masks = [Operand("x", i) for i, x in enumerate(inputs) if x.dtype == BOOL]
    exact = list(numbers)

    def add(op: str, arguments: tuple[Argument, ...], of: int) -> Operand:
        steps.append(Step(op, arguments, of))
        return Operand("t", len(steps) - 1)

    for _ in range(source.randrange(3, 14)):
        pick = source.random()
        if pick < 0.25:
            a, b = source.choice(exact), source.choice([*exact, 0.25, -1.0])
            op = source.choice(["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
            masks.append(add(op, (b, a) if source.random() < 0.5 else (a, b), BOOL))
        elif pick < 0.4:
            op = source.choice(["And", "Or", "Xor", "Not"])
            masks.append(add(op, tuple(source.choice(masks) for _ in range(1 if op == "Not" else 2)), BOOL))
        elif pick < 0.55:
            pair: tuple[Argument, ...] = (source.choice(numbers), source.choice([*numbers, 0.0, -2.5]))
            numbers.append(
                add("Where", (source.choice(masks), *(pair if source.random() < 0.5 else pair[::-1])), dtype)
            )
        elif pick < 0.62:
            numbers.append(add("Cast", (source.choice(masks),), dtype))
        else:
            numbers.append(function(source, numbers, dtype, add))
    numbers.append(add("Tanh", (numbers[-1],), dtype))
    return pruned(inputs, steps, source)


def function(source, numbers, dtype, add):  # type: ignore[no-untyped-def]
    """A function whose result is squashed, or a sum or product of squashed values."""
    op = source.choice(FUNCTIONS)
    x = add("Tanh", (source.choice(numbers),), dtype)
    constants = {
        "Pow": (source.choice([2.0, 3.0, 4.0]),),
        "Clip": (-0.5, 0.75),
        "LeakyRelu": (0.125,),
        "Elu": (1.5,),
        "Celu": (0.75,),
        "ClipTo": (-0.75, source.choice([*numbers, 0.5])),
        "Sum": (source.choice([*numbers, 0.5]), -0.25),
    }
    if op in ("Div", "Reciprocal"):
        x = add("Add", (add("Sigmoid", (x,), dtype), 0.5), dtype)
    if op in ("HardSigmoid", "Selu"):
        return add(op, (x, 0.25, 0.5), dtype)
    if OPERATORS[op].values == 1 or op in constants:
        return add(op, (x, *constants.get(op, ())), dtype)
    other = source.choice([*numbers, 0.5, -3.0])
    pair = (other, x) if op == "Div" or source.random() < 0.5 else (x, other)
    return add(op, pair, dtype)


def pruned(inputs: list[Input], steps: list[Step], source: random.Random) -> Expression:
    """Without unused inputs; every step that nobody reads is an output, the first ones make way for later ones."""
    read = {a for s in steps for a in s.arguments if isinstance(a, Operand)}
    outputs = [i for i in range(len(steps)) if Operand("t", i) not in read][-3:]
    outputs = sorted({*outputs, source.randrange(len(steps))})
    needed = set(outputs)
    for i in range(len(steps) - 1, -1, -1):
        if i in needed:
            needed.update(a.index for a in steps[i].arguments if isinstance(a, Operand) and a.source == "t")
    kept = sorted(needed)
    step_at = {old: new for new, old in enumerate(kept)}
    used = sorted({a.index for i in kept for a in steps[i].arguments if isinstance(a, Operand) and a.source == "x"})
    used = used if any(inputs[i].kind == FULL for i in used) else [0, *used]
    input_at = {old: new for new, old in enumerate(used)}

    def moved(argument: Argument) -> Argument:
        if not isinstance(argument, Operand):
            return argument
        return Operand(argument.source, (input_at if argument.source == "x" else step_at)[argument.index])

    new_steps = [Step(s.op, tuple(map(moved, s.arguments)), s.dtype) for s in (steps[i] for i in kept)]
    if not any(Operand("x", input_at[0]) in s.arguments for s in new_steps if 0 in input_at) and 0 in input_at:
        new_steps.append(Step("Neg", (Operand("x", input_at[0]),), inputs[0].dtype))
    given = [inputs[i] for i in used]
    spread = any(x.kind in (ROW, COLUMN) for x in given)
    outs = tuple(step_at[o] for o in outputs)
    outs = (*outs[-3:], len(new_steps) - 1) if len(new_steps) > len(kept) else outs
    return Expression(int(spread), tuple(given), tuple(new_steps), outs)


SIZES = [(3, 64), (7, 96), (40, 768), (1, 2080), (2, 20000)]
RAGGED = [(5, 33), (300, 7), (1, 1), (9, 1001)]
EMPTY = [(0, 64)]


@needs_compiler
@pytest.mark.parametrize("family", ["910B", "310P"])
@pytest.mark.parametrize("seed", range(4))
def test_random_expressions_agree_with_the_oracle(seed: int, family: str, programs: Path) -> None:
    expression = random_expression(seed, family)
    kernel = kernel_of(expression, family)
    sizes = [*SIZES, *(RAGGED if family == "910B" else [])]
    for at, (rows, columns) in enumerate(random.Random(seed).sample(sizes, 3)):
        check(kernel, inputs_of(expression, rows, columns, at, kernel.signature.dtypes), programs)


CHAIN = Expression(
    1,
    (Input(FLOAT16, FULL), Input(FLOAT16, ROW), Input(BOOL, COLUMN), Input(FLOAT16, SCALAR)),
    (
        Step("Add", (Operand("x", 0), Operand("x", 1)), FLOAT16),
        Step("Erf", (Operand("t", 0),), FLOAT16),
        Step("Where", (Operand("x", 2), Operand("t", 1), Operand("x", 3)), FLOAT16),
        Step("Greater", (Operand("x", 0), 0.25), BOOL),
    ),
    (2, 3),
)
FLAT = Expression(
    0,
    (Input(FLOAT, FULL), Input(BOOL, FULL)),
    (
        Step("Where", (Operand("x", 1), Operand("x", 0), -1.5), FLOAT),
        Step("Exp", (Operand("t", 0),), FLOAT),
        Step("Not", (Operand("x", 1),), BOOL),
    ),
    (1, 2),
)


@needs_compiler
@pytest.mark.parametrize(("rows", "columns"), [*SIZES, *RAGGED, *EMPTY])
def test_every_kind_of_broadcast_at_every_size(rows: int, columns: int, programs: Path) -> None:
    kernel = kernel_of(CHAIN)
    check(kernel, inputs_of(CHAIN, rows, columns, 1, kernel.signature.dtypes), programs)


@needs_compiler
@pytest.mark.parametrize("count", [32, 33, 63, 64, 65, 2048, 2049, 16385, 70001])
@pytest.mark.parametrize("family", ["910B", "310P"])
def test_flat_tensors_of_any_length(count: int, family: str, programs: Path) -> None:
    kernel = kernel_of(FLAT, family)
    check(kernel, inputs_of(FLAT, 1, count, 2, kernel.signature.dtypes), programs)


@needs_compiler
def test_a_small_chip_takes_more_tiles(programs: Path) -> None:
    small = Platform(2, 4, 40_000, 524_032, 65_536, 65_536, 131_072)
    kernel = kernel_of(CHAIN)
    few = check(kernel, inputs_of(CHAIN, 50, 1000, 3, kernel.signature.dtypes), programs, small)
    assert few.launch.blocks == 4


@needs_compiler
def test_float32_models_computed_in_half_round_at_the_edge_only(programs: Path) -> None:
    """Under force_fp16 a mask of -1e9 becomes -inf where it is stored, and zero times it stays zero."""
    steps = (
        Step("Cast", (Operand("x", 0),), FLOAT),
        Step("Sub", (1.0, Operand("t", 0)), FLOAT),
        Step("Mul", (Operand("t", 1), -1e9), FLOAT),
        Step("Add", (Operand("t", 2), Operand("x", 1)), FLOAT),
    )
    expression = Expression(0, (Input(BOOL, FULL), Input(FLOAT, FULL)), steps, (3,))
    kernel = kernel_of(expression, types={"x2": FLOAT16, "y1": FLOAT16})
    mask = np.array([True, False] * 20)
    numbers = np.linspace(-2, 2, 40).astype(np.float16)
    result = run_kernel(kernel, {"x1": mask, "x2": numbers}, cache=programs)
    np.testing.assert_array_equal(result.outputs["y1"], np.where(mask, numbers, -np.inf).astype(np.float16))


@needs_compiler
def test_half_results_are_rounded_before_they_are_compared(programs: Path) -> None:
    """1 + 2^-12 is 1 in half: a model that rounds finds it equal to 1."""
    steps = (Step("Add", (Operand("x", 0), 2.0**-12), FLOAT16), Step("Equal", (Operand("t", 0), 1.0), BOOL))
    kernel = kernel_of(Expression(0, (Input(FLOAT16, FULL),), steps, (1,)))
    result = run_kernel(kernel, {"x1": np.ones(64, np.float16)}, cache=programs)
    assert result.outputs["y1"].all()


@needs_compiler
def test_softplus_and_mish_do_not_overflow(programs: Path) -> None:
    steps = (Step("Softplus", (Operand("x", 0),), FLOAT), Step("Mish", (Operand("x", 0),), FLOAT))
    expression = Expression(0, (Input(FLOAT, FULL),), steps, (0, 1))
    x = np.linspace(-200, 200, 128, dtype=np.float32)
    check(kernel_of(expression), {"x1": x}, programs)


def jumps(dtype: int) -> Expression:
    steps = tuple(Step(op, (Operand("x", 0), *((0.5,) if op == "ThresholdedRelu" else ())), dtype) for op in JUMPS)
    sums = (
        Step("Mul", (Operand("t", 3), Operand("t", 2)), dtype),
        Step("Add", (Operand("t", 4), Operand("t", 5)), dtype),
    )
    return Expression(0, (Input(dtype, FULL),), (*steps, *sums), (0, 1, 2, 6))


@needs_compiler
@pytest.mark.parametrize("dtype", [FLOAT16, *(pytest.param(t, marks=pytest.mark.slow) for t in (FLOAT, BFLOAT16))])
def test_functions_with_jumps(dtype: int, programs: Path) -> None:
    kernel = kernel_of(jumps(dtype))
    x = np.concatenate([np.arange(-8, 8, 0.25), [-0.0, 1e4, -65504, 0.499]])
    check(kernel, {"x1": encode(x, dtype)}, programs)


@needs_compiler
def test_half_results_are_rounded_before_a_function_jumps(programs: Path) -> None:
    """3 - 2^-12 is 3 in half: a model that rounds finds its floor to be 3."""
    steps = (Step("Add", (Operand("x", 0), -(2.0**-12)), FLOAT16), Step("Floor", (Operand("t", 0),), FLOAT16))
    kernel = kernel_of(Expression(0, (Input(FLOAT16, FULL),), steps, (1,)))
    result = run_kernel(kernel, {"x1": np.full(64, 3, np.float16)}, cache=programs)
    assert (result.outputs["y1"] == 3).all()


def angles(dtype: int) -> Expression:
    steps = (
        Step("Mul", (Operand("x", 0), Operand("x", 1)), dtype),
        Step("Cos", (Operand("t", 0),), dtype),
        Step("Sin", (Operand("t", 0),), dtype),
        Step("Mul", (Operand("t", 2), 0.5), dtype),
    )
    return Expression(
        1, (Input(dtype, COLUMN), Input(dtype, ROW), Input(dtype, FULL)), (*steps, used(dtype)), (1, 3, 4)
    )


def used(dtype: int) -> Step:
    return Step("Neg", (Operand("x", 2),), dtype)


@needs_compiler
@pytest.mark.parametrize("dtype", [FLOAT, *(pytest.param(t, marks=pytest.mark.slow) for t in (FLOAT16, BFLOAT16))])
def test_angles_of_positions(dtype: int, programs: Path) -> None:
    """As rotary embeddings have them: in 16 bits the angle is rounded by the model, and the kernel must do so too."""
    kernel = kernel_of(angles(dtype))
    positions, frequencies = np.arange(2000, 2040)[:, None], 10000.0 ** -(np.arange(32) / 32)
    whole = np.zeros((40, 32))
    inputs = {"x1": encode(positions, dtype), "x2": encode(frequencies, dtype), "x3": encode(whole, dtype)}
    angle = (decode(inputs["x1"], dtype) * decode(inputs["x2"], dtype)).astype(np.float32)
    result = run_kernel(kernel, inputs, cache=programs)
    angle = decode(encode(angle, dtype), dtype)
    for name, exact in (("y1", np.cos(angle)), ("y2", np.sin(angle) / 2)):
        np.testing.assert_allclose(decode(result.outputs[name], dtype), exact, rtol=0, atol=TOLERANCE[dtype])


@needs_compiler
def test_beyond_the_largest_half_angles_are_not_promised(programs: Path) -> None:
    steps = (Step("Sin", (Operand("x", 0),), FLOAT),)
    kernel = kernel_of(Expression(0, (Input(FLOAT, FULL),), steps, (0,)))
    x = np.full(64, 65504, np.float32)
    x[1] = 65505
    made = run_kernel(kernel, {"x1": x}, cache=programs).outputs["y1"]
    assert np.isnan(made[1])
    assert np.isfinite(made[[0, 2]]).all()


@needs_compiler
@pytest.mark.parametrize("exponent", [-0.5, *(pytest.param(e, marks=pytest.mark.slow) for e in (-1.0, -2.0))])
def test_negative_powers(exponent: float, programs: Path) -> None:
    steps = (Step("Pow", (Operand("x", 0), exponent), FLOAT),)
    kernel = kernel_of(Expression(0, (Input(FLOAT, FULL),), steps, (0,)))
    check(kernel, {"x1": np.linspace(0.25, 8, 100, dtype=np.float32)}, programs)


def integers(dtype: int) -> Expression:
    """A mask as exporters prepare it, compared with constants on both sides, and one value a row."""
    steps = (
        Step("Cast", (Operand("x", 0),), FLOAT),
        Step("Sub", (1.0, Operand("t", 0)), FLOAT),
        Step("Equal", (Operand("x", 0), 1.0), BOOL),
        Step("Less", (-3.0, Operand("x", 0)), BOOL),
        Step("And", (Operand("t", 2), Operand("t", 3)), BOOL),
        Step("Cast", (Operand("x", 0),), BOOL),
        Step("Cast", (Operand("x", 1),), FLOAT),
        Step("Where", (Operand("t", 5), Operand("t", 1), Operand("t", 6)), FLOAT),
        Step("Cast", (Operand("x", 2),), FLOAT),
        Step("Add", (Operand("t", 7), Operand("t", 8)), FLOAT),
    )
    return Expression(1, (Input(dtype, FULL), Input(dtype, COLUMN), Input(dtype, ROW)), steps, (4, 9))


@needs_compiler
@pytest.mark.parametrize(("rows", "columns"), [(3, 64), (5, 33), (300, 7)])
@pytest.mark.parametrize("dtype", [INT32, INT64])
def test_integers_are_read(dtype: int, rows: int, columns: int, programs: Path) -> None:
    kernel = kernel_of(integers(dtype))
    x = np.random.default_rng(rows).integers(-4, 4, (rows, columns))
    x[0, 0] = 2**31 - 1 if dtype == INT32 else 2**62
    column, row = encode(np.arange(rows)[:, None], dtype), encode(np.arange(columns) - 3, dtype)
    check(kernel, {"x1": encode(x, dtype), "x2": column, "x3": row}, programs)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (Step("Add", (Operand("x", 0), 1.0), FLOAT), "of integers"),
        (Step("Equal", (Operand("x", 0), 2.0**24), BOOL), "of integers"),
        (Step("Less", (Operand("x", 0), 0.5), BOOL), "of integers"),
        (Step("Less", (Operand("x", 0), Operand("x", 0)), BOOL), "of integers"),
        (Step("Cast", (Operand("x", 0),), INT32), "gives integers"),
    ],
)
def test_what_float32_cannot_say_of_integers_is_no_step(step: Step, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_expression(str(Expression(0, (Input(INT64, FULL),), (step,), (0,))))


def test_equal_signatures_give_equal_sources_and_others_do_not() -> None:
    assert kernel_of(CHAIN).files == kernel_of(CHAIN).files
    assert kernel_of(CHAIN).op_type != kernel_of(CHAIN, types={"x4": FLOAT}).op_type


def test_310p_says_what_it_cannot() -> None:
    attributes = {"expression": str(CHAIN)}
    types = {"x1": FLOAT16, "x2": FLOAT16, "x3": BOOL, "x4": FLOAT16, "y1": FLOAT16, "y2": BOOL}
    assert "one value a row" in str(refusal_of(SPEC, attributes, types, "Ascend310P3"))
    with pytest.raises(AtcfuseError):
        render_kernel(SPEC, attributes, types, "Ascend310P3")


def test_shapes_that_are_refused() -> None:
    kernel = kernel_of(FLAT, "310P")
    assert "32 elements" in str(predict(kernel, {"x1": (31,), "x2": (31,)}, planned_platform("310P")))
    tiny = Platform(1, 1, 500, 0, 0, 0, 0)
    problem = problem_of(kernel_of(FLAT).signature, {"x1": (64,), "x2": (64,)})
    assert "on chip" in str(tiling.refusal(problem, tiny))
    assert tiling.refusal(problem, PLATFORM_910B) is None


@pytest.mark.parametrize(
    "text",
    ["", "columns 0; out t1", str(CHAIN) + " ", str(CHAIN).replace("Erf", "Tan"), str(CHAIN).replace("(t1)", "(t9)")],
)
def test_a_node_with_another_expression_has_no_kernel(text: str) -> None:
    types = {"x1": FLOAT16, "x2": FLOAT16, "x3": BOOL, "x4": FLOAT16, "y1": FLOAT16, "y2": BOOL}
    assert "expression" in str(refusal_of(SPEC, {"expression": text}, types, "Ascend910B1"))


def test_the_meaning_is_a_valid_model_in_every_dialect() -> None:
    kernel = kernel_of(CHAIN)
    model = signature_model(kernel.signature, {"expression": str(CHAIN)}, 17)
    assert model.graph.node[0].op_type == SPEC.op_of({"expression": str(CHAIN)})
    to_dialect(model, "atc")
    assert model.graph.node[0].domain == "atcfuse"
