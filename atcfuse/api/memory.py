"""A model in memory, or read from a file, through the whole way, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atcfuse import compiler
from atcfuse.artifacts import Project, model_project
from atcfuse.codegen import kernel_cache
from atcfuse.device import load_device
from atcfuse.diagnostics import AtcfuseError, error
from atcfuse.estimate import build_name, planned_chip
from atcfuse.graph.dialect import normalise, to_dialect
from atcfuse.graph.store import load_hashed
from atcfuse.options import Options, check_figures, parse_dialect, parse_tile_level, with_environment
from atcfuse.report.html import to_html
from atcfuse.run import Toolbox

if TYPE_CHECKING:
    import onnx
    import onnx_graphsurgeon as gs


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
        proto, digest = load_hashed(path)
        return _result(compiler.optimize_proto(proto, tools, path, path.name, digest), tools, path)
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
