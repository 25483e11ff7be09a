"""Instructions on virtual registers, and their assignment to planes, columns and bit tiles in the unified buffer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Pool = Literal["plane", "bits", "column", "columnBits", "fixed"]
"""A plane has an element for every one of a tile, a column one for every row; bits are masks of either."""
Side = Literal["full", "column"]
"""Whether an instruction works on all elements of a tile or on one value a row."""
COUNTS: dict[Side, str] = {"full": "count", "column": "rowCount"}
"""The C++ variables that hold how many elements an instruction takes."""

BUFFERED = ("Erf", "Tanh", "Sigmoid", "Sin", "Cos")
"""Calls that need the temporary buffer."""
SPREAD = "SpreadColumn"
ROW_CALLS = frozenset({SPREAD, "SumRows", "MaxRows", "MinRows"})
"""Helpers of the kernel that go row by row."""
_SCRATCH = {
    **dict.fromkeys(BUFFERED, "temporary"),
    **dict.fromkeys(("CompareScalar", "Select"), "reserved"),
    **dict.fromkeys(ROW_CALLS - {SPREAD}, "work"),
    SPREAD: "lanes",
}
"""Memory beside their operands that instructions write."""
PASSES = {"Erf": 23, "Tanh": 6, "Sigmoid": 4, "Sin": 27, "Cos": 34}
"""Vector instructions an element passes in a call, where it is not one."""


@dataclass(frozen=True)
class Register:
    """A virtual register. `fixed` ones are parts of queues and loaded operands, named in `name`."""

    pool: Pool
    index: int
    name: str = ""


@dataclass(frozen=True)
class Instruction:
    """One call: `text` with `{d}` for the destination, `{0}`, `{1}` … for sources, `{n}` for the count.

    `apart` forbids source and destination to overlap.
    """

    call: str
    text: str
    target: Register
    sources: tuple[Register, ...]
    apart: bool = False
    side: Side = "full"


@dataclass(frozen=True)
class Program:
    """Instructions with their registers assigned, and how many planes, bit tiles and columns of both they need at once.

    `temporary` says whether an activation needs its buffer. `lines` are C++ statements with barriers. An element passes
    `passes` instructions; a row beside that `row_passes` on its one value and `row_calls` that take its columns.
    """

    lines: tuple[str, ...]
    planes: int
    bits: int
    temporary: bool
    passes: int
    columns: int = 0
    column_bits: int = 0
    row_passes: int = 0
    row_calls: int = 0
    spreads: bool = False
    reduces: bool = False


def assigned(code: Sequence[Instruction]) -> Program:
    """Linear scan: a register is free after its last use, and the last reader may write into it where it can."""
    last: dict[Register, int] = {}
    for at, instruction in enumerate(code):
        for register in (*instruction.sources, instruction.target):
            last[register] = at
    free: dict[str, list[int]] = {}
    used: Counter[str] = Counter()
    place: dict[Register, int] = {}
    lines: list[str] = []
    hazards = _Hazards()
    for at, instruction in enumerate(code):
        dying = [r for r in dict.fromkeys(instruction.sources) if r in place and last[r] == at]
        if not instruction.apart:
            _release(dying, place, free)
        target = instruction.target
        if target.pool != "fixed" and target not in place:
            pool = free.setdefault(target.pool, [])
            if not pool:
                pool.append(used[target.pool])
                used[target.pool] += 1
            pool.sort()
            place[target] = pool.pop(0)
        shared = [_SCRATCH[instruction.call]] if instruction.call in _SCRATCH else []
        sources = [_name(r, place) for r in instruction.sources]
        if hazards.meets([_name(target, place), *shared], sources):
            lines.append("PipeBarrier<PIPE_V>();")
        lines.append(_text(instruction, place))
        if instruction.apart:
            _release(dying, place, free)
        if target in place and last[target] == at:
            _release([target], place, free)
    lines.append("PipeBarrier<PIPE_V>();")
    return _program(lines, code, used)


def _program(lines: Sequence[str], code: Sequence[Instruction], used: Counter[str]) -> Program:
    calls = {i.call for i in code}
    own = [i for i in code if i.call not in ROW_CALLS]
    return Program(
        lines=tuple(lines),
        planes=used["plane"],
        bits=used["bits"],
        temporary=any(call in BUFFERED for call in calls),
        passes=sum(PASSES.get(i.call, 1) for i in own if i.side == "full"),
        columns=used["column"],
        column_bits=used["columnBits"],
        row_passes=sum(PASSES.get(i.call, 1) for i in own if i.side == "column"),
        row_calls=len(code) - len(own),
        spreads=SPREAD in calls,
        reduces=bool(calls & (ROW_CALLS - {SPREAD})),
    )


def _release(registers: Sequence[Register], place: dict[Register, int], free: dict[str, list[int]]) -> None:
    for register in registers:
        index = place[register]
        if index not in free[register.pool]:
            free[register.pool].append(index)


class _Hazards:
    """Which instruction must wait for an earlier one of the vector pipe."""

    def __init__(self) -> None:
        self._written: set[str] = set()
        self._read: set[str] = set()

    def meets(self, targets: Sequence[str], sources: Sequence[str]) -> bool:
        """Whether a barrier is needed before an instruction; it is noted in either case."""
        touched = self._written | self._read
        meets = any(t in touched for t in targets) or any(s in self._written for s in sources)
        if meets:
            self._written, self._read = set(), set()
        self._written.update(targets)
        self._read.update(sources)
        return meets


def _name(register: Register, place: dict[Register, int]) -> str:
    return register.name if register.pool == "fixed" else f"{register.pool}{place[register]}"


class _Shown:
    """A register in a format string: `{0}` as it is, `{0:half}` as a plane of another element type."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __format__(self, kind: str) -> str:
        return f"{self._text}.ReinterpretCast<{kind}>()" if kind else self._text


def _text(instruction: Instruction, place: dict[Register, int]) -> str:
    sources = [_Shown(_name(r, place)) for r in instruction.sources]
    target = _Shown(_name(instruction.target, place))
    return instruction.text.format(*sources, d=target, n=COUNTS[instruction.side]) + ";"
