"""Expressions as vector instructions on tiles in the unified buffer.

Numbers are float32 planes whatever the element types, which is at least as exact as rounding at every operator. A mask
is bits (one an element) where it is compared or selects, and a plane of 0 and 1 where it is computed with or stored.
Where a model rounds on purpose (a Cast, or a comparison of 16-bit results) the kernel rounds too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from atcfuse.elementwise.expression import (
    BFLOAT16,
    BOOL,
    FLOAT,
    FLOAT16,
    FULL,
    SCALAR,
    Argument,
    Expression,
    Operand,
    Step,
)

Pool = Literal["plane", "bits", "fixed"]
HALF_MAX = 65504.0
_HUGE = 1e4
_BOUNDED = frozenset({"Sigmoid", "Tanh", "Erf", "HardSigmoid"})
_EXACT = frozenset({"Neg", "Abs", "Relu", "Min", "Max", "Where", "Clip", "Cast"})
"""Operators whose result has no more digits than their operands."""
_COMPARES = {"Equal": "EQ", "Greater": "GT", "GreaterOrEqual": "GE", "Less": "LT", "LessOrEqual": "LE"}
_MIRRORED = {"EQ": "EQ", "GT": "LT", "GE": "LE", "LT": "GT", "LE": "GE"}
_BINARY = {"Add": "Add", "Sub": "Sub", "Mul": "Mul", "Div": "Div", "Min": "Min", "Max": "Max"}
_WITH_SCALAR = {"Add": "Adds", "Mul": "Muls", "Min": "Mins", "Max": "Maxs"}
_UNARY = {"Abs": "Abs", "Sqrt": "Sqrt", "Exp": "Exp", "Log": "Ln", "Relu": "Relu"}
_BUFFERED = ("Erf", "Tanh", "Sigmoid")
_SCRATCH = {**dict.fromkeys(_BUFFERED, "temporary"), **dict.fromkeys(("CompareScalar", "Select"), "reserved")}
"""Memory beside their operands that instructions write."""
PASSES = {"Erf": 23, "Tanh": 6, "Sigmoid": 4}
"""Vector instructions an element passes in a call, where it is not one."""


@dataclass(frozen=True)
class Register:
    """A virtual register. `fixed` ones are parts of queues and row planes, named in `name`."""

    pool: Pool
    index: int
    name: str = ""


@dataclass(frozen=True)
class Instruction:
    """One call: `text` with `{d}` for the destination, `{0}`, `{1}` … for sources. `apart` forbids them to overlap."""

    call: str
    text: str
    target: Register
    sources: tuple[Register, ...]
    apart: bool = False


@dataclass(frozen=True)
class Program:
    """Instructions with their registers assigned, and how many planes and bit tiles they need at once.

    `temporary` says whether an activation needs its buffer. `lines` are C++ statements with barriers, `passes` counts
    the instructions that an element passes.
    """

    lines: tuple[str, ...]
    planes: int
    bits: int
    temporary: bool
    passes: int


def lower(expression: Expression, types: Sequence[int], outputs: Sequence[int], family: str) -> Program:
    """The program for inputs and outputs of these element types (as ATC's precision mode leaves them) on a family."""
    builder = _Builder(expression, tuple(types), tuple(outputs), family)
    builder.build()
    return _assigned(builder.code)


def scalar_name(index: int) -> str:
    """The C++ variable of a scalar input."""
    return f"scalar{index + 1}_"


@dataclass
class _Builder:
    expression: Expression
    types: tuple[int, ...]
    outputs: tuple[int, ...]
    family: str
    code: list[Instruction] = field(default_factory=list)
    _registers: int = 0
    _planes: dict[Operand, Register] = field(default_factory=dict)
    _bits: dict[Operand, Register] = field(default_factory=dict)
    _huge: dict[Operand, bool] = field(default_factory=dict)
    _exact: dict[Operand, bool] = field(default_factory=dict)

    def build(self) -> None:
        """Lowers every step, then the outputs."""
        for index, step in enumerate(self.expression.steps):
            target = Operand("t", index)
            self._note(target, step)
            if step.op in _COMPARES:
                self._bits[target] = self._compare(step)
            else:
                self._planes[target] = self._step(step)
        for position, index in enumerate(self.expression.outputs):
            self._store(position, Operand("t", index))

    # ------------------------------------------------------------ values

    def _note(self, target: Operand, step: Step) -> None:
        values = [a for a in step.arguments if isinstance(a, Operand)]
        constants = [a for a in step.arguments if not isinstance(a, Operand)]
        large = any(_HUGE <= abs(c) < math.inf for c in constants)
        self._huge[target] = step.op not in _BOUNDED and (large or any(self._huge.get(v, False) for v in values))
        # Inputs have the digits of their type; a cast to a narrower type rounds by itself.
        narrow = step.dtype in (FLOAT16, BFLOAT16)
        self._exact[target] = not narrow or (
            step.op in _EXACT and all(self._exact.get(v, True) for v in values if self.expression.dtype(v) != BOOL)
        )

    def _new(self, pool: Pool = "plane") -> Register:
        self._registers += 1
        return Register(pool, self._registers)

    def _emit(
        self, call: str, text: str, *sources: Register, into: Register | None = None, apart: bool = False
    ) -> Register:
        target = into or self._new()
        self.code.append(Instruction(call, text, target, sources, apart))
        return target

    def plane(self, value: Operand) -> Register:
        """A value as a float32 plane; inputs are widened when they are first read."""
        if value not in self._planes:
            self._planes[value] = self._loaded(value) if value.source == "x" else self._ones(self._bits[value])
        return self._planes[value]

    def bits(self, value: Operand) -> Register:
        """A mask as bits."""
        if value not in self._bits:
            text = "CompareScalar({d}, {0}, 0.0f, CMPMODE::NE, count)"
            self._bits[value] = self._emit("CompareScalar", text, self.plane(value), into=self._new("bits"))
        return self._bits[value]

    def _ones(self, bits: Register) -> Register:
        plane = self._emit("Duplicate", "Duplicate({d}, 1.0f, count)")
        return self._select(plane, bits, plane, "0.0f")

    def _select(self, into: Register | None, bits: Register, yes: Register, no: Register | str) -> Register:
        if isinstance(no, str):
            text = f"Select({{d}}, {{0}}, {{1}}, {no}, SELMODE::VSEL_TENSOR_SCALAR_MODE, count)"
            return self._emit("Select", text, bits, yes, into=into)
        text = "Select({d}, {0}, {1}, {2}, SELMODE::VSEL_TENSOR_TENSOR_MODE, count)"
        return self._emit("Select", text, bits, yes, no, into=into)

    def _loaded(self, value: Operand) -> Register:
        given, dtype = self.expression.inputs[value.index], self.types[value.index]
        number = value.index + 1
        if given.kind == SCALAR:
            return self._emit("Duplicate", f"Duplicate({{d}}, {scalar_name(value.index)}, count)")
        if given.kind != FULL:
            return Register("fixed", -number, f"spread{number}")
        source = Register("fixed", -number, f"in{number}")
        if dtype == FLOAT:
            return source
        if dtype == BOOL:
            half = self._emit("Cast", "Cast({d:half}, {0}, RoundMode::CAST_NONE, count)", source)
            return self._emit("Cast", "Cast({d}, {0:half}, RoundMode::CAST_NONE, count)", half, apart=True)
        return self._emit("Cast", "Cast({d}, {0}, RoundMode::CAST_NONE, count)", source)

    def _number(self, argument: Argument) -> str | None:
        """A constant or a scalar input as a C++ expression, None for anything else."""
        if not isinstance(argument, Operand):
            return c_number(argument)
        if argument.source == "x" and self.expression.inputs[argument.index].kind == SCALAR:
            return scalar_name(argument.index)
        return None

    def _as_plane(self, argument: Argument) -> Register:
        if isinstance(argument, Operand):
            return self.plane(argument)
        return self._emit("Duplicate", f"Duplicate({{d}}, {c_number(argument)}, count)")

    # ------------------------------------------------------------ steps

    def _step(self, step: Step) -> Register:
        op, arguments = step.op, step.arguments
        if op in _BINARY:
            return self._binary(op, *arguments)
        if op == "Where":
            return self._where(*arguments)
        if op == "Cast":
            return self._cast(step)
        if op in ("And", "Or", "Xor", "Not"):
            return self._logical(op, arguments)
        (value, *constants) = arguments
        x = self._as_plane(value)
        numbers = [c for c in constants if not isinstance(c, Operand)]
        return self._function(op, x, numbers)

    def _call(self, name: str, *sources: Register) -> Register:
        places = ", ".join(f"{{{i}}}" for i in range(len(sources)))
        return self._emit(name, f"{name}({{d}}, {places}, count)", *sources)

    def _scaled(self, name: str, x: Register, number: str) -> Register:
        return self._emit(name, f"{name}({{d}}, {{0}}, {number}, count)", x)

    def _buffered(self, name: str, x: Register) -> Register:
        return self._emit(name, f"{name}({{d}}, {{0}}, temporary, count)", x, apart=True)

    def _binary(self, op: str, a: Argument, b: Argument) -> Register:
        left, right = self._number(a), self._number(b)
        if right is not None and left is None:
            x = self._as_plane(a)
            if op in _WITH_SCALAR:
                return self._scaled(_WITH_SCALAR[op], x, right)
            if op == "Sub":
                return self._scaled("Adds", x, f"-({right})")
            if op == "Div" and not isinstance(b, Operand) and _is_power_of_two(b):
                return self._scaled("Muls", x, c_number(1 / b))
        if left is not None and right is None:
            x = self._as_plane(b)
            if op in _WITH_SCALAR:
                return self._scaled(_WITH_SCALAR[op], x, left)
            if op == "Sub":
                return self._scaled("Adds", self._scaled("Muls", x, "-1.0f"), left)
        return self._call(_BINARY[op], self._as_plane(a), self._as_plane(b))

    def _where(self, condition: Argument, yes: Argument, no: Argument) -> Register:
        assert isinstance(condition, Operand)
        bits = self.bits(condition)
        number = self._number(no)
        if self._number(yes) is not None:
            plane = self._emit("Duplicate", f"Duplicate({{d}}, {self._number(yes)}, count)")
            return self._select(plane, bits, plane, number if number is not None else self._as_plane(no))
        return self._select(None, bits, self._as_plane(yes), number if number is not None else self._as_plane(no))

    def _compare(self, step: Step) -> Register:
        mode = _COMPARES[step.op]
        a, b = (self._rounded_operand(x) for x in step.arguments)
        if isinstance(a, str) and isinstance(b, str):
            a = self._as_plane(step.arguments[0])
        if isinstance(a, str):
            a, b, mode = b, a, _MIRRORED[mode]
        assert isinstance(a, Register)
        if isinstance(b, str):
            text = f"CompareScalar({{d}}, {{0}}, {b}, CMPMODE::{mode}, count)"
            return self._emit("CompareScalar", text, a, into=self._new("bits"))
        return self._emit(
            "Compare", f"Compare({{d}}, {{0}}, {{1}}, CMPMODE::{mode}, count)", a, b, into=self._new("bits")
        )

    def _rounded_operand(self, argument: Argument) -> Register | str:
        number = self._number(argument)
        if number is not None:
            return number
        assert isinstance(argument, Operand)
        plane, dtype = self.plane(argument), self.expression.dtype(argument)
        if self._exact.get(argument, True):
            return plane
        return self._rounded(plane, dtype, self._huge.get(argument, False))

    def _rounded(self, plane: Register, dtype: int, huge: bool) -> Register:
        narrow = self._narrowed(plane, dtype, huge, None)
        kind = "half" if dtype == FLOAT16 else "bfloat16_t"
        return self._emit("Cast", f"Cast({{d}}, {{0:{kind}}}, RoundMode::CAST_NONE, count)", narrow, apart=True)

    def _narrowed(self, plane: Register, dtype: int, huge: bool, into: Register | None) -> Register:
        """A plane rounded to a 16-bit type, in its own register or `into` a part of the output queue."""
        mode = "CAST_NONE" if self.family == "310P" else "CAST_RINT"
        target = "{d}" if into is not None else "{d:half}" if dtype == FLOAT16 else "{d:bfloat16_t}"
        if dtype == FLOAT16 and huge:
            plane = self._within_half(plane)
        text = f"Cast({target}, {{0}}, RoundMode::{mode}, count)"
        return self._emit("Cast", text, plane, into=into, apart=True)

    def _within_half(self, x: Register) -> Register:
        """Numbers that half rounds to infinity as infinities, whatever the chip's overflow mode is."""
        limit = 65520.0
        below = self._emit(
            "CompareScalar",
            f"CompareScalar({{d}}, {{0}}, {c_number(limit)}, CMPMODE::LT, count)",
            x,
            into=self._new("bits"),
        )
        above = self._emit(
            "CompareScalar",
            f"CompareScalar({{d}}, {{0}}, {c_number(-limit)}, CMPMODE::GT, count)",
            x,
            into=self._new("bits"),
        )
        y = self._scaled("Mins", self._scaled("Maxs", x, c_number(-HALF_MAX)), c_number(HALF_MAX))
        y = self._select(None, below, y, c_number(math.inf))
        return self._select(None, above, y, c_number(-math.inf))

    def _cast(self, step: Step) -> Register:
        (value,) = step.arguments
        assert isinstance(value, Operand)
        source = self.expression.dtype(value)
        if step.dtype == BOOL and source != BOOL:
            plane = self._rounded_operand(value)
            assert isinstance(plane, Register) or value.source == "x"
            register = plane if isinstance(plane, Register) else self.plane(value)
            text = "CompareScalar({d}, {0}, 0.0f, CMPMODE::NE, count)"
            return self._ones(self._emit("CompareScalar", text, register, into=self._new("bits")))
        plane, huge = self.plane(value), self._huge.get(value, False)
        if source in (FLOAT16, BFLOAT16) and step.dtype != source and not self._exact.get(value, True):
            plane = self._rounded(plane, source, huge)
        if step.dtype in (FLOAT16, BFLOAT16) and source not in (BOOL, step.dtype):
            plane = self._rounded(plane, step.dtype, huge)
        return plane

    def _logical(self, op: str, arguments: Sequence[Argument]) -> Register:
        planes = [self._as_plane(a) for a in arguments]
        if op == "Not":
            return self._scaled("Adds", self._scaled("Muls", planes[0], "-1.0f"), "1.0f")
        if op == "Xor":
            return self._call("Abs", self._call("Sub", *planes))
        return self._call("Min" if op == "And" else "Max", *planes)

    def _function(self, op: str, x: Register, numbers: Sequence[float]) -> Register:
        if op in _UNARY:
            return self._call(_UNARY[op], x)
        if op in _BUFFERED:
            return self._buffered(op, x)
        return getattr(self, f"_{op.lower()}")(x, *numbers)  # type: ignore[no-any-return]

    def _neg(self, x: Register) -> Register:
        return self._scaled("Muls", x, "-1.0f")

    def _reciprocal(self, x: Register) -> Register:
        return self._call("Div", self._as_plane(1.0), x)

    def _softplus(self, x: Register) -> Register:
        """max(x, 0) + ln(1 + exp(-|x|)), which never overflows."""
        decay = self._call("Exp", self._scaled("Muls", self._call("Abs", x), "-1.0f"))
        return self._call("Add", self._call("Ln", self._scaled("Adds", decay, "1.0f")), self._call("Relu", x))

    def _mish(self, x: Register) -> Register:
        return self._call("Mul", x, self._buffered("Tanh", self._softplus(x)))

    def _hardsigmoid(self, x: Register, alpha: float, beta: float) -> Register:
        y = self._scaled("Adds", self._scaled("Muls", x, c_number(alpha)), c_number(beta))
        return self._scaled("Mins", self._scaled("Maxs", y, "0.0f"), "1.0f")

    def _hardswish(self, x: Register) -> Register:
        return self._call("Mul", x, self._hardsigmoid(x, float32(1 / 6), 0.5))

    def _gelu(self, x: Register) -> Register:
        share = self._buffered("Erf", self._scaled("Muls", x, c_number(math.sqrt(0.5))))
        return self._scaled("Muls", self._call("Mul", x, self._scaled("Adds", share, "1.0f")), "0.5f")

    def _gelutanh(self, x: Register) -> Register:
        cube = self._scaled("Muls", self._call("Mul", self._call("Mul", x, x), x), c_number(0.044715))
        inner = self._scaled("Muls", self._call("Add", cube, x), c_number(math.sqrt(2 / math.pi)))
        share = self._scaled("Adds", self._buffered("Tanh", inner), "1.0f")
        return self._scaled("Muls", self._call("Mul", x, share), "0.5f")

    def _pow(self, x: Register, exponent: float) -> Register:
        if exponent == 0.5:
            return self._call("Sqrt", x)
        if exponent == 1.0:
            return x
        square = self._call("Mul", x, x)
        return square if exponent == 2.0 else self._call("Mul", square, x)

    def _leakyrelu(self, x: Register, alpha: float) -> Register:
        low = self._scaled("Muls", self._scaled("Mins", x, "0.0f"), c_number(alpha))
        return self._call("Add", low, self._call("Relu", x))

    def _elu(self, x: Register, alpha: float) -> Register:
        low = self._scaled("Adds", self._call("Exp", self._scaled("Mins", x, "0.0f")), "-1.0f")
        return self._call("Add", self._scaled("Muls", low, c_number(alpha)), self._call("Relu", x))

    def _clip(self, x: Register, low: float, high: float) -> Register:
        if math.isfinite(low):
            x = self._scaled("Maxs", x, c_number(low))
        return self._scaled("Mins", x, c_number(high)) if math.isfinite(high) else x

    # ------------------------------------------------------------ outputs

    def _store(self, position: int, value: Operand) -> None:
        """The last instructions of an output: into its part of the output queue, in its element type."""
        dtype = self.outputs[position]
        plane, slot = self.plane(value), Register("fixed", -100 - position, f"out{position + 1}")
        if dtype == FLOAT:
            self._emit("Muls", "Muls({d}, {0}, 1.0f, count)", plane, into=slot)
        elif dtype == BOOL:
            mode = "CAST_NONE" if self.family == "310P" else "CAST_RINT"
            half = self._emit("Cast", f"Cast({{d:half}}, {{0}}, RoundMode::{mode}, count)", plane, apart=True)
            self._emit("Cast", "Cast({d}, {0:half}, RoundMode::CAST_NONE, count)", half, into=slot)
        else:
            self._narrowed(plane, dtype, self._huge.get(value, False), slot)


# ---------------------------------------------------------------- registers


def _assigned(code: Sequence[Instruction]) -> Program:
    """Linear scan: a register is free after its last use, and the last reader may write into it where it can."""
    last: dict[Register, int] = {}
    for at, instruction in enumerate(code):
        for register in (*instruction.sources, instruction.target):
            last[register] = at
    free: dict[str, list[int]] = {"plane": [], "bits": []}
    used = {"plane": 0, "bits": 0}
    place: dict[Register, int] = {}
    lines: list[str] = []
    hazards = _Hazards()
    for at, instruction in enumerate(code):
        dying = [r for r in dict.fromkeys(instruction.sources) if r in place and last[r] == at]
        if not instruction.apart:
            _release(dying, place, free)
        target = instruction.target
        if target.pool != "fixed" and target not in place:
            pool = free[target.pool]
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
    passes = sum(PASSES.get(i.call, 1) for i in code)
    buffered = any(i.call in _BUFFERED for i in code)
    return Program(tuple(lines), used["plane"], used["bits"], buffered, passes)


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
    return instruction.text.format(*sources, d=_Shown(_name(instruction.target, place))) + ";"


# ---------------------------------------------------------------- numbers


def float32(value: float) -> float:
    """The nearest float32 value; beyond its range an infinity."""
    import struct

    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def c_number(value: float) -> str:
    """A number as a C++ float literal with exactly its float32 value."""
    single = float32(value)
    if math.isinf(single):
        return "__builtin_inff()" if single > 0 else "-__builtin_inff()"
    if single == int(single) and abs(single) < 1e7:
        return f"{'-' if math.copysign(1, single) < 0 else ''}{abs(int(single))}.0f"
    text = f"{single:.9g}"
    return f"{text}f" if "e" in text or "." in text else f"{text}.0f"


def _is_power_of_two(value: float) -> bool:
    return value != 0 and math.isfinite(value) and abs(math.frexp(value)[0]) == 0.5 and 2**-100 < abs(value) < 2**100
