"""What the elementwise kernel's templates take from an expression, what it refuses, and what it will move."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from atcfuse.codegen.signature import BFLOAT16, CPP_TYPES, ELEMENT_BYTES, INT32, Signature
from atcfuse.elementwise import (
    BATCH_ROW,
    BATCH_SCALAR,
    BOOL,
    COLUMN,
    FULL,
    INTEGERS,
    MATRIX,
    ROW,
    SCALAR,
    SHARED_COLUMN,
    VARIES,
    Expression,
    Kind,
    form_of,
    parse_expression,
)
from atcfuse.elementwise.footprint import COLUMN_ROWS, TEMPORARY_BYTES, Needs, needs_of, own_planes
from atcfuse.elementwise.functions import ROUNDINGS
from atcfuse.elementwise.lower import Program, lower, scalar_name
from atcfuse.tiling import Platform
from atcfuse.tiling import elementwise as tiling

ELEMENTS = {
    "910B": ("float16", "bfloat16", "float32", "bool", "int32", "int64"),
    "310P": ("float16", "float32", "bool"),
}
_RAW = {1: "uint8_t", 2: "uint16_t", 4: "float", 8: "int64_t"}
"""Types by which elements are copied, by their bytes."""
_REDUCTIONS = ("Sum", "Max", "Min")


def refusal(signature: Signature) -> str | None:
    """Why no elementwise kernel can be generated for this signature, or None."""
    try:
        expression = parse_expression(signature.text("expression"))
    except ValueError as problem:
        return f"its expression cannot be read: {problem}"
    count = len(expression.inputs), len(expression.outputs)
    names = [f"x{i + 1}" for i in range(count[0])] + [f"y{i + 1}" for i in range(count[1])]
    if sorted(names) != sorted(signature.dtypes):
        return f"its expression has {count[0]} inputs and {count[1]} outputs, the node others"
    given = {f"x{i + 1}": x.dtype for i, x in enumerate(expression.inputs)}
    given |= {f"y{i + 1}": dtype for i, dtype in enumerate(expression.output_types)}
    if any((dtype == BOOL) != (signature.dtypes[name] == BOOL) for name, dtype in given.items()):
        return "masks are given where its expression has numbers, or numbers for masks"
    if signature.family == "310P" and any(t == BFLOAT16 for t in (*given.values(), *signature.dtypes.values())):
        return "310P has no bfloat16"
    if signature.family == "310P" and expression.rows:
        return "values that differ from batch to batch are read on 910B alone"
    if signature.family == "310P" and (expression.of_kind(COLUMN) or COLUMN in expression.output_kinds):
        return "310P copies no parts of blocks, which one value a row needs"
    if signature.family == "310P" and expression.reduces:
        return "reductions of rows are generated for 910B alone"
    if signature.family == "310P" and INTEGERS & {x.dtype for x in expression.inputs}:
        return "310P casts no integers as the kernel needs it"
    if signature.family == "310P" and any(step.op in ROUNDINGS for step in expression.steps):
        return "310P rounds no float32 to integers in place"
    return None


def figures(signature: Signature, shapes: Mapping[str, tuple[int, ...]], platform: Platform) -> Mapping[str, int] | str:
    """Bytes of a launch, named as in the twin's report, or why the kernel does not take the shapes."""
    problem = problem_of(signature, shapes)
    return tiling.refusal(problem, platform) or vars(tiling.predict(tiling.plan(problem, platform)))


def problem_of(signature: Signature, shapes: Mapping[str, tuple[int, ...]]) -> tiling.Problem:
    """The tiling's view of a node with operands of these shapes."""
    expression, program = _lowered(signature)
    batches, rows, columns = tiling.fold(tiling.broadcast(shapes), expression.columns, expression.rows)
    sizes = {kind: tuple(_bytes(signature, f"x{i + 1}") for i in expression.of_kind(kind)) for kind in _KINDS}
    return tiling.Problem(
        rows=rows,
        columns=columns,
        spread=bool(expression.columns),
        full=sizes[FULL],
        row=sizes[ROW],
        column=sizes[COLUMN],
        scalar=sizes[SCALAR],
        outputs=_outputs(signature, expression, FULL),
        column_outputs=_outputs(signature, expression, COLUMN),
        needs=_needs(signature, expression, program),
        pads=signature.family == "910B",
        batches=batches,
        matrix=sizes[MATRIX],
        batch_row=sizes[BATCH_ROW],
        shared_column=sizes[SHARED_COLUMN],
        batch_scalar=sizes[BATCH_SCALAR],
    )


_KINDS: tuple[Kind, ...] = tuple(VARIES)


def _outputs(signature: Signature, expression: Expression, kind: Kind) -> tuple[int, ...]:
    return tuple(_bytes(signature, f"y{i + 1}") for i, k in enumerate(expression.output_kinds) if k == kind)


def program_of(signature: Signature) -> Program:
    """The instructions of the kernel."""
    return _lowered(signature)[1]


def values(signature: Signature) -> Mapping[str, Any]:
    """Template variables."""
    expression, program = _lowered(signature)
    needs = _needs(signature, expression, program)
    inputs, outputs = _operands(signature, expression, program)
    present = {o["name"] for o in (*inputs, *outputs)}
    spec = signature.spec
    return {
        "expression": str(expression),
        "inputs": inputs,
        "outputs": outputs,
        "all_outputs": len(spec.outputs),
        "program": program,
        "needs": needs,
        "column_axes": expression.columns,
        "row_axes": expression.rows,
        "reads_batches": bool(expression.of_kind(BATCH_ROW) or expression.of_kind(BATCH_SCALAR)),
        "has_rows": bool(expression.of_form(ROW)),
        "has_columns": needs.by_rows,
        "column_rows": COLUMN_ROWS,
        "column_outputs": COLUMN in expression.output_kinds,
        "has_spread": bool(expression.of_form(ROW) or expression.of_form(COLUMN)),
        "means": any(step.op == "ReduceMean" for step in expression.steps),
        "reductions": [name for name in _REDUCTIONS if any(f"{name}Rows(" in line for line in program.lines)],
        "loads_integers": any(x.dtype in INTEGERS and form_of(x.kind) in (ROW, COLUMN) for x in expression.inputs),
        "bool_spread": any(signature.dtypes[f"x{i + 1}"] == BOOL for i in expression.of_form(ROW)),
        "pads": signature.family == "910B",
        "temporary_bytes": TEMPORARY_BYTES,
        "parameters": [o.name for o in spec.inputs] + [o["name"] for o in outputs],
        "unused": [o.name for o in spec.inputs if o.name not in present],
    }


def _operands(
    signature: Signature, expression: Expression, program: Program
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Inputs and outputs with their places in the queues and among the planes."""
    inputs: list[dict[str, Any]] = []
    outputs: list[dict[str, Any]] = []
    offset, plane = 0, own_planes(expression, program, _input_types(signature, expression))
    column = program.columns
    for index, given in enumerate(expression.inputs):
        described = _described(signature, f"x{index + 1}", index, given.kind)
        form = described["kind"]
        if form == FULL:
            described["offset"] = offset
            offset += _bytes(signature, f"x{index + 1}")
        elif form == ROW:
            described["plane"] = plane
            plane += 1
        elif form == COLUMN:
            described["column"] = column
            column += 1
        else:
            described["scalar"] = scalar_name(index)
        inputs.append(described)
    offsets = {FULL: 0, COLUMN: 0}
    for index, kind in enumerate(expression.output_kinds):
        outputs.append({**_described(signature, f"y{index + 1}", index, kind), "offset": offsets[kind]})
        offsets[kind] += _bytes(signature, f"y{index + 1}")
    return inputs, outputs


def _described(signature: Signature, name: str, index: int, kind: Kind) -> dict[str, Any]:
    dtype = signature.dtypes[name]
    raw = "int32_t" if dtype == INT32 else _RAW[ELEMENT_BYTES[dtype]]
    batched, row, column = VARIES[kind]
    return {
        "name": name,
        "number": index + 1,
        "kind": form_of(kind),
        "batched": batched,
        "varies": [batched, row, column],
        "type": CPP_TYPES[dtype],
        "raw": raw,
    }


def _bytes(signature: Signature, name: str) -> int:
    return ELEMENT_BYTES[signature.dtypes[name]]


def _lowered(signature: Signature) -> tuple[Expression, Program]:
    expression = parse_expression(signature.text("expression"))
    types = _input_types(signature, expression)
    outputs = tuple(signature.dtypes[f"y{i + 1}"] for i in range(len(expression.outputs)))
    return expression, _lower(expression, types, outputs, signature.family)


@lru_cache(maxsize=1024)
def _lower(expression: Expression, types: tuple[int, ...], outputs: tuple[int, ...], family: str) -> Program:
    return lower(expression, types, outputs, family)


def _input_types(signature: Signature, expression: Expression) -> tuple[int, ...]:
    return tuple(signature.dtypes[f"x{i + 1}"] for i in range(len(expression.inputs)))


def _needs(signature: Signature, expression: Expression, program: Program) -> Needs:
    inputs = [_bytes(signature, f"x{i + 1}") for i in range(len(expression.inputs))]
    outputs = [_bytes(signature, f"y{i + 1}") for i in range(len(expression.outputs))]
    return needs_of(expression, program, _input_types(signature, expression), inputs, outputs)
