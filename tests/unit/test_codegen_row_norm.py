"""The kernels that normalise rows on vector cores: against numpy in float64, against their prediction, and broken."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atcfuse.codegen import GeneratedKernel, predict, render_kernel
from atcfuse.kernel import load_kernels
from atcfuse.tiling import PLATFORM_310P, PLATFORM_910B, Platform
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

    @property
    def names(self) -> list[str]:
        return ["x"] if not self.kernel.startswith("add") else [f"x{i + 1}" for i in range(self.summands)]

    @property
    def dtypes(self) -> dict[str, int]:
        types = dict.fromkeys(self.names, self.dtype)
        if self.affine is not None:
            types["gamma"] = self.affine
            types |= {"beta": self.affine} if self.beta and "rms" not in self.kernel else {}
        return types | {"y": self.dtype} | ({"sum": self.dtype} if self.keeps_sum else {})

    def render(self) -> GeneratedKernel:
        spec = load_kernels(KERNELS)[self.kernel]
        soc = {"910B": "Ascend910B1", "310P": "Ascend310P3"}[self.family]
        return render_kernel(spec, {"epsilon": self.epsilon}, self.dtypes, soc)


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
CASES = [
    ADD, ADD_THREE, ADD_THREE_KEPT, ADD_BARE, ADD_BRAIN, ADD_RMS, ADD_RMS_THREE, ADD_RMS_WIDE,
    NORM, NORM_WIDE, NORM_MIXED, NORM_BARE, RMS, RMS_WIDE, RMS_BARE,
]  # fmt: skip


def on_310p(case: Case) -> Case:
    return replace(case, family="310P")


def make_inputs(case: Case, shapes: Sequence[Shape], mean: float = 0.7) -> dict[str, Any]:
    hidden = shapes[0][-1]
    rng = np.random.default_rng(hidden + len(shapes))
    inputs = {}
    for name, shape in zip(case.names, shapes, strict=True):
        inputs[name] = encode(rng.standard_normal(shape) * 1.5 + mean, case.dtype)
    for name in ("gamma", "beta"):
        if name in case.dtypes:
            inputs[name] = encode(1 + 0.3 * rng.standard_normal(hidden), case.dtypes[name])
    return inputs


def reference(case: Case, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the operator means, in float64; sums are rounded after every addition."""
    exact = {name: decode(array, case.dtypes[name]) for name, array in inputs.items()}
    rows = exact[case.names[0]]
    for name in case.names[1:]:
        rows = decode(encode(rows + exact[name], case.dtype), case.dtype)
    results = {"sum": rows} if case.keeps_sum else {}
    if "rms" not in case.kernel:
        rows = rows - rows.mean(-1, keepdims=True)
    rows = rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + case.epsilon)
    return results | {"y": rows * exact.get("gamma", 1.0) + exact.get("beta", 0.0)}


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


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


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
