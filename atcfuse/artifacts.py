"""What is written beside an optimized model: the operator project for its fused nodes, with a test of every kernel.

Everything follows from the fused nodes alone, so a model that was optimized before gives the same files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atcfuse.codegen import GeneratedKernel, fused_node, refusal_of, render_kernel
from atcfuse.codegen.signature import AttributeValue
from atcfuse.diagnostics import Diagnostic, warning
from atcfuse.graph.index import Model, Node, Scope
from atcfuse.graph.infer import infer
from atcfuse.kernel import KernelSpec, find_kernel
from atcfuse.precision import DEFAULT_MODE, compute_type
from atcfuse.progress import reached
from atcfuse.project import ProjectKernel, render_project
from atcfuse.tiling import Platform
from atcfuse.vectors import vector_files

if TYPE_CHECKING:
    from onnx import ModelProto

MARKER = ".atcfuse"
"""The file by which a folder of ours is known again."""
_MARKED = "Written by atcfuse, and replaced as a whole when it writes again.\n"
EXECUTABLE = ("build.sh",)
_SHOWN = 5


@dataclass(frozen=True)
class NodeKernel:
    """A fused node and the kernel that runs it, or why there is none.

    `inputs` and `outputs` map the kernel's operands to the node's values, `attributes` are as the node writes them.
    `nested` holds for nodes in the bodies of If, Loop and Scan.
    """

    node: str
    op: str
    kernel: GeneratedKernel | None
    refusal: str | None
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    attributes: Mapping[str, Any]
    nested: bool


@dataclass(frozen=True)
class Project:
    """An operator project: its files by path, none where the model needs none, and what is to be said about it.

    `fused` counts the model's fused nodes, with and without a kernel.
    """

    files: Mapping[str, str | bytes]
    fused: int
    diagnostics: tuple[Diagnostic, ...] = ()
    kernels: tuple[ProjectKernel, ...] = ()


def model_project(
    model: ModelProto,
    path: Path | None,
    specs: Mapping[str, KernelSpec],
    soc: str,
    precision_mode: str = DEFAULT_MODE,
    chip: Platform | None = None,
) -> Project:
    """The operator project for a model of dialect `atc` or `portable`; fused nodes without a kernel are warned of.

    `path` locates external data, `chip` is what the kernels' tilings plan for, see `project.render_project`. Raises
    what `node_kernels` and `kernel_files` raise.
    """
    index = Model(model, path)
    if not any(find_kernel(specs.values(), node.op) for scope in index.scopes() for node in scope.nodes):
        return Project({}, 0)
    infer(index)
    nodes = node_kernels(index, specs, soc, precision_mode)
    files = kernel_files(nodes, index.opset, soc, precision_mode, chip)
    named = tuple(ProjectKernel(kernel, node.op) for node, kernel in distinct(nodes))
    return Project(files, len(nodes), _missing(nodes, soc), named)


def _missing(nodes: Sequence[NodeKernel], soc: str) -> tuple[Diagnostic, ...]:
    refused = [n for n in nodes if n.refusal is not None]
    if not refused:
        return ()
    one = f"1 fused node has no kernel on {soc}"
    message = one if len(refused) == 1 else f"{len(refused)} fused nodes have no kernel on {soc}"
    notes = [f"{n.node} ({n.op}): {n.refusal}" for n in refused[:_SHOWN]]
    notes += [f"and {len(refused) - _SHOWN} more"] if len(refused) > _SHOWN else []
    hint = "optimize the original model for this chip and precision mode"
    return (warning("ATF738", message, hint=hint, notes=notes),)


def node_kernels(
    model: Model, specs: Mapping[str, KernelSpec], soc: str, precision_mode: str = DEFAULT_MODE
) -> list[NodeKernel]:
    """The kernel of every fused node of a portable model whose facts are known, in the model's order.

    Operands reach a kernel in the element types that ATC's precision mode leaves them. Equal signatures share one
    kernel object. Raises AtcfuseError ATF705 for a node that its operator's declaration does not allow.
    """
    made: dict[Any, GeneratedKernel | str] = {}
    found = []
    for scope in model.scopes():
        for index in scope.order:
            node = scope.nodes[index]
            spec = find_kernel(specs.values(), node.op)
            if spec is not None:
                found.append(_node_kernel(scope, node, spec, soc, precision_mode, made))
    return found


def _node_kernel(
    scope: Scope, node: Node, spec: KernelSpec, soc: str, mode: str, made: dict[Any, GeneratedKernel | str]
) -> NodeKernel:
    reached("generating kernels", len(made))
    seen = fused_node(node, spec)
    dtypes = {name: compute_type(scope.fact(value).dtype, mode) for name, value in seen.values.items()}
    unknown = [name for name, dtype in dtypes.items() if not dtype]
    if unknown:
        result: GeneratedKernel | str = f"the element type of {unknown[0]} is not known"
    else:
        key = (spec.op, tuple(sorted(seen.attributes.items())), tuple(dtypes.items()))
        if key not in made:
            made[key] = _render(spec, seen.attributes, dtypes, soc)
        result = made[key]
    kernel, refusal = (None, result) if isinstance(result, str) else (result, None)
    nested = scope.parent is not None
    return NodeKernel(
        node.name, spec.op_of(seen.attributes), kernel, refusal, seen.inputs, seen.outputs, node.attributes, nested
    )


def _render(
    spec: KernelSpec, attributes: Mapping[str, AttributeValue], dtypes: Mapping[str, int], soc: str
) -> GeneratedKernel | str:
    return refusal_of(spec, attributes, dtypes, soc) or render_kernel(spec, attributes, dtypes, soc)


def distinct(nodes: Sequence[NodeKernel]) -> Iterator[tuple[NodeKernel, GeneratedKernel]]:
    """The first node of every kernel."""
    seen: set[str] = set()
    for node in nodes:
        if node.kernel is not None and node.kernel.op_type not in seen:
            seen.add(node.kernel.op_type)
            yield node, node.kernel


def kernel_files(
    nodes: Sequence[NodeKernel],
    opset: int,
    soc: str,
    precision_mode: str = DEFAULT_MODE,
    chip: Platform | None = None,
) -> dict[str, str | bytes]:
    """The operator project of these nodes, by path; empty where none of them has a kernel.

    `tests/<GE op type>/` holds a model of that operator alone with inputs and expected outputs. Raises UsageError
    ATF735 for nodes of one op type that differ in element types only.
    """
    kernels = list(distinct(nodes))
    if not kernels:
        return {}
    files: dict[str, str | bytes] = {MARKER: _MARKED}
    named = [ProjectKernel(kernel, node.op) for node, kernel in kernels]
    files |= render_project(named, soc, precision_mode, chip)
    for node, kernel in kernels:
        files |= {
            f"tests/{kernel.op_type}/{name}": data
            for name, data in vector_files(kernel, node.attributes, opset).items()
        }
    return dict(sorted(files.items()))


class SharedProject:
    """One operator project for several models: the kernels of all of them, each once, with its test.

    `render` makes a project's files of kernels, for the chip and precision that all models share.
    """

    def __init__(self, render: Callable[[Sequence[ProjectKernel]], Mapping[str, str | bytes]]) -> None:
        self._render = render
        self._kernels: dict[str, ProjectKernel] = {}
        self._tests: dict[str, str | bytes] = {}
        self.files: Mapping[str, str | bytes] = {}

    def add(self, project: Project) -> None:
        """Takes a model's kernels in. Raises UsageError (ATF730, ATF735), and changes nothing, where they cannot be
        told apart from those of the models before."""
        kernels = {k.kernel.op_type: k for k in project.kernels} | self._kernels
        if not kernels:
            return
        rendered = self._render(list(kernels.values()))
        self._kernels = kernels
        self._tests = {p: data for p, data in project.files.items() if p.startswith("tests/")} | self._tests
        files = {**rendered, **self._tests, MARKER: _MARKED}
        self.files = dict(sorted(files.items()))
