"""The scale_mask_softmax kernel: against numpy in float64, against its prediction, and its tiling on both sides."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atcfuse.codegen import GeneratedKernel, predict, refusal_of, render_kernel
from atcfuse.codegen.scale_mask_softmax import problem
from atcfuse.diagnostics import AtcfuseError
from atcfuse.kernel import load_kernels
from atcfuse.reference import evaluate
from atcfuse.tiling import PLATFORM_310P, PLATFORM_910B, Platform
from atcfuse.tiling.scale_mask_softmax import plan, refusal
from atcfuse.twin import run_kernel
from atcfuse.vectors import decode, encode

KERNELS = Path(__file__).parents[2] / "kernels"
FLOAT, BOOL, FLOAT16, BFLOAT16 = 1, 9, 10, 16
TOLERANCE = {FLOAT: 2e-6, FLOAT16: 6e-4, BFLOAT16: 5e-3}
SMALL = replace(PLATFORM_910B, vector_cores=3)
TIGHT = replace(PLATFORM_910B, vector_cores=3, ub=20_000)
SOCS = {"910B": "Ascend910B1", "310P": "Ascend310P3"}
MIN = -3.4028234663852886e38

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@dataclass(frozen=True)
class Case:
    """A signature; `bias` is its element type, 0 for none."""

    dtype: int = FLOAT16
    bias: int = 0
    mask: bool = False
    out: int = FLOAT16
    scale: float = 0.125
    softcap: float = 0.0
    fill: float = -np.inf
    keeps: int = 1
    mask_first: int = 0
    floor: float = -np.inf
    masked_rows: str = "softmax"
    family: str = "910B"

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            "scale": self.scale,
            "softcap": self.softcap,
            "mask_fill": self.fill,
            "mask_keeps": self.keeps,
            "mask_first": self.mask_first,
            "floor": self.floor,
            "masked_rows": self.masked_rows,
            "softmax_precision": FLOAT,
            "out_type": self.out,
        }

    @property
    def dtypes(self) -> dict[str, int]:
        types = {"x": self.dtype, "probs": self.out}
        types |= {"bias": self.bias} if self.bias else {}
        return types | ({"mask": BOOL} if self.mask else {})

    def render(self) -> GeneratedKernel:
        spec = load_kernels(KERNELS)["scale_mask_softmax"]
        return render_kernel(spec, self.attributes, self.dtypes, SOCS[self.family])


def make_inputs(case: Case, x: Sequence[int], bias: Sequence[int], mask: Sequence[int]) -> dict[str, Any]:
    rng = np.random.default_rng(sum(x))
    inputs = {"x": encode(rng.standard_normal(tuple(x)) * 8, case.dtype)}
    if case.bias:
        values = rng.standard_normal(tuple(bias))
        low = -65504.0 if case.bias == FLOAT16 else MIN
        values = np.where(rng.uniform(size=values.shape) < 0.2, low, values)
        values = np.where(rng.uniform(size=values.shape) < 0.2, -np.inf, values)
        if values.ndim > 1:
            values[..., 0, :] = -np.inf  # rows of nothing but -inf, and of nothing but the lowest number
            values[..., -1, :] = low
        inputs["bias"] = encode(values, case.bias)
    if case.mask:
        kept = rng.uniform(size=tuple(mask)) < 0.7
        kept[..., 0, :] = False
        inputs["mask"] = kept
    return inputs


def run(
    case: Case,
    x: Sequence[int],
    programs: Path,
    platform: Platform = PLATFORM_910B,
    bias: Sequence[int] = (),
    mask: Sequence[int] = (),
) -> None:
    inputs = make_inputs(case, x, bias, mask)
    kernel = case.render()
    result = run_kernel(kernel, inputs, platform=platform, cache=programs)
    exact = {name: decode(array, case.dtypes[name]) for name, array in inputs.items()}
    want = evaluate(kernel.signature, exact, 0, 0, 0)["probs"]
    got = decode(result.outputs["probs"], case.out)
    assert got.shape == want.shape
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.nanmax(np.abs(got - want), initial=0) <= TOLERANCE[case.out]
    predicted = predict(kernel, {name: array.shape for name, array in inputs.items()}, platform)
    assert not isinstance(predicted, str)
    counted = {**result.counters, **result.counters["peak"]}
    assert {name: counted[name] for name in predicted} == dict(predicted)
    assert counted["ub"] <= platform.ub


SCALED = Case()
HALF_BIAS = Case(bias=FLOAT16, masked_rows="zero")
WIDE_BIAS = Case(dtype=FLOAT, bias=FLOAT, out=FLOAT)
MASKED = Case(mask=True, out=FLOAT, masked_rows="zero")
DROPPED = Case(dtype=FLOAT, mask=True, keeps=0, fill=-10000.0, out=FLOAT)
BOTH = Case(bias=FLOAT, mask=True, fill=MIN, out=FLOAT16)
MASK_FIRST = Case(bias=FLOAT16, mask=True, fill=-65504.0, mask_first=1)
CAPPED = Case(dtype=FLOAT, softcap=30.0, mask=True, out=FLOAT)
FLOORED = Case(dtype=FLOAT, bias=FLOAT, floor=MIN, out=FLOAT)
BRAIN = Case(dtype=BFLOAT16, bias=BFLOAT16, out=BFLOAT16)
LITTLE_CORE = Case(bias=FLOAT16, mask=True, family="310P", masked_rows="zero")
LITTLE_FLOAT = Case(dtype=FLOAT, bias=FLOAT, out=FLOAT16, family="310P")


@pytest.mark.parametrize(
    ("case", "x", "platform", "bias", "mask"),
    [
        (SCALED, (2, 3, 9, 40), PLATFORM_910B, (), ()),
        (SCALED, (300,), SMALL, (), ()),
        (SCALED, (7, 1000), TIGHT, (), ()),
        (SCALED, (2, 5000), TIGHT, (), ()),
        (SCALED, (0, 3, 9, 40), SMALL, (), ()),
        (HALF_BIAS, (2, 3, 9, 40), SMALL, (2, 1, 9, 40), ()),
        (HALF_BIAS, (2, 3, 9, 40), SMALL, (40,), ()),
        (HALF_BIAS, (2, 3, 5, 3000), TIGHT, (1, 3, 5, 3000), ()),
        (WIDE_BIAS, (2, 3, 70, 33), SMALL, (1, 1, 70, 33), ()),
        (WIDE_BIAS, (2, 3, 5, 3000), TIGHT, (2, 1, 1, 3000), ()),
        (MASKED, (2, 3, 9, 129), SMALL, (), (2, 1, 9, 129)),
        (MASKED, (2, 3, 3, 4001), TIGHT, (), (3, 4001)),
        (DROPPED, (2, 3, 9, 129), SMALL, (), (2, 1, 1, 129)),
        (BOTH, (2, 3, 9, 64), SMALL, (9, 64), (2, 1, 9, 64)),
        (MASK_FIRST, (2, 3, 9, 64), SMALL, (9, 64), (2, 1, 9, 64)),
        (CAPPED, (6, 9, 50), SMALL, (), (1, 9, 50)),
        (CAPPED, (6, 2, 3000), TIGHT, (), (1, 2, 3000)),
        (FLOORED, (2, 3, 9, 64), SMALL, (2, 1, 9, 64), ()),
        (BRAIN, (2, 3, 9, 65), SMALL, (2, 1, 9, 65), ()),
        (LITTLE_CORE, (2, 3, 9, 96), PLATFORM_310P, (2, 1, 9, 96), (2, 1, 9, 96)),
        (LITTLE_FLOAT, (2, 3, 9, 48), PLATFORM_310P, (1, 1, 9, 48), ()),
        (LITTLE_FLOAT, (2, 2, 3, 4096), replace(PLATFORM_310P, ub=30_000), (1, 1, 3, 4096), ()),
    ],
)
def test_kernel_agrees_with_numpy_and_with_its_prediction(
    case: Case, x: Sequence[int], platform: Platform, bias: Sequence[int], mask: Sequence[int], programs: Path
) -> None:
    run(case, x, programs, platform, bias, mask)


def test_random_shapes_agree_with_numpy_and_with_their_prediction(programs: Path) -> None:
    rng = random.Random(13)
    for _ in range(24):
        case = rng.choice([SCALED, HALF_BIAS, WIDE_BIAS, BOTH])
        x = (rng.choice([1, 2]), rng.choice([1, 3]), rng.choice([1, 2, 17, 70]), rng.choice([1, 15, 64, 129, 700]))
        given = [tuple(rng.choice([1, n]) for n in x[:3]) + x[3:] for _ in range(2)]
        platform = replace(SMALL, vector_cores=rng.choice([1, 3, 48]), ub=rng.choice([6_000, 30_000, 188_160]))
        run(case, x, programs, platform, *given)


TILING_DUMP = """
#include "FUNCTION_host.h"
#include <cstdio>
int main()
{
    namespace n = FUNCTION_tiling;
    atcfuse::Platform chip{};
    atcfuse::Shape in[3];
    long long b, h, s, l;
    while (std::scanf("%d %ld %lld %lld %lld %lld", &chip.vectorCores, &chip.ub, &b, &h, &s, &l) == 6) {
        in[0] = {4, {b, h, s, l}};
        in[1] = {2, {s, l}};
        in[2] = {1, {l}};
        n::Tiling t{};
        atcfuse::Launch launch{};
        const char* refused = n::computeTiling(chip, in, t, launch);
        std::printf("%s %d %d %d %d %d %d\\n", refused ? "refused" : "taken", launch.blocks, t.rowsPerTile, t.rowBlocks,
                    t.columns, t.pitch, t.tasks);
    }
}
"""


def test_tiling_in_python_equals_the_tiling_of_the_host(tmp_path: Path) -> None:
    kernel = BOTH.render()
    for name, text in kernel.files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "dump.cpp").write_text(TILING_DUMP.replace("FUNCTION", kernel.function))
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["g++", *flags, "dump.cpp", "-o", "dump"], cwd=tmp_path, check=True)
    rng = random.Random(5)
    problems = [
        (
            rng.choice([1, 8, 48]),
            rng.choice([1_000, 9_000, 188_160]),
            rng.choice([0, 1, 3]),
            rng.choice([1, 12]),
            rng.choice([0, 1, 5, 128, 4097]),
            rng.choice([0, 1, 15, 128, 129, 4096, 100_000]),
        )
        for _ in range(200)
    ]
    text = "\n".join(" ".join(map(str, p)) for p in problems)
    done = subprocess.run([tmp_path / "dump"], input=text, capture_output=True, text=True, check=True)
    for numbers, line in zip(problems, done.stdout.splitlines(), strict=True):
        cores, ub, *shape = numbers
        chip = replace(PLATFORM_910B, vector_cores=cores, ub=ub)
        asked = problem(kernel.signature, {"x": tuple(shape), "bias": tuple(shape[2:]), "mask": tuple(shape[3:])})
        verdict, *found = line.split()
        assert (verdict == "refused") == (refusal(asked, chip) is not None), numbers
        if verdict == "taken":
            t = plan(asked, chip)
            wanted = [t.blocks, t.rows_per_tile, t.row_blocks, t.columns, t.pitch, t.tasks]
            assert list(map(int, found)) == wanted, numbers


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(scale=float("nan")), "scale is nan"),
        (Case(softcap=-1.0), "softcap is -1"),
        (Case(masked_rows="one"), "masked_rows"),
        (Case(dtype=BFLOAT16, family="310P"), "no bfloat16"),
    ],
)
def test_what_no_kernel_can_be_made_for(case: Case, reason: str) -> None:
    spec = load_kernels(KERNELS)["scale_mask_softmax"]
    found = refusal_of(spec, case.attributes, case.dtypes, SOCS[case.family])
    assert found is not None
    assert reason in found


def test_wrong_shapes_are_refused_before_anything_runs(programs: Path) -> None:
    inputs = make_inputs(HALF_BIAS, (2, 3, 9, 40), (2, 1, 9, 41), ())
    with pytest.raises(AtcfuseError, match="last axis of bias"):
        run_kernel(HALF_BIAS.render(), inputs, cache=programs)
    inputs = make_inputs(LITTLE_FLOAT, (2, 3, 9, 41), (9, 41), ())
    with pytest.raises(AtcfuseError, match="fill blocks of 32"):
        run_kernel(LITTLE_FLOAT.render(), inputs, cache=programs)
