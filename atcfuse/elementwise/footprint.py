"""What the kernel of an expression holds on chip: for every element of a tile, and whatever the tile is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from atcfuse.elementwise.expression import (
    BFLOAT16,
    BOOL,
    COLUMN,
    FLOAT,
    FLOAT16,
    FULL,
    INT32,
    INT64,
    ROW,
    Expression,
)
from atcfuse.elementwise.lower import lower
from atcfuse.elementwise.registers import Program

TEMPORARY_BYTES = 12_288
COLUMN_ROWS = 256
"""Rows of a tile at most where a value is a column."""
WORK_FLOATS = 512
"""What reductions of a row of at most `MOST_ELEMENTS` need beside it: two floats for every 64."""
BITS_UNIT = 256
MOST_ELEMENTS = 63 * 256  # 255 repeats of 64 lanes spread a column over a row
ELEMENT_BYTES = {FLOAT: 4, INT32: 4, INT64: 8, FLOAT16: 2, BFLOAT16: 2, BOOL: 1}
_LANES = 64
_BLOCK_FLOATS = 8
_COLUMN_BITS_BYTES = 32


@dataclass(frozen=True)
class Needs:
    """What a kernel holds for every element of a tile: bytes of inputs and outputs, planes (row inputs' too), bits.

    Beside these `columns` of one float a row (loaded ones too), their bits, and bytes a row of outputs that are
    columns. `loads` is the most bytes of an element of a loaded column, `spreads` says that a column is spread over
    rows, `reduces` that rows are reduced.
    """

    in_bytes: int
    out_bytes: int
    planes: int
    bits: int
    temporary: bool
    columns: int = 0
    column_bits: int = 0
    column_out_bytes: int = 0
    loads: int = 0
    spreads: bool = False
    reduces: bool = False

    @property
    def raw_at(self) -> int:
        """The float of the columns' buffer where a column is loaded to."""
        return self.columns * COLUMN_ROWS

    @property
    def lanes_at(self) -> int:
        """Where the values of a column are blown up to blocks."""
        return self.raw_at + COLUMN_ROWS * max(self.loads, 4 if self.loads else 0) // 4

    @property
    def work_at(self) -> int:
        """Where reductions work."""
        return self.lanes_at + (COLUMN_ROWS * _BLOCK_FLOATS if self.loads or self.spreads else 0)

    @property
    def column_bytes(self) -> int:
        """The columns' buffer."""
        return 4 * (self.work_at + (WORK_FLOATS if self.reduces else 0))

    @property
    def column_bits_bytes(self) -> int:
        """Masks of columns."""
        return self.column_bits * _COLUMN_BITS_BYTES

    @property
    def by_rows(self) -> bool:
        """Whether a value is a column, which bounds the rows of a tile."""
        return bool(self.columns or self.column_out_bytes)

    @property
    def fixed_bytes(self) -> int:
        """Buffers whose size no tile changes."""
        stored = 2 * COLUMN_ROWS * self.column_out_bytes
        return (TEMPORARY_BYTES if self.temporary else 0) + self.column_bytes + self.column_bits_bytes + stored

    @property
    def eighths(self) -> int:
        """Eighths of a byte for an element of a tile: queues are doubled, planes are float, masks have a bit."""
        return 8 * (2 * self.in_bytes + 2 * self.out_bytes + 4 * self.planes) + self.bits

    def most_elements(self, ub: int) -> int:
        """Elements of the largest tile that fits, a multiple of `BITS_UNIT`; 0 where none does."""
        most = max(ub - self.fixed_bytes, 0) * 8 // max(self.eighths, 1) // BITS_UNIT * BITS_UNIT
        return min(most, MOST_ELEMENTS)


def own_planes(expression: Expression, program: Program, types: Sequence[int]) -> int:
    """Planes of the program; a row is loaded into the first one, and a mask widened through the second, which 64-bit
    integers need as well.
    """
    rows = [types[i] for i in expression.of_form(ROW)]
    return max(program.planes, 2 if BOOL in rows or INT64 in rows else 1 if rows else 0)


def needs_of(
    expression: Expression, program: Program, types: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]
) -> Needs:
    """What the kernel holds; `types` are the inputs' element types, `inputs` and `outputs` bytes of an element."""
    loaded = expression.of_form(COLUMN)
    made = list(zip(expression.output_kinds, outputs, strict=True))
    return Needs(
        in_bytes=sum(inputs[i] for i in expression.of_form(FULL)),
        out_bytes=sum(size for kind, size in made if kind == FULL),
        planes=own_planes(expression, program, types) + len(expression.of_form(ROW)),
        bits=program.bits,
        temporary=program.temporary,
        columns=program.columns + len(loaded),
        column_bits=program.column_bits,
        column_out_bytes=sum(size for kind, size in made if kind == COLUMN),
        loads=max((inputs[i] for i in loaded), default=0),
        spreads=program.spreads,
        reduces=program.reduces,
    )


@lru_cache(maxsize=1024)
def row_bytes(expression: Expression, columns: int) -> int:
    """Bytes on chip for one whole row of so many columns, in the model's own types or where ATC narrows float32."""
    pitch = -(-columns // _LANES) * _LANES
    found = []
    for narrow in (False, True):
        types = [FLOAT16 if narrow and given.dtype == FLOAT else given.dtype for given in expression.inputs]
        outputs = [FLOAT16 if narrow and dtype == FLOAT else dtype for dtype in expression.output_types]
        program = lower(expression, types, outputs, "910B")
        sizes = [ELEMENT_BYTES[t] for t in types], [ELEMENT_BYTES[t] for t in outputs]
        needs = needs_of(expression, program, types, *sizes)
        found.append(needs.fixed_bytes + pitch * needs.eighths // 8)
    return max(found)
