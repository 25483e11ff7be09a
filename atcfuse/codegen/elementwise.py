"""What the elementwise kernel's templates take from an expression, what it refuses, and what it will move."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from atcfuse.codegen.signature import BFLOAT16, CPP_TYPES, ELEMENT_BYTES, Signature
from atcfuse.elementwise import BOOL, COLUMN, FULL, ROW, SCALAR, Expression, Kind, parse_expression
from atcfuse.elementwise.lower import Program, lower, scalar_name
from atcfuse.tiling import Platform
from atcfuse.tiling import elementwise as tiling

ELEMENTS = {"910B": ("float16", "bfloat16", "float32", "bool"), "310P": ("float16", "float32", "bool")}
_RAW = {1: "uint8_t", 2: "uint16_t", 4: "float"}
"""Types by which elements are copied, by their bytes."""


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
    if signature.family == "310P" and expression.of_kind(COLUMN):
        return "310P copies no parts of blocks, which one value a row needs"
    return None


def figures(signature: Signature, shapes: Mapping[str, tuple[int, ...]], platform: Platform) -> Mapping[str, int] | str:
    """Bytes of a launch, named as in the twin's report, or why the kernel does not take the shapes."""
    problem = problem_of(signature, shapes)
    return tiling.refusal(problem, platform) or vars(tiling.predict(tiling.plan(problem, platform)))


def problem_of(signature: Signature, shapes: Mapping[str, tuple[int, ...]]) -> tiling.Problem:
    """The tiling's view of a node with operands of these shapes."""
    expression, program = _lowered(signature)
    rows, columns = tiling.fold(tiling.broadcast(shapes), expression.columns)
    sizes = {kind: tuple(_bytes(signature, f"x{i + 1}") for i in expression.of_kind(kind)) for kind in _KINDS}
    return tiling.Problem(
        rows=rows,
        columns=columns,
        spread=bool(expression.columns),
        full=sizes[FULL],
        row=sizes[ROW],
        column=sizes[COLUMN],
        scalar=sizes[SCALAR],
        outputs=tuple(_bytes(signature, f"y{i + 1}") for i in range(len(expression.outputs))),
        needs=_needs(signature, expression, program),
        pads=signature.family == "910B",
    )


_KINDS: tuple[Kind, ...] = (FULL, ROW, COLUMN, SCALAR)


def passes(signature: Signature) -> int:
    """Vector instructions that an element passes."""
    return _lowered(signature)[1].passes


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
        "has_rows": bool(expression.of_kind(ROW)),
        "has_columns": bool(expression.of_kind(COLUMN)),
        "has_spread": bool(expression.of_kind(ROW) or expression.of_kind(COLUMN)),
        "bool_spread": any(signature.dtypes[f"x{i + 1}"] == BOOL for i in expression.of_kind(ROW)),
        "pads": signature.family == "910B",
        "temporary_bytes": tiling.TEMPORARY_BYTES,
        "parameters": [o.name for o in spec.inputs] + [o["name"] for o in outputs],
        "unused": [o.name for o in spec.inputs if o.name not in present],
    }


def _operands(
    signature: Signature, expression: Expression, program: Program
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Inputs and outputs with their places in the queues and among the planes."""
    inputs: list[dict[str, Any]] = []
    outputs: list[dict[str, Any]] = []
    offset, plane = 0, _own_planes(signature, expression, program)
    for index, given in enumerate(expression.inputs):
        described = _described(signature, f"x{index + 1}", index, given.kind)
        if given.kind == FULL:
            described["offset"] = offset
            offset += _bytes(signature, f"x{index + 1}")
        elif given.kind in (ROW, COLUMN):
            described["plane"] = plane
            plane += 1
        else:
            described["scalar"] = scalar_name(index)
        inputs.append(described)
    offset = 0
    for index in range(len(expression.outputs)):
        outputs.append({**_described(signature, f"y{index + 1}", index, FULL), "offset": offset})
        offset += _bytes(signature, f"y{index + 1}")
    return inputs, outputs


def _described(signature: Signature, name: str, index: int, kind: Kind) -> dict[str, Any]:
    dtype = signature.dtypes[name]
    raw = _RAW[ELEMENT_BYTES[dtype]]
    return {"name": name, "number": index + 1, "kind": kind, "type": CPP_TYPES[dtype], "raw": raw}


def _bytes(signature: Signature, name: str) -> int:
    return ELEMENT_BYTES[signature.dtypes[name]]


def _lowered(signature: Signature) -> tuple[Expression, Program]:
    expression = parse_expression(signature.text("expression"))
    types = tuple(signature.dtypes[f"x{i + 1}"] for i in range(len(expression.inputs)))
    outputs = tuple(signature.dtypes[f"y{i + 1}"] for i in range(len(expression.outputs)))
    return expression, _lower(expression, types, outputs, signature.family)


@lru_cache(maxsize=1024)
def _lower(expression: Expression, types: tuple[int, ...], outputs: tuple[int, ...], family: str) -> Program:
    return lower(expression, types, outputs, family)


def _own_planes(signature: Signature, expression: Expression, program: Program) -> int:
    """Planes of the program; a row is loaded into the first one, and a mask widened through the second."""
    rows = [signature.dtypes[f"x{i + 1}"] for i in expression.of_kind(ROW)]
    return max(program.planes, 2 if BOOL in rows else 1 if rows else 0)


def _needs(signature: Signature, expression: Expression, program: Program) -> tiling.Needs:
    spread = len(expression.of_kind(ROW)) + len(expression.of_kind(COLUMN))
    return tiling.Needs(
        in_bytes=sum(_bytes(signature, f"x{i + 1}") for i in expression.of_kind(FULL)),
        out_bytes=sum(_bytes(signature, f"y{i + 1}") for i in range(len(expression.outputs))),
        planes=_own_planes(signature, expression, program) + spread,
        bits=program.bits,
        temporary=program.temporary,
        columns=bool(expression.of_kind(COLUMN)),
    )
