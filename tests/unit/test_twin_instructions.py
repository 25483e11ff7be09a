"""The twin's vector instructions and casts, one at a time, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from twin_programs import execute, needs_compiler

pytestmark = needs_compiler

UNITS = [
    "add",
    "sub",
    "mul",
    "div",
    "max",
    "min",
    "add_relu",
    "mul_add_dst",
    "fused_mul_add",
    "exp",
    "ln",
    "abs",
    "sqrt",
    "relu",
    "rsqrt",
    "reciprocal",
    "adds",
    "muls",
    "maxs",
    "mins",
    "leaky_relu",
    "axpy",
    "erf",
    "tanh",
    "sigmoid",
    "sin",
    "cos",
    "select",
    "block_sum",
    "block_max",
    "pair_sum",
    "sum",
    "largest",
    "smallest",
    "brcb",
    "bit_mask",
    "strided_blocks",
]


def unit_reference(unit: str, x: np.ndarray, z: np.ndarray, s: float, block: int) -> np.ndarray:
    """What y must hold, in float64; y starts as ones. x and z are float64; `block` elements are 32 bytes."""
    d = np.ones_like(x)
    element_wise = {
        "add": lambda: x + z,
        "sub": lambda: x - z,
        "mul": lambda: x * z,
        "div": lambda: x / z,
        "max": lambda: np.maximum(x, z),
        "min": lambda: np.minimum(x, z),
        "add_relu": lambda: np.maximum(x + z, 0),
        "mul_add_dst": lambda: x * z + 1,
        "fused_mul_add": lambda: x + z,
        "exp": lambda: np.exp(x),
        "ln": lambda: np.log(x),
        "abs": lambda: abs(x),
        "sqrt": lambda: np.sqrt(x),
        "relu": lambda: np.maximum(x, 0),
        "adds": lambda: x + s,
        "muls": lambda: x * s,
        "maxs": lambda: np.maximum(x, s),
        "mins": lambda: np.minimum(x, s),
        "leaky_relu": lambda: np.where(x >= 0, x, x * s),
        "axpy": lambda: x * s + 1,
        "erf": lambda: np.vectorize(math.erf)(x),
        "tanh": lambda: np.tanh(x),
        "sin": lambda: np.sin(x),
        "cos": lambda: np.cos(x),
        "sigmoid": lambda: 1 / (1 + np.exp(-x)),
        "select": lambda: np.where(x > z, x, z),
        "bit_mask": lambda: np.where(np.arange(x.size) % 2 == 1, x + z, 1),
    }
    if unit in element_wise:
        return element_wise[unit]()
    results = {
        "block_sum": x.reshape(-1, block).sum(1),
        "block_max": x.reshape(-1, block).max(1),
        "pair_sum": x.reshape(-1, 2).sum(1),
        "sum": x.sum(keepdims=True),
        "largest": x.max(keepdims=True),
        "smallest": x.min(keepdims=True),
        "brcb": np.repeat(x[: x.size // block], block),
        "strided_blocks": np.concatenate(
            [np.concatenate([x[b * block : (b + 1) * block] + z[:block], d[:block]]) for b in range(8)]
        ),
    }[unit]
    d[: results.size] = results
    return d


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("unit", UNITS)
def test_each_vector_instruction_agrees_with_numpy(tmp_path, unit, dtype):
    count, scalar = 512, 0.375
    rng = np.random.default_rng(len(unit))
    x = rng.uniform(-2, 2, count).astype(dtype)
    z = rng.uniform(0.5, 2, count).astype(dtype)
    if unit in ("ln", "sqrt", "rsqrt", "reciprocal"):
        x = abs(x) + dtype(0.25)
    numbers = [UNITS.index(unit), count, scalar, int(dtype is np.float16)]
    y, _ = execute(tmp_path, "units", 1, numbers, x=x, z=z)
    got, wide, other = y.view(dtype).astype(np.float64), x.astype(np.float64), z.astype(np.float64)
    close = 2e-6 if dtype is np.float32 else 1e-3
    if unit in ("rsqrt", "reciprocal"):  # the chip misses; a kernel that relies on more digits must notice
        exact = 1 / np.sqrt(wide) if unit == "rsqrt" else 1 / wide
        assert np.allclose(got, exact, rtol=2e-3)
        assert not np.allclose(got, exact, rtol=1e-4)
        return
    block = 32 // np.dtype(dtype).itemsize
    slack = {"sum": 30.0, "block_sum": 10.0, "pair_sum": 3.0}.get(unit, 3.0)
    assert np.allclose(got, unit_reference(unit, wide, other, scalar, block), rtol=slack * close, atol=slack * close)


ROUNDING = {"none": 0, "rint": 1, "floor": 2, "ceil": 3, "round": 4, "trunc": 5, "odd": 6}


def rounded_to(
    values: np.ndarray, neighbours: tuple[np.ndarray, np.ndarray], mode: str, even: np.ndarray
) -> np.ndarray:
    """The right neighbour of exact float64 values. `even`: whether the lower neighbour's last bit is 0."""
    low, high = neighbours
    toward_zero = np.where(values >= 0, low, high)
    middle = (low + high) / 2
    away = np.where(values >= 0, high, low)
    tie = np.where(mode == "round", away, np.where(even, low, high))
    nearest = np.where(values < middle, low, np.where(values > middle, high, tie))
    odd = np.where(low == values, low, np.where(even, high, low))
    return {"floor": low, "ceil": high, "trunc": toward_zero, "odd": odd}.get(mode, nearest)


@pytest.mark.parametrize(
    ("target", "mode"),
    [
        *(("half", mode) for mode in ROUNDING),
        *(("bfloat16", mode) for mode in ROUNDING if mode not in ("none", "odd")),  # which the twin refuses
    ],
)
def test_rounding_modes_pick_the_right_neighbour(tmp_path, target, mode):
    rng = np.random.default_rng(7)
    spread = np.exp2(rng.uniform(-26, 15, 2000)) * rng.choice([-1, 1], 2000)
    ties = np.arange(1, 65) / 64 + 1 + 2.0**-11  # half-way between two halves
    x = np.concatenate([spread, ties, -ties, [0.0, -0.0, 2.0**-24, 2.0**-25, 1.5 * 2**-24, 65504.0, 1 / 3, -1 / 3]])
    x = np.pad(x, (0, -len(x) % 16)).astype(np.float32)
    key, drop = (0, None) if target == "half" else (1, 16)
    y, _ = execute(tmp_path, "casts", 1, [ROUNDING[mode], len(x), key, 2], x=x)
    wide = x.astype(np.float64)
    if target == "half":
        got = y.view(np.float16).astype(np.float64)
        near = x.astype(np.float16)
        low = np.where(near.astype(np.float64) > wide, np.nextafter(near, np.float16(-np.inf)), near)
        with np.errstate(over="ignore"):
            high = np.where(low.astype(np.float64) < wide, np.nextafter(low, np.float16(np.inf)), low)
        even = low.view(np.uint16) % 2 == 0
    else:
        got = (y.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        bits = x.view(np.uint32)
        inner = bits >> drop << drop
        outer = np.where(bits == inner, inner, inner + (1 << drop)).astype(np.uint32)
        ends = inner.view(np.float32), outer.view(np.float32)
        low, high = np.minimum(*ends), np.maximum(*ends)
        even = (low.view(np.uint32) >> drop) % 2 == 0
    expected = rounded_to(wide, (low.astype(np.float64), high.astype(np.float64)), mode, even)
    assert np.array_equal(got, expected)


def test_integer_casts_and_exact_widening(tmp_path):
    x = np.tile(np.array([2.5, -2.5, 3.5, -0.5, 1e6, -7.25, 0.0, 8.75], np.float32), 2)
    expected = {
        "rint": np.rint,
        "floor": np.floor,
        "ceil": np.ceil,
        "trunc": np.trunc,
        "round": lambda v: np.sign(v) * np.floor(abs(v) + 0.5),
    }
    for mode, rounding in expected.items():
        y, _ = execute(tmp_path, "casts", 1, [ROUNDING[mode], 16, 2, 4], x=x)
        assert np.array_equal(y.view(np.int32), rounding(x).astype(np.int32)), mode
    for first in (0, 0x3E00, 0x8000, 0xBE00):  # every finite half, as many as fit UB at a time
        halves = np.arange(first, first + 0x3E00, dtype=np.uint16).view(np.float16)
        y, _ = execute(tmp_path, "casts", 1, [0, len(halves), 3, 4], x=halves)
        assert np.array_equal(y.view(np.float32), halves.astype(np.float32))
    small = np.arange(256, dtype=np.uint8)
    y, _ = execute(tmp_path, "casts", 1, [0, 256, 4, 2], x=small)
    assert np.array_equal(y.view(np.float16), small.astype(np.float16))
    y, _ = execute(tmp_path, "casts", 1, [0, 256, 5, 1], x=small.astype(np.float16))
    assert np.array_equal(y, small)


@pytest.mark.parametrize(
    ("rows", "columns", "gap", "left", "right", "blocks"),
    [
        (4, 20, 5, 0, 12, 1),
        (6, 16, 0, 0, 0, 0),
        (4, 21, 1, 3, 8, 2),
        (2, 1, 7, 15, 16, 3),
    ],
)
def test_copies_place_rows_gaps_and_padding(tmp_path, rows, columns, gap, left, right, blocks):
    x = np.arange(1, rows * (columns + gap) + 1).astype(np.float16)
    y, report = execute(tmp_path, "copies", 1, [rows, columns, gap, left, right, blocks], x=x)
    data = x.reshape(rows, columns + gap)[:, :columns]
    used = -(-(left + columns + right) // 16) * 16
    expected = np.full((rows, used + blocks * 16), -1, np.float16)
    expected[:, :left] = 7
    expected[:, left : left + columns] = data
    expected[:, left + columns : left + columns + right] = 7
    assert np.array_equal(y.view(np.float16).reshape(expected.shape), expected)
    half = np.fromfile(tmp_path / "y3.bin", np.float16).reshape(-1, 2, 16)
    assert np.array_equal(half[:, 0], expected.reshape(-1, 2, 16)[:, 0])
    assert np.isnan(half[:, 1]).all()
    assert report["tensor_bytes_read"] == rows * columns * 2
    if left == 0:
        out = np.fromfile(tmp_path / "y2.bin", np.float16).reshape(rows, columns + 3)
        assert np.array_equal(out[:, :columns], data)
        assert np.isnan(out[:, columns:]).all()
