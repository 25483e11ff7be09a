"""The comparison itself: run both models on the same inputs and judge the differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from atcfuse.diagnostics import Diagnostic, error, info, warning
from atcfuse.graph.feeds import Interface, ModelProto, Precision, read_interface
from atcfuse.progress import counted
from atcfuse.verify.compare import OutputError, Tolerance, compare_value, missing
from atcfuse.verify.drift import optimized_results
from atcfuse.verify.files import check_inputs
from atcfuse.verify.plan import Collected, collect
from atcfuse.verify.session import RuntimeFailure, Session
from atcfuse.verify.values import Array, Feed, Value

GIVEN = "given inputs"
RELATIVE: Mapping[Precision, float] = {"float32": 2e-5, "half": 3e-3, "quantized": 3e-2}
DRIFT_FACTOR = 10.0
# onnxruntime's optimizer is not always right, so its drift widens a tolerance only this far.
WIDEST: Mapping[Precision, float] = {"float32": 5e-3, "half": 3e-2, "quantized": 5e-1}


@dataclass(frozen=True)
class Verification:
    """The outcome: `outputs` holds one entry an output and input set, `feeds` the descriptions of the sets.

    `rtol` and `atol` are the tolerances before any drift was allowed for; `drift` is the largest relative difference
    that onnxruntime's own optimizations make on the original, None where it was not measured.
    """

    ok: bool
    outputs: tuple[OutputError, ...]
    feeds: tuple[str, ...]
    rtol: float
    atol: float
    drift: float | None
    diagnostics: tuple[Diagnostic, ...]

    def worst(self) -> tuple[OutputError, ...]:
        """One entry an output, in the model's order: its failure if there is one, else its largest deviation."""
        best: dict[str, OutputError] = {}
        for one in self.outputs:
            known = best.get(one.name)
            if known is None or _badness(one) > _badness(known):
                best[one.name] = one
        return tuple(best.values())


def _badness(one: OutputError) -> tuple[bool, float]:
    return one.status != "ok", one.max_rel - one.limit if one.status == "wrong" and one.limit else one.max_rel


def verify(
    original: ModelProto,
    optimized: ModelProto,
    *,
    base_dir_original: Path,
    base_dir_optimized: Path,
    inputs: Mapping[str, Array] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
) -> Verification:
    """Run both models (dialect `portable`) on the given or on generated inputs and compare every output.

    External tensors are read from the base directories. Without `rtol` and `atol` the tolerance follows the
    precision of the original and, where that fails, the drift of onnxruntime's own optimizations. Raises AtcfuseError
    for given inputs that do not fit the original; everything else is told by the diagnostics of the result.
    """
    interface = read_interface(original)
    default = RELATIVE[interface.precision]
    tolerance = Tolerance(default if rtol is None else rtol, atol or 0.0)
    run = _Comparison(original, base_dir_original, interface, tolerance)
    given = None if inputs is None else check_inputs(inputs, interface)
    other = read_interface(optimized)
    run.diagnostics += _interface_mistakes(interface, other)
    feedable = {i.name for i in other.inputs} == {i.name for i in interface.inputs}
    if not feedable or not run.run_original(given, seed) or not run.run_optimized(optimized, base_dir_optimized):
        return run.result(None)
    drift = run.allow_drift() if rtol is None and atol is None else None
    run.judge()
    return run.result(drift)


class _Comparison:
    """One verification in progress; only one session is open at a time, so that large models fit."""

    def __init__(self, original: ModelProto, base_dir: Path, interface: Interface, tolerance: Tolerance) -> None:
        self.original, self.base_dir, self.interface, self.tolerance = original, base_dir, interface, tolerance
        self.collected = Collected()
        self.outputs: list[OutputError] = []
        self.diagnostics: list[Diagnostic] = []

    def failed(self) -> bool:
        """Whether an error has been found."""
        return any(d.severity == "error" for d in self.diagnostics)

    def result(self, drift: float | None) -> Verification:
        """What has been found, as the immutable result."""
        order = {name: i for i, name in enumerate(self.interface.outputs)}
        outputs = sorted(self.outputs, key=lambda o: order.get(o.name.split("[")[0], len(order)))
        feeds = tuple(f.name for f in self.collected.feeds)
        ok = not self.failed() and bool(outputs)
        found = tuple(self.diagnostics)
        return Verification(ok, tuple(outputs), feeds, self.tolerance.relative, self.tolerance.absolute, drift, found)

    def run_original(self, given: Mapping[str, Array] | None, seed: int) -> bool:
        """Get the reference results; False where there are none."""
        try:
            session = Session(self.original, self.base_dir)
        except RuntimeFailure as e:
            hint = "compare on a machine whose onnxruntime can load the original"
            self.diagnostics.append(error("ATF505", f"onnxruntime cannot load the original model: {e}", hint=hint))
            return False
        if given is not None:
            self._run_given(session, given)
        else:
            self.collected = collect(self.original, self.interface, lambda v: session.run(v, self.interface), seed)
            self.diagnostics += self.collected.diagnostics
            if not self.collected.feeds:
                self.diagnostics.append(_no_inputs(self.interface))
        session.close()
        return bool(self.collected.feeds)

    def _run_given(self, session: Session, given: Mapping[str, Value]) -> None:
        try:
            self.collected.references.append(session.run(given, self.interface))
            self.collected.feeds.append(Feed(GIVEN, given))
        except RuntimeFailure as e:
            hint = "give inputs that the original accepts"
            self.diagnostics.append(
                error("ATF513", f"the original model does not run on the given inputs: {e}", hint=hint)
            )

    def run_optimized(self, model: ModelProto, base_dir: Path) -> bool:
        """Run the optimized model on the same inputs and compare; False where it cannot be loaded."""
        try:
            session = Session(model, base_dir)
        except RuntimeFailure as e:
            self.diagnostics.append(error("ATF506", f"onnxruntime cannot load the optimized model: {e}"))
            return False
        feeds = list(zip(self.collected.feeds, self.collected.references, strict=True))
        for feed, reference in counted("running the optimized model", feeds):
            try:
                got = session.run(feed.values, self.interface)
            except RuntimeFailure as e:
                message = f"the optimized model fails where the original runs ({feed.name})"
                self.diagnostics.append(error("ATF507", message, notes=[str(e)]))
                continue
            self.outputs += _compare(feed.name, reference, got, self.tolerance)
        session.close()
        return True

    def allow_drift(self) -> float | None:
        """Where a float output is out of tolerance, measure the original's own drift and allow ten times as much."""
        if all(o.status != "wrong" or not o.limit for o in self.outputs):
            return None
        drifts = self._measure_drift()
        if not drifts:
            return None
        drift = max(drifts.values())
        limit = min(WIDEST[self.interface.precision], DRIFT_FACTOR * drift)
        judged = [_with_limit(o, limit) for o in self.outputs]
        if any(o.limit > before.limit for o, before in zip(judged, self.outputs, strict=True)):
            message = f"tolerance {limit:.1e} instead of {self.tolerance.relative:.1e}"
            why = f"onnxruntime's own optimizations change the original by {drift:.1e}"
            self.diagnostics.append(info("ATF511", message, notes=[why]))
        self.outputs = judged
        return drift

    def _measure_drift(self) -> dict[str, float]:
        feeds, references = self.collected.feeds, self.collected.references
        try:
            results = optimized_results(self.original, self.base_dir, self.interface, feeds)
        except RuntimeFailure as e:
            self.diagnostics.append(info("ATF511", f"the original's own drift could not be measured: {e}"))
            return {}
        out = {}
        for feed, reference, result in zip(feeds, references, results, strict=True):
            compared = _compare(feed.name, reference, result, Tolerance(0.0))
            out[feed.name] = max((o.max_rel for o in compared if o.status in ("ok", "wrong")), default=0.0)
        return out

    def judge(self) -> None:
        """Turn the comparisons into diagnostics."""
        verification = self.result(None)
        for one in verification.worst():
            if one.status != "ok":
                self.diagnostics.append(_difference(one))
        informative = {o.name for o in self.outputs if o.finite}
        for name in dict.fromkeys(o.name for o in self.outputs):
            if name not in informative:
                text = f"output {name!r} has no finite number other than 0 on any input set: comparing it proves little"
                self.diagnostics.append(warning("ATF512", text, hint="give inputs with --inputs F.npz"))


def _with_limit(one: OutputError, limit: float) -> OutputError:
    if one.status != "wrong" or not 0 < one.limit < limit or one.message:
        return one
    return replace(one, limit=limit, status="ok" if one.max_rel <= limit else "wrong")


def _compare(
    size_set: str, reference: Mapping[str, Value], got: Mapping[str, Value], tolerance: Tolerance
) -> list[OutputError]:
    out = []
    for name, value in reference.items():
        out += compare_value(name, size_set, value, got[name], tolerance) if name in got else [missing(name, size_set)]
    return out


def _difference(one: OutputError) -> Diagnostic:
    if one.status == "missing" or one.message:
        message = f"output {one.name!r} is wrong: {one.message}"
    else:
        message = f"output {one.name!r} is off by {one.max_abs:.3g}, relative {one.max_rel:.2e} > {one.limit:.1e}"
    return error("ATF508", message, notes=[f"on {one.size_set}"])


def _no_inputs(interface: Interface) -> Diagnostic:
    unknown = [i.name for i in interface.inputs if i.kind == "other"]
    why = f"inputs of unsupported type: {', '.join(unknown)}" if unknown else "no generated input set runs on it"
    listed = ", ".join(i.name for i in interface.inputs)
    hint = f"give inputs with --inputs F.npz (arrays named {listed})"
    return error("ATF504", f"cannot make up inputs for the original model: {why}", hint=hint)


def _interface_mistakes(original: Interface, optimized: Interface) -> list[Diagnostic]:
    """Renamed, lost, added or reordered inputs and outputs: callers address both by name and by position."""
    out = []
    pairs = [
        ("inputs", [i.name for i in original.inputs], [i.name for i in optimized.inputs]),
        ("overridable initializers", list(original.overridable), list(optimized.overridable)),
        ("outputs", list(original.outputs), list(optimized.outputs)),
    ]
    for what, before, after in pairs:
        if before != after:
            notes = [f"original: {', '.join(before)}", f"optimized: {', '.join(after)}"]
            kind = "order" if sorted(before) == sorted(after) else "names"
            out.append(error("ATF509", f"the {what} of the two models differ in their {kind}", notes=notes))
    return out
