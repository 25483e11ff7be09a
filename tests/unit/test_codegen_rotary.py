"""The rotary_embedding kernel: against numpy in float64, against its prediction, and broken on purpose."""

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

from atcfuse.codegen import GeneratedKernel, Signature, predict, refusal_of, render_kernel
from atcfuse.codegen.rotary_embedding import problem
from atcfuse.diagnostics import AtcfuseError
from atcfuse.kernel import load_kernels
from atcfuse.reference import evaluate
from atcfuse.tiling import PLATFORM_310P, PLATFORM_910B, Platform
from atcfuse.tiling.rotary_embedding import plan, refusal
from atcfuse.twin import TwinResult, run_kernel
from atcfuse.vectors import decode, encode

KERNELS = Path(__file__).parents[2] / "kernels"
FLOAT, FLOAT16, BFLOAT16 = 1, 10, 16
TOLERANCE = {FLOAT: 1e-6, FLOAT16: 6e-4, BFLOAT16: 5e-3}
SMALL = replace(PLATFORM_910B, vector_cores=3)
TIGHT = replace(PLATFORM_910B, vector_cores=3, ub=20_000)
SOCS = {"910B": "Ascend910B1", "310P": "Ascend310P3"}

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@dataclass(frozen=True)
class Case:
    """A signature; `layouts` of q and, where there are two, k. `places` are offset and step of heads in longer rows.

    `gammas` is the element type of the scales of a norm, 0 for none; with `norm_last` it is behind the rotation.
    The norm is a LayerNorm where it is `centred`, with a shift where it `shifts`, and has a scale `by_head`.
    """

    head_dim: int
    rotary_dim: int
    interleaved: bool = False
    layouts: tuple[str, ...] = ("as_is", "as_is")
    heads: tuple[int, ...] = (0, 0)
    dtype: int = FLOAT16
    angles: int = FLOAT16
    family: str = "910B"
    places: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))
    gammas: int = 0
    epsilon: float = 0.0
    norm_last: bool = False
    centred: bool = False
    shifts: bool = False
    by_head: bool = False

    @property
    def attributes(self) -> dict[str, Any]:
        layouts, heads, places = (*self.layouts, "as_is"), (*self.heads, 0), (*self.places, (0, 0))
        return {
            "interleaved": int(self.interleaved),
            "rotary_dim": self.rotary_dim,
            "head_dim": self.head_dim,
            "q_heads": heads[0],
            "k_heads": heads[1],
            "q_layout": layouts[0],
            "k_layout": layouts[1],
            "epsilon": self.epsilon,
            "norm_last": int(self.norm_last),
            "centred": int(self.centred),
            "by_head": int(self.by_head),
            **dict(zip(("q_offset", "q_step", "k_offset", "k_step"), (*places[0], *places[1]), strict=True)),
        }

    @property
    def dtypes(self) -> dict[str, int]:
        names = ["q", "q_rotated", *(["k", "k_rotated"] if len(self.layouts) == 2 else [])]
        kinds = ("gamma", "beta")[: 1 + self.shifts] if self.gammas else ()
        gammas = {f"{name}_{kind}": self.gammas for name in "qk"[: len(self.layouts)] for kind in kinds}
        return {**dict.fromkeys(names, self.dtype), "cos": self.angles, "sin": self.angles, **gammas}

    def render(self) -> GeneratedKernel:
        spec = load_kernels(KERNELS)["rotary_embedding"]
        return render_kernel(spec, self.attributes, self.dtypes, SOCS[self.family])


def make_inputs(case: Case, shapes: Sequence[Sequence[int]], angles: Sequence[int]) -> dict[str, Any]:
    rng = np.random.default_rng(sum(map(sum, shapes)))
    inputs = {
        name: encode(rng.standard_normal(tuple(shape)) * 1.5, case.dtype)
        for name, shape in zip("qk", shapes, strict=False)
    }
    for name in ("cos", "sin"):
        inputs[name] = encode(rng.uniform(-1, 1, (*angles, case.rotary_dim)), case.angles)
    for name in (name for name in case.dtypes if name.endswith(("_gamma", "_beta"))):
        operand = "qk".index(name[0])
        heads = case.heads[operand] or shapes[operand][2 if case.layouts[operand] == "BSND" else 1]
        shape = (heads, case.head_dim) if case.by_head else (case.head_dim,)
        inputs[name] = encode(rng.uniform(0.5, 1.5, shape), case.gammas)
    return inputs


def check(case: Case, inputs: Mapping[str, Any], result: TwinResult, platform: Platform) -> None:
    kernel = case.render()
    exact = {name: decode(array, case.dtypes[name]) for name, array in inputs.items()}
    expected = evaluate(kernel.signature, exact, 0, 0, 0)
    assert set(result.outputs) == set(expected)
    for name, want in expected.items():
        got = decode(result.outputs[name], case.dtype)
        assert got.shape == want.shape
        assert np.abs(got - want).max(initial=0) <= TOLERANCE[case.dtype] * max(1.0, np.abs(want).max(initial=0)), name
    predicted = predict(kernel, {name: array.shape for name, array in inputs.items()}, platform)
    assert not isinstance(predicted, str)
    counted = {**result.counters, **result.counters["peak"]}
    assert {name: counted[name] for name in predicted} == dict(predicted)
    assert counted["ub"] <= platform.ub


def run(
    case: Case,
    shapes: Sequence[Sequence[int]],
    angles: Sequence[int],
    programs: Path,
    platform: Platform = PLATFORM_910B,
) -> None:
    inputs = make_inputs(case, shapes, angles)
    check(case, inputs, run_kernel(case.render(), inputs, platform=platform, cache=programs), platform)


PLAIN = Case(64, 64)
ODD = Case(12, 12)
PARTIAL = Case(80, 32)
MERGED = Case(64, 64, layouts=("BSH", "BSH"), heads=(3, 1))
SPLIT = Case(20, 10, layouts=("BSND", "as_is"), dtype=FLOAT, angles=FLOAT)
ALONE = Case(128, 128, layouts=("BSH",), heads=(5,), dtype=BFLOAT16, angles=FLOAT)
NEIGHBOURS = Case(64, 64, interleaved=True)
NEIGHBOURS_ODD = Case(14, 6, interleaved=True, dtype=FLOAT, angles=FLOAT)
NEIGHBOURS_WIDE = Case(256, 200, interleaved=True, layouts=("as_is",), dtype=BFLOAT16, angles=BFLOAT16)
PAIR_ONLY = Case(2, 2, interleaved=True, angles=FLOAT)
PACKED = Case(16, 16, layouts=("BSH", "BSH"), heads=(3, 1), places=((0, 16), (48, 16)))
AMONG = Case(20, 10, layouts=("BSH", "BSH"), heads=(3, 3), dtype=FLOAT, angles=FLOAT, places=((0, 60), (20, 60)))
LATER = Case(14, 6, True, ("BSH",), (2,), BFLOAT16, FLOAT, places=((5, 14),))
NORMED = Case(128, 128, layouts=("BSND", "BSND"), gammas=FLOAT16, epsilon=1e-6)
NORMED_ODD = Case(12, 12, dtype=FLOAT, angles=FLOAT, gammas=FLOAT, epsilon=0.25)
NORMED_ALONE = Case(64, 64, layouts=("BSH",), heads=(5,), dtype=BFLOAT16, angles=FLOAT, gammas=FLOAT, epsilon=1e-5)
NORMED_WIDE = Case(400, 400, layouts=("as_is",), dtype=FLOAT, angles=FLOAT, gammas=BFLOAT16)
NORMED_PACKED = Case(
    16, 16, layouts=("BSH", "BSH"), heads=(3, 1), places=((0, 16), (48, 16)), gammas=FLOAT, epsilon=1e-6
)
NORMED_LAST = replace(NORMED, norm_last=True)
NORMED_LAST_ODD = replace(NORMED_ODD, norm_last=True)
NORMED_LAST_WIDE = replace(NORMED_WIDE, norm_last=True)
CENTRED = Case(64, 64, layouts=("BSND", "BSND"), gammas=FLOAT16, epsilon=1e-5, centred=True, by_head=True)
CENTRED_NEIGHBOURS = replace(CENTRED, head_dim=14, rotary_dim=14, interleaved=True, by_head=False, dtype=FLOAT)
CENTRED_WIDE = Case(
    200, 200, True, layouts=("as_is",), dtype=BFLOAT16, angles=FLOAT, gammas=FLOAT, centred=True, by_head=True
)
CENTRED_PART = Case(80, 20, layouts=("BSH", "BSH"), heads=(3, 1), gammas=FLOAT, epsilon=1e-5, centred=True, shifts=True)
CENTRED_SHORT = Case(
    64, 6, True, layouts=("BSND",), dtype=FLOAT, angles=FLOAT, gammas=BFLOAT16, shifts=True, by_head=True
)
PART_WIDE = Case(400, 140, layouts=("as_is",), gammas=FLOAT16, epsilon=1e-6)
LITTLE_CENTRED = Case(
    96, 32, layouts=("BSND", "BSND"), family="310P", gammas=FLOAT16, centred=True, shifts=True, by_head=True
)
LITTLE_NORMED = Case(64, 64, layouts=("BSND", "BSND"), family="310P", gammas=FLOAT16, epsilon=1e-6)
LITTLE_PACKED = Case(64, 64, layouts=("BSH", "BSH"), heads=(4, 2), family="310P", places=((0, 64), (256, 64)))
LITTLE_CORE = Case(64, 64, layouts=("BSH", "as_is"), heads=(4, 0), family="310P")
LITTLE_PARTIAL = Case(96, 32, layouts=("as_is",), angles=FLOAT, family="310P")
LITTLE_FLOAT = Case(32, 16, layouts=("BSND", "BSND"), dtype=FLOAT, angles=FLOAT, family="310P")


@pytest.mark.parametrize(
    ("case", "shapes", "angles", "platform"),
    [
        (PLAIN, [(2, 4, 19, 64), (2, 2, 19, 64)], (2, 1, 19), PLATFORM_910B),
        (PLAIN, [(1, 3, 300, 64), (1, 3, 300, 64)], (1, 1, 300), SMALL),
        (PLAIN, [(2, 4, 19, 64), (2, 2, 19, 64)], (19,), TIGHT),
        (PLAIN, [(2, 4, 1, 64), (2, 2, 1, 64)], (2, 1, 1), SMALL),
        (PLAIN, [(2, 4, 7, 64), (2, 4, 7, 64)], (1, 4, 7), SMALL),
        (PLAIN, [(2, 9, 4, 64), (2, 9, 2, 64)], (1, 9, 1), SMALL),
        (PLAIN, [(2, 9, 4, 64), (2, 9, 2, 64)], (1, 1, 1), SMALL),
        (PLAIN, [(0, 4, 7, 64), (0, 4, 7, 64)], (1, 1, 7), SMALL),
        (ODD, [(2, 4, 33, 12), (2, 1, 33, 12)], (1, 1, 33), PLATFORM_910B),
        (ODD, [(5, 12), (5, 12)], (5,), SMALL),
        (ODD, [(12,), (12,)], (), SMALL),
        (PARTIAL, [(1, 2, 40, 80), (1, 2, 40, 80)], (1, 1, 40), SMALL),
        (MERGED, [(2, 21, 192), (2, 21, 64)], (2, 1, 21), PLATFORM_910B),
        (PACKED, [(2, 21, 80), (2, 21, 80)], (2, 1, 21), SMALL),
        (AMONG, [(2, 33, 180), (2, 33, 180)], (33,), SMALL),
        (AMONG, [(1, 300, 180), (1, 300, 180)], (1, 3, 1), TIGHT),
        (LATER, [(3, 9, 40)], (9,), SMALL),
        (LITTLE_PACKED, [(2, 33, 512), (2, 33, 512)], (2, 1, 33), PLATFORM_310P),
        (SPLIT, [(2, 6, 3, 20), (2, 2, 6, 20)], (6,), SMALL),
        (ALONE, [(1, 70, 640)], (1, 1, 70), SMALL),
        (NEIGHBOURS, [(2, 17, 4, 64), (2, 17, 4, 64)], (1, 17, 1), SMALL),
        (NEIGHBOURS, [(1, 4, 300, 64), (1, 2, 300, 64)], (1, 1, 300), TIGHT),
        (NEIGHBOURS_ODD, [(1, 9, 3, 14), (1, 9, 3, 14)], (9, 1), SMALL),
        (NEIGHBOURS_WIDE, [(3, 9, 256)], (9,), SMALL),
        (PAIR_ONLY, [(3, 9, 2), (3, 9, 2)], (9,), SMALL),
        (NORMED, [(2, 21, 4, 128), (2, 21, 2, 128)], (2, 1, 21), PLATFORM_910B),
        (NORMED, [(1, 300, 3, 128), (1, 300, 3, 128)], (300,), replace(TIGHT, ub=40_000)),
        (NORMED_ODD, [(2, 4, 33, 12), (2, 1, 33, 12)], (1, 1, 33), SMALL),
        (NORMED_ODD, [(12,), (12,)], (), SMALL),
        (NORMED_ODD, [(2, 0, 33, 12), (2, 0, 33, 12)], (1, 1, 33), SMALL),
        (NORMED_ALONE, [(1, 70, 320)], (1, 1, 70), SMALL),
        (NORMED_WIDE, [(3, 9, 400)], (9,), SMALL),
        (NORMED_PACKED, [(2, 21, 80), (2, 21, 80)], (2, 1, 21), SMALL),
        (LITTLE_NORMED, [(2, 33, 4, 64), (2, 33, 2, 64)], (2, 1, 33), PLATFORM_310P),
        (NORMED_LAST, [(2, 21, 4, 128), (2, 21, 2, 128)], (2, 1, 21), PLATFORM_910B),
        (NORMED_LAST, [(1, 300, 3, 128), (1, 300, 3, 128)], (300,), replace(TIGHT, ub=40_000)),
        (NORMED_LAST_ODD, [(2, 4, 33, 12), (2, 1, 33, 12)], (1, 1, 33), SMALL),
        (NORMED_LAST_WIDE, [(3, 9, 400)], (9,), SMALL),
        (replace(LITTLE_NORMED, norm_last=True), [(2, 33, 4, 64), (2, 33, 2, 64)], (2, 1, 33), PLATFORM_310P),
        (CENTRED, [(2, 21, 4, 64), (2, 21, 2, 64)], (2, 1, 21), PLATFORM_910B),
        (CENTRED, [(1, 300, 3, 64), (1, 300, 3, 64)], (1, 3, 300), replace(TIGHT, ub=40_000)),
        (CENTRED_NEIGHBOURS, [(2, 21, 4, 14), (2, 21, 2, 14)], (1, 1, 21), SMALL),
        (CENTRED_WIDE, [(2, 3, 40, 200)], (40,), SMALL),
        (CENTRED_PART, [(2, 33, 240), (2, 33, 80)], (2, 1, 33), SMALL),
        (CENTRED_PART, [(1, 300, 240), (1, 300, 80)], (300,), replace(TIGHT, ub=40_000)),
        (CENTRED_SHORT, [(2, 17, 3, 64)], (1, 1, 17), SMALL),
        (PART_WIDE, [(3, 9, 400)], (9,), SMALL),
        (LITTLE_CENTRED, [(2, 33, 4, 96), (2, 33, 2, 96)], (2, 1, 33), PLATFORM_310P),
        (LITTLE_CORE, [(2, 33, 256), (2, 2, 33, 64)], (2, 1, 33), PLATFORM_310P),
        (LITTLE_PARTIAL, [(1, 3, 40, 96)], (1, 1, 40), PLATFORM_310P),
        (LITTLE_FLOAT, [(1, 40, 2, 32), (1, 40, 3, 32)], (40,), PLATFORM_310P),
    ],
)
def test_kernel_agrees_with_numpy_and_with_its_prediction(
    case: Case, shapes: Sequence[Sequence[int]], angles: Sequence[int], platform: Platform, programs: Path
) -> None:
    run(case, shapes, angles, programs, platform)


def test_random_shapes_agree_with_numpy_and_with_their_prediction(programs: Path) -> None:
    rng = random.Random(11)
    for _ in range(24):
        case = rng.choice([PLAIN, ODD, NEIGHBOURS, MERGED, NORMED_ODD, NORMED_LAST_ODD])
        batch, rows = rng.choice([1, 2, 5]), rng.choice([1, 2, 15, 16, 17, 100, 257])
        heads = case.heads if case.heads[0] else (rng.choice([1, 2, 7]), rng.choice([1, 3]))
        shapes = [(batch, rows, h * case.head_dim) if case.heads[0] else (batch, h, rows, case.head_dim) for h in heads]
        platform = replace(SMALL, vector_cores=rng.choice([1, 3, 48]), ub=rng.choice([8_000, 30_000, 188_160]))
        run(case, shapes, (rng.choice([1, batch]), 1, rng.choice([1, rows])), programs, platform)


TILING_DUMP = """
#include "FUNCTION_host.h"
#include <cstdio>
int main()
{
    namespace n = FUNCTION_tiling;
    atcfuse::Platform chip{};
    atcfuse::Shape in[8];
    long long b, hq, hk, s, c0, c1, c2;
    while (std::scanf("%d %ld %lld %lld %lld %lld %lld %lld %lld", &chip.vectorCores, &chip.ub, &b, &hq, &hk, &s, &c0, &c1,
                      &c2) == 9) {
        in[0] = {4, {b, hq, s, 64}};
        in[1] = {4, {b, hk, s, 64}};
        in[2] = in[3] = {4, {c0, c1, c2, n::kRotaryDim}};
        in[4] = in[5] = in[6] = in[7] = {1, {64}};
        n::Tiling t{};
        atcfuse::Launch launch{};
        const char* refused = n::computeTiling(chip, in, t, launch);
        std::printf("%s %d %d %d %d %d %d\\n", refused ? "refused" : "taken", launch.blocks, t.rowsPerTile, t.rowBlocks,
                    t.groups, t.tasks, t.angleRows);
    }
}
"""


NORMS = {"gammas": FLOAT, "centred": True, "shifts": True}


@pytest.mark.parametrize("norm", [{}, {"gammas": FLOAT}, {"rotary_dim": 20, **NORMS}, {"interleaved": True, **NORMS}])
def test_tiling_in_python_equals_the_tiling_of_the_host(tmp_path: Path, norm: dict[str, Any]) -> None:
    kernel = replace(PLAIN, **norm).render()
    width = norm.get("rotary_dim", 64)
    for name, text in kernel.files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "dump.cpp").write_text(TILING_DUMP.replace("FUNCTION", kernel.function))
    subprocess.run(
        ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "dump.cpp", "-o", "dump"], cwd=tmp_path, check=True
    )
    rng = random.Random(5)
    problems = []
    for _ in range(200):
        batch, rows = rng.choice([0, 1, 3, 64]), rng.choice([0, 1, 5, 17, 128, 4097, 2_000_000])
        heads = [rng.choice([0, 1, 2, 8, 40]) for _ in range(2)]
        angles = (rng.choice([1, batch]), rng.choice([1, 1, heads[0]]), rng.choice([1, rows]))
        angles = angles if angles[1] in (1, heads[1]) else (1, 1, 1)
        problems.append((rng.choice([1, 8, 48]), rng.choice([1_000, 9_000, 188_160]), batch, *heads, rows, *angles))
    text = "\n".join(" ".join(map(str, p)) for p in problems)
    done = subprocess.run([tmp_path / "dump"], input=text, capture_output=True, text=True, check=True)
    for numbers, line in zip(problems, done.stdout.splitlines(), strict=True):
        cores, ub, batch, hq, hk, rows, *angles = numbers
        chip = replace(PLATFORM_910B, vector_cores=cores, ub=ub)
        shapes = {"q": (batch, hq, rows, 64), "k": (batch, hk, rows, 64), "cos": (*angles, width)}
        asked = problem(kernel.signature, shapes)
        verdict, *found = line.split()
        assert (verdict == "refused") == (refusal(asked, chip) is not None), numbers
        if verdict == "taken":
            t = plan(asked, chip)
            wanted = [t.blocks, t.rows_per_tile, t.row_blocks, t.groups, t.tasks, t.angle_rows]
            assert list(map(int, found)) == wanted, numbers


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(8, 7), "cannot be rotated in pairs"),
        (Case(8, 10), "cannot be rotated in pairs"),
        (Case(8, 8, layouts=("SBH",)), "layout of q"),
        (Case(8, 8, layouts=("BSH",)), "number of heads"),
        (Case(5000, 5000), "at most 4080"),
        (Case(64, 64, interleaved=True, family="310P"), "neighbours cannot be exchanged"),
        (Case(24, 24, family="310P"), "fill blocks of 32 bytes, 12"),
        (Case(40, 32, family="310P"), "not rotated must fill"),
        (Case(64, 64, dtype=BFLOAT16, family="310P"), "no bfloat16"),
        (Case(64, 64, gammas=BFLOAT16, family="310P"), "no bfloat16"),
        (Case(64, 32, gammas=FLOAT, norm_last=True), "are not normalised"),
        (Case(64, 64, interleaved=True, gammas=FLOAT, norm_last=True), "are not normalised"),
        (Case(3000, 32, gammas=FLOAT), "2968 elements that are not rotated"),
        (Case(64, 64, norm_last=True), "needs scales"),
    ],
)
def test_what_no_kernel_can_be_made_for(case: Case, reason: str) -> None:
    spec = load_kernels(KERNELS)["rotary_embedding"]
    found = refusal_of(spec, case.attributes, case.dtypes, SOCS[case.family])
    assert found is not None
    assert reason in found


def test_wrong_shapes_are_refused_before_anything_runs(programs: Path) -> None:
    inputs = make_inputs(PLAIN, [(2, 4, 19, 64), (2, 2, 18, 64)], (1, 1, 19))
    with pytest.raises(AtcfuseError, match="do not broadcast"):
        run_kernel(PLAIN.render(), inputs, cache=programs)
    inputs = make_inputs(PLAIN, [(2, 4, 19, 64), (1, 2, 19, 64)], (1, 1, 19))
    with pytest.raises(AtcfuseError, match="same batch"):
        run_kernel(PLAIN.render(), inputs, cache=programs)
    inputs = make_inputs(CENTRED, [(1, 7, 3, 64), (1, 5, 3, 64)], (1, 1, 1))
    with pytest.raises(AtcfuseError, match="must change along the axis behind"):
        run_kernel(CENTRED.render(), inputs, cache=programs)
    inputs = make_inputs(NORMED_ODD, [(2, 4, 9, 12), (2, 2, 9, 12)], (1, 1, 9))
    with pytest.raises(AtcfuseError, match="a scale needs one axis"):
        run_kernel(NORMED_ODD.render(), {**inputs, "k_gamma": inputs["k_gamma"][:11]}, cache=programs)


def test_operands_are_normalised_together() -> None:
    spec = load_kernels(KERNELS)["rotary_embedding"]
    half = {name: dtype for name, dtype in NORMED.dtypes.items() if name != "k_gamma"}
    assert "every operand is normalised, or none" in (refusal_of(spec, NORMED.attributes, half, "Ascend910B1") or "")
    mixed = {**NORMED.dtypes, "k_gamma": FLOAT}
    assert "differ in element type" in (refusal_of(spec, NORMED.attributes, mixed, "Ascend910B1") or "")


def test_the_signature_decides_the_kernel() -> None:
    cases = [PLAIN, ODD, PARTIAL, MERGED, NEIGHBOURS, LITTLE_CORE, NORMED, NORMED_LAST, replace(NORMED, epsilon=1e-5)]
    assert len({case.render().op_type for case in cases}) == len(cases)
    assert isinstance(PLAIN.render().signature, Signature)
