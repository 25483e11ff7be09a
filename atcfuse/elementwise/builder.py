"""Values of an expression as registers: numbers as float32 planes, masks as bits or planes, roundings between.

Numbers are float32 whatever the element types, which is at least as exact as rounding at every operator. A mask is bits
(one an element) where it is compared or selects, and a plane of 0 and 1 where it is computed with or stored. A value
that is the same in all columns of a row is a column, one float a row; it is spread over a plane where a row reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from atcfuse.elementwise.expression import (
    BOOL,
    COLUMN,
    FLOAT,
    FLOAT16,
    FULL,
    INTEGERS,
    SCALAR,
    Argument,
    Expression,
    Operand,
    form_of,
)
from atcfuse.elementwise.numbers import c_number
from atcfuse.elementwise.registers import BUFFERED, SPREAD, Instruction, Pool, Register, Side

HALF_MAX = 65504.0
_BITS: dict[Side, Pool] = {"full": "bits", "column": "columnBits"}
_PLANES: dict[Side, Pool] = {"full": "plane", "column": "column"}


def scalar_name(index: int) -> str:
    """The C++ variable of a scalar input."""
    return f"scalar{index + 1}_"


@dataclass
class Builder:
    """Instructions so far, and where values are. `exact` and `huge` say what is known of steps' results."""

    expression: Expression
    types: tuple[int, ...]
    outputs: tuple[int, ...]
    family: str
    code: list[Instruction] = field(default_factory=list)
    side: Side = "full"
    huge: dict[Operand, bool] = field(default_factory=dict)
    exact: dict[Operand, bool] = field(default_factory=dict)
    planes: dict[tuple[Side, Operand], Register] = field(default_factory=dict)
    masks: dict[tuple[Side, Operand], Register] = field(default_factory=dict)
    _registers: int = 0

    @contextmanager
    def on(self, side: Side) -> Iterator[None]:
        """Instructions within are of this side."""
        before, self.side = self.side, side
        yield
        self.side = before

    def side_of(self, value: Operand) -> Side:
        """Where a value is computed."""
        return "column" if self.expression.kind_of(value) == COLUMN else "full"

    # ------------------------------------------------------------ instructions

    def new(self, pool: Pool) -> Register:
        """A register that nothing else uses."""
        self._registers += 1
        return Register(pool, self._registers)

    def emit(
        self, call: str, text: str, *sources: Register, into: Register | None = None, apart: bool = False
    ) -> Register:
        """One more instruction of this side; its result, in a new register unless `into` says where."""
        target = into or self.new(_PLANES[self.side])
        self.code.append(Instruction(call, text, target, sources, apart, self.side))
        return target

    def call(self, name: str, *sources: Register) -> Register:
        """An instruction of registers alone."""
        places = ", ".join(f"{{{i}}}" for i in range(len(sources)))
        return self.emit(name, f"{name}({{d}}, {places}, {{n}})", *sources)

    def scaled(self, name: str, x: Register, number: str) -> Register:
        """An instruction of a register and a number."""
        return self.emit(name, f"{name}({{d}}, {{0}}, {number}, {{n}})", x)

    def buffered(self, name: str, x: Register) -> Register:
        """An activation with its temporary buffer."""
        assert name in BUFFERED
        return self.emit(name, f"{name}({{d}}, {{0}}, temporary, {{n}})", x, apart=True)

    def fill(self, number: str) -> Register:
        """A plane of one number."""
        return self.emit("Duplicate", f"Duplicate({{d}}, {number}, {{n}})")

    def compare(self, mode: str, x: Register, other: Register | str) -> Register:
        """The bits of a comparison with a plane or a number."""
        bits = self.new(_BITS[self.side])
        if isinstance(other, str):
            text = f"CompareScalar({{d}}, {{0}}, {other}, CMPMODE::{mode}, {{n}})"
            return self.emit("CompareScalar", text, x, into=bits)
        return self.emit("Compare", f"Compare({{d}}, {{0}}, {{1}}, CMPMODE::{mode}, {{n}})", x, other, into=bits)

    def select(self, into: Register | None, bits: Register, yes: Register, no: Register | str) -> Register:
        """`yes` where the bits are set, else `no`."""
        if isinstance(no, str):
            text = f"Select({{d}}, {{0}}, {{1}}, {no}, SELMODE::VSEL_TENSOR_SCALAR_MODE, {{n}})"
            return self.emit("Select", text, bits, yes, into=into)
        text = "Select({d}, {0}, {1}, {2}, SELMODE::VSEL_TENSOR_TENSOR_MODE, {n})"
        return self.emit("Select", text, bits, yes, no, into=into)

    def ones(self, bits: Register) -> Register:
        """Bits as a plane of 0 and 1."""
        plane = self.fill("1.0f")
        return self.select(plane, bits, plane, "0.0f")

    # ------------------------------------------------------------ values

    def plane(self, value: Operand) -> Register:
        """A value as float32 on this side; inputs are widened and columns spread when they are first read."""
        key = (self.side, value)
        if key not in self.planes:
            self.planes[key] = self._made(value)
        return self.planes[key]

    def _made(self, value: Operand) -> Register:
        if self.side_of(value) == "column" and self.side == "full":
            with self.on("column"):
                column = self.plane(value)
            return self.emit(SPREAD, f"{SPREAD}({{d}}, {{0}})", column)
        return self._loaded(value) if value.source == "x" else self.ones(self.masks[self.side, value])

    def bits(self, value: Operand) -> Register:
        """A mask as bits."""
        key = (self.side, value)
        if key not in self.masks:
            self.masks[key] = self.compare("NE", self.plane(value), "0.0f")
        return self.masks[key]

    def _loaded(self, value: Operand) -> Register:
        given, dtype = self.expression.inputs[value.index], self.types[value.index]
        number = value.index + 1
        form = form_of(given.kind)
        if form == SCALAR:
            return self.fill(scalar_name(value.index))
        if form != FULL:
            return Register("fixed", -number, f"given{number}" if form == COLUMN else f"spread{number}")
        source = Register("fixed", -number, f"in{number}")
        if dtype == FLOAT:
            return source
        if dtype == BOOL:
            half = self.emit("Cast", "Cast({d:half}, {0}, RoundMode::CAST_NONE, {n})", source)
            return self.emit("Cast", "Cast({d}, {0:half}, RoundMode::CAST_NONE, {n})", half, apart=True)
        mode = "CAST_RINT" if dtype in INTEGERS else "CAST_NONE"
        return self.emit("Cast", f"Cast({{d}}, {{0}}, RoundMode::{mode}, {{n}})", source)

    def number(self, argument: Argument) -> str | None:
        """A constant or a scalar input as a C++ expression, None for anything else."""
        if not isinstance(argument, Operand):
            return c_number(argument)
        if argument.source == "x" and self.expression.kind_of(argument) == SCALAR:
            return scalar_name(argument.index)
        return None

    def as_plane(self, argument: Argument) -> Register:
        """A value or a constant as float32."""
        return self.plane(argument) if isinstance(argument, Operand) else self.fill(c_number(argument))

    # ------------------------------------------------------------ roundings

    def rounded_operand(self, argument: Argument) -> Register | str:
        """A value as the model has it: rounded where its type is narrower than what was computed."""
        number = self.number(argument)
        if number is not None:
            return number
        assert isinstance(argument, Operand)
        plane, dtype = self.plane(argument), self.expression.dtype(argument)
        if self.exact.get(argument, True):
            return plane
        return self.rounded(plane, dtype, self.huge.get(argument, False))

    def rounded(self, plane: Register, dtype: int, huge: bool) -> Register:
        """A plane rounded to a 16-bit type, as float32."""
        narrow = self.narrowed(plane, dtype, huge, None)
        kind = "half" if dtype == FLOAT16 else "bfloat16_t"
        return self.emit("Cast", f"Cast({{d}}, {{0:{kind}}}, RoundMode::CAST_NONE, {{n}})", narrow, apart=True)

    def narrowed(self, plane: Register, dtype: int, huge: bool, into: Register | None) -> Register:
        """A plane rounded to a 16-bit type, in its own register or `into` a part of the output queue."""
        mode = "CAST_NONE" if self.family == "310P" else "CAST_RINT"
        target = "{d}" if into is not None else "{d:half}" if dtype == FLOAT16 else "{d:bfloat16_t}"
        if dtype == FLOAT16 and huge:
            plane = self._within_half(plane)
        text = f"Cast({target}, {{0}}, RoundMode::{mode}, {{n}})"
        return self.emit("Cast", text, plane, into=into, apart=True)

    def _within_half(self, x: Register) -> Register:
        """Numbers that half rounds to infinity as infinities, whatever the chip's overflow mode is; NaN stays."""
        limit = 65520.0
        below = self.compare("LT", x, c_number(limit))
        above = self.compare("GT", x, c_number(-limit))
        number = self.compare("EQ", x, x)
        y = self.select(None, below, x, c_number(math.inf))
        y = self.select(None, above, y, c_number(-math.inf))
        return self.select(None, number, y, x)

    # ------------------------------------------------------------ outputs

    def store(self, position: int, value: Operand) -> None:
        """The last instructions of an output: into its part of the output queue, in its element type."""
        dtype = self.outputs[position]
        plane, slot = self.plane(value), Register("fixed", -100 - position, f"out{position + 1}")
        if dtype == FLOAT:
            self.emit("Muls", "Muls({d}, {0}, 1.0f, {n})", plane, into=slot)
        elif dtype == BOOL:
            mode = "CAST_NONE" if self.family == "310P" else "CAST_RINT"
            half = self.emit("Cast", f"Cast({{d:half}}, {{0}}, RoundMode::{mode}, {{n}})", plane, apart=True)
            self.emit("Cast", "Cast({d}, {0:half}, RoundMode::CAST_NONE, {n})", half, into=slot)
        else:
            self.narrowed(plane, dtype, self.huge.get(value, False), slot)


def operands(arguments: Sequence[Argument]) -> list[Operand]:
    """The values among arguments."""
    return [a for a in arguments if isinstance(a, Operand)]
