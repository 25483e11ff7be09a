"""The layer_norm_qkv, add_layer_norm_qkv and qkv kernels: against numpy in float64, against their prediction, and broken on purpose."""

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

from atcfuse.codegen import GeneratedKernel, Signature, render_kernel
from atcfuse.codegen.layer_norm_qkv import refusal as signature_refusal
from atcfuse.diagnostics import AtcfuseError
from atcfuse.kernel import KernelSpec, load_kernels
from atcfuse.tiling import PLATFORM_910B, Platform
from atcfuse.tiling.layer_norm_qkv import Problem, Projection, plan, predict, problem_of, refusal
from atcfuse.twin import TwinResult, run_kernel

KERNELS = Path(__file__).parents[2] / "kernels"
FLOAT, FLOAT16, BFLOAT16 = 1, 10, 16
TOLERANCE = {FLOAT: 1e-5, FLOAT16: 2e-3, BFLOAT16: 1.2e-2}
SMALL = replace(PLATFORM_910B, cube_cores=2, vector_cores=4)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@dataclass(frozen=True)
class Case:
    """A signature: one letter pair a projection, `t` transposed or `n` not, `b` with bias or `-` without.

    Without a `norm` it is one of the qkv kernel. With `summands`, a letter each, it is one of add_layer_norm_qkv: `f` has
    all rows, `r` those of the last axis before the columns, `o` one.
    """

    dtype: int
    affine: int | None
    projections: str
    norm: str | None = "layer_norm"
    beta: bool = True
    normalized: bool = False
    epsilon: float = 1e-5
    summands: str = ""
    keeps_sum: bool = False

    @property
    def pairs(self) -> list[str]:
        return self.projections.split()

    @property
    def attributes(self) -> dict[str, Any]:
        transposed = tuple(int(pair[0] == "t") for pair in self.pairs)
        projections = {"num_projections": len(self.pairs), "transposed": transposed}
        if self.norm is None:
            return projections
        kept = {"kept": (int(self.normalized), int(self.keeps_sum))} if self.summands else {}
        return {"norm": self.norm, "epsilon": self.epsilon, **projections, **kept}

    @property
    def rows(self) -> list[str]:
        """The operands that rows come from."""
        return [f"x{i + 1}" for i in range(len(self.summands))] or ["x"]

    @property
    def dtypes(self) -> dict[str, int]:
        types = dict.fromkeys(self.rows, self.dtype)
        if self.affine is not None:
            types["gamma"] = self.affine
            types |= {"beta": self.affine} if self.beta else {}
        for index, pair in enumerate(self.pairs, 1):
            types |= {f"w{index}": self.dtype, f"y{index}": self.dtype}
            types |= {f"b{index}": self.dtype} if pair[1] == "b" else {}
        types |= {"normalized": self.dtype} if self.normalized else {}
        return types | ({"sum": self.dtype} if self.keeps_sum else {})

    @property
    def spec(self) -> KernelSpec:
        named = "add_layer_norm_qkv" if self.summands else "layer_norm_qkv"
        return load_kernels(KERNELS)["qkv" if self.norm is None else named]

    def render(self) -> GeneratedKernel:
        return render_kernel(self.spec, self.attributes, self.dtypes, "Ascend910B1")


PACKED = Case(FLOAT16, FLOAT16, "nb")
SEPARATE = Case(FLOAT16, FLOAT, "tb n- tb", normalized=True)
RMS = Case(FLOAT16, FLOAT16, "n- t-", norm="rms_norm", beta=False)
BARE = Case(FLOAT, None, "nb tb n- t-")
SINGLE = Case(FLOAT, FLOAT, "tb", normalized=True)
BRAIN = Case(BFLOAT16, BFLOAT16, "nb t- nb")
PLAIN = Case(FLOAT16, None, "nb tb nb", norm=None)
PLAIN_PAIR = Case(FLOAT, None, "n- t-", norm=None)
PLAIN_BRAIN = Case(BFLOAT16, None, "nb t- nb tb", norm=None)
PLAIN_BRAIN_BARE = Case(BFLOAT16, None, "t- n-", norm=None)
SUM = Case(FLOAT16, FLOAT16, "nb tb n-", summands="fr", keeps_sum=True)
SUM_OF_THREE = Case(FLOAT16, FLOAT, "nb", summands="orf", normalized=True)
SUM_RMS = Case(FLOAT, FLOAT, "n- t-", norm="rms_norm", beta=False, normalized=True, summands="ffo", keeps_sum=True)
SUM_BRAIN = Case(BFLOAT16, None, "nb t- nb n-", summands="ffr", keeps_sum=True)
BRAIN_RMS = Case(BFLOAT16, FLOAT, "t- t-", norm="rms_norm", beta=False, normalized=True)


def encode(values: Any, dtype: int) -> Any:
    """Float64 values rounded to an element type; bfloat16 as its bits."""
    if dtype != BFLOAT16:
        return values.astype(np.float16 if dtype == FLOAT16 else np.float32)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def decode(array: Any, dtype: int) -> Any:
    if dtype == BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def make_inputs(case: Case, leading: Sequence[int], hidden: int, columns: Sequence[int], mean: float) -> dict[str, Any]:
    rng = np.random.default_rng(hidden + sum(columns))
    shapes: dict[str, tuple[int, ...]] = {"x": (*leading, hidden), "gamma": (hidden,), "beta": (hidden,)}
    kinds = {"f": (*leading, hidden), "r": (*leading[-1:], hidden), "o": (1, hidden)}
    shapes |= {f"x{i + 1}": kinds[letter] for i, letter in enumerate(case.summands)}
    for index, (pair, width) in enumerate(zip(case.pairs, columns, strict=True), 1):
        shapes[f"w{index}"] = (width, hidden) if pair[0] == "t" else (hidden, width)
        shapes[f"b{index}"] = (width,)
    inputs = {}
    for name, dtype in case.dtypes.items():
        if name not in shapes:
            continue
        values = rng.standard_normal(shapes[name])
        values = values * 1.5 + mean if name in case.rows else values
        values = 1 + 0.3 * values if name == "gamma" else values
        values = values / hidden**0.5 if name.startswith("w") else values
        inputs[name] = encode(values, dtype)
    return inputs


def reference(case: Case, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the operator means, in float64; the normalised rows are rounded before they are multiplied."""
    exact = {name: decode(array, case.dtypes[name]) for name, array in inputs.items()}
    rows = exact[case.rows[0]]
    for name in case.rows[1:]:
        rows = decode(encode(rows + exact[name], case.dtype), case.dtype)
    total = {"sum": rows} if case.keeps_sum else {}
    if case.norm == "layer_norm":
        rows = rows - rows.mean(-1, keepdims=True)
    if case.norm is not None:
        rows = rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + case.epsilon)
    rows = rows * exact.get("gamma", 1.0) + exact.get("beta", 0.0)
    results = total | ({"normalized": rows} if case.normalized else {})
    rounded = decode(encode(rows, case.dtype), case.dtype)
    for index, pair in enumerate(case.pairs, 1):
        weight = exact[f"w{index}"]
        results[f"y{index}"] = rounded @ (weight.T if pair[0] == "t" else weight) + exact.get(f"b{index}", 0.0)
    return results


def check_numbers(case: Case, inputs: Mapping[str, Any], result: TwinResult) -> None:
    expected = reference(case, inputs)
    assert set(result.outputs) == set(expected)
    for name, want in expected.items():
        got = decode(result.outputs[name], case.dtype)
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= TOLERANCE[case.dtype] * max(1.0, np.abs(want).max()), name


def check_counts(case: Case, inputs: Mapping[str, Any], result: TwinResult, platform: Platform) -> None:
    shapes = {name: array.shape for name, array in inputs.items()}
    tiling = plan(problem_of(case.attributes, case.dtypes, shapes), platform)
    assert result.launch.blocks == tiling.blocks
    assert result.launch.workspace_bytes == tiling.workspace_bytes
    counted = {**result.counters, **result.counters["peak"]}
    predicted = vars(predict(tiling))
    assert {name: counted[name] for name in predicted} == predicted
    assert counted["ub"] <= platform.ub


def run(
    case: Case,
    leading: Sequence[int],
    hidden: int,
    columns: Sequence[int],
    programs: Path,
    platform: Platform = PLATFORM_910B,
    mean: float = 0.7,
) -> None:
    inputs = make_inputs(case, leading, hidden, columns, mean)
    result = run_kernel(case.render(), inputs, platform=platform, cache=programs)
    check_numbers(case, inputs, result)
    check_counts(case, inputs, result, platform)


@pytest.mark.parametrize(
    ("case", "leading", "hidden", "columns", "platform"),
    [
        (PACKED, (2, 19), 64, (192,), PLATFORM_910B),
        (PACKED, (129,), 768, (600,), SMALL),
        (PACKED, (1, 3, 5), 1000, (77,), PLATFORM_910B),
        (PACKED, (17,), 4096, (300,), PLATFORM_910B),
        (PACKED, (18,), 8192, (40,), SMALL),
        (SEPARATE, (33,), 768, (768, 100, 33), PLATFORM_910B),
        (SEPARATE, (5,), 8192, (64, 1, 300), SMALL),
        (SEPARATE, (), 40, (7, 7, 7), SMALL),
        (RMS, (2, 50), 64, (64, 64), SMALL),
        (RMS, (3,), 20000, (33, 65), SMALL),
        (BARE, (21,), 100, (5, 513, 16, 1), SMALL),
        (SINGLE, (21,), 768, (65,), PLATFORM_910B),
        (SINGLE, (3,), 8192, (65,), SMALL),
        (BRAIN, (37,), 200, (600, 8, 1001), SMALL),
        (BRAIN, (3,), 8192, (333, 333, 333), PLATFORM_910B),
        (BRAIN_RMS, (131,), 72, (31, 257), SMALL),
        (PLAIN, (2, 19), 64, (64, 64, 64), PLATFORM_910B),
        (PLAIN, (129,), 768, (600, 33, 1), SMALL),
        (PLAIN, (300,), 8192, (40, 300, 513), SMALL),
        (PLAIN, (), 41, (7, 7, 7), SMALL),
        (PLAIN_PAIR, (3, 21), 100, (513, 16), SMALL),
        (PLAIN_PAIR, (5,), 20000, (33, 65), PLATFORM_910B),
        (PLAIN_BRAIN, (37,), 200, (600, 8, 1001, 50), SMALL),
        (PLAIN_BRAIN, (2, 131), 1000, (333, 333, 333, 1), PLATFORM_910B),
        (PLAIN_BRAIN_BARE, (130,), 71, (31, 257), SMALL),
        (SUM, (2, 19), 64, (64, 64, 64), PLATFORM_910B),
        (SUM, (3, 131), 100, (513, 16, 1), SMALL),
        (SUM, (2, 5), 8200, (40, 7, 7), SMALL),
        (SUM_OF_THREE, (2, 3, 40), 768, (600,), SMALL),
        (SUM_OF_THREE, (3,), 41, (1200,), PLATFORM_910B),
        (SUM_OF_THREE, (4, 3), 20000, (33,), PLATFORM_910B),
        (SUM_RMS, (2, 50), 64, (64, 300), SMALL),
        (SUM_RMS, (17,), 8200, (65, 64), PLATFORM_910B),
        (SUM_BRAIN, (2, 37), 200, (600, 8, 1001, 50), SMALL),
        (SUM_BRAIN, (2, 3), 12000, (33, 8, 64, 50), SMALL),
    ],
)
def test_kernel_agrees_with_numpy_and_with_its_prediction(
    case: Case, leading: Sequence[int], hidden: int, columns: Sequence[int], platform: Platform, programs: Path
) -> None:
    run(case, leading, hidden, columns, programs, platform)


def test_statistics_survive_a_large_mean(programs: Path) -> None:
    run(SINGLE, (3,), 768, (16,), programs, mean=300.0)
    run(SINGLE, (3,), 9000, (16,), programs, mean=300.0)


def test_random_shapes_agree_with_numpy_and_with_their_prediction(programs: Path) -> None:
    rng = random.Random(7)
    for _ in range(40):
        case = rng.choice([PACKED, SEPARATE, RMS, BRAIN, PLAIN, PLAIN_PAIR, PLAIN_BRAIN, SUM, SUM_OF_THREE, SUM_BRAIN])
        columns = [rng.choice([1, 16, 31, 100, 257, 300]) for _ in case.pairs]
        leading = (rng.choice([1, 2, 15, 16, 17, 33, 100, 130]),)
        platform = rng.choice([SMALL, PLATFORM_910B, replace(SMALL, cube_cores=1, vector_cores=2)])
        run(case, leading, rng.choice([1, 7, 16, 40, 100, 160]), columns, programs, platform)


TILING_DUMP = """
#include "FUNCTION_host.h"
#include <cstdio>
int main()
{
    namespace n = FUNCTION_tiling;
    atcfuse::Platform chip{};
    atcfuse::Shape in[13];
    long long rows, hidden, a, b;
    while (std::scanf("%d %lld %lld %lld %lld", &chip.cubeCores, &rows, &hidden, &a, &b) == 5) {
        chip = {chip.cubeCores, 2 * chip.cubeCores, 188160, 524032, 65536, 65536, 131072};
        for (auto& shape : in) shape.rank = -1;
        in[0] = {2, {rows, hidden}};
        if (n::kFirstWeight == 5) {
            in[1] = {1, {hidden}};
            in[3] = {1, {hidden}};
            in[4] = {1, {hidden}};
        } else if (n::kFirstWeight == 3) {
            in[1] = {1, {hidden}};
            in[2] = {1, {hidden}};
        }
        in[n::kFirstWeight] = {2, {hidden, a}};
        in[n::kFirstWeight + 1] = {2, {b, hidden}};
        in[n::kFirstBias] = {1, {a}};
        n::Tiling t{};
        atcfuse::Launch launch{};
        const char* refused = n::computeTiling(chip, in, t, launch);
        const auto& c = t.cube;
        std::printf("%s %d %d %d %d %d %d %lld %lld %lld %d %d %d %d %d %d %d %d\\n", refused ? "refused" : "taken",
                    launch.blocks, t.rowsPerTask, t.groups, t.unitColumns, t.chunkColumns, t.slotPitch,
                    (long long)t.biasOffset, (long long)t.slotBytes, (long long)launch.workspaceBytes, c.baseM, c.baseN,
                    c.baseK, c.stepKa, c.depthA1, c.stepKb, c.iterateOrder, c.dbL0C);
    }
}
"""


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        (Case(BFLOAT16, FLOAT, "nb t-"), {"gamma_bytes": 4, "beta_bytes": 4, "widens_bias": True}),
        (Case(BFLOAT16, None, "nb t-", norm=None), {"norm": False, "widens_bias": True}),
        (Case(FLOAT16, None, "nb t-", norm=None), {"norm": False}),
        (Case(FLOAT16, FLOAT, "nb t-", summands="fo"), {"gamma_bytes": 4, "beta_bytes": 4, "is_sum": True}),
    ],
)
def test_tiling_in_python_equals_the_tiling_of_the_host(case: Case, dtype: dict[str, Any], tmp_path: Path) -> None:
    kernel = case.render()
    for name, text in kernel.files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "dump.cpp").write_text(TILING_DUMP.replace("FUNCTION", kernel.function))
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(KERNELS / "twin")]
    subprocess.run(["g++", *flags, "dump.cpp", "-o", "dump"], cwd=tmp_path, check=True)
    rng = random.Random(3)
    problems = [
        (
            rng.randint(1, 40),
            rng.choice([0, 1, 3, 17, 128, 500, 4097, 100_000, 3_000_000]),
            rng.choice([1, 13, 64, 768, 1000, 4096, 8192, 30_000, 65_519, 65_520]),
            rng.choice([1, 30, 64, 768, 3072, 12_288, 65_535, 65_536]),
            rng.choice([1, 100, 4096, 70_000]),
        )
        for _ in range(150)
    ]
    text = "\n".join(" ".join(map(str, p)) for p in problems)
    done = subprocess.run([tmp_path / "dump"], input=text, capture_output=True, text=True, check=True)
    for numbers, line in zip(problems, done.stdout.splitlines(), strict=True):
        cores, rows, hidden, a, b = numbers
        projections = (Projection(a, bias=True), Projection(b, transposed=True))
        sums = {"periods": (rows, 1)} if dtype.get("is_sum") else {}
        problem = Problem(rows, hidden, projections, **sums, **{k: v for k, v in dtype.items() if k != "is_sum"})
        verdict, *found = line.split()
        assert (verdict == "refused") == (refusal(problem) is not None), numbers
        if verdict == "refused":
            continue
        t = plan(problem, replace(PLATFORM_910B, cube_cores=cores))
        expected = [t.blocks, t.rows_per_task, t.groups, t.unit_columns, t.chunk_columns, t.slot_pitch, t.bias_offset]
        expected += [
            t.slot_bytes,
            t.workspace_bytes,
            t.cube.base_m,
            t.cube.base_n,
            t.cube.base_k,
            t.cube.step_ka,
            t.cube.depth_a,
            t.cube.step_kb,
        ]
        expected += [int(t.cube.keeps_a), t.cube.db_l0c]
        assert [int(word) for word in found] == expected, numbers


def test_wrong_shapes_are_refused_before_anything_runs(programs: Path) -> None:
    inputs = make_inputs(PACKED, (4,), 64, (32,), 0.0)
    inputs["gamma"] = inputs["gamma"][:63]
    with pytest.raises(AtcfuseError, match="gamma and beta need as many elements"):
        run_kernel(PACKED.render(), inputs, cache=programs)


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


LOAD = "DataCopyPad(loaded, source, DataCopyExtParams(1, static_cast<uint32_t>({} * sizeof(T)), 0, 0, 0),\n"
LOAD += "                    DataCopyPadExtParams<T>());"
SPREAD = "Brcb(Spread(), sum, 1, BrcbRepeatParams(1, 8));"
BARRIER = "PipeBarrier<PIPE_V>();"
MUTATIONS = {
    "no wait before the cube reads the slot": Mutation("Await<HardEvent::MTE3_S>();", "", "matmul-sync"),
    "no wait for gamma": Mutation(f"Await<HardEvent::MTE2_V>();\n            {BARRIER}", BARRIER, "missing-sync"),
    "no barrier after the mean": Mutation(f"{SPREAD}\n        {BARRIER}", SPREAD, "missing-barrier"),
    "no barrier after the root": Mutation(
        f"Sqrt(lanes, lanes, count);\n        {BARRIER}", "Sqrt(lanes, lanes, count);"
    ),
    "a buffer is not freed": Mutation("in_.FreeTensor(narrow);", "", "queue-alloc"),
    "End is forgotten": Mutation("product.End();", "", "matmul-end"),
    "org shape after the operands": Mutation(
        "product.SetTensorA(slot_);",
        "product.SetTensorA(slot_); product.SetOrgShape(rows_, columns, t.slotPitch, t.hidden, columns);",
        "matmul-org-shape",
    ),
    "one column too many": Mutation(LOAD.format("count"), LOAD.format("(count + 1)"), "gm-range"),
    "the tail columns are left out": Mutation("count % kLanes != 0", "count % kLanes > 63"),
    "gamma and beta are swapped": Mutation("kHasGamma ? 3 : 2", "2"),
    "the slot's pitch is the row": Mutation("static_cast<uint64_t>(row) * tiling_->slotPitch", "row * tiling_->hidden"),
    "a group's weight starts at the first column": Mutation("(transposed ? t.hidden : 1)", "0"),
    "a group's bias starts at the first column": Mutation("bias[column]", "bias[0]"),
    "epsilon is forgotten": Mutation("Adds(lanes, lanes, kEpsilon, count);", "Adds(lanes, lanes, 0.0f, count);"),
    "the last rows are a whole block": Mutation(
        "t.rows - firstRow_ < t.rowsPerTask ? t.rows - firstRow_ : t.rowsPerTask", "t.rowsPerTask", "gm-range"
    ),
    "every group keeps the rows": Mutation("kKeepsNormalized && group == 0", "kKeepsNormalized", "cross-core-write"),
    "means of chunks are not weighted": Mutation(
        "static_cast<float>(count) / static_cast<float>(before + count)", "0.5f", two_reads=True
    ),
    "the last chunk is a whole one": Mutation("tiling_->hidden - first < chunk_", "false", "gm-range", two_reads=True),
    "the distance of the means is left out": Mutation(
        "Add(Deviation(row), Deviation(row), delta, kBlockFloats);", "", two_reads=True
    ),
    "the second read has the first row's mean": Mutation(
        "EachColumn<ColumnOp::kSubtract>(Mean(row), count);",
        "EachColumn<ColumnOp::kSubtract>(Mean(0), count);",
        two_reads=True,
    ),
}
MUTANT = """#include <cstdlib>
inline int mutant()
{
    const char* text = std::getenv("MUTANT");
    return text == nullptr ? 0 : std::atoi(text);
}
"""


def mutable_kernel() -> GeneratedKernel:
    """One kernel with every defect in it; the environment says which is on."""
    kernel = replace(PACKED, epsilon=0.25, normalized=True).render()
    name = f"{kernel.function}.cpp"
    source = kernel.files[name]
    for number, mutation in enumerate(MUTATIONS.values(), 1):
        assert mutation.correct in source, mutation.correct
        source = source.replace(mutation.correct, mutation.switched(number), 1)
    return replace(kernel, files={**kernel.files, name: MUTANT + source})


def run_mutant(number: int, two_reads: bool, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUTANT", str(number))
    case = replace(PACKED, epsilon=0.25, normalized=True)
    leading, hidden, columns = ((3,), 8200, (40,)) if two_reads else ((40,), 100, (1200,))
    inputs = make_inputs(case, leading, hidden, columns, 2.0)
    inputs["x"][-1] += np.linspace(-4, 4, hidden).astype(np.float16)  # chunks and rows with means of their own
    check_numbers(case, inputs, run_kernel(mutable_kernel(), inputs, cache=programs))


def test_the_mutable_kernel_is_right_while_no_defect_is_on(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiling = plan(Problem(40, 100, (Projection(1200, bias=True),), normalized=True), PLATFORM_910B)
    assert tiling.groups > 1
    assert 40 % tiling.rows_per_task != 0
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


SUM_MUTATIONS = {
    "a summand does not begin anew": Mutation(
        "(firstRow_ + row) % tiling_->period[summand]", "firstRow_ + row", "gm-range"
    ),
    "a sum is not rounded": Mutation("Cast(values, narrow, RoundMode::CAST_NONE, count);", ""),
    "the last summand is left out": Mutation("Add(values, values, Scratch(), count);", ""),
    "every group keeps the sum": Mutation("keepsSum_ = group == 0;", "keepsSum_ = true;", "cross-core-write"),
    "the sum's buffer is not freed": Mutation("out_.FreeTensor(result);", "", "queue-alloc"),
}


@pytest.mark.parametrize("name", [None, *SUM_MUTATIONS])
def test_a_broken_kernel_of_sums_is_caught(name: str | None, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_broken(SUM, SUM_MUTATIONS, name, (2, 19), 100, (1200, 40, 300), programs, monkeypatch)


PLAIN_MUTATIONS = {
    "a block starts at the first row": Mutation("static_cast<uint64_t>(firstRow_) * t.hidden", "0"),
    "no wait before the cube reads a widened bias": Mutation("Await<HardEvent::MTE3_S>();", "", "matmul-sync"),
    "the bias of another piece": Mutation("widened_[widened]", "widened_[0]"),
    "a bias stays where one has none": Mutation("product.ClearBias();", ""),
    "a group's weight starts at the first column": Mutation("(transposed ? t.hidden : 1)", "0"),
    "a part of a bias is widened at most": Mutation("done < count; done += chunk_", "done < 1; done += chunk_"),
}


@pytest.mark.parametrize("name", [None, *PLAIN_MUTATIONS])
def test_a_broken_kernel_without_a_norm_is_caught(
    name: str | None, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_broken(PLAIN_BRAIN, PLAIN_MUTATIONS, name, (140,), 100, (1200, 40, 300, 700), programs, monkeypatch)


def run_broken(
    case: Case,
    mutations: Mapping[str, Mutation],
    name: str | None,
    leading: Sequence[int],
    hidden: int,
    columns: Sequence[int],
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel of a case with one of the defects on is caught, without any it is right."""
    kernel = case.render()
    file = f"{kernel.function}.cpp"
    source = kernel.files[file]
    for number, mutation in enumerate(mutations.values(), 1):
        assert mutation.correct in source, mutation.correct
        loop = mutation.correct.startswith("done <")
        switched = f"done < (mutant() == {number} ? 1 : count); done += chunk_" if loop else mutation.switched(number)
        source = source.replace(mutation.correct, switched, 1)
    mutable = replace(kernel, files={**kernel.files, file: MUTANT + source})
    number = 0 if name is None else 1 + list(mutations).index(name)
    monkeypatch.setenv("MUTANT", str(number))
    inputs = make_inputs(case, leading, hidden, columns, 0.5)
    if name is None:
        check_numbers(case, inputs, run_kernel(mutable, inputs, platform=SMALL, cache=programs))
        return
    with pytest.raises((AtcfuseError, AssertionError)) as caught:
        check_numbers(case, inputs, run_kernel(mutable, inputs, platform=SMALL, cache=programs))
    if mutations[name].rule:
        assert isinstance(caught.value, AtcfuseError)
        assert f"rule {mutations[name].rule}:" in str(caught.value)


def assert_refused(
    given: Case, family: str, attributes: Mapping[str, Any], dtypes: Mapping[str, int | None], reason: str | None
) -> None:
    """A signature but for some attributes and types, None for an operand left out, is refused for a reason, if any."""
    types = {name: t for name, t in {**given.dtypes, **dtypes}.items() if t is not None}
    said = signature_refusal(Signature(given.spec, {**given.attributes, **attributes}, types, family))
    assert said is None if reason is None else said is not None and reason in said


@pytest.mark.parametrize(
    ("family", "attributes", "dtypes", "reason"),
    [
        ("310P", {}, {}, "cube cores of 910B"),
        ("910B", {"norm": "batch_norm"}, {}, "'batch_norm'"),
        ("910B", {"num_projections": 5}, {}, "1 to 4 projections, not 5"),
        ("910B", {"transposed": (0,)}, {}, "each of 3 weights"),
        ("910B", {"num_projections": 2, "transposed": (0, 0)}, {}, "w3 is one too many"),
        ("910B", {}, {"w2": None}, "w2 is missing"),
        ("910B", {}, {"b4": FLOAT16}, "b4 is one too many"),
        ("910B", {}, {"w2": FLOAT}, "w2 has another element type"),
        ("910B", {}, {}, None),
    ],
)
def test_signatures_without_a_kernel(
    family: str, attributes: Mapping[str, Any], dtypes: Mapping[str, int | None], reason: str | None
) -> None:
    assert_refused(SEPARATE, family, attributes, dtypes, reason)


@pytest.mark.parametrize(
    ("family", "attributes", "dtypes", "reason"),
    [
        ("310P", {}, {}, "cube cores of 910B"),
        ("910B", {"num_projections": 1, "transposed": (0,)}, {}, "2 to 4 projections, not 1"),
        ("910B", {"transposed": (0,)}, {}, "each of 3 weights"),
        ("910B", {}, {"y3": None}, "y3 is missing"),
        ("910B", {}, {"b2": FLOAT}, "b2 has another element type"),
        ("910B", {}, {}, None),
    ],
)
def test_signatures_without_a_norm_that_have_no_kernel(
    family: str, attributes: Mapping[str, Any], dtypes: Mapping[str, int | None], reason: str | None
) -> None:
    assert_refused(PLAIN, family, attributes, dtypes, reason)
