"""Tiling of the `ffn` and `layer_norm_ffn` kernels and the bytes that they move.

`plan` computes what the kernels' own `ffn_host.inc` computes on the host of the chip; `predict` counts what a kernel
then moves and holds, to the byte, as the twin counts it. Integers only, so that both sides agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from atcfuse.tiling import Platform, ceil_div, round_up
from atcfuse.tiling.activations import activation
from atcfuse.tiling.cube import MAX_ROWS, Counts, CubeTiling, Prediction, divisor_up_to, tasks_of
from atcfuse.tiling.ffn_problem import Problem

_MAX_UNIT = 256
_BASE_K_BYTES = 128
_FRACTAL = 16
_LANE = 64
_SMALL_BYTES = 320
_STATISTICS_BYTES = 64
_SLOT_ALIGNMENT = 512
_L1_RESERVE = 2_048
_MOST_PART = 2_048
_MOST_INNER_BYTES = 1 << 20
_LOAD_BYTES = 32  # into L1, a cycle
_NORM_INSTRUCTIONS, _RESULT_INSTRUCTIONS = 25, 8  # of a row, each
_VECTOR_INSTRUCTIONS = 2  # of a row, for each vector that is applied to the result
_FACTOR_INSTRUCTIONS = 4  # of a row, for each projection that an activation reads
_START_UP = 16  # cycles of a vector instruction beside its repeats
_STREAMED_STEP = 4  # base blocks along K in L1 where A does not stay there


@dataclass(frozen=True)
class Plan:
    """The tiling: rows of a task, hidden columns of a chunk, columns on chip, and how the cube cuts both products."""

    problem: Problem
    blocks: int
    rows_per_task: int
    inner_chunk: int
    chunk_columns: int
    slot_bytes: int
    up: CubeTiling
    down: CubeTiling

    @property
    def tasks(self) -> int:
        """Blocks of rows."""
        return ceil_div(self.problem.rows, self.rows_per_task)

    @property
    def row_fits(self) -> bool:
        """Whether a row is on chip whole; otherwise a norm reads x twice."""
        return self.chunk_columns >= self.problem.hidden

    @property
    def workspace_bytes(self) -> int:
        """User workspace that the host asks for."""
        return 2 * self.blocks * self.slot_bytes

    @property
    def chunks(self) -> list[int]:
        """Hidden columns of each chunk."""
        inner, chunk = self.problem.inner, self.inner_chunk
        return [min(chunk, inner - first) for first in range(0, inner, chunk)]

    def tasks_of(self, core: int) -> range:
        """The tasks of a vector core."""
        return tasks_of(core, self.blocks, self.tasks)

    def rows_of(self, task: int) -> int:
        """Rows of a task; the last block may be shorter."""
        return min(self.rows_per_task, self.problem.rows - task * self.rows_per_task)


def plan(problem: Problem, chip: Platform) -> Plan:
    """The tiling of a problem that is not refused."""
    rows = _rows(problem, chip)
    chunk = _inner_chunk(problem, rows)
    l1 = chip.l1 - _L1_RESERVE
    up_share = l1 * 5 // 8
    up_bias, gate_bias, down_bias = problem.biases
    up = _product(problem, chip, rows, chunk, problem.hidden, up_share, up_bias or gate_bias)
    down = _product(problem, chip, rows, problem.columns, chunk, l1 - up_share, down_bias)
    return Plan(
        problem=problem,
        blocks=max(1, min(chip.cube_cores, ceil_div(problem.rows, rows))),
        rows_per_task=rows,
        inner_chunk=chunk,
        chunk_columns=_chunk_columns(problem, chip),
        slot_bytes=_slot_bytes(problem, rows, chunk),
        up=up,
        down=down,
    )


def predict(tiling: Plan) -> Prediction:
    """What one launch with this tiling moves and holds."""
    problem, size = tiling.problem, tiling.problem.element_bytes
    counts = _Counts()
    for core in range(2 * tiling.blocks):
        counts.add_core(tiling, core)
    kept = problem.rows * problem.hidden * size if problem.norm is not None and problem.norm.kept else 0
    written = problem.rows * problem.columns * size + kept
    return counts.prediction(_input_bytes(problem), written, _ub_bytes(tiling), _peaks(tiling))


def _peaks(tiling: Plan) -> dict[str, int]:
    """Bytes of the cube's memories: L1 has room for both products, the others for one at a time."""
    problem, size = tiling.problem, tiling.problem.element_bytes
    bias_bytes = 2 if size == 2 and not problem.widens_bias else 4
    up_bias, gate_bias, down_bias = problem.biases
    up = tiling.up.peaks(size, bias_bytes if up_bias or gate_bias else 0)
    down = tiling.down.peaks(size, bias_bytes if down_bias else 0)
    return {memory: up[memory] + down[memory] if memory == "l1" else max(up[memory], down[memory]) for memory in up}


class _Counts(Counts):
    """Those of the kernel, core by core."""

    def add_core(self, tiling: Plan, core: int) -> None:
        self.messages += 2  # End of both products
        tasks = tiling.tasks_of(core)
        if not tasks:
            return
        problem, size = tiling.problem, tiling.problem.element_bytes
        self.messages += 2  # shapes of both products
        if problem.widens_bias:
            elements = sum(problem.bias_sizes)
            self.tensor_read += elements * size
            self.workspace_written += elements * 4
            self.footprint += elements * 4
        for count, task in enumerate(tasks):
            self._add_norm(tiling, tiling.rows_of(task), first=count == 0)
            self._add_task(tiling, tiling.rows_of(task))
        held = problem.factors * tiling.chunks[0] * size + problem.columns * 4
        held += problem.hidden * size if problem.norm is not None else 0
        self.footprint += tiling.rows_of(tasks[0]) * held

    def _add_norm(self, tiling: Plan, rows: int, first: bool) -> None:
        """Rows are read once, or twice where they do not fit, and written to the slot."""
        problem, norm, size = tiling.problem, tiling.problem.norm, tiling.problem.element_bytes
        if norm is None:
            return
        reads = 1 if tiling.row_fits else 2
        self.tensor_read += rows * problem.hidden * size * reads
        self.tensor_read += problem.hidden * (norm.gamma_bytes + norm.beta_bytes) if first or reads == 2 else 0
        self.workspace_written += rows * problem.hidden * size
        self.workspace_read += rows * problem.hidden * size if norm.added else 0

    def _add_task(self, tiling: Plan, rows: int) -> None:
        problem, size = tiling.problem, tiling.problem.element_bytes
        row_bytes = problem.hidden * size
        for chunk in tiling.chunks:
            self.messages += problem.factors + 1
            read = problem.factors * rows * row_bytes * tiling.up.loads_of_a(chunk)
            if problem.norm is None:
                self.tensor_read += read
            else:
                self.workspace_read += read
            self.tensor_read += chunk * (problem.factors * problem.hidden + problem.columns) * size
            block = rows * chunk * size  # written by the cube, activated in place, read by the cube
            self.workspace_written += (problem.factors + 1) * block + rows * problem.columns * 4
            self.workspace_read += (problem.factors + tiling.down.loads_of_a(problem.columns)) * block
        self.workspace_read += rows * problem.columns * 4
        self.tensor_read += rows * problem.columns * size * (problem.residuals + problem.vectors)
        # A packed up bias has as many elements as the columns of both products that read it.
        biases = sum(problem.bias_sizes)
        if problem.widens_bias:
            self.workspace_read += biases * 4
        else:
            self.tensor_read += biases * size


def _input_bytes(problem: Problem) -> int:
    norm = problem.norm
    affine = problem.hidden * (norm.gamma_bytes + norm.beta_bytes) if norm is not None else 0
    residual = problem.rows * problem.columns * problem.residuals
    vectors = sum(problem.bias_sizes) + problem.columns * problem.vectors
    elements = problem.rows * problem.hidden + problem.weights + vectors + residual
    return elements * problem.element_bytes + affine


def _temporary(problem: Problem) -> int:
    return max(activation(problem.activation).temporary, 32)


def _ub_bytes(tiling: Plan) -> int:
    problem = tiling.problem
    total = tiling.chunk_columns * _bytes_per_column(problem) + _temporary(problem)
    if problem.norm is not None:
        total += _SMALL_BYTES + (0 if tiling.row_fits else tiling.rows_per_task * _STATISTICS_BYTES)
    return total


def _bytes_per_column(problem: Problem) -> int:
    norm = problem.norm
    affine = bool(norm.gamma_bytes) + bool(norm.beta_bytes) if norm is not None else 0
    return 4 * problem.element_bytes + 4 * (1 + problem.factors + affine)


def _chunk_columns(problem: Problem, chip: Platform) -> int:
    part = min(_MOST_PART, round_up(problem.inner, _FRACTAL))
    per_column, free = _bytes_per_column(problem), chip.ub - _temporary(problem)
    if problem.norm is None:
        return min(part, max(1, free // per_column // _LANE) * _LANE)
    whole = max(part, round_up(problem.hidden, _FRACTAL))
    if whole * per_column + _SMALL_BYTES <= free:
        return whole
    most = max(1, (free - _SMALL_BYTES - MAX_ROWS * _STATISTICS_BYTES) // per_column // _LANE) * _LANE
    return round_up(ceil_div(problem.hidden, ceil_div(problem.hidden, most)), _LANE)


def _rows(problem: Problem, chip: Platform) -> int:
    """Rows of a task: the fewest bytes among what is at most a quarter slower than possible."""
    candidates = [(rows, *_estimate(problem, chip, rows)) for rows in range(MAX_ROWS, 0, -_FRACTAL)]
    fastest = min(cycles for _, cycles, _ in candidates)
    rows, _, _ = min((c for c in candidates if c[1] <= fastest + fastest // 4), key=lambda c: c[2])
    return rows


def _estimate(problem: Problem, chip: Platform, rows: int) -> tuple[int, int]:
    """Cycles on the busiest core, and bytes into L1 of all tasks together."""
    tasks = ceil_div(problem.rows, rows)
    cube = rows * problem.weights // (4096 if problem.element_bytes == 2 else 1024)
    loaded = (rows * (problem.hidden + problem.inner) + problem.weights) * problem.element_bytes
    activated = activation(problem.activation).passes + _FACTOR_INSTRUCTIONS * problem.factors
    row = sum(
        instructions * (ceil_div(columns, _LANE) + _START_UP)
        for instructions, columns in (
            (_NORM_INSTRUCTIONS if problem.norm is not None else 0, problem.hidden),
            (activated, problem.inner),
            (_RESULT_INSTRUCTIONS + _VECTOR_INSTRUCTIONS * problem.vectors, problem.columns),
        )
    )
    busiest = ceil_div(tasks, chip.cube_cores) * max(cube, loaded // _LOAD_BYTES)
    vector = ceil_div(tasks, 2 * chip.cube_cores) * min(rows, problem.rows) * row
    return busiest + vector, tasks * loaded


def _unit(columns: int) -> int:
    return min(_MAX_UNIT, round_up(columns, 2 * _FRACTAL))


def _inner_chunk(problem: Problem, rows: int) -> int:
    unit = _unit(problem.inner)
    most = max(unit, _MOST_INNER_BYTES // (rows * problem.element_bytes * problem.factors) // unit * unit)
    return round_up(ceil_div(problem.inner, ceil_div(problem.inner, most)), unit)


def _product(problem: Problem, chip: Platform, m: int, n: int, k: int, l1: int, bias: bool) -> CubeTiling:
    size = problem.element_bytes
    base_m = round_up(m, _FRACTAL)
    base_n = min(_unit(n), chip.l0c // (8 * base_m) // (2 * _FRACTAL) * 2 * _FRACTAL)
    base_k = min(_BASE_K_BYTES // size, round_up(k, _FRACTAL))
    steps = ceil_div(k, base_k)
    tile_a, tile_b = base_m * base_k * size, base_n * base_k * size
    keeps_a = steps * tile_a <= l1 * 2 // 3
    free = l1 - (base_n * 4 if bias else 0)
    streamed = min(_STREAMED_STEP, max(1, (free - 2 * tile_b) // (2 * tile_a)))
    step_ka = steps if keeps_a else min(streamed, steps)
    depth_a = step_ka if keeps_a else 2 * step_ka
    step_kb = divisor_up_to(step_ka, (free - depth_a * tile_a) // (2 * tile_b))
    return CubeTiling(base_m, base_n, base_k, step_ka, depth_a, step_kb, keeps_a, db_l0c=1)


def _slot_bytes(problem: Problem, rows: int, chunk: int) -> int:
    """Workspace of a vector core: the parts of a slot one after another, each at a multiple of 512 bytes."""
    size = problem.element_bytes
    pitches = (round_up(problem.hidden, _FRACTAL) * size if problem.norm is not None else 0, chunk * size)
    parts = [*(rows * pitch for pitch in pitches), rows * chunk * size * (problem.factors - 1)]
    parts.append(rows * round_up(problem.columns, _FRACTAL) * 4)
    parts += [elements * 4 if problem.widens_bias else 0 for elements in problem.bias_sizes]
    return sum(round_up(part, _SLOT_ALIGNMENT) for part in parts)
