"""What generated kernels do on a chip, and what a whole model costs there, fused nodes included.

Everything follows from a fused node's attributes, element types and shapes, so a node that an earlier run made is
worked out like a fresh one. Equal kernels are rendered once, equal launches planned once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atcfuse.codegen import FusedNode, GeneratedKernel, fused_node, refusal_of, render_kernel, status_of
from atcfuse.codegen.registry import GENERATORS
from atcfuse.cost import api_calls, handovers
from atcfuse.cost.conversions import with_layout_changes
from atcfuse.cost.memory import Moved, moved_by, moved_by_kernel
from atcfuse.cost.stages import fused_stage, unfused_stage
from atcfuse.device import Device, Range, load_device
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.traffic import Sizes, value_bytes
from atcfuse.graph.work import OpWork, Product, WorksOf, cast_work, works_of
from atcfuse.kernel import DOMAIN, KernelSpec, find_kernel
from atcfuse.match.values import Refusal
from atcfuse.options import Options
from atcfuse.planner import TILE_ROWS, KernelWork, ProductPlan, no_kernels, plan_product, platform
from atcfuse.planner.registry import PLANNERS
from atcfuse.precision import FLOAT16, FLOAT32, compute_type
from atcfuse.tiling import Platform, family_of

Shapes = Mapping[str, tuple[int, ...]]
_Key = tuple[Any, ...]

_OURS = f"{DOMAIN}::"
_BUILT_FOR = {"910B": "Ascend910B1", "310P": "Ascend310P3"}


def build_name(device: Device) -> str:
    """The chip that kernels for a device are built for: itself, or one of its family where it is no real chip."""
    known = device.family is None or family_of(device.name) == device.family
    return device.name if known else _BUILT_FOR[str(device.family)]


def built_for(soc: str) -> str:
    """`build_name` of a chip given by name or SoC file. Raises what `load_device` raises."""
    return build_name(load_device(soc))


def planned_chip(device: Device, options: Options) -> Platform:
    """The chip as the tilings of a run's kernels see it: within the occupancy, with the tiles that were asked for."""
    return platform(replace(device, tile_rows=TILE_ROWS[options.tile_level]), planned_share(device, options))


def planned_share(device: Device, options: Options) -> float:
    """The share of UB and L1 that kernels of a run may hold."""
    return device.occupancy if options.occupancy is None else options.occupancy


class Kernels:
    """The generated kernels of one run on one chip, under the options' precision mode, occupancy and tile level."""

    def __init__(self, device: Device, options: Options) -> None:
        self.device = replace(device, tile_rows=TILE_ROWS[options.tile_level])
        self.narrow = narrows(options.precision_mode)
        self._mode = options.precision_mode
        self._occupancy = planned_share(device, options)
        self._rendered: dict[_Key, tuple[GeneratedKernel, Mapping[str, int]]] = {}
        self._planned: dict[_Key, KernelWork | Refusal] = {}
        self._refused: dict[_Key, Refusal | None] = {}
        self._of_scopes: dict[int, tuple[Scope, dict[str, KernelWork | None]]] = {}
        self._of_nodes: dict[_Key, KernelWork | None] = {}
        self.launches = Launches(device)

    def refusal(self, spec: KernelSpec, attributes: Mapping[str, Any], dtypes: Mapping[str, int]) -> Refusal | None:
        """Why no kernel can be generated: none for the chip (ATF336), or none for such a node (ATF324)."""
        key = _signature_key(spec, attributes, dtypes)
        if key not in self._refused:
            self._refused[key] = self._refusal(spec, attributes, dtypes)
        return self._refused[key]

    def _refusal(self, spec: KernelSpec, attributes: Mapping[str, Any], dtypes: Mapping[str, int]) -> Refusal | None:
        family = self.device.family
        if family is None:
            return no_kernels(self.device)
        reason = refusal_of(spec, attributes, dtypes, build_name(self.device))
        if reason is None:
            return None
        missing = family not in GENERATORS[spec.name].elements
        return Refusal("ATF336", f"{self.device.name}: {reason}") if missing else Refusal("ATF324", reason)

    def name(self, spec: KernelSpec, attributes: Mapping[str, Any], dtypes: Mapping[str, int]) -> str:
        """The GE op type of the kernel for a node that is not refused."""
        return self._kernel(spec, attributes, dtypes)[0].op_type

    def work(
        self, spec: KernelSpec, attributes: Mapping[str, Any], dtypes: Mapping[str, int], shapes: Shapes
    ) -> KernelWork | Refusal:
        """What one launch does on operands of these shapes, or why the chip or the kernel cannot take them."""
        key = (*_signature_key(spec, attributes, dtypes), tuple(shapes.items()))
        if key not in self._planned:
            self._planned[key] = self._plan(spec, attributes, dtypes, shapes)
        return self._planned[key]

    def _plan(
        self, spec: KernelSpec, attributes: Mapping[str, Any], dtypes: Mapping[str, int], shapes: Shapes
    ) -> KernelWork | Refusal:
        refused = self.refusal(spec, attributes, dtypes)
        if refused is not None:
            return refused
        kernel, calls = self._kernel(spec, attributes, dtypes)
        found = PLANNERS[spec.name](kernel.signature, shapes, self.device, self._occupancy)
        return found if isinstance(found, Refusal) else replace(found, api_calls=calls)

    def _kernel(
        self, spec: KernelSpec, attributes: Mapping[str, Any], dtypes: Mapping[str, int]
    ) -> tuple[GeneratedKernel, Mapping[str, int]]:
        key = _signature_key(spec, attributes, dtypes)
        if key not in self._rendered:
            kernel = render_kernel(spec, attributes, dtypes, build_name(self.device))
            self._rendered[key] = kernel, api_calls(kernel.files[f"{kernel.function}.cpp"])
        return self._rendered[key]

    def of_scope(self, scope: Scope, specs: Mapping[str, KernelSpec], sizes: Sizes) -> Mapping[str, KernelWork | None]:
        """The work of the fused nodes of a scope and the bodies in it by the values they make first.

        Worked out once a scope; `specs` and `sizes` are those of the run.
        """
        if id(scope) not in self._of_scopes:
            found: dict[str, KernelWork | None] = {}
            for here in (scope, *_inner(scope)):
                for op, nodes in here.by_op.items():
                    spec = find_kernel(specs.values(), op)
                    if spec is not None:
                        found.update((node.outputs[0], self.of_node(here, node, spec, sizes)) for node in nodes)
            self._of_scopes[id(scope)] = scope, found
        return self._of_scopes[id(scope)][1]

    def of_node(self, scope: Scope, node: Node, spec: KernelSpec, sizes: Sizes) -> KernelWork | None:
        """The work of a fused node of a model whose facts are known; None where no kernel takes it.

        Nodes of layers that are alike, with the same facts, have the same.
        """
        values = *node.inputs, "", *node.outputs
        key = node.op, node.written, *[scope.fact(v) if v else "" for v in values]
        if key not in self._of_nodes:
            self._of_nodes[key] = self._of_node(scope, node, spec, sizes)
        return self._of_nodes[key]

    def _of_node(self, scope: Scope, node: Node, spec: KernelSpec, sizes: Sizes) -> KernelWork | None:
        seen = fused_node(node, spec)
        dtypes = self._types(scope, seen)
        if not all(dtypes.values()) or any(scope.fact(v).shape is None for v in seen.inputs.values()):
            return None
        shapes = {n: tuple(sizes.number(d) for d in scope.fact(v).shape or ()) for n, v in seen.inputs.items()}
        work = self.work(spec, seen.attributes, dtypes, shapes)
        return None if isinstance(work, Refusal) else work

    def name_of_node(self, scope: Scope, node: Node, spec: KernelSpec) -> str:
        """The GE op type of the kernel of a fused node that `of_node` knows the work of."""
        seen = fused_node(node, spec)
        return self.name(spec, seen.attributes, self._types(scope, seen))

    def _types(self, scope: Scope, seen: FusedNode) -> dict[str, int]:
        return {name: compute_type(scope.fact(v).dtype, self._mode) for name, v in seen.values.items()}


def _signature_key(spec: KernelSpec, attributes: Mapping[str, Any], dtypes: Mapping[str, int]) -> _Key:
    return (spec.name, tuple(sorted(attributes.items())), tuple(sorted(dtypes.items())))


def kernel_dict(work: KernelWork, device: Device) -> dict[str, Any]:
    """Tiling, bytes and on-chip use of a kernel's launch as report JSON."""
    return {
        "tiling": {"form": work.form, "blocks": work.blocks, **dict(work.parameters)},
        "kernel_bytes": {
            "tensor": work.tensor_bytes,
            "workspace": work.workspace_read + work.workspace_written,
            "workspace_footprint": work.workspace_footprint,
        },
        "on_chip": {memory.upper(): size for memory, size in work.peak.items()},
        "chip_status": status_of(str(device.family), work.dtype),
        "remarks": list(work.remarks),
    }


# ---------------------------------------------------------------- whole models


@dataclass(frozen=True)
class ModelCost:
    """A whole model on a chip: its launches, and the bytes of all of them. `tensor_bytes` has every operator read its
    inputs and write its outputs once, fused ones what L2 does not serve them; `gm_bytes` is all traffic at global
    memory, `ddr_bytes` what of it passes L2.
    `conversions` are casts at the boundary of a model that runs in another element type and changes of layout around
    unfused products: launches that are no nodes, in `gm_bytes`, `ddr_bytes` and `time_us` only. `time_us` is None where
    the model has a fused node that no kernel is known for.
    """

    launches: int
    tensor_bytes: int
    gm_bytes: int
    ddr_bytes: int
    workspace_footprint: int
    conversions: int
    time_us: Range | None


def model_cost(
    scope: Scope, kernels: Kernels, specs: Mapping[str, KernelSpec], sizes: Sizes, found: WorksOf
) -> ModelCost:
    """The cost of a model's main graph and the bodies in it, launch after launch through one L2."""
    works = [w for w in works_of(scope, found) if w.launches]
    if kernels.narrow:
        works = [*_casts_in(scope, sizes), *works, *_casts_out(scope, sizes)]
    if kernels.device.cube_layout == "fractal":
        works = with_layout_changes(works, scope.outputs)
    return kernels.launches.cost(works, kernels.of_scope(scope, specs, sizes))


def _casts_in(scope: Scope, sizes: Sizes) -> Iterator[OpWork]:
    """The casts that ATC puts behind the float32 inputs of a model that runs in float16."""
    for name in scope.inputs:
        if name not in scope.tensors and scope.fact(name).dtype == FLOAT32 and name in scope.consumers:
            elements = _elements(scope, name, sizes)
            yield cast_work(f"{name}/given", elements, 4, 2)._replace(writes={name: elements * 2})


def _casts_out(scope: Scope, sizes: Sizes) -> Iterator[OpWork]:
    """The casts before its float32 outputs."""
    for name in sorted(scope.outputs):
        if scope.fact(name).dtype == FLOAT32 and name in scope.producers:
            yield cast_work(name, _elements(scope, name, sizes), 2, 4)


def _elements(scope: Scope, name: str, sizes: Sizes) -> int:
    return value_bytes(scope, name, sizes, set()) // 4


def narrows(mode: str) -> bool:
    """Whether a precision mode makes float16 of float32 everywhere."""
    return compute_type(FLOAT32, mode) == FLOAT16


def _inner(scope: Scope) -> list[Scope]:
    return [inner for _, body in scope.bodies for inner in (body, *_inner(body))]


class Launches:
    """Adds up launches; those that are alike are timed once a run."""

    def __init__(self, device: Device) -> None:
        self._device, self._chip = device, platform(device)
        toolkit, generated = device.cube_efficiency, device.generated_cube
        self._unfused = toolkit.high, toolkit.low
        self._generated = toolkit.high * generated.high, toolkit.low * generated.low
        self._plans: dict[_Key, ProductPlan] = {}
        self._own: dict[int, tuple[KernelWork, Moved]] = {}
        self._times: dict[_Key, tuple[float, float]] = {}

    def cost(self, works: Sequence[OpWork], fused: Mapping[str, KernelWork | None]) -> ModelCost:
        """What launches cost one after another; `fused` has the kernels of fused nodes by what they make first."""
        kernels = [self._kernel_of(work, fused) for work in works]
        plans = [None if work.product is None else self._plan(work.product, self._chip) for work in works]
        moved = moved_by(works, plans, self._device.l2)
        moved = [m if k is None else _with_kernel(m, k, self._moved(k)) for m, k in zip(moved, kernels, strict=True)]
        times = [self._time(w, p, m, k) for w, p, m, k in zip(works, plans, moved, kernels, strict=True)]
        launches, accesses = len(works), max(1, handovers(works)) if works else 0
        launch, access = self._device.launch_us, self._device.ddr_access_us
        unknown = [w for w, k in zip(works, kernels, strict=True) if k is None and w.op.startswith(_OURS)]
        low = launches * launch.low + accesses * access.low + sum([t[0] for t in times])
        high = launches * launch.high + accesses * access.high + sum([t[1] for t in times])
        nodes = [(w, k) for w, k in zip(works, kernels, strict=True) if not w.added]
        return ModelCost(
            launches=len(nodes),
            tensor_bytes=sum([w.tensor_bytes if k is None else self._moved(k).ddr for w, k in nodes]),
            gm_bytes=sum([m.gm_read + m.gm_written for m in moved]),
            ddr_bytes=sum([m.ddr for m in moved]),
            workspace_footprint=max((k.workspace_footprint for k in kernels if k is not None), default=0),
            conversions=len(works) - len(nodes),
            time_us=None if unknown else Range(low, high),
        )

    @staticmethod
    def _kernel_of(work: OpWork, fused: Mapping[str, KernelWork | None]) -> KernelWork | None:
        return fused.get(next(iter(work.writes), "")) if work.op.startswith(_OURS) else None

    def _moved(self, kernel: KernelWork) -> Moved:
        """What a launch of a kernel moves by itself."""
        if id(kernel) not in self._own:
            self._own[id(kernel)] = kernel, moved_by_kernel(kernel, self._device.l2)
        return self._own[id(kernel)][1]

    def _plan(self, product: Product, chip: Platform) -> ProductPlan:
        sizes = product.batch, product.m, product.n, product.k, product.element_bytes
        if sizes not in self._plans:
            self._plans[sizes] = plan_product(product, chip)
        return self._plans[sizes]

    def _time(
        self, work: OpWork, plan: ProductPlan | None, moved: Moved, kernel: KernelWork | None
    ) -> tuple[float, float]:
        """Microseconds of a launch with products at their best and at their worst, without its overhead."""
        key: _Key = (work.cube_flops, work.vector_elements, work.dtype, id(plan), moved, id(kernel))
        if key not in self._times:
            if kernel is None:
                stages = [unfused_stage(work, plan, moved, self._device, share) for share in self._unfused]
            else:
                stages = [fused_stage(kernel, moved, self._device, share) for share in self._generated]
            self._times[key] = stages[0].total_us, stages[1].total_us
        return self._times[key]


def _with_kernel(moved: Moved, kernel: KernelWork, own: Moved) -> Moved:
    """What a fused launch moves within a model: operands from L2 where they still are, all else as its tiles say, which
    is what it moves on its `own`.
    """
    once = sum(min(total, kernel.sizes.get(name, total)) for name, total in kernel.reads.items())
    outputs = sum(kernel.writes.values())
    return Moved(
        own.gm_read,
        own.gm_written,
        moved.ddr_read + own.ddr_read - once,
        moved.ddr_written + own.ddr_written - outputs,
    )
