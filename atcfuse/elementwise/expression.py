"""What a `FusedElementwise` node computes: element-wise steps over inputs that are broadcast along groups of axes, and
reductions of whole rows.

The text form is the node's only attribute. It names neither values nor sizes, so the same computation in every layer is
one operator, and it holds every constant exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Union

Kind = Literal["full", "row", "column", "scalar", "matrix", "batch_row", "shared_column", "batch_scalar"]
FULL: Kind = "full"
ROW: Kind = "row"
COLUMN: Kind = "column"
SCALAR: Kind = "scalar"
"""How an input relates to the result's elements as [rows, columns]: all of them, one row, one column, one element."""
MATRIX: Kind = "matrix"
BATCH_ROW: Kind = "batch_row"
SHARED_COLUMN: Kind = "shared_column"
BATCH_SCALAR: Kind = "batch_scalar"
"""And as [batches, rows, columns]: the rows of one batch, a row of each, the column of one, an element of each."""

VARIES: Mapping[Kind, tuple[bool, bool, bool]] = {
    FULL: (True, True, True),
    ROW: (False, False, True),
    COLUMN: (True, True, False),
    SCALAR: (False, False, False),
    MATRIX: (False, True, True),
    BATCH_ROW: (True, False, True),
    SHARED_COLUMN: (False, True, False),
    BATCH_SCALAR: (True, False, False),
}
"""Whether an input differs from batch to batch, from row to row, from column to column."""
FORMS: Mapping[Kind, Kind] = {MATRIX: FULL, BATCH_ROW: ROW, SHARED_COLUMN: COLUMN, BATCH_SCALAR: SCALAR}
"""As what a kernel holds those of batches, from one batch to the next."""


def form_of(kind: Kind) -> Kind:
    """Full, row, column or scalar: how a kernel holds an input within a batch."""
    return FORMS.get(kind, kind)


FLOAT, INT32, INT64, BOOL, FLOAT16, BFLOAT16 = 1, 6, 7, 9, 10, 16
INTEGERS = frozenset({INT32, INT64})
"""Types of inputs alone: they are cast, or compared with a constant that float32 tells from its neighbours."""
EXACT_INTEGERS = 2**24
"""Float32 holds every integer below this, and rounds none from beyond it to one."""
TYPE_NAMES = {
    FLOAT: "float32",
    INT32: "int32",
    INT64: "int64",
    BOOL: "bool",
    FLOAT16: "float16",
    BFLOAT16: "bfloat16",
}
_TYPES = {name: dtype for dtype, name in TYPE_NAMES.items()}

MAX_INPUTS, MAX_OUTPUTS = 8, 4
"""Of one operator, as its `kernel.yaml` declares them."""


@dataclass(frozen=True)
class Operator:
    """An operator of expressions: how many values it takes, then how many constants, and what comes out.

    `result` is "same" (the type of the last value), "bool", or "cast" (any). `takes_bool` says which values are masks.
    One that `reduces` makes one value of every row, its axes kept as 1; one of `rows` needs rows whole too. One with
    `more` takes more values than these as well.
    """

    values: int
    constants: int = 0
    result: Literal["same", "bool", "cast"] = "same"
    takes_bool: tuple[bool, ...] = ()
    reduces: bool = False
    rows: bool = False
    more: bool = False

    def takes(self, arguments: int) -> bool:
        """Whether it can have so many arguments."""
        least = self.values + self.constants
        return least <= arguments <= MAX_INPUTS if self.more else arguments == least

    def values_of(self, arguments: int) -> int:
        """How many of so many arguments are values."""
        return arguments - self.constants


SOFTMAXES = ("Softmax", "LogSoftmax")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL1", "ReduceL2")
_SELECTIVE = ("Floor", "Ceil", "Round", "Sign")
_UNARY = ("Neg", "Abs", "Sqrt", "Reciprocal", "Exp", "Log", "Erf", "Tanh", "Sigmoid", "Relu", "Softplus", "Mish")
_PERIODIC = ("Sin", "Cos")
COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})

CLIP_TO = "ClipTo"
"""Clip to bounds that are values."""

OPERATORS: Mapping[str, Operator] = {
    **{op: Operator(2) for op in ("Add", "Sub", "Mul", "Div")},
    **{op: Operator(2, more=True) for op in ("Min", "Max")},
    "Sum": Operator(3, more=True),
    CLIP_TO: Operator(3),
    **{op: Operator(1) for op in (*_UNARY, *_PERIODIC, *_SELECTIVE, "HardSwish", "Gelu", "GeluTanh", "Softsign")},
    **{op: Operator(1, 1) for op in ("Pow", "LeakyRelu", "Elu", "Celu", "ThresholdedRelu")},
    **{op: Operator(1, 2) for op in ("Clip", "HardSigmoid", "Selu")},
    "PRelu": Operator(2),
    **{op: Operator(2, result="bool") for op in sorted(COMPARISONS)},
    "IsNaN": Operator(1, result="bool"),
    "IsInf": Operator(1, 2, result="bool"),
    **{op: Operator(2, takes_bool=(True, True)) for op in ("And", "Or", "Xor")},
    "Not": Operator(1, takes_bool=(True,)),
    "Where": Operator(3, takes_bool=(True,)),
    "Cast": Operator(1, result="cast"),
    **{op: Operator(1, reduces=True, rows=True) for op in REDUCTIONS},
    **{op: Operator(1, rows=True) for op in SOFTMAXES},
}
"""ONNX's operators by their names, attributes as constants (those of IsInf: negative, positive); Gelu with
`approximate="tanh"` is GeluTanh.
"""


@dataclass(frozen=True)
class Input:
    """An input: its element type (TensorProto.DataType) and how it is broadcast."""

    dtype: int
    kind: Kind


@dataclass(frozen=True)
class Operand:
    """What a step reads: the input or step of that index."""

    source: Literal["x", "t"]
    index: int

    def __str__(self) -> str:
        return f"{self.source}{self.index + 1}"


Argument = Union[Operand, float]


@dataclass(frozen=True)
class Step:
    """One operator on values and constants; a constant has the element type of the values beside it."""

    op: str
    arguments: tuple[Argument, ...]
    dtype: int


@dataclass(frozen=True)
class Expression:
    """Inputs, steps in order of computation, and the steps that are outputs.

    `columns` is how many trailing axes of the result make up its columns, 0 where no value is a row or a column, and
    `rows` how many axes before these its rows, 0 where all are and there is one batch. A step of columns and scalars
    alone is one value a row; a step that reads anything else has the whole shape.
    """

    columns: int
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    rows: int = 0

    def dtype(self, operand: Operand) -> int:
        """The element type of an operand."""
        return (self.inputs if operand.source == "x" else self.steps)[operand.index].dtype

    def of_kind(self, kind: Kind) -> tuple[int, ...]:
        """The inputs broadcast in this way."""
        return tuple(i for i, given in enumerate(self.inputs) if given.kind == kind)

    def of_form(self, form: Kind) -> tuple[int, ...]:
        """The inputs that a kernel holds in this form."""
        return tuple(i for i, given in enumerate(self.inputs) if form_of(given.kind) == form)

    def kind_of(self, operand: Operand) -> Kind:
        """The form of an operand: full, row, column or scalar."""
        return form_of(self.inputs[operand.index].kind) if operand.source == "x" else _step_kinds(self)[operand.index]

    def is_whole(self, operand: Operand) -> bool:
        """Whether an operand has an element of its own for every one of the result."""
        kind = self.inputs[operand.index].kind if operand.source == "x" else self.kind_of(operand)
        return kind == FULL

    @property
    def output_kinds(self) -> tuple[Kind, ...]:
        """Full or column, for every output."""
        return tuple(_step_kinds(self)[i] for i in self.outputs)

    @property
    def reduces(self) -> bool:
        """Whether a step reduces rows, which must then be whole on chip."""
        return any(OPERATORS[step.op].rows for step in self.steps)

    @property
    def output_types(self) -> tuple[int, ...]:
        """Element types of the outputs."""
        return tuple(self.steps[i].dtype for i in self.outputs)

    def argument_type(self, step: Step) -> int:
        """The element type that constants of a step have: that of its last value that is no condition."""
        values = step.arguments[1:] if step.op == "Where" else step.arguments
        types = [self.dtype(a) for a in values if isinstance(a, Operand)]
        return types[-1] if types else step.dtype

    def __str__(self) -> str:
        return "; ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        yield f"columns {self.columns}"
        if self.rows:
            yield f"rows {self.rows}"
        for i, given in enumerate(self.inputs):
            yield f"x{i + 1}: {TYPE_NAMES[given.dtype]} {given.kind}"
        for i, step in enumerate(self.steps):
            yield f"t{i + 1}: {TYPE_NAMES[step.dtype]} = {step.op}({', '.join(map(_argument_text, step.arguments))})"
        yield f"out {', '.join(f't{i + 1}' for i in self.outputs)}"


@lru_cache(maxsize=4096)
def _step_kinds(expression: Expression) -> tuple[Kind, ...]:
    found: list[Kind] = []
    for step in expression.steps:
        kinds = [
            form_of(expression.inputs[a.index].kind) if a.source == "x" else found[a.index]
            for a in step.arguments
            if isinstance(a, Operand)
        ]
        whole = not expression.columns or FULL in kinds or ROW in kinds
        found.append(COLUMN if OPERATORS[step.op].reduces or not whole else FULL)
    return tuple(found)


def _argument_text(argument: Argument) -> str:
    return str(argument) if isinstance(argument, Operand) else float(argument).hex()


_AXES = re.compile(r"(columns|rows) (\d)")
_INPUT = re.compile(rf"x(\d{{1,3}}): (\w+) ({'|'.join(VARIES)})")
_STEP = re.compile(r"t(\d{1,4}): (\w+) = (\w+)\(([^()]*)\)")


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> Expression:
    """The expression of a node. Raises ValueError where the text is not exactly what an expression prints."""
    try:
        expression = _parsed(text.split("; "))
        for index, step in enumerate(expression.steps):
            _check_step(expression, index, step)
    except (KeyError, IndexError) as exception:
        raise ValueError(f"not an element-wise expression: {exception}") from None
    if str(expression) != text:
        raise ValueError("not an element-wise expression as atcfuse writes it")
    used = {a for step in expression.steps for a in step.arguments if isinstance(a, Operand)}
    if any(Operand("x", i) not in used for i in range(len(expression.inputs))):
        raise ValueError("an input is not used")
    return expression


def _parsed(parts: list[str]) -> Expression:
    if not parts[0].startswith("columns ") or not parts[-1].startswith("out "):
        raise ValueError("not an element-wise expression")
    axes = {"rows": 0}
    inputs: list[Input] = []
    steps: list[Step] = []
    for part in parts[:-1]:
        named = _AXES.fullmatch(part)
        if named:
            axes[named[1]] = int(named[2])
            continue
        given = _INPUT.fullmatch(part)
        if given:
            inputs.append(Input(_TYPES[given[2]], given[3]))  # type: ignore[arg-type]
            continue
        step = _STEP.fullmatch(part)
        if step is None:
            raise ValueError(f"not a step: {part!r}")
        arguments = tuple(_argument(word) for word in step[4].split(", "))
        steps.append(Step(step[3], arguments, _TYPES[step[2]]))
    outputs = tuple(int(word[1:]) - 1 for word in parts[-1][len("out ") :].split(", "))
    if not 1 <= len(inputs) <= MAX_INPUTS or not 1 <= len(outputs) <= MAX_OUTPUTS or not steps:
        raise ValueError("too few or too many inputs, steps or outputs")
    if not all(0 <= o < len(steps) for o in outputs) or len(set(outputs)) != len(outputs):
        raise ValueError("an output is no step")
    if any(given.kind in FORMS for given in inputs) and not (axes["rows"] and axes["columns"]):
        raise ValueError("operands tell batches apart of which there is one")
    return Expression(axes["columns"], tuple(inputs), tuple(steps), outputs, axes["rows"])


def _argument(word: str) -> Argument:
    if re.fullmatch(r"[xt]\d{1,4}", word):
        return Operand("x" if word[0] == "x" else "t", int(word[1:]) - 1)
    value = float.fromhex(word)
    if math.isnan(value):
        raise ValueError("NaN is no constant")
    return value


def takes_integers(step: Step) -> bool:
    """Whether a step of an integer value gives in float32 what it gives in integers."""
    numbers = [a for a in step.arguments if not isinstance(a, Operand)]
    exact = all(number == int(number) for number in numbers if abs(number) < EXACT_INTEGERS)
    near = all(abs(number) < EXACT_INTEGERS for number in numbers)
    return step.op == "Cast" or (step.op in COMPARISONS and len(numbers) == 1 and near and exact)


def _check_step(expression: Expression, index: int, step: Step) -> None:
    """Raises ValueError for a step that its operator does not allow."""
    operator = OPERATORS[step.op]
    count = len(step.arguments)
    if not operator.takes(count):
        raise ValueError(f"{step.op} with {count} arguments")
    values, constants = (
        step.arguments[: operator.values_of(count)],
        step.arguments[operator.values_of(count) :],
    )
    if any(isinstance(c, Operand) for c in constants) or all(not isinstance(v, Operand) for v in values):
        raise ValueError(f"{step.op} of these arguments")
    for position, value in enumerate(values):
        wants_bool = position < len(operator.takes_bool) and operator.takes_bool[position]
        if not isinstance(value, Operand):
            if wants_bool:
                raise ValueError(f"{step.op} of a constant mask")
            continue
        if not 0 <= value.index < (len(expression.inputs) if value.source == "x" else index):
            raise ValueError(f"{value} is not known before t{index + 1}")
        if expression.dtype(value) in INTEGERS and not takes_integers(step):
            raise ValueError(f"{step.op} of integers")
        is_bool = expression.dtype(value) == BOOL
        may_be_bool = step.op == "Cast" or (step.op == "Where" and position > 0)
        if is_bool != wants_bool and not (may_be_bool and is_bool):
            raise ValueError(f"{step.op} of {TYPE_NAMES[expression.dtype(value)]}")
        if operator.rows and (not expression.columns or not expression.is_whole(value)):
            raise ValueError(f"{step.op} of what is no whole row")
    if step.dtype in INTEGERS:
        raise ValueError(f"{step.op} gives integers")
    if operator.result == "bool" and step.dtype != BOOL:
        raise ValueError(f"{step.op} gives a mask")
