"""Templates to sources. The op type carries letters of a hash over everything else that is rendered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atcfuse.codegen.cache import Rendered, cached
from atcfuse.codegen.literals import c_float
from atcfuse.codegen.names import content_letters, kernel_function, op_type_stem
from atcfuse.codegen.registry import GENERATORS, Figures, Shapes
from atcfuse.codegen.signature import CPP_TYPES, ELEMENT_BYTES, AttributeValue, Signature
from atcfuse.diagnostics import AtcfuseError, error
from atcfuse.kernel import KernelSpec
from atcfuse.templates import environment
from atcfuse.tiling import Platform, family_of

if TYPE_CHECKING:
    from jinja2 import Environment

COMMON = "common"
"""The folder beside the kernels' with what all of them include."""


@dataclass(frozen=True)
class GeneratedKernel:
    """The sources of one operator; `files` maps file names to texts, `function` is the kernel's entry."""

    op_type: str
    function: str
    signature: Signature
    files: Mapping[str, str]


def refusal_of(
    spec: KernelSpec, attributes: Mapping[str, AttributeValue], dtypes: Mapping[str, int], soc: str
) -> str | None:
    """Why no kernel can be generated for such a node on a chip, or None. Raises ATF705 for a malformed signature."""
    family = family_of(soc)
    if family is None:
        return f"there are no generated kernels for {soc}; Ascend910B*, Ascend910_93* and Ascend310P* have them"
    return GENERATORS[spec.name].refusal(Signature.of(spec, attributes, dtypes, family))


def render_kernel(
    spec: KernelSpec, attributes: Mapping[str, AttributeValue], dtypes: Mapping[str, int], soc: str
) -> GeneratedKernel:
    """The sources for a fused node.

    `attributes` are the node's, `dtypes` the element types (TensorProto.DataType) of exactly those inputs and outputs
    that the node has. The same signature gives the same text. Raises AtcfuseError ATF704 where no kernel can be made,
    ATF705 where the signature is not the operator's.
    """
    refusal = refusal_of(spec, attributes, dtypes, soc)
    if refusal is not None:
        hint = "keep the node unfused for this chip: atcfuse does so by itself"
        raise AtcfuseError(error("ATF704", f"no kernel can be generated for {spec.op}: {refusal}", hint=hint))
    signature = Signature.of(spec, attributes, dtypes, family_of(soc) or "")
    op_type, function, files = cached(signature, lambda: _rendered(signature))
    return GeneratedKernel(op_type, function, signature, files)


def _rendered(signature: Signature) -> Rendered:
    spec = signature.spec
    stem = op_type_stem(spec.op)
    common = _common_files(spec.folder.parent / COMMON)
    op_type = stem + content_letters({**common, **_render(signature, stem)})
    return op_type, kernel_function(op_type), {**common, **_render(signature, op_type)}


def predict(kernel: GeneratedKernel, shapes: Shapes, platform: Platform) -> Figures | str:
    """What one launch on inputs of these shapes moves and holds, as the twin counts it, or why it is refused."""
    signature = kernel.signature
    return GENERATORS[signature.spec.name].figures(signature, shapes, platform)


def output_names(spec: KernelSpec, attributes: Mapping[str, AttributeValue], count: int) -> tuple[str, ...]:
    """The kernel's names of the outputs of a node that has `count` of them; an output made only if used comes last."""
    return GENERATORS[spec.name].outputs(spec, attributes, count)


def render_driver(kernel: GeneratedKernel) -> str:
    """The program that runs a generated kernel in the twin; `kernels/common/run.cpp.j2` says how it is called."""
    spec, dtypes = kernel.signature.spec, kernel.signature.dtypes

    def described(name: str) -> dict[str, Any]:
        return {"name": name, "present": name in dtypes, "bytes": ELEMENT_BYTES.get(dtypes.get(name, 0), 0)}

    template = _templates(spec.folder.parent / COMMON).get_template("run.cpp.j2")
    return template.render(
        function=kernel.function,
        host_headers=[name for name in kernel.files if name.endswith("_host.h")],
        inputs=[described(o.name) for o in spec.inputs],
        outputs=[{**described(o.name), "index": index} for index, o in enumerate(spec.outputs)],
        infinities=GENERATORS[spec.name].infinities,
    )


@lru_cache(maxsize=4)
def _common_files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.h"))}


def _render(signature: Signature, op_type: str) -> dict[str, str]:
    spec = signature.spec
    function = kernel_function(op_type)
    templates = _templates(spec.folder)
    values = {
        "op_type": op_type,
        "function": function,
        "attributes": signature.attributes,
        "dtypes": {name: CPP_TYPES[dtype] for name, dtype in signature.dtypes.items()},
        "present": {o.name: signature.has(o.name) for o in (*spec.inputs, *spec.outputs)},
        "family": signature.family,
        **GENERATORS[spec.name].values(signature),
    }
    files = {}
    for path in sorted(spec.folder.glob(f"{spec.name}*.j2")):
        name = function + path.name.removeprefix(spec.name).removesuffix(".j2")
        files[name] = templates.get_template(path.name).render(values)
    return files


@lru_cache(maxsize=64)
def _templates(folder: Path) -> Environment:
    """The templates of a kernel's folder; they include other folders' parts by folder and name."""
    templates = environment(folder, folder.parent)
    templates.filters["c_float"] = c_float
    return templates
