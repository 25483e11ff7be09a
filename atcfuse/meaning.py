"""The meaning of a fused node: an ONNX function in standard operators, rendered from the node's attributes.

`kernels/<kernel>/meaning.onnx.j2` is ONNX's own text form with Jinja around it; the helpers here write the lines that
depend on the opset or on a layout. The meaning makes the optimized model run in stock onnxruntime, and because it is
rendered from what the fused node says, comparing it with the original tests what the rule derived.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from atcfuse.elementwise import parse_expression
from atcfuse.elementwise.onnx_text import function_lines
from atcfuse.kernel import DOMAIN, KernelSpec
from atcfuse.layout import parse_layout
from atcfuse.templates import environment

FLOAT = 1


@dataclass(frozen=True)
class Signature:
    """What the meaning of a fused node depends on; nodes with equal signatures share one function.

    `inputs` gives the element type of every present input, `outputs` the names of the outputs made.
    """

    op: str
    attributes: tuple[tuple[str, Any], ...]
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[str, ...]
    opset: int

    @cached_property
    def overload(self) -> str:
        """Ten letters a to p that name the signature."""
        text = repr((self.op, self.attributes, self.inputs, self.outputs, self.opset))
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        return "".join(chr(ord("a") + int(c, 16)) for c in digest)


def render(spec: KernelSpec, signature: Signature, result_types: Mapping[str, int] | None = None) -> str:
    """The function in ONNX's text form.

    `result_types` gives the element types that the outputs have where they are not those of the node's model, because
    ATC's precision mode narrowed them.
    """
    attributes = dict(signature.attributes)
    types = dict(signature.inputs)
    # Absent inputs in the middle are parameters too, which the body does not read.
    formals = [i.name for i in spec.inputs]
    formals = formals[: max(formals.index(name) for name in types) + 1]
    template = environment(spec.folder, spec.folder.parent).get_template("meaning.onnx.j2")
    return template.render(
        attributes,
        op=spec.op_of(attributes),
        domain=DOMAIN,
        opset=signature.opset,
        overload=signature.overload,
        attribute_names=", ".join(_written_names(spec)),
        inputs=formals,
        outputs=list(signature.outputs),
        types=types,
        made=result_types or {},
        w=Writer(signature.opset),
    )


def _written_names(spec: KernelSpec) -> list[str]:
    """The attributes that a node carries: floats also as exact text."""
    return [name for a in spec.attributes for name in ([a.name, f"{a.name}_hex"] if a.kind == "float" else [a.name])]


def number(value: float) -> str:
    """A float as ONNX's text form reads it back exactly."""
    if math.isinf(value):
        return "-inf" if value < 0 else "inf"
    return repr(float(value))


class Writer:
    """Lines of ONNX text. The first argument of every method names the result; helper values extend that name."""

    def __init__(self, opset: int) -> None:
        self.opset = opset

    def constant(self, result: str, value: float) -> str:
        """A float32 scalar."""
        return f"  {result} = Constant <value = float {{{number(value)}}}> ()\n"

    def ints(self, result: str, values: Sequence[int]) -> str:
        """A one-dimensional int64 tensor."""
        return f"  {result} = Constant <value = int64[{len(values)}] {{{', '.join(map(str, values))}}}> ()\n"

    def cast(self, result: str, source: str, have: int, want: int) -> str:
        """`source` in another element type."""
        made = "Identity" if have == want else f"Cast <to = {want}>"
        return f"  {result} = {made} ({source})\n"

    def binary(self, op: str, result: str, source: str, value: float) -> str:
        """An element-wise operator with a float32 number on the right."""
        return self.constant(f"{result}_c", value) + f"  {result} = {op} ({source}, {result}_c)\n"

    def axes(self, op: str, result: str, source: str, axes: Sequence[int]) -> str:
        """Squeeze or Unsqueeze, whose axes moved from attribute to input in opset 13."""
        if not axes:
            return f"  {result} = Identity ({source})\n"
        if self.opset < 13:
            return f"  {result} = {op} <axes = [{', '.join(map(str, axes))}]> ({source})\n"
        return self.ints(f"{result}_axes", axes) + f"  {result} = {op} ({source}, {result}_axes)\n"

    def last_mean(self, result: str, source: str) -> str:
        """The mean over the last axis, kept; ReduceMean's axes moved from attribute to input in opset 18."""
        if self.opset < 18:
            return f"  {result} = ReduceMean <axes = [-1], keepdims = 1> ({source})\n"
        return self.ints(f"{result}_axes", [-1]) + f"  {result} = ReduceMean <keepdims = 1> ({source}, {result}_axes)\n"

    def parts(self, result: str, source: str, shape: str, count: int) -> str:
        """[N, …] as [N, count, the rest]; before opset 14 a Reshape cannot be told so for an empty batch."""
        target = f"{result}_shape"
        if self.opset < 14:
            return self.ints(target, [0, count, -1]) + f"  {result} = Reshape ({source}, {target})\n"
        ends = {"zero": 0, "one": 1, "end": 2**63 - 1, "count": count}
        text = "".join(self.ints(f"{result}_{name}", [value]) for name, value in ends.items())
        return text + (
            f"  {result}_batch = Slice ({shape}, {result}_zero, {result}_one)\n"
            f"  {result}_sample = Slice ({shape}, {result}_one, {result}_end)\n"
            f"  {result}_size = ReduceProd <keepdims = 1> ({result}_sample)\n"
            f"  {result}_each = Div ({result}_size, {result}_count)\n"
            f"  {target} = Concat <axis = 0> ({result}_batch, {result}_count, {result}_each)\n"
            f"  {result} = Reshape <allowzero = 1> ({source}, {target})\n"
        )

    def halves(self, first: str, second: str, source: str) -> str:
        """The two halves of the last axis; a Split into equal parts names their number from opset 18 on."""
        count = ", num_outputs = 2" if self.opset >= 18 else ""
        return f"  {first}, {second} = Split <axis = -1{count}> ({source})\n"

    def elementwise(self, expression: str, types: Mapping[str, int], made: Mapping[str, int]) -> str:
        """The lines of an element-wise expression; outputs have the expression's types but for those in `made`."""
        parsed = parse_expression(expression)
        return "".join(f"  {line}\n" for line in function_lines(parsed, types, made, self.opset))

    def transpose(self, result: str, source: str, perm: Sequence[int]) -> str:
        """`source` with its axes in another order."""
        if list(perm) == sorted(perm):
            return f"  {result} = Identity ({source})\n"
        return f"  {result} = Transpose <perm = [{', '.join(map(str, perm))}]> ({source})\n"

    def repeat_heads(self, result: str, source: str, heads: int, kv_heads: int) -> str:
        """[batch, kv_heads, …] to [batch, heads, …]: every head read by a group of query heads."""
        if heads == kv_heads:
            return f"  {result} = Identity ({source})\n"
        index = [h // (heads // kv_heads) for h in range(heads)]
        return self.ints(f"{result}_heads", index) + f"  {result} = Gather <axis = 1> ({source}, {result}_heads)\n"

    def unfold(self, result: str, source: str, layout: str, offset: int, heads: int, width: int) -> str:
        """A strided operand as [batch, heads, positions, width]."""
        factors = parse_layout(layout, offset, {"N": heads, "D": width})
        targets = [(f.size if f.size is not None else -1, f.axis) for f in factors]
        text, value = "", source
        if any(len([f for f in factors if f.axis == other.axis]) > 1 for other in factors):
            text += self._split_axes(f"{result}_r", value, targets)
            value = f"{result}_r"
        axis = len(factors) - 1
        kept: list[str] = []
        for factor in reversed(factors):
            if factor.letter is None:
                text += f"  {result}_i{axis} = Constant <value = int64 {{{factor.index}}}> ()\n"
                text += f"  {result}_g{axis} = Gather <axis = {axis}> ({value}, {result}_i{axis})\n"
                value = f"{result}_g{axis}"
            else:
                kept.insert(0, factor.letter)
                if factor.taken is not None:
                    text += self.slice(f"{result}_s{axis}", value, axis, factor.index, factor.index + factor.taken)
                    value = f"{result}_s{axis}"
            axis -= 1
        present = [letter for letter in "BNSD" if letter in kept]
        text += self.transpose(f"{result}_t", value, [kept.index(letter) for letter in present])
        missing = [i for i, letter in enumerate("BNSD") if letter not in kept]
        return text + self.axes("Unsqueeze", result, f"{result}_t", missing)

    def slice(self, result: str, source: str, axis: int, start: int, end: int) -> str:
        """Elements from `start` on and before `end` of an axis; they moved from attributes to inputs in opset 10."""
        if self.opset < 10:
            return f"  {result} = Slice <axes = [{axis}], starts = [{start}], ends = [{end}]> ({source})\n"
        parts = (("starts", start), ("ends", end), ("axes", axis))
        text = "".join(self.ints(f"{result}_{name}", [value]) for name, value in parts)
        return text + f"  {result} = Slice ({source}, {', '.join(f'{result}_{name}' for name, _ in parts)})\n"

    def _split_axes(self, result: str, source: str, targets: Sequence[tuple[int, int]]) -> str:
        """Reshape to factors (size or -1, axis of the source); 0 copies an extent that keeps its position."""
        singles = [axis for _, axis in targets if [a for _, a in targets].count(axis) == 1]
        simple = [0 if axis == at and axis in singles and size < 0 else size for at, (size, axis) in enumerate(targets)]
        if simple.count(-1) <= 1:
            return self.ints(f"{result}_shape", simple) + f"  {result} = Reshape ({source}, {result}_shape)\n"
        text, names = f"  {result}_all = Shape ({source})\n", []
        for at, (size, axis) in enumerate(targets):
            name = f"{result}_d{at}"
            names.append(name)
            if size >= 0:
                text += self.ints(name, [size])
                continue
            known = math.prod(s for s, a in targets if a == axis and s >= 0)
            text += self.ints(f"{name}_a", [axis]) + f"  {name}_e = Gather <axis = 0> ({result}_all, {name}_a)\n"
            text += self.ints(f"{name}_k", [known]) + f"  {name} = Div ({name}_e, {name}_k)\n"
        text += f"  {result}_shape = Concat <axis = 0> ({', '.join(names)})\n"
        return text + f"  {result} = Reshape ({source}, {result}_shape)\n"

    def fold(self, result: str, source: str, layout: str, heads: int, width: int) -> str:
        """[batch, heads, positions, width] in the layout of the result."""
        factors = parse_layout(layout, 0, {"N": heads, "D": width})
        letters = [f.letter for f in factors if f.letter is not None]
        missing = [i for i, letter in enumerate("BNSD") if letter not in letters]
        present = [letter for letter in "BNSD" if letter in letters]
        text = self.axes("Squeeze", f"{result}_q", source, missing)
        text += self.transpose(f"{result}_t", f"{result}_q", [present.index(letter) for letter in letters])
        groups = [[f for f in factors if f.axis == axis] for axis in range(factors[-1].axis + 1)] if factors else []
        if all(len(g) == 1 and g[0].letter is not None for g in groups):
            return text + f"  {result} = Identity ({result}_t)\n"
        return text + self._join_axes(result, f"{result}_t", groups)

    def _join_axes(self, result: str, source: str, groups: Sequence[Sequence[Any]]) -> str:
        simple: list[int] = []
        position = 0
        for at, group in enumerate(groups):
            sizes = [f.size for f in group if f.letter is not None]
            if None not in sizes:
                simple.append(math.prod(sizes))
            else:
                simple.append(0 if len(sizes) == 1 and position == at else -1)
            position += len(sizes)
        if simple.count(-1) <= 1:
            return self.ints(f"{result}_shape", simple) + f"  {result} = Reshape ({source}, {result}_shape)\n"
        text, names, position = f"  {result}_all = Shape ({source})\n", [], 0
        for at, group in enumerate(groups):
            name = f"{result}_d{at}"
            names.append(name)
            text += self.ints(f"{name}_0", [1])
            count = 0
            for factor in group:
                if factor.letter is None:
                    continue
                text += self.ints(f"{name}_a{count}", [position])
                text += f"  {name}_e{count} = Gather <axis = 0> ({result}_all, {name}_a{count})\n"
                text += f"  {name}_{count + 1} = Mul ({name}_{count}, {name}_e{count})\n"
                position, count = position + 1, count + 1
            text += f"  {name} = Identity ({name}_{count})\n"
        text += f"  {result}_shape = Concat <axis = 0> ({', '.join(names)})\n"
        return text + f"  {result} = Reshape ({source}, {result}_shape)\n"


def signature_of(
    spec: KernelSpec, attributes: Mapping[str, Any], inputs: Mapping[str, int], outputs: Sequence[str], opset: int
) -> Signature:
    """The signature of a fused node; attributes in the order of the kernel's declaration."""
    ordered = tuple((a.name, attributes[a.name]) for a in spec.attributes)
    return Signature(spec.op_of(attributes), ordered, tuple(inputs.items()), tuple(outputs), opset)
