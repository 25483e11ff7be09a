"""What generated kernels do on a chip, and what a whole model costs there, fused nodes included.

Everything follows from a fused node's attributes, element types and shapes, so a node that an earlier run made is
worked out like a fresh one. Equal kernels are rendered once, equal launches planned once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atcfuse.codegen import GeneratedKernel, Signature, output_names, refusal_of, render_kernel
from atcfuse.codegen import attention as attention_code
from atcfuse.codegen import elementwise as elementwise_code
from atcfuse.codegen.registry import GENERATORS
from atcfuse.codegen.signature import ELEMENT_NAMES
from atcfuse.cost import api_calls, handovers
from atcfuse.cost.memory import Moved, moved_by, moved_by_kernel
from atcfuse.cost.stages import fused_stage, unfused_stage
from atcfuse.device import Device, Range, load_device
from atcfuse.graph.index import Node, Scope
from atcfuse.graph.traffic import KindsOf, Sizes
from atcfuse.graph.work import OpWork, Product, works_of
from atcfuse.kernel import DOMAIN, KernelSpec, find_kernel
from atcfuse.match.values import Refusal
from atcfuse.planner import (
    KernelWork,
    ProductPlan,
    no_kernels,
    plan_attention,
    plan_elementwise,
    plan_norm,
    plan_product,
    platform,
)
from atcfuse.precision import FLOAT16, FLOAT32, compute_type
from atcfuse.tiling import Platform, family_of, layer_norm_qkv

Shapes = Mapping[str, tuple[int, ...]]
_Key = tuple[Any, ...]

TWIN, TWIN_ONLY = "twin", "checked in the twin only"
"""How far a kernel has been checked; the second could not be held against the real headers."""

_BUILT_FOR = {"910B": "Ascend910B1", "310P": "Ascend310P3"}


def build_name(device: Device) -> str:
    """The chip that kernels for a device are built for: itself, or one of its family where it is no real chip."""
    known = device.family is None or family_of(device.name) == device.family
    return device.name if known else _BUILT_FOR[str(device.family)]


def built_for(soc: str) -> str:
    """`build_name` of a chip given by name or SoC file. Raises what `load_device` raises."""
    return build_name(load_device(soc))


class Kernels:
    """The generated kernels of one run on one chip, under one precision mode and bound of on-chip memory."""

    def __init__(self, device: Device, precision_mode: str, occupancy: float | None = None) -> None:
        self.device = device
        self.narrow = narrows(precision_mode)
        self._mode = precision_mode
        self._occupancy = device.occupancy if occupancy is None else occupancy
        self._rendered: dict[_Key, tuple[GeneratedKernel, Mapping[str, int]]] = {}
        self._planned: dict[_Key, KernelWork | Refusal] = {}
        self._refused: dict[_Key, Refusal | None] = {}

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
        found = _PLANNERS[spec.name](kernel.signature, shapes, self.device, self._occupancy)
        return found if isinstance(found, Refusal) else replace(found, api_calls=calls)

    def _kernel(
        self, spec: KernelSpec, attributes: Mapping[str, Any], dtypes: Mapping[str, int]
    ) -> tuple[GeneratedKernel, Mapping[str, int]]:
        key = _signature_key(spec, attributes, dtypes)
        if key not in self._rendered:
            kernel = render_kernel(spec, attributes, dtypes, build_name(self.device))
            self._rendered[key] = kernel, api_calls(kernel.files[f"{kernel.function}.cpp"])
        return self._rendered[key]

    def of_node(self, scope: Scope, node: Node, spec: KernelSpec, sizes: Sizes) -> KernelWork | None:
        """The work of a fused node of a model whose facts are known; None where no kernel takes it."""
        attributes = {name: value for name, value in node.attributes.items() if not name.endswith("_hex")}
        inputs = {o.name: v for o, v in zip(spec.inputs, node.inputs, strict=False) if v}
        outputs = dict(zip(output_names(spec, attributes, len(node.outputs)), node.outputs, strict=False))
        dtypes = {name: compute_type(scope.fact(v).dtype, self._mode) for name, v in {**inputs, **outputs}.items()}
        if not all(dtypes.values()) or any(scope.fact(v).shape is None for v in inputs.values()):
            return None
        shapes = {n: tuple(sizes.number(d) for d in scope.fact(v).shape or ()) for n, v in inputs.items()}
        work = self.work(spec, attributes, dtypes, shapes)
        return None if isinstance(work, Refusal) else work


def _signature_key(spec: KernelSpec, attributes: Mapping[str, Any], dtypes: Mapping[str, int]) -> _Key:
    return (spec.name, tuple(sorted(attributes.items())), tuple(sorted(dtypes.items())))


def _attention(signature: Signature, shapes: Shapes, device: Device, occupancy: float) -> KernelWork | Refusal:
    return plan_attention(attention_code.problem(signature, shapes), device, occupancy)


def _norm(signature: Signature, shapes: Shapes, device: Device, occupancy: float) -> KernelWork | Refusal:
    return plan_norm(layer_norm_qkv.problem_of(signature.attributes, signature.dtypes, shapes), device, occupancy)


def _elementwise(signature: Signature, shapes: Shapes, device: Device, occupancy: float) -> KernelWork | Refusal:
    problem, dtype = elementwise_code.problem_of(signature, shapes), ELEMENT_NAMES[signature.dtypes["x1"]]
    return plan_elementwise(problem, elementwise_code.passes(signature), dtype, device, occupancy)


_PLANNERS: Mapping[str, Callable[[Signature, Shapes, Device, float], KernelWork | Refusal]] = {
    "attention": _attention,
    "layer_norm_qkv": _norm,
    "elementwise": _elementwise,
}


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
        "chip_status": TWIN_ONLY if work.dtype == "float32" or device.family == "310P" else TWIN,
        "remarks": list(work.remarks),
    }


# ---------------------------------------------------------------- whole models


@dataclass(frozen=True)
class ModelCost:
    """A whole model on a chip. `tensor_bytes` has every operator read its inputs and write its outputs once, fused ones
    what L2 does not serve them; `gm_bytes` is all traffic at global memory, `ddr_bytes` what of it passes L2.
    `time_us` is None where the model has a fused node that no kernel is known for.
    """

    tensor_bytes: int
    gm_bytes: int
    ddr_bytes: int
    workspace_footprint: int
    time_us: Range | None


def model_cost(
    scope: Scope, kernels: Kernels, specs: Mapping[str, KernelSpec], sizes: Sizes, kinds_of: KindsOf
) -> ModelCost:
    """The cost of a model's main graph and the bodies in it, launch after launch through one L2."""
    works = [w for w in works_of(scope, sizes, kernels.narrow, kinds_of) if w.launches]
    return _Model(kernels.device).cost(works, _fused(scope, kernels, specs, sizes))


def narrows(mode: str) -> bool:
    """Whether a precision mode makes float16 of float32 everywhere."""
    return compute_type(FLOAT32, mode) == FLOAT16


def _fused(
    scope: Scope, kernels: Kernels, specs: Mapping[str, KernelSpec], sizes: Sizes
) -> dict[str, KernelWork | None]:
    """The kernels of the fused nodes by the values they make first."""
    found = {}
    for here in (scope, *_inner(scope)):
        for node in here.nodes:
            spec = find_kernel(specs.values(), node.op)
            if spec is not None:
                found[node.outputs[0]] = kernels.of_node(here, node, spec, sizes)
    return found


def _inner(scope: Scope) -> list[Scope]:
    return [inner for _, body in scope.bodies for inner in (body, *_inner(body))]


class _Model:
    """Adds up launches; those that are alike are timed once."""

    def __init__(self, device: Device) -> None:
        self._device, self._chip = device, platform(device)
        toolkit, generated = device.cube_efficiency, device.generated_cube
        self._unfused = toolkit.high, toolkit.low
        self._generated = toolkit.high * generated.high, toolkit.low * generated.low
        self._plans: dict[Product, ProductPlan] = {}
        self._times: dict[_Key, tuple[float, float]] = {}

    def cost(self, works: Sequence[OpWork], fused: Mapping[str, KernelWork | None]) -> ModelCost:
        kernels = [self._kernel_of(work, fused) for work in works]
        plans = [self._plan(work.product, self._chip) for work in works]
        moved = moved_by(works, plans, self._device.l2)
        moved = [m if k is None else _with_kernel(m, k, self._device.l2) for m, k in zip(moved, kernels, strict=True)]
        times = [self._time(w, p, m, k) for w, p, m, k in zip(works, plans, moved, kernels, strict=True)]
        launches, accesses = len(works), max(1, handovers(works)) if works else 0
        launch, access = self._device.launch_us, self._device.ddr_access_us
        known = all(k is not None or not w.op.startswith(f"{DOMAIN}::") for w, k in zip(works, kernels, strict=True))
        low = launches * launch.low + accesses * access.low + sum(t[0] for t in times)
        high = launches * launch.high + accesses * access.high + sum(t[1] for t in times)
        return ModelCost(
            tensor_bytes=sum(
                w.tensor_bytes if k is None else moved_by_kernel(k, self._device.l2).ddr
                for w, k in zip(works, kernels, strict=True)
            ),
            gm_bytes=sum(m.gm_read + m.gm_written for m in moved),
            ddr_bytes=sum(m.ddr for m in moved),
            workspace_footprint=max((k.workspace_footprint for k in kernels if k is not None), default=0),
            time_us=Range(low, high) if known else None,
        )

    @staticmethod
    def _kernel_of(work: OpWork, fused: Mapping[str, KernelWork | None]) -> KernelWork | None:
        return fused.get(next(iter(work.writes))) if work.op.startswith(f"{DOMAIN}::") else None

    def _plan(self, product: Product | None, chip: Platform) -> ProductPlan | None:
        if product is None:
            return None
        nameless = replace(product, a="a", b="b")
        if nameless not in self._plans:
            self._plans[nameless] = plan_product(nameless, chip)
        return self._plans[nameless]

    def _time(
        self, work: OpWork, plan: ProductPlan | None, moved: Moved, kernel: KernelWork | None
    ) -> tuple[float, float]:
        """Microseconds of a launch with products at their best and at their worst, without its overhead."""
        key: _Key = (work.cube_flops, work.vector_elements, work.dtype, plan, moved, id(kernel))
        if key not in self._times:
            if kernel is None:
                stages = [unfused_stage(work, plan, moved, self._device, share) for share in self._unfused]
            else:
                stages = [fused_stage(kernel, moved, self._device, share) for share in self._generated]
            self._times[key] = stages[0].total_us, stages[1].total_us
        return self._times[key]


def _with_kernel(moved: Moved, kernel: KernelWork, capacity: int) -> Moved:
    """What a fused launch moves within a model: operands from L2 where they still are, all else as its tiles say."""
    own = moved_by_kernel(kernel, capacity)
    once = sum(min(total, kernel.sizes.get(name, total)) for name, total in kernel.reads.items())
    outputs = sum(kernel.writes.values())
    return Moved(
        own.gm_read,
        own.gm_written,
        moved.ddr_read + own.ddr_read - once,
        moved.ddr_written + own.ddr_written - outputs,
    )
