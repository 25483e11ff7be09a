"""`atcfuse optimize`: the main job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atcfuse.cli import console
from atcfuse.cli.chip import chip_options, chip_settings
from atcfuse.diagnostics import UsageError, error

if TYPE_CHECKING:
    from atcfuse.api import FileResult
    from atcfuse.options import Options


@click.command("optimize", short_help="Fuse a model and write it with its report.")
@click.argument("models", type=console.FILE, nargs=-1, required=True, metavar="MODEL...")
@click.option("-o", "--output", type=console.FILE, help="The optimized model.  [default: MODEL.fused.onnx]")
@click.option("--fusion-switch-file", "switch_file", type=console.FILE, help="The file that ATC gets too.")
@chip_options
@click.option("--rules", type=console.FILE, multiple=True, metavar="DIR", help="A folder of your own rules.")
@click.option("--dialect", default="atc", show_default=True, help="atc, atc-flat or portable.")
@click.option("--report", type=console.FILE, metavar="DIR|FILE.json", help="Where reports go.  [default: beside OUT]")
@click.option("--kernels-dir", type=console.FILE, metavar="DIR", help="One operator project for all models.")
@click.option("--kernel-cache", type=console.FILE, metavar="DIR", help="Kernels kept for later runs, shared by many.")
@click.option("--no-kernels", is_flag=True, help="Write no operator project, and fuse also what has no kernel.")
@click.option("--min-saving", type=float, metavar="US", help="Microseconds a fusion must save.  [default: 10]")
@click.option("--keep-fp32", default="", metavar="OP,…", help="Operators whose kernels must compute in float32.")
@click.option("--force", "forced", multiple=True, metavar="RULE", help="A rule whose fusions need not pay.")
@click.option("--keep-nodes", multiple=True, metavar="GLOB|FILE", help="Nodes to leave alone.")
@click.option("--verify", is_flag=True, help="Run both models and write nothing if they differ.")
@click.option("--assume", default="", metavar="NAME=SIZE,…", help="Sizes of dynamic dims, for the report's figures.")
@click.option("--dry-run", is_flag=True, help="Write nothing, only report.")
@click.option("--baseline", type=console.FILE, metavar="REPORT", help="Fail if this model is worse than this report.")
@click.option("--max-regression", type=float, metavar="PCT", help="Percent that --baseline lets pass.  [default: 0]")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-q", "--quiet", is_flag=True, help="One line, and no diagnostics but warnings and errors.")
@click.option("-v", "--verbose", is_flag=True, help="Also every fusion and every kept subgraph in full.")
@console.output_options
def command(models: tuple[Path, ...], **given: Any) -> int:
    """Fuse MODEL and write the optimized model, ready for ATC, with a report of what fused and what did not.

    Several models are fused one after the other, each as if it were alone; where one fails the others are still done.
    """
    from atcfuse.api import optimize_file

    if given["max_regression"] is not None and given["baseline"] is None:
        hint = "give the report to compare with, --baseline REPORT"
        raise UsageError(error("ATF143", "--max-regression has nothing to compare with", hint=hint))
    if len(models) > 1 or given["kernels_dir"] is not None:
        return _many(models, given)
    result = optimize_file(
        models[0],
        given["output"],
        _options(given),
        report=given["report"],
        verify=given["verify"],
        baseline=given["baseline"],
        max_regression=given["max_regression"] or 0.0,
        dry_run=given["dry_run"],
        progress=console.copy_progress(),
        lang=console.language(),
    )
    console.show(result.diagnostics, quiet=given["quiet"])
    _print(result, given)
    return 1 if result.failed else 0


def _many(models: tuple[Path, ...], given: dict[str, Any]) -> int:
    from atcfuse.api import optimize_files
    from atcfuse.diagnostics import AtcfuseError
    from atcfuse.report import to_json

    _check_many(models, given)
    reports: list[dict[str, Any]] = []

    def done(path: Path, result: FileResult | AtcfuseError) -> None:
        if isinstance(result, AtcfuseError):
            console.note(console.say("{}: failed", path))
            console.show(result.diagnostics)
            return
        console.show(result.diagnostics, quiet=given["quiet"])
        reports.append(result.report)
        if given["style"] != "json":
            _print(result, given)

    found = optimize_files(
        models,
        _options(given),
        kernels_dir=given["kernels_dir"],
        done=done,
        report=given["report"],
        verify=given["verify"],
        dry_run=given["dry_run"],
        progress=console.copy_progress(),
        lang=console.language(),
        **(_of_one(given) if len(models) == 1 else {}),
    )
    if given["style"] == "json":
        many: Any = reports
        console.out(to_json(many if len(models) > 1 else many[0]) if reports else "[]")
    elif found.kernels is not None and not given["quiet"]:
        console.out(console.say("operator project of all models: {}", found.kernels))
    return 1 if found.failed else 0


def _of_one(given: dict[str, Any]) -> dict[str, Any]:
    limit = given["max_regression"] or 0.0
    return {"out": given["output"], "baseline": given["baseline"], "max_regression": limit}


def _check_many(models: tuple[Path, ...], given: dict[str, Any]) -> None:
    """Options that say something about one model."""
    if given["no_kernels"] and given["kernels_dir"] is not None:
        raise UsageError(error("ATF179", "--no-kernels leaves nothing for --kernels-dir", hint="give one of the two"))
    if len(models) == 1:
        return
    single = {"-o": given["output"], "--baseline": given["baseline"]}
    report = given["report"]
    single["--report FILE.json"] = report if report is not None and report.suffix == ".json" else None
    for name, value in single.items():
        if value is not None:
            hint = "outputs go beside each model; --report takes a folder, in which each model gets one of its own"
            raise UsageError(error("ATF179", f"{name} goes with one model, {len(models)} are given", hint=hint))


def _options(given: dict[str, Any]) -> Options:
    from atcfuse.options import Options, parse_assumed, parse_dialect, parse_names

    return Options(
        switch_file=given["switch_file"],
        **chip_settings(given),
        rules=given["rules"],
        dialect=parse_dialect(given["dialect"]),
        assume=parse_assumed(given["assume"]),
        kernels=not given["no_kernels"],
        min_saving_us=given["min_saving"],
        keep_fp32=parse_names(given["keep_fp32"]),
        forced=frozenset(given["forced"]),
        keep_nodes=given["keep_nodes"],
        kernel_cache=given["kernel_cache"],
    )


def _print(result: FileResult, given: dict[str, Any]) -> None:
    from atcfuse.cli import describe
    from atcfuse.report import to_json, to_line, to_text

    if result.verification is not None and not given["quiet"]:
        from atcfuse.verify import verification_text

        console.note(verification_text(result.verification, console.language()))
    if given["style"] == "json":
        console.out(to_json(result.report))
    elif given["quiet"]:
        console.out(to_line(result.report, console.language()))
    else:
        # The diagnostics are on stderr already.
        shown = {**result.report, "diagnostics": []}
        page = console.width(), console.colored(sys.stdout), console.language()
        console.out(to_text(shown, *page))
        if given["verbose"]:
            console.out(describe.full_text(shown, *page))
