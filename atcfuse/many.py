"""Several models in one run: one after the other or on several processes, with one operator project for all.

A process makes a model's outputs and hands them over; this one puts them in place, in the order of the models. So a
model whose kernels do not go with those before it fails before any of its files is there, whoever made them.
"""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from atcfuse import compiler
from atcfuse.api import FileResult, default_output, optimize_file, project_of, settled
from atcfuse.artifacts import EXECUTABLE, MARKER, Project, SharedProject
from atcfuse.codegen import kernel_cache
from atcfuse.device import load_device
from atcfuse.diagnostics import AtcfuseError, UsageError, error
from atcfuse.estimate import build_name, planned_chip
from atcfuse.files import Handed, Transaction, remove_temporaries
from atcfuse.graph.dialect import normalise
from atcfuse.graph.store import load
from atcfuse.options import Options
from atcfuse.pool import check_backend, run_all
from atcfuse.project import render_project
from atcfuse.resume import earlier_result, run_key, write_record
from atcfuse.run import Toolbox

Done = Callable[[Path, "FileResult | AtcfuseError"], None]


@dataclass(frozen=True)
class ManyResults:
    """What came of several models, in their order: a result, or the error that ended that model's run."""

    results: tuple[FileResult | AtcfuseError, ...]
    kernels: Path | None

    @property
    def failed(self) -> bool:
        """Whether any of them failed."""
        return any(isinstance(r, AtcfuseError) or r.failed for r in self.results)


@dataclass(frozen=True)
class _Task:
    """One model. `kernels` is the folder that all models share, `tag` marks the temporary files of this run."""

    path: Path
    options: Options
    kernels: Path | None
    each: Mapping[str, Any]
    tag: str
    resume: bool

    @property
    def out(self) -> Path:
        """Where the optimized model goes."""
        return self.each.get("out") or default_output(self.path)


@dataclass
class _Sink:
    """Keeps a model's kernels for the process that makes the project of all."""

    folder: Path
    project: Project | None = None

    def add(self, project: Project, tools: Toolbox) -> None:
        """Takes the kernels."""
        self.project = project


@dataclass
class _Made:
    """What a process hands over."""

    result: FileResult | AtcfuseError
    key: str = ""
    project: Project | None = None
    handed: Handed = field(default_factory=lambda: Handed(""))


def optimize_files(
    paths: Sequence[Path],
    options: Options | None = None,
    *,
    kernels_dir: Path | None = None,
    done: Done | None = None,
    jobs: int = 1,
    backend: str | None = None,
    resume: bool = False,
    **each: Any,
) -> ManyResults:
    """`optimize_file` for every path, with what `each` says; one that fails does not keep the others.

    With `kernels_dir` all of them share one operator project there, written at the end. `jobs` processes work at once,
    by way of `backend` (loky, dask or ray; loky where None). With `resume` models are skipped whose outputs an earlier
    such run wrote from the same content with the same options and version. Raises UsageError ATF179 for models whose
    outputs would be the same files, ATF181 for a backend that is not installed, and what `settled` raises.
    """
    chosen = options or Options()
    settled(chosen, {})
    if jobs != 1 or backend is not None:
        check_backend(backend or "loky")
    _check_outputs(paths, each)
    shared = None if kernels_dir is None else _SharedKernels(kernels_dir, chosen)
    if shared is not None and not each.get("dry_run"):
        Transaction(paths).check(shared.folder, folder=True, marker=MARKER)
    tag = f"many{secrets.token_hex(6)}"
    own = [each if len(paths) == 1 else {**each, "report": _own_reports(p, each.get("report"))} for p in paths]
    tasks = [_Task(p, chosen, kernels_dir, o, tag, resume) for p, o in zip(paths, own, strict=True)]
    results: list[FileResult | AtcfuseError] = []
    try:
        for task, made in zip(tasks, _made(tasks, jobs, backend), strict=True):
            results.append(_put_in_place(task, made, shared))
            if done is not None:
                done(task.path, results[-1])
    finally:
        for folder in {task.out.parent for task in tasks} | {p for t in tasks for p in _report_folders(t)}:
            remove_temporaries(folder, tag)
    wanted = shared is not None and not each.get("dry_run")
    written = shared.folder if shared is not None and wanted and shared.write(paths) else None
    return ManyResults(tuple(results), written)


def written_by_others(paths: Sequence[Path]) -> list[Path]:
    """Those paths that another of the models is written to, as `models/*.onnx` gives them after an earlier run."""
    outputs = {default_output(path).resolve(): path for path in paths}
    return [path for path in paths if outputs.get(path.resolve(), path) != path]


def _check_outputs(paths: Sequence[Path], each: Mapping[str, Any]) -> None:
    for path in written_by_others(paths) if len(paths) > 1 else ():
        hint = "give the models as they were exported"
        raise UsageError(error("ATF179", f"{path.name} is what another of the models is written to", hint=hint))
    outputs = [default_output(path).resolve() for path in paths]
    if each.get("report") is not None:
        outputs += [(_own_reports(path, each["report"]) or path).resolve() for path in paths]
    twice = sorted({p.name for p, o in zip([*paths, *paths], outputs, strict=False) if outputs.count(o) > 1})
    if twice:
        hint = "give every model once"
        raise UsageError(error("ATF179", f"two models would be written to the same file: {twice[0]}", hint=hint))


def _own_reports(path: Path, folder: Path | None) -> Path | None:
    """The folder of one of several models' reports."""
    return None if folder is None else folder / default_output(path).name.removesuffix(".onnx")


def _report_folders(task: _Task) -> list[Path]:
    report = task.each.get("report")
    return [] if report is None else [report, report.parent]


def _made(tasks: Sequence[_Task], jobs: int, backend: str | None) -> Iterator[_Made]:
    if jobs == 1 and backend is None:
        cache = tasks[0].options.kernel_cache
        # One cache for all models; with a folder of its own a model would not share what the others rendered.
        with kernel_cache(cache):
            for task in tasks:
                yield _make(replace(task, options=replace(task.options, kernel_cache=None)))
                gc.collect()  # nothing of a model outlives its turn
        return
    alone = [replace(task, each={k: v for k, v in task.each.items() if k != "progress"}) for task in tasks]
    for found in run_all(_make, alone, jobs, backend or "loky"):
        yield _Made(found) if isinstance(found, AtcfuseError) else found


def _make(task: _Task) -> _Made:
    """A model's outputs, not yet in place. Whatever goes wrong is the result of this model."""
    handed, key = Handed(task.tag), ""
    sink = None if task.kernels is None else _Sink(task.kernels)
    try:
        if task.resume:
            key = run_key(task.path, task.options, task.each)
            found = earlier_result(task.path, key, task.each)
            if found is not None:
                return _Made(found, "", _project_again(task), handed)
        given = dict(task.each)
        result = optimize_file(task.path, given.pop("out", None), task.options, shared=sink, handed=handed, **given)
        return _Made(result, key, sink.project if sink else None, handed)
    except AtcfuseError as exc:
        return _Made(exc)
    except Exception as exc:  # a mistake of ours in one model does not take the others with it
        what = f"an internal error; this is a mistake in atcfuse ({type(exc).__name__}: {exc})"[:400]
        return _Made(AtcfuseError(error("ATF199", what, hint="report it with the model and the command")))


def _project_again(task: _Task) -> Project | None:
    """The kernels of a model that was skipped: its fused nodes alone settle them."""
    if task.kernels is None or not task.options.kernels:
        return None
    tools = compiler.toolbox(settled(task.options, {}))
    return project_of(normalise(load(task.out)), task.out, tools)


def _put_in_place(task: _Task, made: _Made, shared: _SharedKernels | None) -> FileResult | AtcfuseError:
    result = made.result
    if isinstance(result, AtcfuseError):
        return result
    try:
        with Transaction() as transaction:
            transaction.take(made.handed)
            if shared is not None and made.project is not None:
                shared.add(made.project)
        if made.key and result.written and not result.failed:
            write_record(task.path, made.key, result, task.each, task.kernels)
    except AtcfuseError as exc:
        return exc
    return result


class _SharedKernels:
    """The operator project in `folder` that several models share; `write` puts it there once all are done."""

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder = folder
        chosen, device = settled(options, {}), load_device(options.soc)
        chip = planned_chip(device, chosen)
        soc, mode = build_name(device), chosen.precision_mode
        self._project = SharedProject(lambda kernels: render_project(kernels, soc, mode, chip))

    def add(self, project: Project) -> None:
        """Takes the kernels of a model in. Raises UsageError where they cannot be told apart from others."""
        self._project.add(project)

    def write(self, inputs: Sequence[Path]) -> bool:
        """Replaces the folder with the project; False where no model needs a kernel. `inputs` are never overwritten."""
        if not self._project.files:
            return False
        with Transaction(inputs) as transaction:
            transaction.folder(self.folder, self._project.files, marker=MARKER, executable=EXECUTABLE)
        return True
