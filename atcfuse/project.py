"""The custom-operator project: everything that turns generated kernels into a package ATC can use.

The templates lie in `kernels/project`. Names from outside reach C++ sources and shell scripts only where they have been
checked to be plain identifiers, or as escaped string literals.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atcfuse.codegen import GeneratedKernel, status_of
from atcfuse.codegen.literals import c_float
from atcfuse.codegen.names import content_letters, kernel_function, op_type_stem
from atcfuse.codegen.signature import BFLOAT16, BOOL, ELEMENT_NAMES, FLOAT, FLOAT16, INT32, INT64
from atcfuse.diagnostics import UsageError, did_you_mean, error
from atcfuse.kernel import Operand
from atcfuse.lang import speaking, tell
from atcfuse.templates import environment
from atcfuse.tiling import Platform, family_of, planned_platform

if TYPE_CHECKING:
    from jinja2 import Environment

GE_TYPES = {
    FLOAT: "ge::DT_FLOAT",
    FLOAT16: "ge::DT_FLOAT16",
    BFLOAT16: "ge::DT_BF16",
    BOOL: "ge::DT_BOOL",
    INT32: "ge::DT_INT32",
    INT64: "ge::DT_INT64",
}
_MSOPGEN_TYPES = {FLOAT: "fp32", FLOAT16: "fp16", BFLOAT16: "bf16", BOOL: "bool", INT32: "int32", INT64: "int64"}
_COMPUTE_UNITS = {"Ascend910_93": "ascend910_93", "Ascend910B": "ascend910b", "Ascend310P": "ascend310p"}
_HOST, _PLUGIN = "op_host/op.cpp.j2", "framework/onnx_plugin/plugin.cpp.j2"
_DISPATCH = "framework/onnx_plugin/dispatch.cpp.j2"
_CHINESE = "README.zh.md"
_NOT_SHARED = (_HOST, _PLUGIN, _DISPATCH, f"{_CHINESE}.j2")
_UB_RESERVE = {"910B": 8192 + 256, "310P": 8192}
_L1_RESERVE = {"910B": 256, "310P": 0}

PRECISION_FLAGS: Mapping[str, str] = {
    "force_fp16": "--precision_mode_v2=fp16",
    "must_keep_origin_dtype": "--precision_mode_v2=origin",
    "allow_mix_precision": "--precision_mode_v2=mixed_float16",
    "cube_fp16in_fp32out": "--precision_mode_v2=cube_fp16in_fp32out",
    "allow_fp32_to_fp16": "--precision_mode=allow_fp32_to_fp16",
    "force_fp32": "--precision_mode=force_fp32",
}
"""ATC's flag for each precision mode, in the newer spelling where it has one."""


@dataclass(frozen=True)
class ProjectKernel:
    """A generated kernel and the op type by which models name it.

    ATC chooses the plugin by op type alone; where several kernels share one, the plugin tells their nodes apart.
    """

    kernel: GeneratedKernel
    onnx_op: str


def render_project(
    kernels: Sequence[ProjectKernel],
    soc: str,
    precision_mode: str = "force_fp16",
    chip: Platform | None = None,
) -> dict[str, str]:
    """The project's files by path, `/` between folders; the same kernels give the same text in any order.

    Kernels plan within the UB and L1 of `chip` and with its tile rows; without one it is the family's usual chip
    kept to its usual bound. `build.sh` is the only file to be made executable. Raises UsageError
    ATF730 for two kernels of one op type that a plugin cannot tell apart (ATF735 where they differ in element types),
    ATF731 for an op type that is no identifier, ATF732 for a chip without generated kernels or kernels of another
    family, ATF733 for an unknown precision mode, ATF734 where there is nothing to build.
    """
    _check(kernels, soc, precision_mode)
    ordered = sorted(kernels, key=lambda k: k.kernel.op_type)
    ops = [_op_values(k) for k in ordered]
    family = family_of(soc) or ""
    planned = chip or planned_platform(family)
    values = {
        "soc": soc,
        "compute_unit": next(unit for prefix, unit in _COMPUTE_UNITS.items() if soc.startswith(prefix)),
        "precision_flag": PRECISION_FLAGS[precision_mode],
        "ops": ops,
        "dispatched": [op for op, sharing in sorted(_by_op(ordered).items()) if len(sharing) > 1],
        "ub_reserve": _UB_RESERVE[family],
        "ub_budget": planned.ub,
        "l1_reserve": _L1_RESERVE[family],
        "l1_budget": planned.l1,
        "tile_rows": planned.tile_rows,
        "vendor_name": "atcfuse",
    }
    templates = _templates(ordered[0].kernel.signature.spec.folder.parent / "project")
    sources = {**_op_files(templates, ops, values), **_kernel_files(ordered)}
    content = {**sources, **_shared_files(templates, values)}
    values["vendor_name"] = "atcfuse" + content_letters(content).lower()
    sources |= _shared_files(templates, values)
    with speaking("zh"):
        sources[_CHINESE] = templates.get_template(f"{_CHINESE}.j2").render(values, tell=tell)
    sources["msopgen.json"] = json.dumps([_msopgen(op) for op in ops], indent=2) + "\n"
    return dict(sorted(sources.items()))


def _check(kernels: Sequence[ProjectKernel], soc: str, precision_mode: str) -> None:
    if not kernels:
        raise UsageError(error("ATF734", "the project would hold no operator", hint="fuse something first"))
    family = family_of(soc) if re.fullmatch(r"[A-Za-z0-9_]+", soc) else None
    if family is None:
        hint = "Ascend910B*, Ascend910_93* and Ascend310P* have generated kernels"
        raise UsageError(error("ATF732", f"no operator project can be made for {soc!r}", hint=hint))
    if precision_mode not in PRECISION_FLAGS:
        hint = did_you_mean(precision_mode, PRECISION_FLAGS) or ", ".join(PRECISION_FLAGS)
        raise UsageError(error("ATF733", f"{precision_mode!r} is not a precision mode of ATC", hint=hint))
    for k in kernels:
        _check_kernel(k, soc, family)
    names = [k.kernel.op_type for k in kernels]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        hint = "give each kernel once; atcfuse.artifacts.node_kernels finds those that a model needs"
        raise UsageError(error("ATF730", f"the kernel {twice[0]} is given twice", hint=hint))
    for op, sharing in _by_op(kernels).items():
        _check_told_apart(op, sharing)


def _by_op(kernels: Iterable[ProjectKernel]) -> dict[str, list[ProjectKernel]]:
    """The kernels of each ONNX op type, in their order."""
    groups: dict[str, list[ProjectKernel]] = {}
    for k in kernels:
        groups.setdefault(k.onnx_op, []).append(k)
    return groups


def _check_told_apart(op: str, kernels: Sequence[ProjectKernel]) -> None:
    """A plugin sees a node's attributes and which inputs and outputs it has, but no element types."""
    seen: dict[Any, ProjectKernel] = {}
    for k in kernels:
        signature = k.kernel.signature
        visible = (*sorted(signature.attributes.items()), *sorted(signature.dtypes))
        other = seen.setdefault(tuple(visible), k)
        if other is k:
            continue
        if other.kernel.signature.dtypes == signature.dtypes:
            names = f"{other.kernel.op_type} and {k.kernel.op_type}"
            raise UsageError(error("ATF730", f"nodes of {names}, both {op}, cannot be told apart"))
        types = sorted(ELEMENT_NAMES[s.dtypes[s.spec.inputs[0].name]] for s in (other.kernel.signature, signature))
        hint = "use --precision-mode force_fp16, or give the model one element type throughout"
        message = f"two kernels of {op} differ in element types only ({' and '.join(types)})"
        note = "ATC tells a plugin a node's attributes and inputs, not their element types"
        raise UsageError(error("ATF735", message, hint=hint, notes=[note]))


def _check_kernel(k: ProjectKernel, soc: str, family: str) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", k.onnx_op):
        hint = "letters, digits and _, beginning with a letter"
        raise UsageError(error("ATF731", f"{k.onnx_op!r} cannot be an op type of the project", hint=hint))
    proper = re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", k.kernel.op_type) is not None
    if not proper or k.kernel.function != kernel_function(k.kernel.op_type):
        hint = "letters and digits, and the kernel function that the toolkit derives from it"
        raise UsageError(error("ATF731", f"{k.kernel.op_type!r} cannot be a GE op type", hint=hint))
    if k.kernel.signature.family != family:
        message = f"{k.kernel.op_type} was generated for {k.kernel.signature.family}, the project is for {soc}"
        raise UsageError(error("ATF732", message, hint="generate kernels and project for the same chip"))


def _op_values(k: ProjectKernel) -> dict[str, Any]:
    """What the templates need to know of one operator."""
    kernel, signature = k.kernel, k.kernel.signature
    spec, dtypes = signature.spec, signature.dtypes
    element = dtypes[spec.inputs[0].name]
    inputs = [_operand(o, dtypes, element) for o in spec.inputs]
    outputs = [
        {**_operand(o, dtypes, element), "index": index} for index, o in enumerate(spec.outputs) if o.name in dtypes
    ]
    for output in outputs:  # an output has its input's type whatever ATC's precision mode makes of that
        same = (i for i, operand in enumerate(inputs) if operand["present"] and operand["dtype"] == output["dtype"])
        output["follows"] = next(same, None)
    return {
        "op_type": kernel.op_type,
        "function": kernel.function,
        "onnx_op": k.onnx_op,
        "inputs": inputs,
        "outputs": outputs,
        "all_outputs": len(spec.outputs),
        "given": [index for index, o in enumerate(inputs) if o["present"]],
        "attributes": [_attribute(a.name, a.kind, signature.attributes[a.name]) for a in spec.attributes],
        "has_host_header": f"{kernel.function}_host.h" in kernel.files,
        "element": ELEMENT_NAMES[element],
        "status": status_of(signature.family, ELEMENT_NAMES[element]),
        "operands": [o["name"] for o in inputs if o["present"]],
    }


def _operand(operand: Operand, dtypes: Mapping[str, int], element: int) -> dict[str, Any]:
    dtype = dtypes.get(operand.name, element if element in operand.types else operand.types[0])
    return {
        "name": operand.name,
        "present": operand.name in dtypes,
        "dtype": GE_TYPES[dtype],
        "msopgen": _MSOPGEN_TYPES[dtype],
    }


def _attribute(name: str, kind: str, value: Any) -> dict[str, Any]:
    """An attribute as the kernel has it built in. GE keeps floats that are not finite as text."""
    finite = kind != "float" or math.isfinite(value)
    word = re.sub(r"[^A-Za-z0-9]", "_", name)
    return {"name": name, "kind": kind, "value": value, "finite": finite, "text": str(value), "word": word}


def _op_files(templates: Environment, ops: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> dict[str, str]:
    host = templates.get_template(_HOST)
    files = {f"op_host/{op['function']}.cpp": host.render({**values, **op}) for op in ops}
    for onnx_op in sorted({op["onnx_op"] for op in ops}):
        sharing = [op for op in ops if op["onnx_op"] == onnx_op]
        if len(sharing) == 1:
            name = sharing[0]["function"]
            text = templates.get_template(_PLUGIN).render({**values, **sharing[0]})
        else:
            name = kernel_function(op_type_stem(onnx_op))
            inputs = [operand["name"] for operand in sharing[0]["inputs"]]
            text = templates.get_template(_DISPATCH).render(onnx_op=onnx_op, kernels=sharing, input_names=inputs)
        files[f"framework/onnx_plugin/{name}_plugin.cpp"] = text
    return files


def _kernel_files(kernels: Sequence[ProjectKernel]) -> dict[str, str]:
    return {f"op_kernel/{name}": text for k in kernels for name, text in k.kernel.files.items()}


def _shared_files(templates: Environment, values: Mapping[str, Any]) -> dict[str, str]:
    """Every other file of the project's folder at its own path, templates without their `.j2`."""
    files = {}
    for name in templates.list_templates():
        if not name.endswith(".j2"):
            files[name] = templates.loader.get_source(templates, name)[0] if templates.loader else ""
        elif name not in _NOT_SHARED:
            files[name.removesuffix(".j2")] = templates.get_template(name).render(values)
    return files


def _msopgen(op: Mapping[str, Any]) -> dict[str, Any]:
    """The operator as msopgen's prototype file describes it; only its names matter, the sources are replaced."""

    def described(operand: Mapping[str, Any], required: bool) -> dict[str, Any]:
        param_type = "required" if required else "optional"
        return {"name": operand["name"], "param_type": param_type, "format": ["ND"], "type": [operand["msopgen"]]}

    return {
        "op": op["op_type"],
        "input_desc": [described(i, i["present"]) for i in op["inputs"]],
        "output_desc": [described(o, True) for o in op["outputs"]],
    }


def _templates(folder: Path) -> Environment:
    templates = environment(folder)
    templates.filters |= {"c_float": c_float, "c_int": c_int, "c_string": c_string}
    return templates


def c_int(value: int) -> str:
    """An int64 as a C++ literal."""
    return "(-9223372036854775807LL - 1)" if value == -(2**63) else f"{value}LL"


def c_string(text: str) -> str:
    """A C++ string literal; everything but letters, digits, blanks and a few marks is escaped as octal bytes."""
    plain = re.compile(rb"[A-Za-z0-9 _.,:()+*/=-]")
    return '"' + "".join(chr(b) if plain.match(bytes([b])) else f"\\{b:03o}" for b in text.encode()) + '"'
