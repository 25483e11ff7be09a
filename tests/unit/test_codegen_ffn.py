"""The ffn and layer_norm_ffn kernels: against numpy in float64, against their prediction, and broken on purpose."""

from __future__ import annotations

import math
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
from atcfuse.codegen.ffn import refusal as signature_refusal
from atcfuse.diagnostics import AtcfuseError
from atcfuse.kernel import load_kernels
from atcfuse.tiling import PLATFORM_910B, Platform
from atcfuse.tiling.ffn import plan, predict
from atcfuse.tiling.ffn_problem import Norm, Problem, problem_of, refusal
from atcfuse.twin import TwinResult, run_kernel

KERNELS = Path(__file__).parents[2] / "kernels"
FLOAT, FLOAT16, BFLOAT16 = 1, 10, 16
TOLERANCE = {FLOAT: 1e-5, FLOAT16: 2e-3, BFLOAT16: 1.6e-2}
SMALL = replace(PLATFORM_910B, cube_cores=2, vector_cores=4)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")

_erf = np.vectorize(math.erf, otypes=[np.float64])
ACTIVATIONS = {
    "gelu_erf": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0.0),
    "relu_squared": lambda x: np.maximum(x, 0.0) ** 2,
}

ADDED = {"": 0, "operand": 1, "two operands": 2, "normalized": 0}
"""Operands that are added to the result."""


@dataclass(frozen=True)
class Case:
    """A signature. `weights` has a letter pair each for up, gate and down: `t` transposed or `n`, `b` with bias or `-`.

    `norm` is "" for the ffn kernel; `affine` the element type of gamma and beta; `added` what is added to the result:
    "", "operand", "two operands" or "normalized"; `vectors` names those that are applied before and behind that.
    """

    dtype: int
    weights: str
    activation: str = "gelu_erf"
    gating: str = "none"
    norm: str = ""
    affine: int | None = None
    beta: bool = True
    added: str = ""
    normalized: bool = False
    epsilon: float = 1e-5
    scale: float = 1.0
    vectors: str = ""

    @property
    def pairs(self) -> dict[str, str]:
        names = ("up", "gate", "down") if self.gating == "separate" else ("up", "down")
        return dict(zip(names, self.weights.split(), strict=True))

    @property
    def attributes(self) -> dict[str, Any]:
        flags = tuple(int(self.pairs.get(name, "n")[0] == "t") for name in ("up", "gate", "down"))
        plain: dict[str, Any] = {"activation": self.activation, "gating": self.gating, "transposed": flags}
        plain["scale"] = self.scale
        if not self.norm:
            return plain
        return {"norm": self.norm, "epsilon": self.epsilon, **plain, "add_normalized": int(self.added == "normalized")}

    @property
    def dtypes(self) -> dict[str, int]:
        types = {"x": self.dtype}
        if self.affine is not None:
            types["gamma"] = self.affine
            types |= {"beta": self.affine} if self.beta else {}
        types |= {f"w_{name}": self.dtype for name in self.pairs}
        types |= {f"b_{name}": self.dtype for name, pair in self.pairs.items() if pair[1] == "b"}
        types |= dict.fromkeys(("residual", "residual2")[: ADDED[self.added]], self.dtype)
        types |= dict.fromkeys(self.vectors.split(), self.dtype)
        return types | {"y": self.dtype} | ({"normalized": self.dtype} if self.normalized else {})

    def render(self) -> GeneratedKernel:
        spec = load_kernels(KERNELS)["layer_norm_ffn" if self.norm else "ffn"]
        return render_kernel(spec, self.attributes, self.dtypes, "Ascend910B1")


PLAIN = Case(FLOAT16, "nb nb", added="operand")
BERT = Case(FLOAT16, "nb nb", norm="layer_norm", affine=FLOAT16, added="normalized")
GPT = Case(FLOAT16, "nb nb", "gelu_tanh", norm="layer_norm", affine=FLOAT, added="operand")
LLAMA = Case(FLOAT16, "n- n- n-", "silu", "separate", "rms_norm", FLOAT16, beta=False, added="operand")
MIXED = Case(FLOAT16, "t- nb tb", "gelu_quick", "separate", added="")
PHI = Case(FLOAT16, "nb t-", "silu", "gate_up", "layer_norm", FLOAT16, normalized=True)
BERT_PACKED = Case(FLOAT, "tb nb", "gelu_erf", "up_gate", "rms_norm", None, normalized=True, added="operand")
T5 = Case(FLOAT, "n- n-", "relu", norm="rms_norm", affine=FLOAT, beta=False, added="operand")
BRAIN = Case(BFLOAT16, "nb tb tb", "gelu_tanh", "separate", "layer_norm", BFLOAT16, added="operand")
BRAIN_PACKED = Case(BFLOAT16, "tb n-", "silu", "gate_up", "rms_norm", FLOAT, beta=False, added="normalized")
BRAIN_PLAIN = Case(BFLOAT16, "n- nb", "relu")
SINGLE = Case(FLOAT, "nb nb", norm="layer_norm", affine=FLOAT, added="normalized", normalized=True)
PARALLEL = Case(FLOAT16, "n- n-", "gelu_tanh", added="two operands")
HALF_STEP = Case(FLOAT16, "nb nb", "silu", norm="layer_norm", affine=FLOAT16, added="operand", scale=0.5)
PARALLEL_NORM = Case(FLOAT, "nb nb", "gelu_erf", norm="layer_norm", affine=FLOAT, added="two operands")
NEMOTRON = Case(BFLOAT16, "n- n-", "relu_squared", norm="layer_norm", affine=BFLOAT16, added="two operands")
NO_NORM = Case(FLOAT16, "nb nb", "relu", added="operand", vectors="gain2 shift")
STRETCHED = Case(FLOAT, "n- n- n-", "silu", "separate", added="two operands", scale=0.5, vectors="gain gain2 shift")
LAYER_SCALE = Case(BFLOAT16, "nb nb", norm="layer_norm", affine=BFLOAT16, added="operand", vectors="gain")
SHIFTED = Case(FLOAT16, "nb nb", norm="layer_norm", affine=FLOAT16, added="normalized", vectors="shift")
CASES = [
    NO_NORM,
    STRETCHED,
    LAYER_SCALE,
    SHIFTED,
    PLAIN,
    HALF_STEP,
    PARALLEL,
    PARALLEL_NORM,
    NEMOTRON,
    BERT,
    GPT,
    LLAMA,
    MIXED,
    PHI,
    BERT_PACKED,
    T5,
    BRAIN,
    BRAIN_PACKED,
    BRAIN_PLAIN,
    SINGLE,
]


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


def operand_shapes(case: Case, leading: Sequence[int], sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    hidden, inner, columns = sizes
    up = 2 * inner if case.gating in ("gate_up", "up_gate") else inner
    plain = {"w_up": (hidden, up), "w_gate": (hidden, inner), "w_down": (inner, columns)}
    flags = dict(zip(("w_up", "w_gate", "w_down"), case.attributes["transposed"], strict=True))
    shapes = {name: shape[::-1] if flags[name] else shape for name, shape in plain.items()}
    biases = {"b_up": (up,), "b_gate": (inner,), "b_down": (columns,)}
    rows = {"x": (*leading, hidden), "residual": (*leading, columns), "residual2": (*leading, columns)}
    vectors = dict.fromkeys(("gain", "gain2", "shift"), (columns,))
    return {**rows, **shapes, **biases, **vectors, "gamma": (hidden,), "beta": (hidden,)}


def make_inputs(case: Case, leading: Sequence[int], sizes: Sequence[int], mean: float = 0.7) -> dict[str, Any]:
    rng = np.random.default_rng(sum(sizes) + len(leading))
    shapes = operand_shapes(case, leading, sizes)
    inputs = {}
    for name, dtype in case.dtypes.items():
        if name not in shapes:
            continue
        values = rng.standard_normal(shapes[name])
        values = values * 1.5 + mean if name == "x" else values
        values = 1 + 0.3 * values if name == "gamma" else values
        fan = sizes[1] if name == "w_down" else sizes[0]
        values = values / fan**0.5 if name.startswith("w") else values
        inputs[name] = encode(values, dtype)
    return inputs


def reference(case: Case, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the operator means, in float64; what passes through the slot is rounded there."""
    exact = {name: decode(array, case.dtypes[name]) for name, array in inputs.items()}
    rows = exact["x"]
    if case.norm:
        rows = rows - rows.mean(-1, keepdims=True) if case.norm == "layer_norm" else rows
        rows = rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + case.epsilon)
        rows = rows * exact.get("gamma", 1.0) + exact.get("beta", 0.0)
    results = {"normalized": rows} if case.normalized else {}
    rows = decode(encode(rows, case.dtype), case.dtype)
    flags = dict(zip(("up", "gate", "down"), case.attributes["transposed"], strict=True))

    def project(values: Any, name: str) -> Any:
        weight = exact[f"w_{name}"]
        product = values @ (weight.T if flags[name] else weight) + exact.get(f"b_{name}", 0.0)
        return product if name == "down" else decode(encode(product, case.dtype), case.dtype)

    up = project(rows, "up")
    if case.gating == "none":
        hidden = ACTIVATIONS[case.activation](up)
    else:
        halves = np.split(up, 2, axis=-1) if case.gating != "separate" else [project(rows, "gate"), up]
        gate, up = halves[::-1] if case.gating == "up_gate" else halves
        hidden = ACTIVATIONS[case.activation](gate) * up
    y = project(decode(encode(hidden, case.dtype), case.dtype), "down")
    extra = rows if case.added == "normalized" else exact.get("residual", 0.0) + exact.get("residual2", 0.0)
    total = np.float32(case.scale) * y * exact.get("gain", 1.0) + extra
    return {**results, "y": total * exact.get("gain2", 1.0) + exact.get("shift", 0.0)}


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
    assert counted["l1"] <= platform.l1


def run(
    case: Case,
    leading: Sequence[int],
    sizes: Sequence[int],
    programs: Path,
    platform: Platform = PLATFORM_910B,
    mean: float = 0.7,
) -> None:
    inputs = make_inputs(case, leading, sizes, mean)
    result = run_kernel(case.render(), inputs, platform=platform, cache=programs)
    check_numbers(case, inputs, result)
    check_counts(case, inputs, result, platform)


@pytest.mark.parametrize(
    ("case", "leading", "sizes", "platform"),
    [
        (PLAIN, (2, 19), (64, 256, 64), PLATFORM_910B),
        (PLAIN, (37,), (40, 100, 33), SMALL),
        (NO_NORM, (2, 19), (64, 256, 64), PLATFORM_910B),
        (NO_NORM, (37,), (40, 100, 4133), SMALL),
        (STRETCHED, (33,), (30, 65, 513), SMALL),
        (LAYER_SCALE, (129,), (96, 384, 96), SMALL),
        (SHIFTED, (19,), (40, 7, 40), SMALL),
        (PLAIN, (300,), (16, 9000, 24), SMALL),
        (BERT, (129,), (96, 384, 96), SMALL),
        (BERT, (), (40, 7, 40), SMALL),
        (GPT, (1, 3, 5), (100, 77, 100), PLATFORM_910B),
        (GPT, (17,), (9000, 40, 31), SMALL),
        (LLAMA, (270,), (48, 2600, 48), SMALL),
        (LLAMA, (3,), (200, 520, 200), PLATFORM_910B),
        (MIXED, (33,), (30, 65, 513), SMALL),
        (PHI, (40,), (64, 160, 64), SMALL),
        (BERT_PACKED, (21,), (72, 31, 257), SMALL),
        (T5, (140,), (64, 300, 64), SMALL),
        (BRAIN, (37,), (200, 600, 40), SMALL),
        (BRAIN, (250,), (32, 5001, 32), SMALL),
        (BRAIN_PACKED, (131,), (72, 257, 72), SMALL),
        (BRAIN_PLAIN, (20,), (33, 40, 50), PLATFORM_910B),
        (SINGLE, (21,), (8192, 33, 8192), SMALL),
        (SINGLE, (50,), (100, 200, 100), PLATFORM_910B),
    ],
)
def test_kernel_agrees_with_numpy_and_with_its_prediction(
    case: Case, leading: Sequence[int], sizes: Sequence[int], platform: Platform, programs: Path
) -> None:
    run(case, leading, sizes, programs, platform)


def test_statistics_survive_a_large_mean(programs: Path) -> None:
    run(SINGLE, (3,), (768, 16, 768), programs, mean=300.0)


def test_random_shapes_agree_with_numpy_and_with_their_prediction(programs: Path) -> None:
    rng = random.Random(7)
    for _ in range(30):
        case = rng.choice(CASES)
        hidden = rng.choice([1, 7, 16, 40, 100, 160])
        columns = hidden if case.added == "normalized" else rng.choice([1, 16, 31, 100, 257])
        leading = (rng.choice([1, 2, 15, 16, 17, 33, 100, 130]),)
        platform = rng.choice([SMALL, PLATFORM_910B, replace(SMALL, cube_cores=1, vector_cores=2)])
        run(case, leading, (hidden, rng.choice([1, 16, 31, 100, 257, 300]), columns), programs, platform)


def test_small_on_chip_memories_cut_rows_and_parts(programs: Path) -> None:
    tight = replace(SMALL, ub=40_000, l1=250_000)
    for case in (PLAIN, LLAMA, SINGLE):
        columns = 700 if case.added == "normalized" else 33
        run(case, (19,), (700, 3000, columns), programs, tight)


TILING_DUMP = """
#include "FUNCTION_host.h"
#include <cstdio>
int main()
{
    namespace n = FUNCTION_tiling;
    atcfuse::Platform chip{};
    atcfuse::Shape in[10];
    long long rows, hidden, inner, columns;
    while (std::scanf("%d %lld %lld %lld %lld", &chip.cubeCores, &rows, &hidden, &inner, &columns) == 5) {
        chip = {chip.cubeCores, 2 * chip.cubeCores, 150528, 419430, 65536, 65536, 131072};
        for (auto& shape : in) shape.rank = -1;
        in[0] = {2, {rows, hidden}};
        in[OFFSET] = {2, {hidden, UP}};
        in[OFFSET + 1] = {2, {inner, hidden}};
        in[OFFSET + 2] = {2, {DOWN}};
        n::Tiling t{};
        atcfuse::Launch launch{};
        const char* refused = n::computeTiling(chip, in, t, launch);
        std::printf("%s %d %d %d %d %lld %lld", refused ? "refused" : "taken", launch.blocks, t.rowsPerTask,
                    t.innerChunk, t.chunkColumns, (long long)t.slotBytes, (long long)launch.workspaceBytes);
        const AscendC::tiling::TCubeTiling products[] = {t.up, t.down};
        for (const auto& c : products) {
            std::printf(" %d %d %d %d %d %d %d", c.baseM, c.baseN, c.baseK, c.stepKa, c.depthA1, c.stepKb,
                        c.iterateOrder);
        }
        std::printf("\\n");
    }
}
"""


@pytest.mark.parametrize("case", [PLAIN, BRAIN, PHI, T5], ids=["plain", "separate", "packed", "single"])
def test_tiling_in_python_equals_the_tiling_of_the_host(case: Case, tmp_path: Path) -> None:
    kernel = case.render()
    packed = case.gating == "gate_up"
    for name, text in kernel.files.items():
        (tmp_path / name).write_text(text)
    dump = TILING_DUMP.replace("FUNCTION", kernel.function).replace("OFFSET", "3" if case.norm else "1")
    dump = dump.replace("DOWN", "columns, inner" if case.attributes["transposed"][2] else "inner, columns")
    (tmp_path / "dump.cpp").write_text(dump.replace("UP", "2 * inner" if packed else "inner"))
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(KERNELS / "twin")]
    subprocess.run(["g++", *flags, "dump.cpp", "-o", "dump"], cwd=tmp_path, check=True)
    rng = random.Random(3)
    sizes = [1, 13, 64, 768, 1000, 4096, 8192, 30_000, 65_519, 65_535, 65_536]
    rows = [0, 1, 3, 17, 128, 500, 4097, 100_000, 3_000_000]
    problems = [
        (rng.randint(1, 40), rng.choice(rows), rng.choice(sizes), rng.choice(sizes), rng.choice(sizes))
        for _ in range(120)
    ]
    text = "\n".join(" ".join(map(str, p)) for p in problems)
    done = subprocess.run([tmp_path / "dump"], input=text, capture_output=True, text=True, check=True)
    for numbers, line in zip(problems, done.stdout.splitlines(), strict=True):
        cores, count, hidden, inner, columns = numbers
        flags_of = dict(zip(("up", "gate", "down"), case.attributes["transposed"], strict=True))
        shapes = {
            "x": (count, hidden),
            "w_up": (hidden, 2 * inner if packed else inner)[:: -1 if flags_of["up"] else 1],
            "w_down": (inner, columns)[:: -1 if flags_of["down"] else 1],
        }
        problem = problem_of(case.attributes, case.dtypes, shapes)
        verdict, *found = line.split()
        assert (verdict == "refused") == (refusal(problem) is not None), numbers
        if verdict == "refused":
            continue
        chip = replace(PLATFORM_910B, cube_cores=cores, ub=150_528, l1=419_430)
        t = plan(problem, chip)
        expected = [t.blocks, t.rows_per_task, t.inner_chunk, t.chunk_columns, t.slot_bytes, t.workspace_bytes]
        for p in (t.up, t.down):
            expected += [p.base_m, p.base_n, p.base_k, p.step_ka, p.depth_a, p.step_kb, int(p.keeps_a)]
        assert [int(word) for word in found] == expected, numbers
        figures = predict(t) if count < 5000 else None
        assert figures is None or (figures.ub <= chip.ub and figures.l1 <= chip.l1), numbers


@pytest.mark.parametrize(
    ("case", "operand", "shape", "message"),
    [
        (PLAIN, "w_up", (63, 32), "that of an up weight one as long as x has columns"),
        (PLAIN, "b_up", (31,), "a bias needs as many elements"),
        (PLAIN, "w_down", (33, 24), "as many rows as there are hidden columns"),
        (PLAIN, "residual", (4, 23), "as many elements as the result"),
        (PARALLEL, "residual2", (4, 23), "as many elements as the result"),
        (STRETCHED, "gain", (23,), "gain needs as many elements"),
        (STRETCHED, "gain2", (25,), "gain2 needs as many elements"),
        (NO_NORM, "shift", (25,), "shift needs as many elements"),
        (LLAMA, "w_gate", (64, 31), "the size of the up weight"),
        (PHI, "w_up", (64, 63), "an even number of columns"),
        (BERT, "gamma", (63,), "gamma and beta need as many elements"),
        (BERT, "w_down", (32, 24), "a result of as many columns"),
    ],
)
def test_wrong_shapes_are_refused_before_anything_runs(
    case: Case, operand: str, shape: tuple[int, ...], message: str, programs: Path
) -> None:
    inputs = make_inputs(case, (4,), (64, 32, 64 if case.added == "normalized" else 24))
    inputs[operand] = np.zeros(shape, inputs[operand].dtype)
    if operand == "w_down" and "b_down" in inputs:
        inputs["b_down"] = np.zeros(shape[1:], inputs["b_down"].dtype)
    if operand == "w_up" and "b_up" in inputs:
        inputs["b_up"] = np.zeros(shape[1:], inputs["b_up"].dtype)
    with pytest.raises(AtcfuseError, match=message):
        run_kernel(case.render(), inputs, cache=programs)


@dataclass(frozen=True)
class Mutation:
    """A defect that can be switched on in the kernel, and the twin's rule that must catch it; without one its numbers,
    or the twin, must."""

    correct: str
    wrong: str
    rule: str = ""

    def switched(self, number: int) -> str:
        if self.correct.endswith(";"):
            return f"if (mutant() == {number}) {{ {self.wrong} }} else {{ {self.correct} }}"
        return f"(mutant() == {number} ? {self.wrong} : {self.correct})"


CHUNK = "t.inner - first < t.innerChunk ? t.inner - first : t.innerChunk"
MUTATIONS = {
    "no wait before the cube reads the hidden values": Mutation(
        "Await<HardEvent::MTE3_S>();\n                ProjectDown(first, count);",
        "ProjectDown(first, count);",
        "matmul-sync",
    ),
    "no barrier behind the product with the gate": Mutation(
        "Mul(Values(), Values(), Plane(kOther), count);\n            PipeBarrier<PIPE_V>();",
        "Mul(Values(), Values(), Plane(kOther), count);",
        "missing-barrier",
    ),
    "a buffer is not freed": Mutation("in_.FreeTensor(narrow);", "", "queue-alloc"),
    "one product does not end": Mutation("down.End();", "", "matmul-end"),
    "every chunk sets the sums": Mutation("first == 0 ? 0 : 1", "0"),
    "every chunk adds the bias": Mutation("down.ClearBias();", "down.SetBias(bias_[2]);"),
    "the last chunk is a whole one": Mutation(CHUNK, "t.innerChunk", "gm-range"),
    "chunks all take the first weights": Mutation("static_cast<uint64_t>(column) * (transposed ? t.hidden : 1)", "0"),
    "chunks all meet the first down weights": Mutation(
        "static_cast<uint64_t>(first) * (kDownTransposed ? 1 : t.columns)", "0"
    ),
    "chunks all take the first biases": Mutation("bias[column]", "bias[0]"),
    "gate and up projection are exchanged": Mutation(
        "Load(Values(), gate_[offset], count);", "Load(Values(), inner_[offset], count);"
    ),
    "the activation is left out": Mutation(
        "Activate(Values(), Scratch(), temporary_.template Get<uint8_t>(), count);", ""
    ),
    "a row's parts are counted from its start": Mutation(
        "static_cast<uint64_t>(row) * tiling_->innerPitch + first",
        "static_cast<uint64_t>(row) * tiling_->innerPitch",
    ),
    "the residual is of the first row": Mutation("residual_[result + first]", "residual_[first]"),
    "the last rows are a whole block": Mutation(
        "t.rows - firstRow_ < t.rowsPerTask ? t.rows - firstRow_ : t.rowsPerTask", "t.rowsPerTask", "gm-range"
    ),
    "sums are packed": Mutation("static_cast<uint64_t>(row) * t.sumPitch", "row * t.columns"),
}
MUTANT = """#include <cstdlib>
inline int mutant()
{
    const char* text = std::getenv("MUTANT");
    return text == nullptr ? 0 : std::atoi(text);
}
"""
BREAKABLE = Case(FLOAT16, "nb nb nb", "silu", "separate", added="operand")
BREAKING = ((150,), (24, 5100, 30))


def mutable_kernel() -> GeneratedKernel:
    """One kernel with every defect in it; the environment says which is on."""
    kernel = BREAKABLE.render()
    name = f"{kernel.function}.cpp"
    source = kernel.files[name]
    for number, mutation in enumerate(MUTATIONS.values(), 1):
        assert mutation.correct in source, mutation.correct
        source = source.replace(mutation.correct, mutation.switched(number), 1)
    return replace(kernel, files={**kernel.files, name: MUTANT + source})


@pytest.fixture(scope="session")
def mutable() -> GeneratedKernel:
    return mutable_kernel()


def run_mutant(kernel: GeneratedKernel, number: int, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUTANT", str(number))
    inputs = make_inputs(BREAKABLE, *BREAKING)
    platform = replace(SMALL, cube_cores=1, vector_cores=2)
    check_numbers(BREAKABLE, inputs, run_kernel(kernel, inputs, platform=platform, cache=programs))


def test_the_mutable_kernel_is_right_while_no_defect_is_on(
    mutable: GeneratedKernel, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {name: array.shape for name, array in make_inputs(BREAKABLE, *BREAKING).items()}
    tiling = plan(problem_of(BREAKABLE.attributes, BREAKABLE.dtypes, shapes), replace(SMALL, cube_cores=1))
    assert len(tiling.chunks) > 1
    assert tiling.chunks[-1] < tiling.inner_chunk
    assert tiling.tasks > 1
    assert 150 % tiling.rows_per_task != 0
    run_mutant(mutable, 0, programs, monkeypatch)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_kernel_is_caught(
    name: str, mutable: GeneratedKernel, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation = MUTATIONS[name]
    with pytest.raises((AtcfuseError, AssertionError)) as caught:
        run_mutant(mutable, list(MUTATIONS).index(name) + 1, programs, monkeypatch)
    assert "does not compile" not in str(caught.value)
    if mutation.rule:
        assert isinstance(caught.value, AtcfuseError)
        assert f"rule {mutation.rule}:" in str(caught.value)


@pytest.mark.parametrize(
    ("case", "family", "attributes", "dtypes", "reason"),
    [
        (BERT, "310P", {}, {}, "cube cores of 910B"),
        (BERT, "910B", {"norm": "batch_norm"}, {}, "'batch_norm'"),
        (PLAIN, "910B", {"activation": "mish"}, {}, "'mish'"),
        (PLAIN, "910B", {"gating": "packed"}, {}, "'packed'"),
        (PLAIN, "910B", {"transposed": (0, 0)}, {}, "for the up, gate and down weight"),
        (LLAMA, "910B", {}, {"w_gate": None}, "w_gate is missing"),
        (PLAIN, "910B", {}, {"w_gate": FLOAT16}, "w_gate is one too many"),
        (PHI, "910B", {}, {"b_gate": FLOAT16}, "b_gate is one too many"),
        (BERT, "910B", {}, {"residual": FLOAT16}, "it adds one value"),
        (MIXED, "910B", {}, {"residual2": FLOAT16}, "a second residual needs a first one"),
        (PLAIN, "910B", {}, {"w_down": FLOAT}, "w_down has another element type"),
        (PLAIN, "910B", {}, {}, None),
        (SINGLE, "910B", {}, {}, None),
    ],
)
def test_signatures_without_a_kernel(
    case: Case, family: str, attributes: Mapping[str, Any], dtypes: Mapping[str, int | None], reason: str | None
) -> None:
    spec = load_kernels(KERNELS)["layer_norm_ffn" if case.norm else "ffn"]
    types = {name: t for name, t in {**case.dtypes, **dtypes}.items() if t is not None}
    said = signature_refusal(Signature(spec, {**case.attributes, **attributes}, types, family))
    assert said is None if reason is None else said is not None and reason in said


def test_a_norm_reads_rows_that_do_not_fit_twice() -> None:
    problem = Problem(32, 9000, 64, 64, "relu", norm=Norm(gamma_bytes=2, beta_bytes=2))
    once = predict(plan(replace(problem, hidden=4000), PLATFORM_910B))
    twice = plan(problem, PLATFORM_910B)
    assert not twice.row_fits
    affine, weights = 9000 * 4, 64 * (9000 + 64) * 2
    tasks = twice.tasks
    assert predict(twice).tensor_bytes_read == 2 * 32 * 9000 * 2 + tasks * (affine + weights)
    assert once.tensor_bytes_read < predict(twice).tensor_bytes_read / 2
