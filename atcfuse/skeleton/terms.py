"""A region as pattern terms and as a graph in ONNX's text form, from one walk over its nodes."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atcfuse.diagnostics import Span, UsageError, error
from atcfuse.dims import Dim
from atcfuse.expr import parse
from atcfuse.graph.constants import scalar
from atcfuse.graph.facts import INTEGERS
from atcfuse.graph.index import Node
from atcfuse.graph.schema import MEANINGLESS, signature
from atcfuse.match.typing import type_name
from atcfuse.rule.vocabulary import COMBINATORS, FUNCTIONS
from atcfuse.skeleton.region import Region
from atcfuse.skeleton.sizes import Sizes

FLOATS = {10: "float16", 1: "float32", 16: "bfloat16"}
"""Element types that kernels compute in; a region of one of them is written for all, as T."""

_SHAPED = ("Reshape", "Expand")
"""Operators whose target is known by the shape of their result, whatever computes it."""
_RESERVED = {*COMBINATORS, *FUNCTIONS, "inf", "T", "in", "is", "or", "if", "and", "not", "for", "lambda"}
_PLAIN = frozenset({0.0, 0.5, 1.0, 2.0})
"""Factors that mean themselves, not the size of an axis that happens to be near."""


@dataclass
class Parts:
    """What a rule file says of a region."""

    element: int
    inputs: dict[str, str] = field(default_factory=dict)
    steps: list[tuple[str, str, str]] = field(default_factory=list)
    where: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    initializers: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    anchors: list[tuple[str, str]] = field(default_factory=list)


class Writer:
    """Writes a region with the sizes given; `parts` holds the result."""

    def __init__(self, region: Region, sizes: Sizes) -> None:
        self._region, self._scope, self._sizes = region, region.scope, sizes
        self._names: dict[str, str] = {}
        self._element = _main_element(region)
        self._wide = not any(n.op == "Cast" for n in region.nodes) and self._element in FLOATS
        self.parts = Parts(self._element)
        for node in region.nodes:
            self._node(node)
        for value in region.outputs:
            name = self._names[value]
            self.parts.outputs.append(name)
            self.parts.made.append(f"{self._example_type(value)} {name}")

    @property
    def types(self) -> str:
        """The element types that T stands for, as YAML."""
        names = list(FLOATS.values()) if self._wide else [type_name(self._element)]
        return f"[{', '.join(names)}]"

    def _node(self, node: Node) -> None:
        keywords = dict(self._attributes(node))
        terms: list[str] = []
        operands: list[str] = []
        known = signature(node.op, self._scope.model.opset)
        for position, value in enumerate(node.inputs):
            name = known.inputs[min(position, len(known.inputs) - 1)] if known and known.inputs else ""
            self._operand(node, position, name, value, terms, operands, keywords)
        names = [self._fresh(o, node.op.rpartition("::")[2].lower()) for o in node.outputs if o]
        if len(names) > 1 and node.op != "Split":
            raise UsageError(
                error("ATF172", f"{node.op} at {node.name!r} has {len(names)} outputs; a pattern reads one")
            )
        head = node.op.replace("::", ".")
        written = [*terms, *(f"{k}={_pattern(v)}" for k, v in keywords.items())]
        step = names[0] if len(names) == 1 else f"({', '.join(names)})"
        kind = self._type(node.outputs[0]) if node.op in _SHAPED else ""
        self.parts.steps.append((step, f"{head}({', '.join(written)})", kind))
        self.parts.anchors.append((names[0], node.op))
        given = ", ".join(f"{k} = {_onnx(v)}" for k, v in self._attributes(node))
        self.parts.lines.append(f"{', '.join(names)} = {head}{f'<{given}>' if given else ''}({', '.join(operands)})")

    def _attributes(self, node: Node) -> Iterator[tuple[str, Any]]:
        known = signature(node.op, self._scope.model.opset)
        defaults = known.defaults if known else {}
        for name, value in sorted(node.attributes.items()):
            if name in MEANINGLESS.get(node.op, ()) or (name in defaults and defaults[name] == value):
                continue
            if not isinstance(value, (int, float, str, tuple)) or value == ():
                what = f"the attribute {name} of {node.op} at {node.name!r} cannot be written in a pattern"
                raise UsageError(error("ATF172", what, hint="choose the nodes around it"))
            yield name, value

    def _operand(
        self,
        node: Node,
        position: int,
        parameter: str,
        value: str,
        terms: list[str],
        operands: list[str],
        keywords: dict[str, Any],
    ) -> None:
        if not value:
            if any(node.inputs[position + 1 :]):
                what = f"{node.op} at {node.name!r} leaves an input open that is followed by others"
                raise UsageError(error("ATF172", what))
            return
        source = self._scope.source(value)
        if source in self._names:
            terms.append(self._names[source])
            operands.append(self._names[source])
            return
        fact = self._scope.fact(source)
        if position and fact.dtype in INTEGERS and node.op in _SHAPED:
            self._shape(node, source, terms, operands)
        elif position and fact.dtype in INTEGERS and _integers(fact.elements):
            keywords[parameter] = tuple(fact.elements or ())
            operands.append(self._initializer(source, parameter, fact.dtype, fact.elements or (), fact.shape or ()))
        elif fact.shape == () or fact.size == 1:
            self._number(source, terms, operands)
        else:
            terms.append(self._input(source))
            operands.append(terms[-1])

    def _shape(self, node: Node, source: str, terms: list[str], operands: list[str]) -> None:
        shape = tuple(self._sizes.size(d) for d in self._known_shape(node.outputs[0]))
        name = self._fresh(source, "target")
        del self._names[source]  # another Reshape may be given the same target computed from other sizes
        self.parts.inputs[name] = "int64"
        self.parts.initializers.append(_initializer(name, "int64", (len(shape),), shape))
        terms.append(name)
        operands.append(name)

    def _number(self, source: str, terms: list[str], operands: list[str]) -> None:
        """A constant of one element: a literal, or a named constant where it says the size of an axis."""
        value = scalar(self._scope, source)
        if value is None:
            terms.append(self._input(source))
            operands.append(terms[-1])
            return
        dtype, shape = self._scope.fact(source).dtype, self._scope.fact(source).shape or ()
        meaning = self._size_behind(value)
        name = self._fresh(source, "c")
        if meaning is None and math.isfinite(value):
            terms.append(_pattern(value if dtype not in INTEGERS else int(value)))
        else:
            terms.append(name)
            self.parts.inputs[name] = "const [1]"
        if meaning is not None:
            formula, value = meaning
            self.parts.where[f"close(scalar({name}), {formula})"] = f"{name} is not {formula}"
        elif not math.isfinite(value):
            self.parts.where[f"scalar({name}) == {_text_of(value)}"] = f"{name} is not {_text_of(value)}"
        extents = tuple(self._sizes.size(d) for d in shape)
        self.parts.initializers.append(_initializer(name, self._example_element(dtype), extents, (value,)))
        operands.append(name)

    def _size_behind(self, value: float) -> tuple[str, float] | None:
        """`sqrt(D)`, `1 / sqrt(D)`, `D` or `1 / D` where an axis has that size, and its value in the example."""
        if abs(value) in _PLAIN:
            return None
        for letter, dim in self._sizes.letters().items():
            if not isinstance(dim, int) or dim < 8:
                continue
            for formula, of in _FORMULAS.items():
                if math.isclose(value, of(dim), rel_tol=1e-6):
                    return formula.replace("D", letter), of(self._sizes.size(dim))
        return None

    def _input(self, source: str) -> str:
        is_weight = self._scope.tensor(source) is not None and len(self._known_shape(source)) > 1
        name = self._fresh(source, "w" if is_weight else "x")
        self.parts.inputs[name] = self._type(source)
        self.parts.given.append(f"{self._example_type(source)} {name}")
        return name

    def _initializer(self, source: str, wanted: str, dtype: int, values: Sequence[Any], shape: Sequence[Dim]) -> str:
        name = self._fresh(source, wanted or "c")
        extents = tuple(int(d) for d in shape if isinstance(d, int))
        self.parts.initializers.append(_initializer(name, type_name(dtype), extents, values))
        return name

    def _type(self, value: str) -> str:
        dtype = self._scope.fact(value).dtype
        element = "T" if dtype == self._element else type_name(dtype)
        return f"{element}[{', '.join(self._sizes.text(d) for d in self._known_shape(value))}]"

    def _example_type(self, value: str) -> str:
        extents = [str(self._sizes.size(d)) for d in self._known_shape(value)]
        element = self._example_element(self._scope.fact(value).dtype)
        return f"{element}[{','.join(extents)}]" if extents else element

    def _example_element(self, dtype: int) -> str:
        if dtype == self._element and self._wide:
            return "float"
        return {1: "float", 11: "double"}.get(dtype, type_name(dtype))

    def _known_shape(self, value: str) -> tuple[Dim, ...]:
        fact = self._scope.fact(value)
        if fact.shape is None or not fact.dtype:
            what = "rank" if fact.dtype else "element type"
            hint = "export with shapes, or choose a region whose values are known"
            raise UsageError(error("ATF172", f"the {what} of {value!r} is not known", hint=hint))
        return fact.shape

    def _fresh(self, value: str, fallback: str) -> str:
        words = re.split(r"[/.:]+", value)
        word = re.sub(r"\W", "_", words[-1]).strip("_").lower()
        generated = re.search(r"output_\d+$|^[a-z]*_?\d+$|^onnx__|_output$", word) is not None
        named = re.fullmatch(r"[a-z_][a-z0-9_]{0,24}", word) is not None and not generated
        base = word if named and word not in _RESERVED else fallback
        base = f"{base}_0" if base in _RESERVED else base
        taken, name, count = {*self._names.values(), *self.parts.inputs}, base, 1
        while name in taken or not _is_name(name):
            count += 1
            name = f"{base}_{count}"
        self._names[value] = name
        return name


_FORMULAS: Mapping[str, Callable[[int], float]] = {
    "sqrt(D)": lambda d: math.sqrt(d),
    "1 / sqrt(D)": lambda d: 1 / math.sqrt(d),
    "D": lambda d: float(d),
    "1 / D": lambda d: 1 / d,
}


def _is_name(name: str) -> bool:
    """Whether the expression language takes it as a name."""
    try:
        return bool(parse(name, Span("")).names())
    except Exception:
        return False


def _main_element(region: Region) -> int:
    """The element type of most values, floating where there is one."""
    counts: dict[int, int] = {}
    for node in region.nodes:
        for value in (*node.inputs, *node.outputs):
            dtype = region.scope.fact(value).dtype if value else 0
            if dtype and dtype not in INTEGERS:
                counts[dtype] = counts.get(dtype, 0) + 1
    floats = {d: c for d, c in counts.items() if d in FLOATS} or counts
    return max(floats, key=lambda d: (floats[d], -d), default=1)


def _integers(elements: Any) -> bool:
    return elements is not None and len(elements) > 0 and all(isinstance(e, int) for e in elements)


def _short(value: float) -> str:
    """The shortest text of a number that float32 cannot tell from it."""
    text = f"{value:.8g}"
    return text if re.search(r"[.e]", text) else f"{text}.0"


def _text_of(value: float) -> str:
    return "inf" if value == math.inf else "-inf" if value == -math.inf else _short(value)


def _pattern(value: Any) -> str:
    if isinstance(value, float):
        return _short(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_pattern(v) for v in value)}]"
    return repr(value)


def _onnx(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{','.join(_onnx(v) for v in value)}]"
    return _short(value) if isinstance(value, float) else str(value)


def _initializer(name: str, element: str, shape: Sequence[int], values: Sequence[Any]) -> str:
    numbers = ",".join(_written(v, element) for v in values)
    extents = f"[{','.join(map(str, shape))}]" if shape else ""
    return f"{element}{extents} {name} = {{{numbers}}}"


def _written(value: Any, element: str) -> str:
    """A number as ONNX's text form has it; the narrow floats as their bits."""
    if element == "float16":
        return str(struct.unpack("<H", struct.pack("<e", value))[0])
    if element == "bfloat16":
        return str(struct.unpack("<I", struct.pack("<f", value))[0] >> 16)
    return _text_of(value) if isinstance(value, float) else str(value)


def anchors_by_rarity(parts: Parts, counts: Mapping[str, int]) -> list[str]:
    """Names of steps to start from: of the rarest operator in the model first, the last one where several have it."""
    ranked = sorted(enumerate(parts.anchors), key=lambda p: (counts.get(p[1][1], 0), -p[0]))
    return [name for _, (name, _) in ranked]
