"""`kernel.yaml`: what a fused operator takes, gives and demands. The kernels beside it implement exactly this."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from atcfuse.diagnostics import AtcfuseError, Span, did_you_mean, error
from atcfuse.expr import Expr, parse
from atcfuse.rule.types import ELEMENT_TYPES
from atcfuse.strict_yaml import Value, read_documents

AttributeKind = Literal["int", "float", "string", "ints", "floats"]
DOMAIN = "atcfuse"
KEPT = "kept"
"""The attribute that says for each of the last outputs whether a node has it, 1 or 0; no rule gives it."""


@dataclass(frozen=True)
class Operand:
    """An input or output of a fused operator; `types` are the element types that it may have."""

    name: str
    types: tuple[int, ...]
    optional: bool
    doc: str


@dataclass(frozen=True)
class Attribute:
    """An attribute of a fused operator; it is always written out, `default` only fills what a rule leaves open."""

    name: str
    kind: AttributeKind
    default: int | float | str | None
    doc: str


@dataclass(frozen=True)
class Requirement:
    """A condition over attributes and dims that the kernel needs, and the reason to give where it does not hold."""

    test: Expr
    reason: str


@dataclass(frozen=True)
class KernelSpec:
    """A fused operator: `op` is its ONNX op type in domain `atcfuse`, `folder` where its meaning and templates lie.

    `static` lists by input the axes whose sizes must be known when the model is built, `blocks` those for which that
    holds on chips that copy whole blocks of 32 bytes only: the kernel refuses sizes that do not fill them. Where it is
    `suffixed`, every content of its attributes is an op type of its own: `op` and ten letters a to p.
    """

    name: str
    op: str
    summary: str
    inputs: tuple[Operand, ...]
    attributes: tuple[Attribute, ...]
    outputs: tuple[Operand, ...]
    requires: tuple[Requirement, ...]
    flops: Expr
    folder: Path
    span: Span
    static: tuple[tuple[str, tuple[int, ...]], ...] = ()
    blocks: tuple[tuple[str, tuple[int, ...]], ...] = ()

    suffixed: bool = False

    def op_of(self, attributes: Mapping[str, Any]) -> str:
        """The op type of a node with these attributes."""
        if not self.suffixed:
            return self.op
        text = repr([attributes[a.name] for a in self.attributes])
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        return self.op + "".join(chr(ord("a") + int(c, 16)) for c in digest)

    def makes(self, op: str) -> bool:
        """Whether an op type of domain `atcfuse` is one of this kernel's."""
        return op == self.op if not self.suffixed else is_suffixed(op, self.op)

    def attribute(self, name: str) -> Attribute | None:
        """The attribute of that name."""
        return next((a for a in self.attributes if a.name == name), None)


def load_kernels(folder: Path) -> dict[str, KernelSpec]:
    """Every `<folder>/<kernel>/kernel.yaml` by kernel name. Raises AtcfuseError with file, line and column."""
    files = sorted(folder.glob("*/kernel.yaml"))
    specs = [_kernel(read_documents(f, f"kernels/{f.parent.name}/kernel.yaml")[0], f.parent) for f in files]
    return {spec.name: spec for spec in specs}


def _kernel(value: Value, folder: Path) -> KernelSpec:
    required = ("kernel", "op", "summary", "types", "inputs", "attributes", "outputs", "flops")
    keys = value.fields(required, ("requires", "chips", "backend", "notes", "static", "blocks", "op_suffix"))
    suffix = keys["op_suffix"].text() if "op_suffix" in keys else None
    if suffix not in (None, "content"):
        raise keys["op_suffix"].fail("ATF214", f"unknown suffix {suffix!r}", "content, or nothing")
    types = {name: _element_types(v) for name, _, v in keys["types"].items()}
    inputs = tuple(_operand(name, v, types) for name, _, v in keys["inputs"].items())
    return KernelSpec(
        name=keys["kernel"].text(),
        op=keys["op"].text(),
        summary=keys["summary"].text(),
        inputs=inputs,
        attributes=tuple(_attribute(name, v) for name, _, v in keys["attributes"].items()),
        outputs=tuple(_operand(name, v, types) for name, _, v in keys["outputs"].items()),
        requires=_requirements(keys.get("requires")),
        flops=parse(keys["flops"].text(), keys["flops"].text_span()),
        folder=folder,
        span=value.span,
        static=_axes(keys.get("static"), [o.name for o in inputs]),
        blocks=_axes(keys.get("blocks"), [o.name for o in inputs]),
        suffixed=suffix is not None,
    )


def _axes(value: Value | None, inputs: list[str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    found = []
    for name, key, axes in value.items() if value is not None else ():
        if name not in inputs:
            raise key.fail("ATF210", f"the kernel has no input {name!r}", did_you_mean(name, inputs))
        numbers = [(axis, axis.number()) for axis in axes.list()]
        for axis, number in numbers:
            if not isinstance(number, int):
                raise axis.fail("ATF207", f"an axis is a whole number, found {number!r}")
        found.append((name, tuple(int(number) for _, number in numbers)))
    return tuple(found)


def _element_types(value: Value) -> tuple[int, ...]:
    out = []
    for item in value.list():
        name = item.text()
        if name not in ELEMENT_TYPES:
            raise item.fail("ATF214", f"unknown element type {name!r}", did_you_mean(name, ELEMENT_TYPES))
        out.append(ELEMENT_TYPES[name])
    return tuple(out)


def _operand(name: str, value: Value, types: Mapping[str, tuple[int, ...]]) -> Operand:
    keys = value.fields(("type", "doc"))
    kind = keys["type"].text()
    if kind not in types and kind not in ELEMENT_TYPES:
        hint = did_you_mean(kind, [*types, *ELEMENT_TYPES])
        raise keys["type"].fail("ATF214", f"unknown element type {kind!r}", hint)
    allowed = types[kind] if kind in types else (ELEMENT_TYPES[kind],)
    return Operand(name.rstrip("?"), allowed, name.endswith("?"), keys["doc"].text())


def _attribute(name: str, value: Value) -> Attribute:
    keys = value.fields(("type", "doc"), ("default",))
    kind = keys["type"].text()
    if kind not in ("int", "float", "string", "ints", "floats"):
        raise keys["type"].fail("ATF214", f"unknown attribute type {kind!r}", "int, float, string, ints or floats")
    default = keys["default"].number() if "default" in keys else None
    if kind == "float" and isinstance(default, int):
        default = float(default)
    return Attribute(name, kind, default, keys["doc"].text())  # type: ignore[arg-type]


def _requirements(value: Value | None) -> tuple[Requirement, ...]:
    if value is None:
        return ()
    return tuple(Requirement(parse(test, key.text_span()), v.text()) for test, key, v in value.items())


def is_suffixed(op: str, stem: str) -> bool:
    """Whether an op type is a stem with the ten letters of a content."""
    return re.fullmatch(r"[a-p]{10}", op.removeprefix(stem)) is not None and op.startswith(stem)


def find_kernel(specs: Iterable[KernelSpec], op: str) -> KernelSpec | None:
    """The kernel that makes a node's operator (`atcfuse::Op`), None for any other node."""
    domain, colons, name = op.partition("::")
    if domain != DOMAIN or not colons:
        return None
    return next((spec for spec in specs if spec.makes(name)), None)


def kernel_for_op(kernels: Mapping[str, KernelSpec], op: str) -> KernelSpec:
    """The kernel of a fused op type. Raises AtcfuseError where there is none."""
    for spec in kernels.values():
        if spec.makes(op):
            return spec
    hint = did_you_mean(op, [s.op for s in kernels.values()])
    raise AtcfuseError(error("ATF218", f"no kernel makes the operator {op!r}", hint=hint))
