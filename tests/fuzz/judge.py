"""What every case must hold to: coded ends, whole files, printable words, and the numbers of the original model."""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from limits import Phase
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from atcfuse.cli import run
from atcfuse.diagnostics import all_codes
from atcfuse.graph.dialect import normalise
from atcfuse.graph.feeds import precision_of, read_interface
from atcfuse.graph.store import load
from atcfuse.verify.compare import OutputError, Tolerance, compare_value
from atcfuse.verify.core import RELATIVE
from atcfuse.verify.plan import collect
from atcfuse.verify.session import RuntimeFailure, Session

Feed = Mapping[str, Any]
FEEDS = 3
"""Input sets on which models are compared."""
SENSITIVE = 30.0
"""A difference is the model's own where changes in the last bits of its numbers make one a thirtieth as large."""


class Wrong(Exception):
    """Something that must never happen; the text says what."""


@dataclass(frozen=True)
class Task:
    """One case: where it draws from, a folder of its own, and what it is at."""

    rng: random.Random
    folder: Path
    phase: Phase


@dataclass(frozen=True)
class Said:
    """What a command line left."""

    code: int
    out: str
    err: str

    def label(self) -> str:
        """The outcome in a word: `done`, or the first code of an error."""
        found = re.search(r"error: (ATF\d{3})", self.err) or re.search(r"(ATF\d{3})", self.out)
        return "done" if not self.code else found.group(1) if found else f"exit {self.code}"


def command(task: Task, *arguments: object) -> Said:
    """Runs a command line in this process, which is one that may be spoilt, and judges how it ended."""
    line = [str(a) for a in arguments]
    task.phase(f"atcfuse {' '.join(line)}"[:2000])
    before = {p.name for p in task.folder.iterdir()}
    os.environ["ATCFUSE_TRACEBACK"] = "1"
    out, err = task.folder.parent / f"{task.folder.name}.out", task.folder.parent / f"{task.folder.name}.err"
    with out.open("w+b") as one, err.open("w+b") as two:
        os.dup2(one.fileno(), 1)
        os.dup2(two.fileno(), 2)
        sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
        code = run(line)
        sys.stdout.flush()
        sys.stderr.flush()
    said = Said(code, out.read_text("utf-8"), err.read_text("utf-8"))
    task.phase("judging")
    _judge(task, said, before)
    return said


def _judge(task: Task, said: Said, before: set[str]) -> None:
    if said.code not in (0, 1, 2):
        raise Wrong(f"exit code {said.code}: {said.err[-2000:]}")
    if "ATF199" in said.err or "Traceback" in said.err:
        raise Wrong(said.err[-4000:])
    codes = set(re.findall(r"(?:error|warning|info): (ATF\d{3})", said.out + said.err))
    tested = re.search(r"\d+ examples, \d+ failed\n$", said.out)  # `rules test` has said what is wrong with a rule
    if said.code and not tested and not re.search(r"ATF\d{3}", said.out + said.err):
        raise Wrong(f"exit code {said.code} without a code: {said.err[-2000:]}")
    if codes - set(all_codes()):
        raise Wrong(f"codes without a page: {sorted(codes - set(all_codes()))}")
    odd = [c for c in said.out + said.err if not c.isprintable() and c not in "\n"]
    if odd:
        raise Wrong(f"control characters in what is printed: {odd[:5]!r}")
    left = {p.name for p in task.folder.iterdir()} - before
    if any(".atcfuse-" in name for name in left):
        raise Wrong(f"temporary files are left: {sorted(left)}")
    if said.code and any(name.endswith(".fused.onnx") for name in left):
        raise Wrong("a model was written by a run that failed")


def runs(model: onnx.ModelProto, folder: Path) -> bool:
    """Whether onnxruntime loads a model."""
    try:
        Session(model, folder)
    except RuntimeFailure:
        return False
    return True


def agree(task: Task, original: Path, optimized: Path) -> str:
    """Compares two model files in onnxruntime: `equal`, why that cannot be said, or Wrong."""
    task.phase("onnxruntime on the original")
    model = load(original)
    return compare(task, normalise(model), lambda: normalise(load(optimized)), original.parent)


def compare(task: Task, model: onnx.ModelProto, fused: Any, folder: Path, feeds: Any = None) -> str:
    """As `agree`, for a model in memory; `fused` gives the optimized one, `feeds` input sets, made up where None."""
    interface = read_interface(model)
    try:
        session = Session(model, folder)
    except RuntimeFailure:
        return "does not load"
    run_one = lambda values: session.run(values, interface)  # noqa: E731
    if feeds is None:
        collected = collect(model, interface, run_one, 0)
        feeds, references = [f.values for f in collected.feeds], collected.references
    else:
        try:
            references = [run_one(feed) for feed in feeds]
        except RuntimeFailure:
            return "does not run"
    if not feeds:
        return "does not run"
    pairs = list(zip(feeds, references, strict=True))[:FEEDS]
    task.phase("loading the optimized model")
    other = fused()
    task.phase("onnxruntime on the optimized model")
    try:
        session = Session(other, folder)
        results = [session.run(feed, interface) for feed, _ in pairs]
    except RuntimeFailure as e:
        raise Wrong(f"onnxruntime runs the original only: {e}") from e
    tolerance = Tolerance(RELATIVE[precision_of(model)])
    for (feed, reference), got in zip(pairs, results, strict=True):
        if reference.keys() != got.keys():
            raise Wrong(f"outputs {sorted(got)} instead of {sorted(reference)}")
        bad = [o for n in reference for o in compare_value(n, "", reference[n], got[n], tolerance) if o.status != "ok"]
        if bad:
            if _agree_by_definition(model, other, feed, tolerance):
                return "differs, kept digits"
            return _excused(task, model, folder, feed, bad)
    return "equal"


def _agree_by_definition(model: onnx.ModelProto, fused: onnx.ModelProto, feed: Feed, tolerance: Tolerance) -> bool:
    """Whether models of 16 bits give the same numbers where every operator rounds, as ONNX defines it.

    onnxruntime computes in float32 and drops casts between operators, other ones when they stand in functions.
    """
    if precision_of(model) != "half":
        return False
    inputs = {name: value for name, value in feed.items() if value is not None}
    try:
        with np.errstate(all="ignore"):
            first, second = (ReferenceEvaluator(m).run(None, inputs) for m in (model, fused))
    except Exception:  # it does not know every operator
        return False
    names = [o.name for o in model.graph.output]
    return all(
        o.status == "ok"
        for n, a, b in zip(names, first, second, strict=True)
        for o in compare_value(n, "", a, b, tolerance)
    )


def _excused(task: Task, model: onnx.ModelProto, folder: Path, feed: Feed, bad: list[OutputError]) -> str:
    """Why a difference says nothing against the fusion; Wrong where it does."""
    text = "; ".join(f"{o.name}: {o.status} {o.message} off by {o.max_rel:.2e} > {o.limit:.1e}" for o in bad[:3])
    task.phase(f"judging {text}")
    if _not_finite(model, folder, feed):
        return "differs, not finite"
    own: dict[str, float] = {}
    for seed in range(3):
        for name, moved in _sensitivity(model, folder, feed, seed).items():
            own[name] = max(moved, own.get(name, 0.0))
    if all(o.max_rel <= SENSITIVE * own.get(o.name, 0.0) for o in bad):
        return "differs, ill-conditioned"
    raise Wrong(f"{text}; changed last bits make {', '.join(f'{own.get(o.name, 0.0):.2e}' for o in bad[:3])}")


def _not_finite(model: onnx.ModelProto, folder: Path, feed: Feed) -> bool:
    """Whether some value of a run is NaN or +inf (-inf is what masks are made of)."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    known = {o.name for o in probe.graph.output}
    for node in probe.graph.node:
        probe.graph.output.extend(onnx.ValueInfoProto(name=o) for o in node.output if o and o not in known)
    try:
        values = Session(probe, folder).run(feed, read_interface(model))
    except RuntimeFailure:
        return False
    arrays = [v for v in [*values.values(), *feed.values()] if isinstance(v, np.ndarray) and v.dtype.kind == "f"]
    return any(np.isnan(v).any() or np.isposinf(v).any() for v in arrays)


def _sensitivity(model: onnx.ModelProto, folder: Path, feed: Feed, seed: int) -> dict[str, float]:
    """How far every output moves, as a share of its largest element, when inputs and weights change in last bits."""
    source = np.random.default_rng(seed)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    try:
        for tensor in changed.graph.initializer:
            if tensor.data_type in (1, 10, 11) and tensor.data_location != onnx.TensorProto.EXTERNAL:
                tensor.CopyFrom(numpy_helper.from_array(_shaken(numpy_helper.to_array(tensor), source), tensor.name))
        moved = {n: _shaken(v, source) if isinstance(v, np.ndarray) else v for n, v in feed.items()}
        interface = read_interface(model)
        before, after = (Session(m, folder).run(f, interface) for m, f in ((model, feed), (changed, moved)))
    except (RuntimeFailure, ValueError):
        return {}
    found = [o for n in before for o in compare_value(n, "", before[n], after[n], Tolerance(0.0))]
    return {o.name: np.inf if o.message else o.max_rel for o in found if o.status != "ok"}


def _shaken(array: Any, source: np.random.Generator) -> Any:
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        return array
    step = np.finfo(array.dtype).eps
    with np.errstate(all="ignore"):
        return (array * (1 + step * source.uniform(-1, 1, array.shape))).astype(array.dtype)
