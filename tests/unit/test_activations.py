"""Activations of kernels and of meanings: every one against float64, in the model of both chip families."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import onnxruntime as ort
import pytest
from onnx import checker, parser

from atcfuse.meaning import Writer
from atcfuse.tiling.activations import ACTIVATIONS, NONE, activation

KERNELS = Path(__file__).parents[2] / "kernels"
Array = np.ndarray[Any, np.dtype[Any]]

TRUTHS: Mapping[str, Callable[[float], float]] = {
    "gelu_erf": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_quick": lambda x: x / (1 + math.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0.0),
    "relu_squared": lambda x: max(x, 0.0) ** 2,
    "hard_swish": lambda x: x * min(max(x / 6 + 0.5, 0.0), 1.0),
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}
VALUES = np.concatenate([np.linspace(-12, 12, 2001), np.linspace(-0.01, 0.01, 101), [0.0, 60.0, -60.0]])

PROGRAM = """
#include "kernel_operator.h"
using namespace AscendC;
struct Tiling { int32_t count; int32_t scratch; int32_t temporary; };
{% for kind in kinds %}
{{ activations.define(kind, kind) }}
__aicore__ inline void run_{{ kind }}(GM_ADDR x, GM_ADDR y, GM_ADDR, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT({{ "KERNEL_TYPE_AICORE" if arch == 2002 else "KERNEL_TYPE_AIV_ONLY" }});
    GET_TILING_DATA_WITH_STRUCT(Tiling, data, tiling);
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffers[3];
    pipe.InitBuffer(buffers[0], data.count * sizeof(float));
    pipe.InitBuffer(buffers[1], data.scratch * sizeof(float));
    pipe.InitBuffer(buffers[2], data.temporary);
    GlobalTensor<float> in, out;
    in.SetGlobalBuffer((__gm__ float*)x);
    out.SetGlobalBuffer((__gm__ float*)y);
    const LocalTensor<float> values = buffers[0].Get<float>();
    DataCopy(values, in, data.count);
    const event_t loaded = static_cast<event_t>(pipe.FetchEventID(HardEvent::MTE2_V));
    SetFlag<HardEvent::MTE2_V>(loaded);
    WaitFlag<HardEvent::MTE2_V>(loaded);
    {{ kind }}(values, buffers[1].Get<float>(), buffers[2].Get<uint8_t>(), data.count);
    const event_t computed = static_cast<event_t>(pipe.FetchEventID(HardEvent::V_MTE3));
    SetFlag<HardEvent::V_MTE3>(computed);
    WaitFlag<HardEvent::V_MTE3>(computed);
    DataCopy(out, values, data.count);
}
{% endfor %}
#include "harness.h"
int main(int, char** argv)
{
    twin::Harness h({{ '"Ascend310P3"' if arch == 2002 else '"Ascend910B1"' }});
    const std::string folder = std::string(argv[1]) + "/";
    const Tiling tiling{std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4])};
    GM_ADDR x = h.input("x", folder + "x.bin");
    GM_ADDR y = h.output("y", tiling.count * sizeof(float));
    const std::string kind = argv[5];
{% for kind in kinds %}
    if (kind == "{{ kind }}") h.launch("{{ kind }}", run_{{ kind }}, 1, x, y, nullptr, h.tiling(tiling));
{% endfor %}
    h.save("y", folder + "y.bin");
    h.report(folder + "report.json");
}
"""


def environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(KERNELS)
    return jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)


@pytest.fixture(scope="module", params=[2201, 2002], ids=["910B", "310P"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp(f"activations{request.param}")
    template = environment().from_string('{% import "common/activations.inc" as activations %}' + PROGRAM)
    (folder / "main.cpp").write_text(template.render(kinds=list(ACTIVATIONS), arch=request.param))
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-D__NPU_ARCH__={request.param}", f"-I{KERNELS / 'twin'}"]
    subprocess.run(["g++", *flags, "main.cpp", "-o", "run"], cwd=folder, check=True)
    return folder


def run(program: Path, kind: str, values: Array, scratch: int, temporary: int) -> subprocess.CompletedProcess[str]:
    values.astype(np.float32).tofile(program / "x.bin")
    command = [program / "run", program, str(len(values)), str(scratch), str(temporary), kind]
    return subprocess.run(command, capture_output=True, text=True)


def truth(kind: str, values: Array) -> Array:
    return np.array([TRUTHS[kind](float(v)) for v in values])


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation_of_kernels_is_accurate_within_what_it_asks_for(kind: str, program: Path) -> None:
    values = np.resize(VALUES, 2112).astype(np.float32)
    needs = ACTIVATIONS[kind]
    done = run(program, kind, values, needs.scratch * len(values) or 8, needs.temporary or 32)
    assert done.returncode == 0, done.stderr
    error = np.abs(np.fromfile(program / "y.bin", np.float32) - truth(kind, values))
    assert (error <= 3e-7 * np.maximum(1, np.abs(values))).all(), error.max()
    calls = json.loads((program / "report.json").read_text())["calls"]
    assert sum(calls[name] for name in ("Erf", "Tanh", "Sigmoid", "Relu") if name in calls) == 1


@pytest.mark.parametrize("kind", [k for k, needs in ACTIVATIONS.items() if needs.scratch])
def test_scratch_is_needed(kind: str, program: Path) -> None:
    done = run(program, kind, np.zeros(256), 128, ACTIVATIONS[kind].temporary)
    assert done.returncode == 3
    assert "ub-range" in done.stderr


@pytest.mark.parametrize("opset", [9, 13, 18])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_meaning_is_the_activation(kind: str, opset: int) -> None:
    template = environment().from_string(
        '{% import "common/activation_meaning.inc" as a %}<ir_version: 8, opset_import: ["" : {{ w.opset }}]>\n'
        'g (float[N] x) => (float[N] y) {\n{{ a.lines(kind, "y", "x", w) }}}'
    )
    model = parser.parse_model(template.render(kind=kind, w=Writer(opset)))
    checker.check_model(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"x": VALUES.astype(np.float32)})
    error = np.abs(got - truth(kind, VALUES.astype(np.float32)))
    assert (error <= 1e-6 * np.maximum(1, np.abs(VALUES))).all(), error.max()


def test_no_activation_needs_nothing() -> None:
    assert activation("none") == NONE
    assert set(TRUTHS) == set(ACTIVATIONS)
