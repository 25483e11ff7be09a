"""The kernels that normalise rows on vector cores: against numpy in float64, against their prediction, and broken."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atcfuse.codegen import GeneratedKernel, Signature, predict, render_kernel
from atcfuse.codegen.row_norm import refusal as signature_refusal
from atcfuse.diagnostics import AtcfuseError
from atcfuse.kernel import load_kernels
from atcfuse.tiling import PLATFORM_310P, PLATFORM_910B, Platform
from atcfuse.tiling.row_norm import Problem, plan, problem_of, refusal
from atcfuse.twin import TwinResult, run_kernel
from atcfuse.vectors import decode, encode

KERNELS = Path(__file__).parents[2] / "kernels"
FLOAT, FLOAT16, BFLOAT16 = 1, 10, 16
TOLERANCE = {FLOAT: 1e-5, FLOAT16: 1e-3, BFLOAT16: 8e-3}
SMALL = replace(PLATFORM_910B, vector_cores=3)
SMALL_310P = replace(PLATFORM_310P, vector_cores=3)
Shape = tuple[int, ...]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@dataclass(frozen=True)
class Case:
    """A signature: element types of the summands and of gamma and beta, which are absent where it is None."""

    kernel: str
    dtype: int
    affine: int | None
    summands: int = 1
    keeps_sum: bool = False
    beta: bool = True
    epsilon: float = 1e-5
    family: str = "910B"
    residual: bool = False
    plus: float = 0.0
    gate: bool = False

    @property
    def names(self) -> list[str]:
        return (
            ["x"] if not self.kernel.startswith(("add", "modulated")) else [f"x{i + 1}" for i in range(self.summands)]
        )

    @property
    def dtypes(self) -> dict[str, int]:
        types = dict.fromkeys(self.names, self.dtype)
        if self.affine is not None:
            types["gamma"] = self.affine
            types |= {"beta": self.affine} if self.beta and "rms" not in self.kernel else {}
        types |= {"residual": self.dtype} if self.residual else {}
        types |= {"gate": self.dtype} if self.gate else {}
        return types | {"y": self.dtype} | ({"sum": self.dtype} if self.keeps_sum else {})

    def render(self) -> GeneratedKernel:
        spec = load_kernels(KERNELS)[self.kernel]
        soc = {"910B": "Ascend910B1", "310P": "Ascend310P3"}[self.family]
        more = {"plus": self.plus} if self.kernel.startswith("modulated") else {}
        return render_kernel(spec, {"epsilon": self.epsilon, **more}, self.dtypes, soc)


ADD = Case("add_layer_norm", FLOAT16, FLOAT16, 2, keeps_sum=True)
ADD_THREE = Case("add_layer_norm", FLOAT16, FLOAT, 3)
ADD_THREE_KEPT = Case("add_layer_norm", FLOAT, FLOAT, 3, keeps_sum=True)
ADD_BARE = Case("add_layer_norm", FLOAT, None, 2)
ADD_BRAIN = Case("add_layer_norm", BFLOAT16, FLOAT, 3, keeps_sum=True)
ADD_RMS = Case("add_rms_norm", FLOAT16, FLOAT16, 2, keeps_sum=True)
ADD_RMS_THREE = Case("add_rms_norm", BFLOAT16, BFLOAT16, 3)
ADD_RMS_WIDE = Case("add_rms_norm", FLOAT, FLOAT, 2)
NORM = Case("layer_norm", FLOAT16, FLOAT16)
NORM_WIDE = Case("layer_norm", FLOAT, FLOAT, beta=False)
NORM_MIXED = Case("layer_norm", FLOAT, FLOAT16)
NORM_BARE = Case("layer_norm", BFLOAT16, None)
RMS = Case("rms_norm", FLOAT16, FLOAT16)
RMS_WIDE = Case("rms_norm", FLOAT, FLOAT16)
RMS_BARE = Case("rms_norm", BFLOAT16, None)
RMS_SUM = Case("rms_norm", FLOAT16, FLOAT16, residual=True)
RMS_SUM_WIDE = Case("rms_norm", FLOAT, FLOAT, residual=True)
NORM_SUM = Case("layer_norm", BFLOAT16, FLOAT, residual=True)
MODULATED = Case("modulated_layer_norm", FLOAT16, FLOAT16, plus=1.0)
MODULATED_SUM = Case("modulated_layer_norm", FLOAT, FLOAT, 2, keeps_sum=True, plus=1.0)
MODULATED_BRAIN = Case("modulated_layer_norm", BFLOAT16, FLOAT, 3)
GATED = Case("modulated_layer_norm", FLOAT16, FLOAT16, 2, keeps_sum=True, plus=1.0, gate=True)
GATED_WIDE = Case("modulated_layer_norm", FLOAT, FLOAT, 2, keeps_sum=True, plus=1.0, gate=True)
CASES = [
    MODULATED, MODULATED_SUM, MODULATED_BRAIN, GATED, GATED_WIDE,
    ADD, ADD_THREE, ADD_THREE_KEPT, ADD_BARE, ADD_BRAIN, ADD_RMS, ADD_RMS_THREE, ADD_RMS_WIDE,
    NORM, NORM_WIDE, NORM_MIXED, NORM_BARE, RMS, RMS_WIDE, RMS_BARE, RMS_SUM, RMS_SUM_WIDE, NORM_SUM,
]  # fmt: skip


def on_310p(case: Case) -> Case:
    return replace(case, family="310P")


def make_inputs(case: Case, shapes: Sequence[Shape], mean: float = 0.7) -> dict[str, Any]:
    hidden = shapes[0][-1]
    rng = np.random.default_rng(hidden + len(shapes))
    inputs = {}
    for name, shape in zip(case.names, shapes, strict=True):
        inputs[name] = encode(rng.standard_normal(shape) * 1.5 + mean, case.dtype)
    if case.residual:
        inputs["residual"] = encode(rng.standard_normal(shapes[0]), case.dtype)
    for name in ("gamma", "beta", "gate"):
        if name in case.dtypes:
            row = (*shapes[0][:1], *(1 for _ in shapes[0][1:-1])) if case.kernel.startswith("modulated") else ()
            inputs[name] = encode(1 + 0.3 * rng.standard_normal((*row, hidden)), case.dtypes[name])
    return inputs


def reference(case: Case, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the operator means, in float64; sums are rounded after every addition."""
    exact = {name: decode(array, case.dtypes[name]) for name, array in inputs.items()}
    rows = exact[case.names[0]]
    for name in case.names[1:]:
        summand = exact[name]
        if case.gate and name == "x2":
            summand = decode(encode(summand * exact["gate"], case.dtype), case.dtype)
        rows = decode(encode(rows + summand, case.dtype), case.dtype)
    results = {"sum": rows} if case.keeps_sum else {}
    if "rms" not in case.kernel:
        rows = rows - rows.mean(-1, keepdims=True)
    rows = rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + case.epsilon)
    return results | {
        "y": rows * (exact.get("gamma", 1.0) + case.plus) + exact.get("beta", 0.0) + exact.get("residual", 0.0)
    }


def check_numbers(case: Case, inputs: Mapping[str, Any], result: TwinResult) -> None:
    expected = reference(case, inputs)
    assert set(result.outputs) == set(expected)
    for name, want in expected.items():
        got = decode(result.outputs[name], case.dtype)
        assert got.shape == want.shape
        allowed = 0.0 if name == "sum" else TOLERANCE[case.dtype] * max(1.0, np.abs(want).max())
        assert np.abs(got - want).max() <= allowed, name


def check_counts(
    kernel: GeneratedKernel, inputs: Mapping[str, Any], result: TwinResult, platform: Platform
) -> Mapping[str, int]:
    predicted = predict(kernel, {name: array.shape for name, array in inputs.items()}, platform)
    assert not isinstance(predicted, str)
    counted = {**result.counters, **result.counters["peak"]}
    assert {name: counted[name] for name in predicted} == predicted
    assert counted["ub"] <= platform.ub
    return predicted


def run(
    case: Case, shapes: Sequence[Shape], programs: Path, platform: Platform | None = None, mean: float = 0.7
) -> Mapping[str, int]:
    chip = platform or {"910B": PLATFORM_910B, "310P": PLATFORM_310P}[case.family]
    inputs = make_inputs(case, shapes, mean)
    kernel = case.render()
    result = run_kernel(kernel, inputs, platform=chip, cache=programs)
    check_numbers(case, inputs, result)
    return check_counts(kernel, inputs, result, chip)


@pytest.mark.parametrize(
    ("case", "shapes", "platform"),
    [
        (ADD, [(2, 19, 64), (2, 19, 64)], PLATFORM_910B),
        (ADD, [(2, 19, 768), (1, 19, 768)], SMALL),
        (ADD, [(7, 5, 100), (100,)], SMALL),
        (ADD, [(2, 3, 8192), (3, 8192)], SMALL),
        (ADD, [(19, 40), (2, 19, 40)], SMALL),
        (ADD, [(1, 7), (1, 7)], PLATFORM_910B),
        (ADD_THREE, [(3, 7, 768), (768,), (3, 7, 768)], PLATFORM_910B),
        (ADD_THREE, [(3, 7, 72), (1, 7, 72), (1, 72)], SMALL),
        (ADD_THREE, [(20, 6000), (6000,), (1, 6000)], SMALL),
        (ADD_THREE_KEPT, [(50, 1000), (1000,), (50, 1000)], SMALL),
        (ADD_THREE_KEPT, [(2, 3, 4099), (3, 4099), (4099,)], SMALL),
        (ADD_BARE, [(5, 33), (5, 33)], SMALL),
        (ADD_BARE, [(), (5, 12_000)], SMALL),
        (ADD_BRAIN, [(131, 72), (72,), (131, 72)], SMALL),
        (ADD_BRAIN, [(3, 9000), (9000,), (3, 9000)], SMALL),
        (ADD_RMS, [(2, 50, 64), (50, 64)], SMALL),
        (ADD_RMS, [(4, 4096), (4, 4096)], PLATFORM_910B),
        (ADD_RMS_THREE, [(9, 77), (9, 77), (77,)], SMALL),
        (ADD_RMS_WIDE, [(4, 8192), (4, 8192)], SMALL),
        (RMS_SUM, [(2, 19, 64)], SMALL),
        (RMS_SUM, [(20, 30_000)], SMALL),
        (RMS_SUM_WIDE, [(7, 5, 100)], SMALL),
        (RMS_SUM_WIDE, [(3, 40_001)], SMALL),
        (NORM_SUM, [(131, 72)], PLATFORM_910B),
        (NORM_SUM, [(3, 30_000)], SMALL),
        (on_310p(RMS_SUM), [(3, 7, 64)], SMALL_310P),
        (MODULATED, [(2, 19, 64)], PLATFORM_910B),
        (MODULATED, [(5, 7, 100)], SMALL),
        (MODULATED, [(3, 1, 768)], SMALL),
        (MODULATED, [(3, 5, 30_000)], SMALL),
        (MODULATED_SUM, [(7, 50, 64), (7, 50, 64)], SMALL),
        (MODULATED_SUM, [(2, 30, 9000), (1, 30, 9000)], SMALL),
        (MODULATED_BRAIN, [(4, 11, 72), (72,), (4, 11, 72)], SMALL),
        (on_310p(MODULATED), [(5, 7, 64)], SMALL_310P),
        (GATED, [(4, 11, 72), (4, 11, 72)], SMALL),
        (GATED, [(3, 5, 20_000), (3, 5, 20_000)], SMALL),
        (GATED_WIDE, [(7, 50, 64), (7, 50, 64)], SMALL),
        (on_310p(GATED), [(5, 7, 64), (64,)], SMALL_310P),
        (NORM, [(3, 5, 768)], PLATFORM_910B),
        (NORM, [(300, 1)], SMALL),
        (NORM, [(5, 20_000)], SMALL),
        (NORM_WIDE, [(3, 5, 773)], SMALL),
        (NORM_WIDE, [(40, 7001)], SMALL),
        (NORM_MIXED, [(40, 13)], SMALL),
        (NORM_BARE, [(64, 15)], SMALL),
        (RMS, [(2, 3, 128)], PLATFORM_910B),
        (RMS, [(2, 3, 5000)], SMALL),
        (RMS_WIDE, [(11, 8192)], SMALL),
        (RMS_BARE, [(4, 10_000)], SMALL),
        (on_310p(ADD), [(2, 19, 64), (19, 64)], PLATFORM_310P),
        (on_310p(ADD), [(5, 9008), (9008,)], SMALL_310P),
        (on_310p(ADD_THREE_KEPT), [(3, 7, 768), (768,), (3, 7, 768)], SMALL_310P),
        (on_310p(ADD_RMS), [(40, 4096), (40, 4096)], SMALL_310P),
        (on_310p(NORM), [(30, 784)], SMALL_310P),
        (on_310p(NORM_MIXED), [(30, 48)], SMALL_310P),
        (on_310p(RMS), [(3, 12_000)], SMALL_310P),
    ],
)
def test_kernel_agrees_with_numpy_and_with_its_prediction(
    case: Case, shapes: list[Shape], platform: Platform, programs: Path
) -> None:
    shapes = [shape or shapes[-1] for shape in shapes]
    run(case, shapes, programs, platform)


def test_a_row_of_every_summand_stays_on_chip(programs: Path) -> None:
    predicted = run(ADD_THREE, [(90, 768), (768,), (90, 768)], programs, SMALL)
    rows, vectors = 2 * 90 * 768 * 2, 3 * 768 * (2 + 4 + 4)  # three cores read x2, gamma and beta once each
    assert predicted["tensor_bytes_read"] == rows + vectors
    assert predicted["tensor_bytes_written"] == 90 * 768 * 2


@pytest.mark.parametrize(("batches", "positions", "loads"), [(3, 5, 3), (5, 3, 7), (1, 15, 3)])
def test_scale_and_shift_come_on_chip_for_every_batch_of_a_tile(
    batches: int, positions: int, loads: int, programs: Path
) -> None:
    predicted = run(MODULATED, [(batches, positions, 768)], programs, SMALL)  # three tiles of five rows
    assert predicted["tensor_bytes_read"] == 15 * 768 * 2 + loads * 768 * (2 + 2)


def test_a_gate_belongs_to_the_second_summand(programs: Path) -> None:
    for case, shapes in ((GATED, [(5, 3, 100)] * 2), (GATED_WIDE, [(3, 5, 9000)] * 2)):
        run(case, shapes, programs, SMALL)


@pytest.mark.parametrize("shape", [(3, 1, 64), (2, 5, 64), (2, 1, 63)])
def test_a_scale_of_other_batches_is_refused(shape: Shape, programs: Path) -> None:
    inputs = make_inputs(MODULATED, [(2, 4, 64)])
    inputs["gamma"] = np.ones(shape, np.float16)
    with pytest.raises(AtcfuseError, match="gamma and beta"):
        run_kernel(MODULATED.render(), inputs, cache=programs)


def test_statistics_survive_a_large_mean(programs: Path) -> None:
    for case in (ADD_BARE, on_310p(ADD_BARE)):
        run(case, [(3, 768), (3, 768)], programs, mean=300.0)
        run(case, [(3, 12_800), (3, 12_800)], programs, mean=300.0)


def test_random_shapes_agree_with_numpy_and_with_their_prediction(programs: Path) -> None:
    rng = random.Random(7)
    for _ in range(60):
        case = rng.choice(CASES)
        hidden = rng.choice([1, 7, 16, 40, 100, 160, 1000, 2500])
        leading = (rng.choice([1, 2, 5]), rng.choice([1, 2, 15, 33]))
        shapes = [(*leading, hidden)]
        for _ in case.names[1:]:
            whole = (*leading, hidden)
            shapes.append(rng.choice([whole, whole, (1, *whole[1:]), whole[1:], (hidden,), (1, 1, hidden)]))
        platform = rng.choice([SMALL, PLATFORM_910B, replace(SMALL, vector_cores=1)])
        if hidden % 16 == 0 and BFLOAT16 not in case.dtypes.values() and rng.random() < 0.4:
            case, platform = on_310p(case), rng.choice([SMALL_310P, PLATFORM_310P])
        run(case, shapes, programs, platform)


TILING_DUMP = """
#include "FUNCTION_host.h"
#include <cstdio>
int main()
{
    namespace n = FUNCTION_tiling;
    atcfuse::Shape in[5];
    long long ub, batch, rows, hidden, second, third;
    int cores;
    while (std::scanf("%d %lld %lld %lld %lld %lld %lld", &cores, &ub, &batch, &rows, &hidden, &second, &third) == 7) {
        const atcfuse::Platform chip{cores, cores, ub, 0, 0, 0, 0};
        in[0] = {3, {batch, rows, hidden}};
        in[1] = {2, {second, hidden}};
        in[2] = {3, {1, third, hidden}};
        in[3] = {1, {hidden}};
        in[4] = {1, {hidden}};
        n::Tiling t{};
        atcfuse::Launch launch{};
        const char* refused = n::computeTiling(chip, in, t, launch);
        std::printf("%s %d %d %d %d %d %d\\n", refused ? "refused" : "taken", launch.blocks, t.rowsPerTile, t.tiles,
                    t.pitch, t.loaded, t.workFloats);
    }
}
"""


@pytest.mark.parametrize("case", [ADD_BRAIN, replace(ADD_THREE_KEPT, family="310P")], ids=["910B", "310P"])
def test_tiling_in_python_equals_the_tiling_of_the_host(case: Case, tmp_path: Path) -> None:
    kernel = case.render()
    for name, text in kernel.files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "dump.cpp").write_text(TILING_DUMP.replace("FUNCTION", kernel.function))
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(KERNELS / "twin")]
    subprocess.run(["g++", *flags, "dump.cpp", "-o", "dump"], cwd=tmp_path, check=True)
    rng = random.Random(3)
    problems = []
    for _ in range(300):
        rows = rng.choice([0, 1, 2, 17, 128, 500, 4097])
        hidden = rng.choice([1, 13, 16, 64, 768, 1000, 4096, 6000, 8192, 30_000, 2**20, 2**20 + 16])
        second, third = (rng.choice([1, rows, rows, 3]) for _ in range(2))
        ub = rng.choice([3_000, 40_000, 157_286, 188_160])
        problems.append((rng.randint(1, 48), ub, rng.choice([1, 3, 300_000]), rows, hidden, second, third))
    text = "\n".join(" ".join(map(str, p)) for p in problems)
    done = subprocess.run([tmp_path / "dump"], input=text, capture_output=True, text=True, check=True)
    verdicts = set()
    for numbers, line in zip(problems, done.stdout.splitlines(), strict=True):
        cores, ub, batch, rows, hidden, second, third = numbers
        shapes = {"x1": (batch, rows, hidden), "x2": (second, hidden), "x3": (1, third, hidden)}
        verdict, *found = line.split()
        verdicts.add(verdict)
        broadcasts = all(n in (1, rows) for n in (second, third)) or rows == 1
        problem = problem_of(case.dtypes, shapes, case.family) if broadcasts else None
        chip = replace(PLATFORM_910B, vector_cores=cores, ub=ub)
        if problem is not None and rows != 1:
            assert (verdict == "refused") == (refusal(problem, chip) is not None), numbers
        if verdict == "refused" or problem is None:
            continue
        t = plan(problem, chip)
        expected = [t.blocks, t.rows_per_tile, t.tiles, t.pitch, t.loaded, t.work_floats]
        assert [int(word) for word in found] == expected, numbers
    assert verdicts == {"taken", "refused"}


@pytest.mark.parametrize(
    ("case", "shapes", "reason"),
    [
        (ADD, [(4, 3, 64), (4, 1, 64)], "fewer that repeat in order"),
        (ADD, [(4, 3, 64), (3, 3, 64)], "do not broadcast"),
        (on_310p(ADD), [(4, 40), (4, 40)], "multiple of 16"),
    ],
)
def test_wrong_shapes_are_refused_before_anything_runs(
    case: Case, shapes: list[Shape], reason: str, programs: Path
) -> None:
    with pytest.raises(AtcfuseError, match=reason):
        run_kernel(case.render(), make_inputs(case, shapes), cache=programs)


def test_a_scale_of_another_length_is_refused(programs: Path) -> None:
    inputs = make_inputs(NORM, [(4, 64)])
    inputs["gamma"] = inputs["gamma"][:63]
    with pytest.raises(AtcfuseError, match="gamma and beta need as many elements"):
        run_kernel(NORM.render(), inputs, cache=programs)


def test_summands_that_do_not_repeat_are_refused_in_python_too() -> None:
    assert refusal(Problem(12, 64, (12, None)), PLATFORM_910B) is not None
    assert refusal(Problem(12, 64, (12, 4)), PLATFORM_910B) is None
    assert refusal(Problem(12, 64, (12, 4)), replace(PLATFORM_910B, ub=2_000)) is not None
    shapes = {"x1": (4, 3, 64), "x2": (4, 1, 64)}
    assert problem_of(ADD.dtypes, shapes, "910B").periods == (12, None)
    assert problem_of(ADD.dtypes, {**shapes, "x2": (3, 64)}, "910B").periods == (12, 3)


@pytest.mark.parametrize(
    ("case", "changed", "reason"),
    [
        (ADD, {"x2": FLOAT}, "x2 has another element type"),
        (ADD, {"sum": FLOAT}, "sum has another element type"),
        (NORM, {"y": FLOAT}, "y has another element type"),
        (on_310p(NORM), {"gamma": BFLOAT16}, "310P has no bfloat16"),
        (NORM, {"gamma": BFLOAT16}, None),
        (on_310p(ADD_THREE_KEPT), {}, None),
    ],
)
def test_signatures_without_a_kernel(case: Case, changed: Mapping[str, int], reason: str | None) -> None:
    spec = load_kernels(KERNELS)[case.kernel]
    said = signature_refusal(Signature(spec, {"epsilon": 1e-5}, {**case.dtypes, **changed}, case.family))
    assert said is None if reason is None else said is not None and reason in said


@dataclass(frozen=True)
class Mutation:
    """A defect that can be switched on in the kernel: a statement or an expression, and what stands there instead.

    `rule` is the twin's rule that must catch it; without one its numbers, or the twin, must. Defects of `two_reads`
    show in rows that do not fit on chip.
    """

    correct: str
    wrong: str
    rule: str = ""
    two_reads: bool = False

    def switched(self, number: int) -> str:
        if self.correct.endswith(";"):
            return f"if (mutant() == {number}) {{ {self.wrong} }} else {{ {self.correct} }}"
        return f"(mutant() == {number} ? {self.wrong} : {self.correct})"


BARRIER = "PipeBarrier<PIPE_V>();"
SPREAD = "Brcb(Spread(), sum, 1, BrcbRepeatParams(1, 8));"
MUTATIONS = {
    "no wait for gamma": Mutation(f"Await<HardEvent::MTE2_V>();\n            {BARRIER}", BARRIER, "missing-sync"),
    "no barrier after the mean": Mutation(f"{SPREAD}\n        {BARRIER}", SPREAD, "missing-barrier"),
    "a buffer is not freed": Mutation("in_.FreeTensor(tiles);", "", "queue-not-freed"),
    "one column too many": Mutation(
        "static_cast<uint32_t>(count * sizeof(G))", "static_cast<uint32_t>(count * sizeof(G) + sizeof(G))"
    ),
    "the tail columns are left out": Mutation("count % kLanes != 0", "count % kLanes > 63"),
    "gamma and beta are swapped": Mutation("betaPlane_ = gammaPlane_ + (kHasGamma ? pitch_ : 0);", "betaPlane_ = gammaPlane_;"),
    "epsilon is forgotten": Mutation("Adds(lanes, lanes, kEpsilon, count);", "Adds(lanes, lanes, 0.0f, count);"),
    "the last rows are a whole tile": Mutation(
        "t.rows - row < t.rowsPerTile ? t.rows - row : t.rowsPerTile", "t.rowsPerTile", "gm-range"
    ),
    "a shorter summand does not begin anew": Mutation("(row + done) % period", "(row + done)"),
    "rows of a shorter summand run over": Mutation("rows - done < period - at", "true", "gm-range"),
    "the second summand is added twice": Mutation("slot += tile_;\n            }\n            PipeBarrier", "}\n            PipeBarrier"),
    "the sum and the result change places": Mutation("CopyOut(sum_, result[tile_], row, rows, 0, count);", "CopyOut(sum_, result, row, rows, 0, count);"),
    "only the first row is normalised": Mutation("Plane(r * pitch_)", "Plane(0)"),
    "means of chunks are not weighted": Mutation(
        "static_cast<float>(count) / static_cast<float>(before + count)", "0.5f", two_reads=True
    ),
    "the last chunk is a whole one": Mutation("tiling_->hidden - first < pitch_", "false", two_reads=True),
    "the distance of the means is left out": Mutation(
        "Add(Deviation(slot), Deviation(slot), delta, kBlockFloats);", "", two_reads=True
    ),
    "the second read has the first row's mean": Mutation(
        "EachColumn<ColumnOp::kSubtract>(values, Mean(slot), count);",
        "EachColumn<ColumnOp::kSubtract>(values, Mean(0), count);",
        two_reads=True,
    ),
    "gamma stays at its first columns": Mutation(
        "LoadFloats(Plane(gammaPlane_), gamma_[at], count);",
        "LoadFloats(Plane(gammaPlane_), gamma_[0], count);",
        two_reads=True,
    ),
}  # fmt: skip
MUTANT = """#include <cstdlib>
inline int mutant()
{
    const char* text = std::getenv("MUTANT");
    return text == nullptr ? 0 : std::atoi(text);
}
"""
MUTABLE = replace(ADD_THREE, keeps_sum=True, epsilon=0.25, affine=FLOAT16)


def mutable_kernel() -> GeneratedKernel:
    """One kernel with every defect in it; the environment says which is on."""
    kernel = MUTABLE.render()
    name = f"{kernel.function}.cpp"
    source = kernel.files[name]
    for number, mutation in enumerate(MUTATIONS.values(), 1):
        assert mutation.correct in source, mutation.correct
        switched = mutation.switched(number)
        if mutation.correct.count("{") != mutation.correct.count("}"):
            switched = f"if (mutant() != {number}) {{ slot += tile_; }}\n            }}\n            PipeBarrier"
        source = source.replace(mutation.correct, switched, 1)
    return replace(kernel, files={**kernel.files, name: MUTANT + source})


def run_mutant(number: int, two_reads: bool, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUTANT", str(number))
    hidden = 9000 if two_reads else 100
    shapes = (
        [(2, 5, hidden), (5, hidden), (2, 5, hidden)] if two_reads else [(8, 5, hidden), (5, hidden), (8, 5, hidden)]
    )
    inputs = make_inputs(MUTABLE, shapes, 2.0)
    inputs["x1"] += np.linspace(-4, 4, hidden).astype(np.float16)  # chunks and rows with means of their own
    inputs["x1"] += np.arange(shapes[0][1], dtype=np.float16)[:, None]
    check_numbers(MUTABLE, inputs, run_kernel(mutable_kernel(), inputs, platform=SMALL, cache=programs))


def test_the_mutable_kernel_is_right_while_no_defect_is_on(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for two_reads in (False, True):
        run_mutant(0, two_reads, programs, monkeypatch)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_kernel_is_caught(name: str, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    with pytest.raises((AtcfuseError, AssertionError)) as caught:
        run_mutant(list(MUTATIONS).index(name) + 1, mutation.two_reads, programs, monkeypatch)
    if mutation.rule:
        assert isinstance(caught.value, AtcfuseError)
        assert f"rule {mutation.rule}:" in str(caught.value)
