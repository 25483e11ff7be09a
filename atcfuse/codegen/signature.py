"""The signature of a fused node: everything its kernel depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atcfuse.diagnostics import AtcfuseError, error
from atcfuse.elementwise import expression, footprint
from atcfuse.kernel import KernelSpec

AttributeValue = int | float | str | tuple[int, ...] | tuple[float, ...]

FLOAT, INT32, INT64 = expression.FLOAT, expression.INT32, expression.INT64
BOOL, FLOAT16, BFLOAT16 = expression.BOOL, expression.FLOAT16, expression.BFLOAT16
CPP_TYPES = {
    FLOAT: "float",
    FLOAT16: "half",
    BFLOAT16: "bfloat16_t",
    BOOL: "uint8_t",
    INT32: "int32_t",
    INT64: "int64_t",
}
"""C++ element types of kernel operands by TensorProto.DataType; a boolean is a byte."""
ELEMENT_NAMES = expression.TYPE_NAMES
ELEMENT_BYTES = footprint.ELEMENT_BYTES


@dataclass(frozen=True)
class Signature:
    """A fused operator with its attributes (all of kernel.yaml's), element types of present operands and chip family.

    Build it with `Signature.of`, which checks it against the operator's contract.
    """

    spec: KernelSpec
    attributes: Mapping[str, AttributeValue]
    dtypes: Mapping[str, int]
    family: str

    @staticmethod
    def of(
        spec: KernelSpec, attributes: Mapping[str, AttributeValue], dtypes: Mapping[str, int], family: str
    ) -> Signature:
        """Fills in defaults. Raises AtcfuseError ATF705 for what kernel.yaml does not allow."""
        problems = [*_attribute_problems(spec, attributes), *_dtype_problems(spec, dtypes)]
        if problems:
            hint = f"kernels/{spec.name}/kernel.yaml says what {spec.op} takes"
            raise AtcfuseError(error("ATF705", f"{spec.op}: {problems[0]}", hint=hint, notes=problems[1:]))
        defaults = {a.name: a.default for a in spec.attributes if a.default is not None}
        return Signature(spec, {**defaults, **attributes}, dict(dtypes), family)

    def has(self, operand: str) -> bool:
        """Whether the node has this operand."""
        return operand in self.dtypes

    def integer(self, name: str) -> int:
        """An integer attribute."""
        value = self.attributes[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        """A float attribute, rounded to float32 as ONNX stores it."""
        value = self.attributes[name]
        assert isinstance(value, (int, float))
        return float32(value)

    def text(self, name: str) -> str:
        """A string attribute."""
        return str(self.attributes[name])


def float32(value: float) -> float:
    """The nearest float32 value; beyond its range an infinity."""
    import struct

    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _attribute_problems(spec: KernelSpec, attributes: Mapping[str, AttributeValue]) -> list[str]:
    known = {a.name for a in spec.attributes}
    unknown = [f"it has no attribute {name!r}" for name in attributes if name not in known]
    missing = [
        f"the attribute {a.name!r} is missing"
        for a in spec.attributes
        if a.default is None and a.name not in attributes
    ]
    return unknown + missing


def _dtype_problems(spec: KernelSpec, dtypes: Mapping[str, int]) -> list[str]:
    operands = {o.name: o for o in (*spec.inputs, *spec.outputs)}
    problems = [f"it has no operand {name!r}" for name in dtypes if name not in operands]
    for name, operand in operands.items():
        if name not in dtypes and not operand.optional:
            problems.append(f"the operand {name!r} is missing")
        if name in dtypes and dtypes[name] not in operand.types:
            problems.append(f"{name} cannot have element type {dtypes[name]}")
    return problems
