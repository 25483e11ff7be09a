"""Test vectors of element-wise kernels: finite results, and only as many plain numbers as that takes."""

from __future__ import annotations

import numpy as np
import pytest

from atcfuse.codegen import render_kernel
from atcfuse.codegen.signature import FLOAT, FLOAT16
from atcfuse.elementwise import parse_expression
from atcfuse.kernel import load_kernels
from atcfuse.resources import data_folder
from atcfuse.vectors import vector_files

SPEC = load_kernels(data_folder("kernels"))["elementwise"]
HALF = {FLOAT: np.dtype("<f4"), FLOAT16: np.dtype("<f2")}


def vectors(text: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs and expected results of the kernel of an expression."""
    expression = parse_expression(text)
    types = {f"x{i + 1}": x.dtype for i, x in enumerate(expression.inputs)}
    types |= {f"y{i + 1}": dtype for i, dtype in enumerate(expression.output_types)}
    kernel = render_kernel(SPEC, {"expression": text}, types, "Ascend910B1")
    files = vector_files(kernel, {"expression": text}, 17)
    inputs, expected = {}, {}
    for path, data in files.items():
        name = path.rpartition("/")[2].removesuffix(".bin")
        if path.endswith(".bin"):
            (inputs if path.startswith("inputs/") else expected)[name] = np.frombuffer(data, HALF[types[name]])
    return inputs, expected


@pytest.mark.parametrize(
    ("text", "varied"),
    [
        ("columns 0; x1: float16 full; t1: float16 = Sub(0x1.0000000000000p+0, x1); t2: float16 = Mul(t1, -0x1.fffffe0000000p+127); out t2", 0),
        ("columns 0; x1: float16 full; t1: float16 = Exp(x1); t2: float16 = Exp(t1); t3: float16 = Exp(t2); out t3", 0.2),
        ("columns 1; x1: float32 full; x2: float32 row; t1: float32 = Sub(x1, x2); t2: float32 = Div(x1, t1); out t2", 0.05),
        ("columns 0; x1: float32 full; t1: float32 = Sub(x1, 0x1.0000000000000p+0); t2: float32 = Log(t1); out t2", 0.05),
        ("columns 0; x1: float32 full; t1: float32 = Tanh(x1); out t1", 0.1),
    ],
)  # fmt: skip
def test_results_are_finite(text: str, varied: float) -> None:
    inputs, expected = vectors(text)
    assert all(np.isfinite(array).all() for array in (*inputs.values(), *expected.values()))
    assert expected["y1"].size == 384
    assert float(expected["y1"].astype(np.float64).std()) >= varied
