"""The Python API: a model in memory or a file through the whole way, and what came of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from atcfuse import compiler
from atcfuse.artifacts import EXECUTABLE, MARKER, Project, model_project
from atcfuse.codegen import kernel_cache
from atcfuse.device import load_device
from atcfuse.diagnostics import AtcfuseError, Diagnostic, UsageError, error, info, warning
from atcfuse.estimate import build_name, planned_chip
from atcfuse.files import CHUNK, Handed, Transaction, create, write_all, writing
from atcfuse.graph.dialect import normalise, to_dialect
from atcfuse.graph.external import locations
from atcfuse.graph.store import load, write
from atcfuse.lang import LANGUAGES
from atcfuse.options import Options, check_figures, parse_dialect, parse_tile_level, with_environment
from atcfuse.paths import exists, is_folder
from atcfuse.report import gate, read_report, to_json, to_markdown
from atcfuse.report.html import to_html
from atcfuse.run import Toolbox

if TYPE_CHECKING:
    import onnx
    import onnx_graphsurgeon as gs

    from atcfuse.verify import Verification

Progress = Callable[[Path, int, int], None]
"""Called while weights are copied: the file, bytes done, bytes in all."""

_FORMS = (".json", ".md", ".html")
"""How a report is written: the endings of its files."""

UNVERIFIABLE = frozenset({"ATF504", "ATF505"})
"""Codes of a verification that could not run at all, which says nothing against the fusion."""


@dataclass(frozen=True)
class Result(compiler.Result):
    """The optimized model, its report document (`atcfuse.report/1`) and the diagnostics of the run.

    `graph` is the same model as a `gs.Graph`, without the functions that give the fused nodes their meaning
    (graphsurgeon cannot tell them apart); None unless a `gs.Graph` was given. `tools` and `path` are what the run
    worked with. In a notebook a result shows its report.
    """

    graph: gs.Graph | None = None
    tools: Toolbox | None = field(default=None, repr=False, compare=False)
    path: Path | None = field(default=None, repr=False, compare=False)

    @cached_property
    def kernels(self) -> Mapping[str, str | bytes]:
        """The operator project for the fused nodes: contents by path, rendered when they are first asked for.

        Empty where nothing fused, and with `kernels=False`.
        """
        if self.tools is None:
            return {}
        with kernel_cache(self.tools.options.kernel_cache):
            return project_of(self.model, self.path or Path("model.onnx"), self.tools).files

    def _repr_html_(self) -> str:
        """The HTML report in a frame of its own, as notebooks show a result."""
        from html import escape

        page = escape(to_html(self.report), quote=True)
        return f'<iframe title="atcfuse report" style="width:100%;height:36rem;border:0" srcdoc="{page}"></iframe>'


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


def optimize(
    model: onnx.ModelProto | gs.Graph | str | Path, options: Options | None = None, **overrides: Any
) -> Result:
    """Fuses a model and reports on it; `overrides` are single options by name, such as `dialect="portable"`.

    >>> result = optimize("sample_models/nanogpt_ts17_fp16_static.onnx", kernels=False)
    >>> [fusion["rule"] for fusion in result.report["fusions"] if fusion["op"] == "FusedAttention"]
    ['attention', 'attention']

    A model given in memory is not changed: the result is a copy, weights included. A path is loaded with its external
    data left on disk, and the result still refers to those files. The environment variables GF_AUTOFUSION_DEBUG and
    GF_AUTOFUSION_DISABLE are respected. Raises AtcfuseError for a model, rule or switch file that is not acceptable,
    UsageError for an option that is not, TypeError for an unknown option or another kind of model.
    """
    tools = compiler.toolbox(settled(options or Options(), overrides))
    with kernel_cache(tools.options.kernel_cache):
        return _optimize(model, tools)


def _optimize(model: onnx.ModelProto | gs.Graph | str | Path, tools: Toolbox) -> Result:
    if isinstance(model, (str, Path)):
        path = Path(model)
        return _result(compiler.optimize_proto(load(path), tools, path, path.name, sha256_of(path)), tools, path)
    if type(model).__module__.startswith("onnx_graphsurgeon"):
        return _optimize_graph(model, tools)
    if not hasattr(model, "opset_import"):
        raise TypeError(f"expected a ModelProto, a gs.Graph or a path, found {type(model).__name__}")
    return _result(compiler.optimize_proto(normalise(model), tools, name=_model_name(model)), tools)


def settled(options: Options, overrides: Mapping[str, Any]) -> Options:
    """The options with overrides and environment applied, paths as `Path`, every name checked."""
    chosen = replace(options, **overrides)
    rules = [chosen.rules] if isinstance(chosen.rules, (str, Path)) else chosen.rules
    load_device(chosen.soc)
    check_figures(chosen)
    checked = replace(
        chosen,
        switch_file=None if chosen.switch_file is None else Path(chosen.switch_file),
        rules=tuple(Path(folder) for folder in rules),
        dialect=parse_dialect(chosen.dialect),
        tile_level=parse_tile_level(chosen.tile_level),
    )
    return with_environment(checked)


def _result(found: compiler.Result, tools: Toolbox, path: Path | None = None, graph: gs.Graph | None = None) -> Result:
    return Result(found.model, found.report, found.diagnostics, graph, tools, path)


def _model_name(model: onnx.ModelProto) -> str:
    return f"{model.graph.name or 'model'}.onnx"


def _optimize_graph(graph: gs.Graph, tools: Toolbox) -> Result:
    import onnx_graphsurgeon as gs

    try:
        exported = gs.export_onnx(graph)
    except Exception as exc:  # graphsurgeon raises whatever its parts raise
        hint = "make graph.toposort() and gs.export_onnx(graph) work on it first"
        raise AtcfuseError(error("ATF136", f"graphsurgeon cannot export the graph: {exc}", hint=hint)) from exc
    found = compiler.optimize_proto(exported, tools, name=_model_name(exported))
    bare = type(exported)()
    bare.CopyFrom(found.model)
    del bare.functions[:]
    return _result(found, tools, graph=gs.import_onnx(bare))


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
    found = compiler.optimize_proto(load(path), tools, path, path.name, sha256_of(path))
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


def project_of(model: onnx.ModelProto, path: Path, tools: Toolbox) -> Project:
    """The operator project of an optimized model, without files where there is none to write."""
    options = tools.options
    if not options.kernels:
        return Project({}, 0)
    flat = options.dialect == "atc-flat"
    if flat:
        to_dialect(model, "portable")
    chip = planned_chip(tools.device, options)
    project = model_project(model, path, tools.kernels, build_name(tools.device), options.precision_mode, chip)
    if flat:
        to_dialect(model, options.dialect)
    return project


def default_output(path: Path) -> Path:
    """`bert.fused.onnx` for `bert.onnx`, in the same folder."""
    return path.parent / f"{_stem(path)}.fused.onnx"


def kernels_folder(out: Path) -> Path:
    """`bert.fused.kernels` beside `bert.fused.onnx`."""
    return out.with_name(f"{_stem(out)}.kernels")


def report_files(out: Path, report: Path | None = None) -> tuple[Path, ...]:
    """The files of a report (JSON, Markdown, HTML): beside the output, in a folder, or one .json file alone.

    Raises UsageError ATF122 for the name of a file of another kind.
    """
    if report is None:
        return tuple(out.with_name(f"{_stem(out)}.report{suffix}") for suffix in _FORMS)
    if report.suffix == ".json":
        return (report,)
    if report.suffix in (".md", ".html", ".txt", ".yaml", ".yml") and not is_folder(report):
        hint = "give a folder, which gets report.json, report.md and report.html, or a .json file"
        raise UsageError(error("ATF122", f"{report.name} is neither a folder nor a .json file", hint=hint))
    return tuple(report / f"report{suffix}" for suffix in _FORMS)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".onnx")


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


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest()
