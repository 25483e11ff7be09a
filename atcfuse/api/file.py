"""A model file into another one, with reports and operator project beside it: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from atcfuse import compiler
from atcfuse.api.memory import project_of, settled
from atcfuse.api.outputs import default_output, kernels_folder, report_files
from atcfuse.artifacts import EXECUTABLE, MARKER, Project
from atcfuse.codegen import kernel_cache
from atcfuse.diagnostics import AtcfuseError, Diagnostic, UsageError, error, info, warning
from atcfuse.files import Handed, Transaction, create, write_all, writing
from atcfuse.graph.dialect import normalise, to_dialect
from atcfuse.graph.external import locations
from atcfuse.graph.store import load, load_hashed, write
from atcfuse.lang import LANGUAGES
from atcfuse.options import Options
from atcfuse.paths import exists
from atcfuse.report import gate, read_report, to_json, to_markdown
from atcfuse.report.html import to_html
from atcfuse.run import Toolbox

if TYPE_CHECKING:
    import onnx

    from atcfuse.verify import Verification

Progress = Callable[[Path, int, int], None]
"""Called while weights are copied: the file, bytes done, bytes in all."""

UNVERIFIABLE = frozenset({"ATF504", "ATF505"})
"""Codes of a verification that could not run at all, which says nothing against the fusion."""


class KernelSink(Protocol):
    """What takes the kernels of a model in place of a project of its own, which would be written to `folder`."""

    folder: Path

    def add(self, project: Project, tools: Toolbox) -> None:
        """Takes them. Raises AtcfuseError where they cannot be one project with those before."""


@dataclass(frozen=True)
class FileResult:
    """What `optimize_file` did. `written` lists the files in place now: none where `failed`, and in a dry run.

    `skipped` tells that an earlier run's files are those that this one would have written.
    """

    report: dict[str, Any]
    diagnostics: tuple[Diagnostic, ...]
    written: tuple[Path, ...]
    verification: Verification | None = None
    skipped: bool = False

    @property
    def failed(self) -> bool:
        """Whether a gate was not met or the verification found a difference."""
        return any(d.severity == "error" for d in self.diagnostics)


def optimize_file(
    path: Path,
    out: Path | None = None,
    options: Options | None = None,
    *,
    report: Path | None = None,
    verify: bool = False,
    baseline: Path | None = None,
    max_regression: float = 0.0,
    dry_run: bool = False,
    progress: Progress | None = None,
    shared: KernelSink | None = None,
    handed: Handed | None = None,
    lang: str = LANGUAGES[0],
) -> FileResult:
    """Fuses a model file into another, report and operator project beside it; all of it appears, or nothing does.

    `out` defaults to `default_output(path)`; `report` is a folder or a .json file, see `report_files`; the project goes
    to `kernels_folder(out)` unless it would be empty. With `verify` both models are run and compared, with `baseline`
    the report is held against an older one (`max_regression` is a percentage): where either fails, `failed` is true and
    no model is written, after a missed gate the reports alone. With `shared` the kernels go into that project instead,
    which the caller writes; with `handed` the caller also puts the other outputs in place, see `files.Handed`. `lang`
    is the language of the report for people; the JSON file is the same in any. Raises AtcfuseError and UsageError.
    """
    gates = verify, baseline, max_regression
    with kernel_cache(None if options is None else options.kernel_cache):
        return _optimize_file(path, out, options, report, gates, dry_run, progress, shared, handed, lang)


def _optimize_file(
    path: Path,
    out: Path | None,
    options: Options | None,
    report: Path | None,
    gates: tuple[bool, Path | None, float],
    dry_run: bool,
    progress: Progress | None,
    shared: KernelSink | None,
    handed: Handed | None,
    lang: str,
) -> FileResult:
    verify, baseline, max_regression = gates
    out = default_output(path) if out is None else out
    reports = report_files(out, report)
    chosen = settled(options or Options(), {})
    transaction = Transaction([p for p in (path, chosen.switch_file, baseline) if p is not None], handed)
    if not dry_run:
        for target in (out, *reports):
            if target is out or exists(target.parent):
                transaction.check(target)
        if chosen.kernels and shared is None:
            transaction.check(kernels_folder(out), folder=True)
    tools = compiler.toolbox(chosen)
    older = None if baseline is None else _baseline(baseline)
    proto, digest = load_hashed(path)
    found = compiler.optimize_proto(proto, tools, path, path.name, digest)
    project = project_of(found.model, path, tools)
    folder = (kernels_folder(out) if shared is None else shared.folder) if project.files else None
    page = next((report.name for report in reports if report.suffix == ".html"), None)
    names = {"model": out.name, "report": reports[0].name, "kernels": folder.name if folder else None, "page": page}
    document = {**found.report, "files": names}
    document["diagnostics"] = [*document["diagnostics"], *(d.as_dict() for d in project.diagnostics)]
    diagnostics = found.diagnostics + project.diagnostics
    if older is not None:
        judged = gate(document, older, max_regression)
        document["diagnostics"] = [*document["diagnostics"], *(d.as_dict() for d in judged)]
        diagnostics += tuple(judged)
    verification = _verified(path, found.model) if verify else None
    diagnostics += _judged(verification)
    if dry_run or _errors(_judged(verification)):
        document["files"] = dict.fromkeys(names)
        return FileResult(document, diagnostics, (), verification)
    if _errors(diagnostics):
        stale = [p.name for p in (out, *((folder,) if folder and shared is None else ())) if p.exists()]
        return _only_reports(document, diagnostics, reports, transaction, verification, stale, lang)
    if shared is not None:
        shared.add(project, tools)
    with transaction:
        fresh = tuple(write(found.model, transaction, out, source=path, progress=progress))
        document["diagnostics"] = [*document["diagnostics"], *(d.as_dict() for d in fresh)]
        moved = [path.name for path in transaction.targets if path.name.endswith(".data")]
        document["files"] |= {"data": data} if (data := sorted({*locations(found.model), *moved})) else {}
        _stage_reports(transaction, reports, document, lang)
        if folder is not None and shared is None:
            transaction.folder(folder, project.files, marker=MARKER, executable=EXECUTABLE)
    written = (out, *reports, *((folder,) if folder else ()))
    return FileResult(document, diagnostics + fresh + (() if folder else _left_over(out)), written, verification)


def _baseline(path: Path) -> dict[str, Any]:
    """The report to compare with; that it is not there is a mistake in the call, as with every file of an option."""
    try:
        return read_report(path)
    except AtcfuseError as exc:
        if exc.diagnostics[0].code == "ATF530":
            raise UsageError(exc.diagnostics) from None
        raise


def _left_over(out: Path) -> tuple[Diagnostic, ...]:
    """A warning where an earlier run's project stands beside a model that has none; no part of the report."""
    folder = kernels_folder(out)
    if not (folder / MARKER).is_file():
        return ()
    message = f"{folder.name} is of an earlier run; this model has no operator project"
    return (warning("ATF146", message, hint=f"remove {folder.name}, or do not install it for this model"),)


def _errors(diagnostics: Sequence[Diagnostic]) -> bool:
    return any(d.severity == "error" for d in diagnostics)


def _only_reports(
    document: dict[str, Any],
    diagnostics: tuple[Diagnostic, ...],
    reports: Sequence[Path],
    transaction: Transaction,
    verification: Verification | None,
    stale: Sequence[str],
    lang: str,
) -> FileResult:
    """What a missed gate leaves behind: the reports, so that the regression can be looked at, and no model.

    `stale` names what an earlier run left where this one would have written.
    """
    shown = {key: document["files"][key] for key in ("report", "page")}
    document["files"] = {**dict.fromkeys(document["files"]), **shown}
    said = info(
        "ATF144",
        f"no model was written; the report is in {reports[0].name}",
        hint=f"`atcfuse diff BASELINE {reports[0].name}` shows every change",
        notes=[f"{name} is of an earlier run" for name in stale],
    )
    with transaction:
        _stage_reports(transaction, reports, document, lang)
    return FileResult(document, (*diagnostics, said), tuple(reports), verification)


def _stage_reports(transaction: Transaction, reports: Sequence[Path], document: Mapping[str, Any], lang: str) -> None:
    rendered = {".md": to_markdown, ".html": to_html}
    for target in reports:
        text = to_json(document) if target.suffix == ".json" else rendered[target.suffix](document, lang)
        _stage(transaction, target, text)


def _stage(transaction: Transaction, target: Path, text: str) -> None:
    temporary = transaction.stage(target, parents=True)
    with writing(target), create(temporary) as stream:
        write_all(stream.fileno(), text.encode())


def _verified(path: Path, optimized: onnx.ModelProto) -> Verification:
    from atcfuse.verify import verify

    original = load(path)
    to_dialect(original, "portable")
    folder = path.parent
    return verify(original, normalise(optimized), base_dir_original=folder, base_dir_optimized=folder)


def _judged(verification: Verification | None) -> tuple[Diagnostic, ...]:
    """A verification's diagnostics; an original that cannot be run anywhere here is only a warning."""
    if verification is None:
        return ()
    found = verification.diagnostics
    if not any(d.code in UNVERIFIABLE for d in found):
        return (*found, *_disagreement(verification, found))
    return tuple(replace(d, severity="warning") if d.code in UNVERIFIABLE else d for d in found)


def _disagreement(verification: Verification, found: Sequence[Diagnostic]) -> list[Diagnostic]:
    if verification.ok:
        return []
    hint = "report this with the model; --fusion-switch-file can turn the fusion off meanwhile"
    proof = [d for d in found if d.severity == "error"]
    message = "the optimized model does not agree with the original; nothing was written"
    return [error("ATF138", message, hint=hint)] if proof else [warning("ATF139", "the models could not be compared")]
