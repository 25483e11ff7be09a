"""The twin: right kernels agree with numpy and are counted exactly, broken ones are stopped by their rule."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from twin_programs import COMPILER, FLAGS, ROOT, SOC, SOURCES, built, execute, needs_compiler, run

VIOLATION = re.compile(
    r"twin: (?P<file>[^:]+):(?P<line>\d+): kernel (?P<kernel>.+), block (?P<block>-?\d+): rule (?P<rule>[\w-]+): "
)

pytestmark = needs_compiler


def traffic(report: dict[str, Any], name: str) -> dict[str, int]:
    return next(tensor for tensor in report["tensors"] if tensor["name"] == name)


# --- right kernels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "tile", "blocks"), [(5001, 512, 3), (16, 16, 1), (4096, 1024, 4)])
def test_add_is_exact_and_moves_each_byte_once(tmp_path, total, tile, blocks):
    rng = np.random.default_rng(total)
    a, b = (rng.normal(size=total).astype(np.float16) for _ in range(2))
    y, report = execute(tmp_path, "add", blocks, [total, tile], a=a, b=b)
    assert np.array_equal(y.view(np.float16), a + b)
    assert report["tensor_bytes_read"] == 2 * total * 2
    assert report["tensor_bytes_written"] == total * 2
    assert report["compulsory_bytes"] == 3 * total * 2
    assert report["peak"]["ub"] == 2 * (2 * tile * 2) + 2 * tile * 2
    assert report["calls"]["Add"] == -(-total // tile)


@pytest.mark.parametrize(("rows", "columns"), [(37, 773), (5, 64), (3, 7), (4, 4099)])
def test_layer_norm_agrees_with_numpy(tmp_path, rows, columns):
    rng = np.random.default_rng(columns)
    x = (rng.normal(size=(rows, columns)) + 5).astype(np.float16)
    gamma, beta = (rng.normal(size=columns).astype(np.float32) for _ in range(2))
    y, _ = execute(tmp_path, "layer_norm", 4, [rows, columns, 1e-5], x=x, gamma=gamma, beta=beta)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * gamma + beta
    assert np.allclose(y.view(np.float16).reshape(rows, columns), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("rows", "columns", "tile_rows"), [(37, 100, 16), (9, 64, 8), (5, 333, 8), (1, 1, 8)])
def test_softmax_from_basic_instructions_agrees_with_numpy(tmp_path, rows, columns, tile_rows):
    x = np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32) * 3
    y, report = execute(tmp_path, "softmax", 2, [rows, columns, tile_rows], x=x)
    e = np.exp(x - x.max(1, keepdims=True))
    assert np.allclose(y.view(np.float32).reshape(rows, columns), e / e.sum(1, keepdims=True), atol=1e-6)
    assert report["tensor_bytes_read"] == report["tensor_bytes_written"] == rows * columns * 4


@dataclass(frozen=True)
class Linear:
    """One Matmul: shape, rows a task, base block, and how L1 is filled."""

    rows: int
    n: int
    k: int
    task: int
    base: tuple[int, int, int]
    whole_k: bool = False
    order: int = 0
    step_m: int = 1
    step_n: int = 1
    transposed: bool = False
    bias: bool = False
    blockwise: bool = False

    def numbers(self) -> list[float]:
        flags = [self.whole_k, self.order, self.step_m, self.step_n, self.transposed, self.bias, self.blockwise]
        return [self.rows, self.n, self.k, self.task, *self.base, *map(int, flags)]


@pytest.mark.parametrize(
    "case",
    [
        Linear(37, 100, 200, 16, (16, 64, 64), whole_k=True, order=1, transposed=True, bias=True),
        Linear(37, 100, 200, 16, (16, 64, 64), whole_k=True, order=1, bias=True, blockwise=True),
        Linear(37, 33, 70, 20, (32, 48, 16), bias=True),
        Linear(5, 1, 16, 8, (16, 16, 16), transposed=True),
        Linear(130, 130, 65, 130, (64, 32, 48), order=1, step_m=2, step_n=1),
        Linear(130, 130, 65, 130, (64, 32, 48), whole_k=True, step_n=3, blockwise=True),
    ],
)
def test_matmul_with_tails_strides_transposes_and_bias(tmp_path, case):
    rng = np.random.default_rng(case.n)
    x = rng.normal(size=(case.rows, case.k + 3)).astype(np.float16)
    w = rng.normal(size=(case.n, case.k) if case.transposed else (case.k, case.n)).astype(np.float16)
    bias = rng.normal(size=case.n).astype(np.float32)
    y, _ = execute(tmp_path, "linear", 2, case.numbers(), x=x, w=w, bias=bias)
    pitch = case.n + 5
    rows = np.concatenate([y, np.full(5 * 4, 0xFF, np.uint8)]).view(np.uint32).reshape(case.rows, pitch)
    assert (rows[:, case.n :] == 0xFFFFFFFF).all()
    expected = x[:, : case.k].astype(np.float64) @ (w.T if case.transposed else w).astype(np.float64)
    expected += bias if case.bias else 0.0
    assert np.allclose(rows[:, : case.n].copy().view(np.float32), expected, atol=2e-4)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # Measured against the toolkit's own headers for 256 x 512 x 256 with a 64 x 128 x 64 base block.
        (Linear(256, 512, 256, 256, (64, 128, 64)), 1_572_864),
        (Linear(256, 512, 256, 256, (64, 128, 64), whole_k=True), 786_432),
        (Linear(256, 512, 256, 256, (64, 128, 64), whole_k=True, order=1, step_m=4), 393_216),
    ],
)
def test_matmul_reads_follow_what_stays_in_l1(tmp_path, case, expected):
    x = np.ones((case.rows, case.k + 3), np.float16)
    w = np.ones((case.k, case.n), np.float16)
    _, report = execute(tmp_path, "linear", 2, case.numbers(), x=x, w=w)
    assert traffic(report, "x")["read_by_cube"] + traffic(report, "w")["read_by_cube"] == expected
    assert traffic(report, "y")["written_by_cube"] == case.rows * case.n * 4
    # one task: SetOrgShape and IterateAll; End on each of the four vector cores
    assert report["message_bytes"] == 128 * (2 + 4)


def attention_reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int, causal: bool) -> np.ndarray:
    dim = q.shape[1] // heads
    out = np.zeros(q.shape)
    for h in range(heads):
        s = slice(h * dim, h * dim + dim)
        logits = q[:, s].astype(np.float64) @ k[:, s].T.astype(np.float64) * dim**-0.5
        if causal:
            logits = np.where(np.arange(len(k)) <= np.arange(len(q))[:, None], logits, -1e30)
        e = np.exp(logits - logits.max(1, keepdims=True))
        out[:, s] = e / e.sum(1, keepdims=True) @ v[:, s]
    return out


@pytest.mark.parametrize(
    ("heads", "queries", "keys", "dim", "m", "causal"),
    [
        (2, 64, 128, 64, 64, False),
        (2, 49, 97, 40, 16, False),
        (2, 256, 256, 64, 64, False),
        (2, 257, 257, 64, 64, True),
        (1, 70, 300, 24, 32, True),
        (3, 1, 200, 128, 16, False),
    ],
)
def test_flash_attention_agrees_with_numpy_and_with_the_byte_formula(tmp_path, heads, queries, keys, dim, m, causal):
    n = 128
    rng = np.random.default_rng(queries)
    q, k, v = (rng.normal(size=(length, heads * dim)).astype(np.float16) for length in (queries, keys, keys))
    y, report = execute(
        tmp_path, "attention", 2, [heads, queries, keys, dim, m, n, int(causal), dim**-0.5], q=q, k=k, v=v
    )
    expected = attention_reference(q, k, v, heads, causal)
    assert np.allclose(y.view(np.float16).reshape(queries, heads * dim), expected, atol=2e-3)

    read = written = workspace = visits = 0
    for first in range(0, queries, m):
        rows = min(m, queries - first)
        written += heads * 2 * rows * dim
        last = min(keys, first + rows) if causal else keys
        for column in range(0, last, n):
            columns = min(n, keys - column)
            read += heads * 2 * (rows * dim + columns * dim + columns * dim)
            workspace += heads * (4 * rows * columns + 2 * rows * columns + 4 * rows * dim)
            visits += heads
    assert report["tensor_bytes_read"] == read
    assert report["tensor_bytes_written"] == written
    assert report["workspace_bytes_read"] == report["workspace_bytes_written"] == workspace
    slot = m * n * 6 + m * dim * 4
    assert report["workspace_footprint"] <= 4 * slot
    # SetOrgShape and End of both objects on each core, and two products a visit
    assert report["messages"] == 2 * visits + 4 * 4


@pytest.mark.parametrize(
    ("rows", "total", "k", "n", "p"),
    [
        (32, 96, 48, 64, 32),
        (16, 16, 16, 16, 16),
        (48, 96, 64, 32, 80),
    ],
)
def test_310p_keeps_the_intermediate_on_chip(tmp_path, rows, total, k, n, p):
    rng = np.random.default_rng(total)
    x, w1, w2 = (rng.normal(size=shape).astype(np.float16) for shape in ((total, k), (k, n), (n, p)))
    for name, value in (("x", x), ("w1", w1), ("w2", w2)):
        value.tofile(tmp_path / f"{name}.bin")
    command = [str(built().run310p), str(tmp_path), "2", *map(str, (rows, total, k, n, p))]
    done = run(command)
    assert done.returncode == 0, done.stderr
    y = np.fromfile(tmp_path / "y.bin", np.float32).reshape(total, p)
    between = (x.astype(np.float32) @ w1.astype(np.float32)).astype(np.float16)
    assert np.allclose(y, between.astype(np.float64) @ w2, atol=0.05)
    report = json.loads((tmp_path / "report.json").read_text())
    tasks = total // rows
    assert report["tensor_bytes_read"] == 2 * (total * k + tasks * (k * n + n * p))
    assert report["tensor_bytes_written"] == 4 * total * p
    assert report["workspace_bytes_read"] == report["workspace_bytes_written"] == report["message_bytes"] == 0


# --- broken kernels --------------------------------------------------------------------------------------------------


def listed(program: Path) -> list[tuple[str, str]]:
    text = run([str(program), "--list"]).stdout
    return [(line.split()[0], line.split()[1]) for line in text.splitlines()]


def marked(match: re.Match[str]) -> bool:
    """Whether the reported source line is the one that the case marks."""
    source = SOURCES / "broken" / Path(match["file"]).name
    return source.read_text().splitlines()[int(match["line"]) - 1].rstrip().endswith("// caught")


@pytest.mark.parametrize(("arch", "at_least"), [(2201, 130), (2002, 14)])
def test_every_broken_kernel_is_stopped_by_its_rule_and_its_repair_passes(arch, at_least):
    program = built().broken[arch]
    names = listed(program)
    assert len(names) >= at_least
    wrong = []
    for name, rule in names:
        broken = run([str(program), name, "broken", SOC[arch]])
        match = VIOLATION.match(broken.stderr)
        if broken.returncode != 3 or match is None or match["rule"] != rule or match["kernel"] != name:
            wrong.append(f"{name}: expected {rule}, got {broken.returncode} {broken.stderr}")
        elif not marked(match):
            wrong.append(f"{name}: reported at another line: {broken.stderr}")
        fixed = run([str(program), name, "fixed", SOC[arch]])
        if fixed.returncode != 0:
            wrong.append(f"{name} repaired: {fixed.stderr}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("what", "code", "text"),
    [
        ("unsupported_chip", 3, "rule device-unsupported"),
        ("outside_kernel", 3, "rule outside-kernel"),
        ("undeclared_kernel", 3, "rule kernel-type"),
        ("unwritten_output", 3, "rule output-unwritten"),
        ("missing_file", 4, "cannot read no/such/file.bin"),
        ("workspace_without_system_part", 4, "the system part alone takes"),
    ],
)
def test_mistakes_around_a_kernel(what, code, text):
    done = run([str(built().broken[2201]), "around", what])
    assert done.returncode == code
    assert text in done.stderr


def test_launches_follow_one_another():
    """What one launch wrote, any core of the next may read; counters add up."""
    done = run([str(built().broken[2201]), "around", "two_launches"])
    assert done.returncode == 0, done.stderr
    y = traffic(json.loads(done.stdout), "y")
    assert (y["written_by_vector"], y["read_by_vector"]) == (256, 256)


def test_half_overflow_can_be_allowed_and_is_counted():
    done = run([str(built().broken[2201]), "around", "allowed_overflow"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["half_overflows"] == 48


def test_what_is_not_modelled_does_not_compile(tmp_path):
    source, headers = SOURCES / "refused.cpp", tmp_path / "headers.h"
    headers.write_text("".join(re.findall(r'^#include "(?:.*)"\n', source.read_text(), re.M)))
    # Read once for all cases. What cannot be precompiled, or used so, is read as it is.
    run([str(COMPILER), *FLAGS, "-x", "c++-header", str(headers), "-o", f"{headers}.gch"])
    cases = range(len(re.findall(r"#(?:if|elif) CASE ==", source.read_text())) + 1)

    def compiles(case: int) -> bool:
        command = [str(COMPILER), *FLAGS, "-fsyntax-only", f"-DCASE={case}", "-include", str(headers), str(source)]
        return run(command).returncode == 0

    with ThreadPoolExecutor(2) as pool:
        outcome = list(pool.map(compiles, cases))
    assert outcome == [True] + [False] * (len(cases) - 1)


def test_every_rule_of_the_source_is_documented_and_has_a_broken_kernel():
    """A rule without a case would be a promise nobody checked."""
    twin = ROOT / "kernels" / "twin"
    headers = "".join(path.read_text() for path in sorted(twin.rglob("*.h")))
    rules = set(re.findall(r'fail\([^;]*?"([a-z0-9]+(?:-[a-z0-9]+)+|mask|repeat|stride|count|overlap)"', headers))
    covered = {rule for program in built().broken.values() for _, rule in listed(program)}
    covered |= {"device-unsupported", "outside-kernel", "output-unwritten"}
    assert rules - covered == set()
    section = (twin / "README.md").read_text().split("## Rules")[1].split("## Not modelled")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    documented = {name for cell in first_cells for name in re.findall(r"`([a-z0-9-]+)`", cell)}
    assert documented == covered
