"""The linear and layer_norm_linear kernels: against numpy in float64, against their prediction, and broken on purpose."""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linear_cases import (
    BFLOAT16,
    FLOAT,
    FLOAT16,
    KERNELS,
    TOLERANCE,
    Array,
    Case,
    decode,
    encode,
    make_inputs,
    reference,
)

from atcfuse.codegen import GeneratedKernel, Signature
from atcfuse.codegen.linear import refusal as signature_refusal
from atcfuse.diagnostics import AtcfuseError
from atcfuse.reference import evaluate
from atcfuse.tiling import PLATFORM_910B, Platform
from atcfuse.tiling.linear import plan, predict, refusal
from atcfuse.tiling.linear_problem import Problem, features, problem_of
from atcfuse.twin import TwinResult, run_kernel

SMALL = replace(PLATFORM_910B, cube_cores=2, vector_cores=4)
TIGHT = replace(SMALL, ub=98_304)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")

RESIDUAL = Case(parts="bias residual")
FOLDED = replace(RESIDUAL, folded=True)
PARALLEL = Case(parts="bias residual residual2")
PARALLEL_FLOAT = Case(FLOAT, "gain residual residual2", scale=0.5, activation="relu_squared")
PARALLEL_FOLDED = replace(PARALLEL, folded=True)
NO_NORM = Case(parts="bias residual gain2 shift")
STRETCHED = Case(FLOAT, "gain residual residual2 gain2 shift", scale=0.5, activation="gelu_tanh")
SHIFTED = Case(BFLOAT16, "bias gain residual shift", transposed=True)
NORM_STRETCHED = Case(FLOAT, "gamma beta bias residual gain2", norm="layer_norm", affine=FLOAT)
PLAIN_SUM = Case(parts="residual", transposed=True)
GELU = Case(parts="bias", activation="gelu_erf")
EVERYTHING = Case(parts="bias gain residual", scale=0.25, activation="gelu_tanh", transposed=True)
LAYER_SCALE = Case(FLOAT, "bias gain residual")
HALF_STEP = Case(FLOAT, "residual", scale=0.5)
TANH = Case(FLOAT, "bias", activation="tanh", transposed=True)
BRAIN = Case(BFLOAT16, "bias residual")
BRAIN_ALL = Case(BFLOAT16, "bias gain residual", scale=-1.5, activation="gelu_quick", transposed=True)
BRAIN_BARE = Case(BFLOAT16, "", activation="sigmoid")
PROLOGUE = Case(parts="bias residual", prologue="gelu_erf")
PROLOGUE_ONLY = Case(parts="bias", prologue="silu", transposed=True)
PROLOGUE_FLOAT = Case(FLOAT, "bias gain", prologue="relu", activation="relu")
PROLOGUE_BRAIN = Case(BFLOAT16, "bias residual", prologue="gelu_tanh")
NORM = Case(parts="gamma beta bias", norm="layer_norm")
NORM_KEPT = Case(parts="gamma beta bias normalized", norm="layer_norm", affine=FLOAT, activation="gelu_erf")
NORM_FLOAT = Case(FLOAT, "gamma beta residual", norm="layer_norm", affine=FLOAT, transposed=True)
NORM_BRAIN = Case(BFLOAT16, "bias", norm="layer_norm", activation="tanh")
RMS = Case(parts="gamma", norm="rms_norm", activation="silu")
RMS_BRAIN = Case(BFLOAT16, "gamma normalized", norm="rms_norm", affine=BFLOAT16)


def check_numbers(case: Case, inputs: Mapping[str, Array], result: TwinResult) -> None:
    expected = reference(case, inputs)
    assert set(result.outputs) == set(expected)
    for name, want in expected.items():
        got = decode(result.outputs[name], case.dtype)
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= TOLERANCE[case.dtype] * max(1.0, np.abs(want).max()), name


def check_counts(case: Case, inputs: Mapping[str, Array], result: TwinResult, platform: Platform) -> None:
    shapes = {name: array.shape for name, array in inputs.items()}
    tiling = plan(problem_of(case.attributes, case.dtypes, shapes), platform)
    assert result.launch.blocks == tiling.blocks
    assert result.launch.workspace_bytes == tiling.workspace_bytes
    counted = {**result.counters, **result.counters["peak"]}
    predicted = vars(predict(tiling))
    assert {name: counted[name] for name in predicted} == predicted
    assert counted["ub"] <= platform.ub


def run(
    case: Case, leading: Sequence[int], hidden: int, columns: int, programs: Path, platform: Platform = PLATFORM_910B
) -> None:
    inputs = make_inputs(case, leading, hidden, columns)
    result = run_kernel(case.render(), inputs, platform=platform, cache=programs)
    check_numbers(case, inputs, result)
    check_counts(case, inputs, result, platform)


@pytest.mark.parametrize(
    ("case", "leading", "hidden", "columns", "platform"),
    [
        (RESIDUAL, (2, 19), 64, 192, PLATFORM_910B),
        (RESIDUAL, (129,), 768, 768, SMALL),
        (RESIDUAL, (1, 3, 5), 1000, 77, PLATFORM_910B),
        (RESIDUAL, (300,), 72, 2000, TIGHT),
        (FOLDED, (2, 3, 7), 40, 70, SMALL),
        (PARALLEL, (3, 19), 64, 192, SMALL),
        (PARALLEL_FLOAT, (2, 33), 40, 77, TIGHT),
        (PARALLEL_FOLDED, (2, 3, 7), 40, 70, SMALL),
        (NO_NORM, (2, 19), 64, 192, PLATFORM_910B),
        (NO_NORM, (131,), 33, 700, TIGHT),
        (STRETCHED, (37,), 40, 77, TIGHT),
        (SHIFTED, (131,), 72, 257, SMALL),
        (NORM_STRETCHED, (40,), 100, 65, SMALL),
        (PLAIN_SUM, (), 40, 7, SMALL),
        (PLAIN_SUM, (1,), 4096, 4096, PLATFORM_910B),
        (GELU, (17,), 4096, 300, PLATFORM_910B),
        (GELU, (130,), 100, 1030, SMALL),
        (EVERYTHING, (33,), 100, 513, SMALL),
        (EVERYTHING, (1, 257), 48, 641, TIGHT),
        (LAYER_SCALE, (21,), 768, 65, PLATFORM_910B),
        (LAYER_SCALE, (260,), 33, 700, TIGHT),
        (HALF_STEP, (5,), 9000, 12, SMALL),
        (TANH, (2, 3), 20, 1, SMALL),
        (BRAIN, (37,), 200, 600, SMALL),
        (BRAIN_ALL, (131,), 72, 257, SMALL),
        (BRAIN_BARE, (18,), 130, 40, SMALL),
        (PROLOGUE, (2, 50), 64, 64, SMALL),
        (PROLOGUE, (140,), 333, 600, TIGHT),
        (PROLOGUE_ONLY, (3,), 20000, 33, SMALL),
        (PROLOGUE_FLOAT, (77,), 31, 90, SMALL),
        (PROLOGUE_BRAIN, (129,), 256, 300, SMALL),
        (NORM, (2, 19), 64, 192, PLATFORM_910B),
        (NORM, (18,), 8192, 40, SMALL),
        (NORM_KEPT, (129,), 768, 600, SMALL),
        (NORM_KEPT, (3,), 8000, 300, TIGHT),
        (NORM_FLOAT, (40,), 100, 65, SMALL),
        (NORM_BRAIN, (5,), 40, 7, SMALL),
        (RMS, (131,), 72, 1025, SMALL),
        (RMS_BRAIN, (17,), 4096, 300, PLATFORM_910B),
    ],
)
def test_kernel_agrees_with_numpy_and_with_its_prediction(
    case: Case, leading: Sequence[int], hidden: int, columns: int, platform: Platform, programs: Path
) -> None:
    run(case, leading, hidden, columns, programs, platform)


CHOICES: dict[str, tuple[Any, ...]] = {
    "dtype": (FLOAT16, BFLOAT16, FLOAT),
    "bias": (False, True),
    "scale": (1.0, 0.125),
    "activation": ("none", "gelu_erf", "tanh", "relu"),
    "gain": (False, True),
    "residual": (False, True),
    "gain2": (False, True),
    "shift": (False, True),
    "transposed": (False, True),
    "before": ("none", "gelu_erf", "relu", "layer_norm", "rms_norm"),
}


def case_of(choice: Mapping[str, Any]) -> Case:
    norm = choice["before"] if choice["before"].endswith("norm") else ""
    parts = [name for name in ("bias", "gain", "residual", "gain2", "shift") if choice[name]]
    parts += ["gamma", "beta"] if norm == "layer_norm" else ["gamma", "normalized"] if norm else []
    return Case(
        choice["dtype"],
        " ".join(parts),
        choice["activation"],
        choice["scale"],
        choice["transposed"],
        "none" if norm else choice["before"],
        norm,
        choice["dtype"],
    )


def pairwise() -> list[Case]:
    """Few cases in which every pair of choices occurs; the other activations differ in their own text only."""
    rng = random.Random(5)
    names = list(CHOICES)
    left = {
        (a, x, b, y) for a, b in itertools.combinations(names, 2) for x in CHOICES[a] for y in CHOICES[b]
    }  # fmt: skip
    cases = []
    while left:
        tried = [{name: rng.choice(values) for name, values in CHOICES.items()} for _ in range(60)]
        a, x, b, y = min(left, key=repr)
        tried = [{**one, a: x, b: y} for one in tried]
        best = max(tried, key=lambda one: sum(one[p] == u and one[q] == v for p, u, q, v in left))
        left = {(p, u, q, v) for p, u, q, v in left if not (best[p] == u and best[q] == v)}
        cases.append(case_of(best))
    return cases


@pytest.mark.parametrize("case", pairwise(), ids=str)
def test_pairs_of_features_agree_with_numpy_and_with_their_prediction(case: Case, programs: Path) -> None:
    run(case, (35,), 40, 90, programs, SMALL)


def test_random_shapes_agree_with_numpy_and_with_their_prediction(programs: Path) -> None:
    rng = random.Random(7)
    for _ in range(60):
        case = rng.choice([RESIDUAL, EVERYTHING, LAYER_SCALE, BRAIN_ALL, PROLOGUE, NORM_KEPT, RMS_BRAIN])
        leading = (rng.choice([1, 2, 15, 16, 17, 33, 100, 130, 300]),)
        platform = rng.choice([SMALL, TIGHT, PLATFORM_910B, replace(SMALL, cube_cores=1, vector_cores=2)])
        hidden, columns = rng.choice([1, 7, 16, 40, 100, 160]), rng.choice([1, 16, 31, 100, 257, 300, 800])
        run(case, leading, hidden, columns, programs, platform)


@pytest.mark.parametrize("case", [EVERYTHING, FOLDED, PROLOGUE_FLOAT, NORM_KEPT, RMS_BRAIN], ids=str)
def test_oracle_says_the_same(case: Case) -> None:
    inputs = make_inputs(case, (5,), 24, 10)
    exact = {name: decode(array, case.dtypes[name]) for name, array in inputs.items()}
    of = Signature.of(case.spec, case.attributes, case.dtypes, "910B")
    found, expected = evaluate(of, exact, 1, 1, 1), reference(case, inputs)
    assert set(found) == set(expected)
    for name, want in expected.items():
        np.testing.assert_allclose(found[name], want, rtol=TOLERANCE[case.dtype], atol=TOLERANCE[case.dtype])


TILING_DUMP = """
#include "FUNCTION_host.h"
#include <cstdio>
int main()
{
    namespace n = FUNCTION_tiling;
    atcfuse::Platform chip{};
    atcfuse::Shape in[7];
    int cores;
    long long ub, rows, hidden, columns;
    while (std::scanf("%d %lld %lld %lld %lld", &cores, &ub, &rows, &hidden, &columns) == 5) {
        chip = {cores, 2 * cores, ub, 524032, 65536, 65536, 131072};
        for (auto& shape : in) shape.rank = -1;
        in[n::kX] = {2, {rows, hidden}};
        in[n::kW] = TRANSPOSED ? atcfuse::Shape{2, {columns, hidden}} : atcfuse::Shape{2, {hidden, columns}};
        n::Tiling t{};
        atcfuse::Launch launch{};
        const char* refused = n::computeTiling(chip, in, t, launch);
        const auto& c = t.cube;
        std::printf("%s %d %d %d %d %d %d %d %d %d %lld %lld %lld %d %d %d %d %d %d %d %d\\n",
                    refused ? "refused" : "taken", launch.blocks, t.rowsPerTask, t.groups, t.unitColumns, t.slotPitch,
                    t.productPitch, t.chunkColumns, t.tileColumns, t.tileElements, (long long)t.productOffset,
                    (long long)t.slotBytes, (long long)launch.workspaceBytes, c.baseM, c.baseN, c.baseK, c.stepKa,
                    c.depthA1, c.stepKb, c.iterateOrder, c.dbL0C);
    }
}
"""


@pytest.mark.parametrize("case", [EVERYTHING, PROLOGUE, BRAIN_BARE, NORM_KEPT, NORM_FLOAT, NORM], ids=str)
def test_tiling_in_python_equals_the_tiling_of_the_host(case: Case, tmp_path: Path) -> None:
    kernel = case.render()
    for name, text in kernel.files.items():
        (tmp_path / name).write_text(text)
    source = TILING_DUMP.replace("FUNCTION", kernel.function).replace("TRANSPOSED", str(case.transposed).lower())
    (tmp_path / "dump.cpp").write_text(source)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(KERNELS / "twin")]
    subprocess.run(["g++", *flags, "dump.cpp", "-o", "dump"], cwd=tmp_path, check=True)
    rng = random.Random(3)
    problems = [
        (
            rng.randint(1, 40),
            rng.choice([188_160, 157_286, 98_304, 40_000, 20_000]),
            rng.choice([0, 1, 3, 17, 128, 500, 4097, 100_000, 3_000_000]),
            rng.choice([1, 13, 64, 768, 1000, 4096, 8192, 30_000, 65_519, 65_520]),
            rng.choice([1, 30, 64, 768, 3072, 12_288, 65_535, 65_536, 2_000_000]),
        )
        for _ in range(120)
    ]
    text = "\n".join(" ".join(map(str, p)) for p in problems)
    done = subprocess.run([tmp_path / "dump"], input=text, capture_output=True, text=True, check=True)
    for numbers, line in zip(problems, done.stdout.splitlines(), strict=True):
        cores, ub, rows, hidden, columns = numbers
        problem = Problem(rows, hidden, columns, case.transposed, **features(case.attributes, case.dtypes))
        verdict, *found = line.split()
        chip = replace(PLATFORM_910B, cube_cores=cores, ub=ub)
        assert (verdict == "refused") == (refusal(problem, chip) is not None), numbers
        if verdict == "refused":
            continue
        t = plan(problem, chip)
        expected = [t.blocks, t.rows_per_task, t.groups, t.unit_columns, t.slot_pitch, t.product_pitch]
        expected += [t.chunk_columns, t.tile_columns, t.tile_elements, t.product_offset, t.slot_bytes]
        expected += [t.workspace_bytes, t.cube.base_m, t.cube.base_n, t.cube.base_k, t.cube.step_ka, t.cube.depth_a]
        expected += [t.cube.step_kb, int(t.cube.keeps_a), t.cube.db_l0c]
        assert [int(word) for word in found] == expected, numbers
        assert t.ub <= ub


def test_folded_rows_must_be_as_many_as_the_residuals(programs: Path) -> None:
    inputs = make_inputs(FOLDED, (2, 3), 64, 32)
    inputs["residual"] = inputs["residual"][:1]
    with pytest.raises(AtcfuseError, match="the rows of x and the columns of the weight"):
        run_kernel(FOLDED.render(), inputs, cache=programs)


@pytest.mark.parametrize(
    ("name", "cut", "message"),
    [
        ("w", np.s_[:-1], "the weight needs two axes"),
        ("bias", np.s_[:-1], "bias needs as many elements"),
        ("gain", np.s_[:-1], "gain needs as many elements"),
        ("residual", np.s_[:-1], "the residual needs the shape of the result"),
        ("residual", np.s_[0], "the residual needs the shape of the result"),
        ("gain2", np.s_[:-1], "gain2 needs as many elements"),
        ("shift", np.s_[:-1], "shift needs as many elements"),
        ("residual2", np.s_[:-1], "the residual needs the shape of the result"),
    ],
)
def test_wrong_shapes_are_refused_before_anything_runs(name: str, cut: Any, message: str, programs: Path) -> None:
    case = replace(EVERYTHING, parts="bias gain residual residual2 gain2 shift", transposed=False)
    inputs = make_inputs(case, (4,), 64, 32)
    inputs[name] = inputs[name][cut]
    with pytest.raises(AtcfuseError, match=message):
        run_kernel(case.render(), inputs, cache=programs)


@dataclass(frozen=True)
class Mutation:
    """A defect that can be switched on in the kernel: a statement or an expression, and what stands there instead.

    `rule` is the twin's rule that must catch it; without one its numbers, or the twin, must.
    """

    correct: str
    wrong: str
    rule: str = ""

    def switched(self, number: int) -> str:
        if self.correct.endswith(";"):
            return f"if (mutant() == {number}) {{ {self.wrong} }} else {{ {self.correct} }}"
        return f"(mutant() == {number} ? {self.wrong} : {self.correct})"


PREPARED = "Await<HardEvent::MTE3_S>();"
MUTATIONS = {
    "no wait before the cube reads the slot": Mutation(PREPARED, "", "matmul-sync"),
    "no wait before a vector is loaded": Mutation("Await<HardEvent::V_MTE2>();", "", "missing-sync"),
    "End is forgotten": Mutation("product.End();", "", "matmul-end"),
    "a tile is not freed": Mutation("tiles_.FreeTensor(tile);\n        LocalTensor<T> result", "LocalTensor<T> result"),
    "the last rows are a whole block": Mutation(
        "t.rows - firstRow_ < t.rowsPerTask ? t.rows - firstRow_ : t.rowsPerTask", "t.rowsPerTask", "gm-range"
    ),
    "a group's weight starts at the first column": Mutation("(kTransposed ? t.hidden : 1)", "0"),
    "a group's bias starts at the first column": Mutation("bias_[firstColumn_]", "bias_[0]"),
    "a chunk's gain starts at the group's": Mutation("gain_[firstColumn_ + first]", "gain_[firstColumn_]"),
    "a chunk's residual starts at the group's": Mutation("residual_[target]", "residual_[target - first]"),
    "rows of the product are dense": Mutation("(stride - count)", "(stride - stride)"),
    "the tail of a row is left out": Mutation("count - first < kLanes ? count - first : kLanes", "kLanes"),
    "rows on chip are not padded": Mutation("static_cast<uint8_t>(pitch - count)", "0", "uninitialised-read"),
    "the residual is added before the gain": Mutation(
        "EachRow<true>(GainRow(), rows, count, pitch);",
        "Widen(Spare(), tile[t.tileElements], elements); Add(Tile(), Tile(), Spare(), elements); PipeBarrier<PIPE_V>();"
        " EachRow<true>(GainRow(), rows, count, pitch); Muls(Tile(), Tile(), 1.0f, elements); PipeBarrier<PIPE_V>();",
    ),
    "the scale is forgotten": Mutation("Muls(Tile(), Tile(), 0.5f, elements);", ""),
    "the operand's last tile is a whole one": Mutation("all - first < tiling_->tileElements", "false"),
    "a prepared tile lies where the first one lay": Mutation("slot_[first]", "slot_[0]"),
}
MUTANT = """#include <cstdlib>
inline int mutant()
{
    const char* text = std::getenv("MUTANT");
    return text == nullptr ? 0 : std::atoi(text);
}
"""
ONE_CORE, GROUPING = (replace(TIGHT, cube_cores=n, vector_cores=2 * n) for n in (1, 3))
MUTABLE = Case(parts="bias gain residual", scale=0.5, activation="relu", prologue="relu")


def mutable_kernel() -> GeneratedKernel:
    """One kernel with every defect in it; the environment says which is on."""
    kernel = MUTABLE.render()
    name = f"{kernel.function}.cpp"
    source = kernel.files[name]
    for number, mutation in enumerate(MUTATIONS.values(), 1):
        assert mutation.correct in source, mutation.correct
        if "FreeTensor(tile)" in mutation.correct:
            freed = mutation.correct.split("\n")[0]
            head, _, tail = source.rpartition(freed)
            source = f"{head}if (mutant() != {number}) {{ {freed} }}{tail}"
            continue
        source = source.replace(mutation.correct, mutation.switched(number), 1)
    return replace(kernel, files={**kernel.files, name: MUTANT + source})


def run_mutant(number: int, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUTANT", str(number))
    inputs = make_inputs(MUTABLE, (300,), 150, 1300)
    inputs["gain"] = encode(np.linspace(-2, 2, 1300), FLOAT16)
    for chip in (ONE_CORE, GROUPING):
        check_numbers(MUTABLE, inputs, run_kernel(mutable_kernel(), inputs, platform=chip, cache=programs))


def test_the_mutable_kernel_is_right_while_no_defect_is_on(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(300, 150, 1300, **features(MUTABLE.attributes, MUTABLE.dtypes))
    tiling = plan(problem, ONE_CORE)
    assert plan(problem, GROUPING).groups > 1
    assert tiling.tasks > 2  # a core has more than one
    assert 300 % tiling.rows_per_task != 0
    assert tiling.tile_elements < tiling.rows_per_task * 150
    assert tiling.tile_columns < tiling.product_pitch
    run_mutant(0, programs, monkeypatch)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_kernel_is_caught(name: str, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    with pytest.raises((AtcfuseError, AssertionError)) as caught:
        run_mutant(list(MUTATIONS).index(name) + 1, programs, monkeypatch)
    if mutation.rule:
        assert isinstance(caught.value, AtcfuseError)
        assert f"rule {mutation.rule}:" in str(caught.value)


@pytest.mark.parametrize(
    ("case", "family", "attributes", "dtypes", "reason"),
    [
        (EVERYTHING, "310P", {}, {}, "cube to vector cores of 910B"),
        (EVERYTHING, "910B", {"activation": "mish"}, {}, "the activation is 'mish'"),
        (EVERYTHING, "910B", {"prologue": "mish"}, {}, "the prologue is 'mish'"),
        (GELU, "910B", {"folded": 1}, {}, "folded rows need a residual"),
        (GELU, "910B", {}, {"residual2": FLOAT16}, "a second residual needs a first one"),
        (NORM, "910B", {"norm": "batch_norm"}, {}, "'batch_norm'"),
        (EVERYTHING, "910B", {}, {"gain": FLOAT}, "gain has another element type than x"),
        (NORM_KEPT, "910B", {}, {}, None),
    ],
)
def test_signatures_without_a_kernel(
    case: Case, family: str, attributes: Mapping[str, Any], dtypes: Mapping[str, int], reason: str | None
) -> None:
    signature = Signature(case.spec, {**case.attributes, **attributes}, {**case.dtypes, **dtypes}, family)
    said = signature_refusal(signature)
    assert said is None if reason is None else said is not None and reason in said


def test_the_cube_reads_a_kept_operand_once() -> None:
    problem = Problem(128, 768, 3072, **features(RESIDUAL.attributes, RESIDUAL.dtypes))
    tiling = plan(problem, PLATFORM_910B)
    assert tiling.cube.keeps_a
    found = predict(tiling)
    blocks = tiling.tasks // tiling.groups
    weights, operand, sums = 768 * 3072 * 2, 128 * 768 * 2, 128 * 3072 * 2
    expected = blocks * (weights + 3072 * 2) + tiling.groups * operand + sums
    assert found.tensor_bytes_read == expected
    assert found.workspace_bytes_read == found.workspace_bytes_written == sums
