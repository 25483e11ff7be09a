"""Fused nodes executed by their generated kernels in the twin, on the activations that onnxruntime produces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from atcfuse.artifacts import NodeKernel, node_kernels
from atcfuse.codegen import GeneratedKernel, predict
from atcfuse.codegen.signature import BFLOAT16, FLOAT
from atcfuse.diagnostics import AtcfuseError, Diagnostic, UsageError, did_you_mean, error, warning
from atcfuse.graph.feeds import Interface, ModelProto, read_interface
from atcfuse.graph.index import Model
from atcfuse.graph.infer import infer
from atcfuse.graph.single import keep_nan, tap
from atcfuse.kernel import KernelSpec
from atcfuse.precision import DEFAULT_MODE
from atcfuse.progress import counted
from atcfuse.reference import bfloat16_values
from atcfuse.tiling import Platform, planned_platform
from atcfuse.twin import TwinResult, find_compiler, run_kernel
from atcfuse.vectors import encode, signature_model
from atcfuse.verify.compare import OutputError, Tolerance, compare_arrays
from atcfuse.verify.core import GIVEN
from atcfuse.verify.files import check_inputs
from atcfuse.verify.plan import collect
from atcfuse.verify.session import RuntimeFailure, Session
from atcfuse.verify.values import Array, Feed, Value

MAX_FEEDS = 2
"""Generated input sets that the twin runs: the plainest and, where there are masks, a padded one."""
_ISNAN_SINCE = 9
FLOAT_LIMIT, HALF_LIMIT = 1e-4, 2e-2
"""The largest error that passes, relative to the largest number of an output; the second for 16-bit elements."""


@dataclass(frozen=True)
class KernelRun:
    """One fused node in the twin on one set of inputs.

    `counted` and `predicted` are bytes named as in the twin's report, and the high-water mark of each on-chip memory;
    `capacity` is what the chip has of those. `failure` tells why there is no result, `shapes` are those of
    the inputs.
    """

    node: str
    kernel: GeneratedKernel
    feed: str
    outputs: tuple[OutputError, ...] = ()
    counted: Mapping[str, int] | None = None
    predicted: Mapping[str, int] | None = None
    failure: Diagnostic | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the kernel ran, agrees with onnxruntime and moves what was predicted."""
        agrees = all(o.status == "ok" for o in self.outputs)
        return self.failure is None and agrees and self.counted == self.predicted

    @property
    def worst(self) -> OutputError | None:
        """The output that is furthest off."""
        return max(self.outputs, key=lambda o: (o.status != "ok", o.max_rel), default=None)


@dataclass(frozen=True)
class KernelRuns:
    """All runs of a model, in its order, and what is to be said about them."""

    runs: tuple[KernelRun, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def ok(self) -> bool:
        """Whether every node ran, agrees and moves what was predicted."""
        return not any(d.severity == "error" for d in self.diagnostics)


def run_kernels(
    model: ModelProto,
    path: Path,
    specs: Mapping[str, KernelSpec],
    *,
    soc: str,
    precision_mode: str = DEFAULT_MODE,
    chip: Platform | None = None,
    inputs: Mapping[str, Array] | None = None,
    node: str | None = None,
    cache: Path | None = None,
) -> KernelRuns:
    """Runs every fused node of a portable model (or the one called `node`); the model is changed.

    `path` locates external data, `inputs` are made up where none are given, `cache` keeps compiled kernels, `chip` is
    what tilings plan for, the family's usual chip kept to its usual bound if not given. A kernel is held against
    onnxruntime on the same operands, rounded to the element types that the precision mode leaves them.
    Raises AtcfuseError: ATF700 no C++ compiler, ATF736 no fused node; UsageError ATF737 for an unknown `node`; what the
    twin finds wrong with a kernel is in the result.
    """
    index = Model(model, path)
    infer(index)
    nodes = _chosen(node_kernels(index, specs, soc, precision_mode), node)
    find_compiler()
    runnable, diagnostics = _runnable(nodes)
    interface = read_interface(model)
    feeds = _feeds(model, path.parent, interface, inputs) if runnable else []
    taps = tap(index, (value for n in runnable for value in n.inputs.values()))
    twin = _Twin(index.opset, chip, cache)
    runs = [
        twin.run(n, feed, {operand: values[taps[value]] for operand, value in n.inputs.items()})
        for feed, values in _activations(model, path.parent, interface, feeds)
        for n in counted("running kernels in the twin", runnable)
    ]
    return KernelRuns(tuple(runs), (*diagnostics, *(d for run in runs for d in _complaints(run))))


def _chosen(nodes: Sequence[NodeKernel], name: str | None) -> list[NodeKernel]:
    if not nodes:
        hint = "optimize the model first: atcfuse optimize MODEL"
        raise AtcfuseError(error("ATF736", "the model has no fused node", hint=hint))
    chosen = [n for n in nodes if name in (None, n.node)]
    if not chosen:
        names = [n.node for n in nodes]
        hint = did_you_mean(str(name), names) or f"fused nodes are {', '.join(names[:5])}{', …' * (len(names) > 5)}"
        raise UsageError(error("ATF737", f"there is no fused node {name!r}", hint=hint))
    return chosen


def _runnable(nodes: Sequence[NodeKernel]) -> tuple[list[NodeKernel], list[Diagnostic]]:
    """The nodes that can be run, and why the others cannot."""
    diagnostics = []
    for n in nodes:
        if n.refusal is not None:
            diagnostics.append(error("ATF738", f"{n.node!r} ({n.op}) has no kernel: {n.refusal}"))
        elif n.nested:
            message = (
                f"{n.node!r} lies in the body of another node, whose values onnxruntime does not hand out: not run"
            )
            diagnostics.append(warning("ATF739", message))
    return [n for n in nodes if n.kernel is not None and not n.nested], diagnostics


def _feeds(model: ModelProto, folder: Path, interface: Interface, inputs: Mapping[str, Array] | None) -> Sequence[Feed]:
    """The given inputs, or made-up ones on which the model runs."""
    if inputs is not None:
        return [Feed(GIVEN, check_inputs(inputs, interface))]
    try:
        with closing(Session(model, folder)) as session:
            found = collect(model, interface, lambda values: session.run(values, interface), 0).feeds
    except RuntimeFailure as e:
        raise AtcfuseError(_not_run(e)) from e
    if not found:
        hint = f"give inputs with --inputs F.npz (arrays named {', '.join(i.name for i in interface.inputs)})"
        raise AtcfuseError(error("ATF504", "cannot make up inputs for the model", hint=hint))
    return found[:MAX_FEEDS]


def _activations(
    model: ModelProto, folder: Path, interface: Interface, feeds: Sequence[Feed]
) -> Iterator[tuple[str, Mapping[str, Value]]]:
    """The values of all taps, one set of inputs at a time: weights are among them."""
    if not feeds:
        return
    try:
        with closing(Session(model, folder)) as session:
            for feed in feeds:
                yield feed.name, session.run(feed.values, interface)
    except RuntimeFailure as e:
        raise AtcfuseError(_not_run(e)) from e


def _not_run(failure: RuntimeFailure) -> Diagnostic:
    hint = "give inputs that the model accepts with --inputs F.npz"
    return error("ATF740", f"onnxruntime does not run the model: {failure}", hint=hint)


class _Twin:
    """Runs nodes in the twin and in onnxruntime; one session of each operator is kept."""

    def __init__(self, opset: int, chip: Platform | None, cache: Path | None) -> None:
        self._opset, self._chip, self._cache = opset, chip, cache
        self._sessions: dict[str, tuple[Session, Interface]] = {}

    def run(self, node: NodeKernel, feed: str, values: Mapping[str, Value]) -> KernelRun:
        """One node on one set of activations."""
        kernel = node.kernel
        assert kernel is not None  # only runnable nodes get here
        dtypes = kernel.signature.dtypes
        inputs = {name: encode(np.asarray(value), dtypes[name]) for name, value in values.items()}
        shapes = {name: array.shape for name, array in inputs.items()}
        try:
            expected = self._expected(node, kernel, inputs)
        except RuntimeFailure as e:
            message = f"onnxruntime does not compute what {node.op} means: {e}"
            return KernelRun(node.node, kernel, feed, failure=error("ATF740", message))
        try:
            chip, overflows = self._chip or planned_platform(kernel.signature.family), _overflows(expected)
            result = run_kernel(kernel, inputs, platform=chip, cache=self._cache, half_overflow=overflows)
        except AtcfuseError as e:
            return KernelRun(node.node, kernel, feed, failure=e.diagnostics[0])
        predicted = predict(kernel, shapes, chip)
        assert not isinstance(predicted, str), predicted  # the kernel's own tiling took the shapes
        counted = {**result.counters, **result.counters["peak"]}
        outputs = tuple(_compared(kernel, feed, expected, result))
        found = {name: counted[name] for name in predicted}
        return KernelRun(node.node, kernel, feed, outputs, found, predicted, shapes=shapes)

    def _expected(self, node: NodeKernel, kernel: GeneratedKernel, inputs: Mapping[str, Array]) -> Mapping[str, Value]:
        if kernel.op_type not in self._sessions:
            model = signature_model(kernel.signature, node.attributes, self._opset)
            if self._opset >= _ISNAN_SINCE:
                keep_nan(model)
            self._sessions[kernel.op_type] = (Session(model, Path()), read_interface(model))
        session, interface = self._sessions[kernel.op_type]
        return session.run(inputs, interface)


def _overflows(expected: Mapping[str, Value]) -> bool:
    """Whether numbers of the model itself become infinite halves, so that those of a kernel may."""
    arrays = (np.asarray(value) for value in expected.values())
    return any(array.dtype == np.float16 and bool(np.isinf(array).any()) for array in arrays)


def _compared(
    kernel: GeneratedKernel, feed: str, expected: Mapping[str, Value], result: TwinResult
) -> Iterator[OutputError]:
    for name, got in result.outputs.items():
        dtype = kernel.signature.dtypes[name]
        limit = Tolerance(FLOAT_LIMIT if dtype == FLOAT else HALF_LIMIT)
        values = bfloat16_values(got) if dtype == BFLOAT16 else got
        yield compare_arrays(name, feed, expected[name], values, limit)


def _complaints(run: KernelRun) -> Iterator[Diagnostic]:
    where = [f"node {run.node!r}, {run.kernel.op_type}, {run.feed}"]
    if run.failure is not None:
        yield error(run.failure.code, run.failure.message, hint=run.failure.hint, notes=[*where, *run.failure.notes])
    for one in run.outputs:
        if one.status != "ok":
            how = one.message or f"relative {one.max_rel:.2e} > {one.limit:.1e}"
            yield error("ATF741", f"{one.name} of {run.node!r} is not what onnxruntime computes: {how}", notes=where)
    if run.counted is not None and run.predicted is not None and run.counted != run.predicted:
        wrong = [
            f"{k}: predicted {v}, counted {run.counted[k]}" for k, v in run.predicted.items() if v != run.counted[k]
        ]
        yield error("ATF742", f"{run.node!r} does not move what was predicted", notes=[*where, *wrong])
