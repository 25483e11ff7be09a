"""The group_norm_silu kernel: against numpy in float64 and against its prediction, on both chip families; its rules."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from atcfuse.api import optimize
from atcfuse.codegen import GeneratedKernel, predict, refusal_of, render_kernel
from atcfuse.kernel import load_kernels
from atcfuse.reference import evaluate
from atcfuse.tiling import PLATFORM_310P, PLATFORM_910B, Platform
from atcfuse.tiling.group_norm_silu import plan, problem_of, refusal, temporary_bytes
from atcfuse.twin import run_kernel
from atcfuse.vectors import decode, encode

SPEC = load_kernels(Path(__file__).parents[2] / "kernels")["group_norm_silu"]
FLOAT, FLOAT16, BFLOAT16 = 1, 10, 16
TOLERANCE = {FLOAT: 2e-6, FLOAT16: 1e-3, BFLOAT16: 8e-3}
CHIPS = {"910B": replace(PLATFORM_910B, vector_cores=3), "310P": replace(PLATFORM_310P, vector_cores=3)}
SOCS = {"910B": "Ascend910B1", "310P": "Ascend310P3"}


@dataclass(frozen=True)
class Case:
    channels: int
    groups: int
    dtype: int = FLOAT16
    affine: tuple[int | None, int | None] = (FLOAT16, FLOAT16)
    activation: str = "silu"
    family: str = "910B"

    @property
    def dtypes(self) -> dict[str, int]:
        given = dict(zip(("gamma", "beta"), self.affine, strict=True))
        return {"x": self.dtype, **{n: t for n, t in given.items() if t is not None}, "y": self.dtype}

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            "num_groups": self.groups,
            "num_channels": self.channels,
            "epsilon": 1e-5,
            "activation": self.activation,
        }

    def render(self) -> GeneratedKernel:
        return render_kernel(SPEC, self.attributes, self.dtypes, SOCS[self.family])


def cramped(case: Case) -> Platform:
    """A chip of little UB, so that groups go in chunks."""
    return replace(CHIPS[case.family], ub=12_000 + temporary_bytes(case.activation))


CASES = {
    Case(8, 4): [(2, 8, 4, 4), (1, 8, 5, 7), (3, 8), (2, 8, 1), (2, 8, 24, 9), (0, 8, 4, 4)],
    Case(6, 6, FLOAT, (FLOAT, FLOAT), activation="none"): [(2, 6, 3, 5), (1, 6, 33)],
    Case(40, 2, FLOAT, (FLOAT16, FLOAT)): [(1, 40, 16, 8), (2, 40, 7)],
    Case(12, 3, BFLOAT16, (None, None), activation="none"): [(2, 12, 9), (1, 12, 16, 16)],
    Case(6, 1, FLOAT16, (FLOAT, None)): [(2, 6, 10, 10), (1, 6, 8)],
    Case(8, 8, FLOAT, (FLOAT, FLOAT), "gelu_erf"): [(2, 8, 33), (1, 8, 4, 6)],
    Case(8, 2, FLOAT16, (FLOAT16, None), "gelu_tanh"): [(2, 8, 16), (1, 8, 5, 7)],
    Case(12, 4, FLOAT, (None, None), "relu"): [(2, 12, 9), (1, 12, 16)],
    Case(16, 4, FLOAT, (FLOAT, FLOAT), "gelu_erf", "310P"): [(2, 16, 4, 4), (1, 16, 16, 31)],
    Case(32, 4, family="310P"): [(2, 32, 4, 4), (1, 32, 16, 31)],
    Case(16, 16, FLOAT, (FLOAT16, FLOAT), activation="none", family="310P"): [(5, 16, 16), (1, 16, 16, 40)],
}


def check(case: Case, shape: tuple[int, ...], chip: Platform, programs: Path, mean: float = 0.7) -> bool:
    """Runs a kernel in the twin; whether a group was on chip whole."""
    kernel = case.render()
    rng = np.random.default_rng(sum(shape))
    shapes = {"x": shape, "gamma": (case.channels,), "beta": (case.channels, 1, 1)}
    inputs = {n: encode(rng.normal(size=shapes[n]) + mean, t) for n, t in case.dtypes.items() if n != "y"}
    result = run_kernel(kernel, inputs, platform=chip, cache=programs)
    want = evaluate(kernel.signature, {n: decode(a, case.dtypes[n]) for n, a in inputs.items()}, 0, 0, 0)["y"]
    got = decode(result.outputs["y"], case.dtype)
    assert got.shape == shape
    if want.size:
        assert np.abs(got - want).max() <= TOLERANCE[case.dtype] * max(1.0, np.abs(want).max())
    predicted = predict(kernel, {name: array.shape for name, array in inputs.items()}, chip)
    assert not isinstance(predicted, str)
    counted = {**result.counters, **result.counters["peak"]}
    assert {name: counted[name] for name in predicted} == predicted
    assert counted["ub"] <= chip.ub
    return plan(problem_of(case.attributes, case.dtypes, {"x": shape}, case.family), chip).whole


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernel_computes_and_moves_what_is_said(case: Case, programs: Path) -> None:
    forms = set()
    for shape in CASES[case]:
        forms.add(check(case, shape, CHIPS[case.family], programs))
        forms.add(check(case, shape, cramped(case), programs))
    assert True in forms


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_groups_in_chunks_keep_a_large_mean(programs: Path) -> None:
    case = next(iter(CASES))
    assert not check(case, (1, 8, 60, 41), cramped(case), programs, mean=0.0)
    case = Case(6, 6, FLOAT, (FLOAT, FLOAT), activation="none")
    assert not check(replace(case, channels=6), (1, 6, 60, 41), cramped(case), programs, mean=30.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"groups": 3}, "do not divide"),
        ({"activation": "swiglu"}, "are possible"),
        ({"family": "310P", "dtype": BFLOAT16}, "no bfloat16"),
    ],
)
def test_signatures_that_no_kernel_has(changes: dict[str, Any], said: str) -> None:
    case = replace(Case(8, 4), **changes)
    found = refusal_of(SPEC, case.attributes, case.dtypes, SOCS[case.family])
    assert found is not None
    assert said in found


@pytest.mark.parametrize(
    ("case", "shape", "chip", "said"),
    [
        (Case(32, 4, family="310P"), (1, 32, 3, 5), CHIPS["310P"], "multiples of 16"),
        (Case(8, 4), (1, 8, 0), CHIPS["910B"], "1 to 2^30"),
        (Case(8, 4), (1, 8, 64), replace(CHIPS["910B"], ub=1000), "fit in UB"),
    ],
)
def test_sizes_that_the_kernel_does_not_take(case: Case, shape: tuple[int, ...], chip: Platform, said: str) -> None:
    found = refusal(problem_of(case.attributes, case.dtypes, {"x": shape}, case.family), chip)
    assert found is not None
    assert said in found


def unet(element: str, batch: str = "1", size: int = 32) -> onnx.ModelProto:
    bits = {"float": ("1", "0"), "float16": ("15360", "0")}[element]
    ones, zeros = (",".join([bit] * 32) for bit in bits)
    return parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    m ({element}[{batch},320,{size},{size}] x, {element}[320,1,1] g, {element}[320,1,1] b)
      => ({element}[{batch},320,{size},{size}] y)
    <int64[3] to = {{0,32,-1}}, {element}[32] one = {{{ones}}}, {element}[32] zero = {{{zeros}}}> {{
      r = Reshape(x, to)
      i = InstanceNormalization(r, one, zero)
      s = Shape(x)
      k = Reshape(i, s)
      m = Mul(k, g)
      n = Add(m, b)
      gate = Sigmoid(n)
      y = Mul(n, gate)
    }}""")


@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend310P3"])
@pytest.mark.parametrize(("element", "batch"), [("float16", "1"), ("float", "N")])
def test_a_block_of_a_unet_is_one_launch(soc: str, element: str, batch: str) -> None:
    result = optimize(unet(element, batch), soc=soc)
    (fusion,) = result.report["fusions"]
    assert (fusion["rule"], fusion["op"], fusion["launches_saved"]) == ("group_norm_silu", "FusedGroupNormSilu", 4)
    assert fusion["attributes"]["num_groups"] == 32
    assert [n.op_type for n in result.model.graph.node] == ["FusedGroupNormSilu"]
    assert result.report["summary"]["launches_after"] == 1
