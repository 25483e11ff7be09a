"""`atcfuse optimize`: the main job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atcfuse.cli import console
from atcfuse.cli.chip import chip_options, chip_settings
from atcfuse.cli.completion import among, dialects, rules
from atcfuse.diagnostics import UsageError, error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atcfuse.api import FileResult
    from atcfuse.diagnostics import AtcfuseError
    from atcfuse.options import Options
    from atcfuse.report.merged import Entry, Outcome


_LEFT_SHOWN = 5


class _Optimize(click.Command):
    """`--force` without a rule may stand right before a model: what ends as models do is no rule."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        following = zip(args, [*args[1:], ""], strict=False)
        told = [f"{a}=all" if a == "--force" and b.endswith(".onnx") else a for a, b in following]
        return super().parse_args(ctx, told)


@click.command("optimize", cls=_Optimize, short_help="Fuse a model and write it with its report.")
@click.argument("models", type=console.FILE, nargs=-1, required=True, metavar="MODEL...")
@click.option("-o", "--output", type=console.FILE, help="The optimized model.  [default: MODEL.fused.onnx]")
@click.option("--fusion-switch-file", "switch_file", type=console.FILE, help="The file that ATC gets too.")
@chip_options
@click.option("--rules", type=console.FILE, multiple=True, metavar="DIR", help="A folder of your own rules.")
@click.option(
    "--dialect", default="atc", show_default=True, shell_complete=among(dialects), help="atc, atc-flat or portable."
)
@click.option("--report", type=console.FILE, metavar="DIR|FILE.json", help="Where reports go.  [default: beside OUT]")
@click.option("--kernels-dir", type=console.FILE, metavar="DIR", help="One operator project for all models.")
@click.option("--kernel-cache", type=console.FILE, metavar="DIR", help="Kernels kept for later runs, shared by many.")
@click.option("--jobs", type=click.IntRange(0), help="Models done at once; 0 for as many as there are cores.")
@click.option("--backend", type=click.Choice(["loky", "dask", "ray"]), help="Where --jobs run.  [default: loky]")
@click.option("--resume", is_flag=True, help="Skip models whose outputs an earlier --resume wrote from the same.")
@click.option("--merged-report", "merged", type=console.FILE, metavar="FILE.json", help="One report on all models.")
@click.option("--no-kernels", is_flag=True, help="Write no operator project, and fuse also what has no kernel.")
@click.option("--min-saving", type=float, metavar="US", help="Microseconds a fusion must save.  [default: 10]")
@click.option("--keep-fp32", default="", metavar="OP,…", help="Operators whose kernels must compute in float32.")
@click.option(
    "--force",
    "forced",
    multiple=True,
    is_flag=False,
    flag_value="all",  # options.EVERY_RULE
    metavar="[RULE]",
    shell_complete=among(rules),
    help="A rule whose fusions need not pay; without RULE that is every one.",
)
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

    Several models are fused each as if it were alone, one after the other or --jobs at once; where one fails the others
    are still done.
    """
    from atcfuse.api import optimize_file

    if given["max_regression"] is not None and given["baseline"] is None:
        hint = "give the report to compare with, --baseline REPORT"
        raise UsageError(error("ATF143", "--max-regression has nothing to compare with", hint=hint))
    if len(models) > 1 or any(given[name] for name in ("kernels_dir", "jobs", "backend", "resume", "merged")):
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
    from atcfuse.diagnostics import AtcfuseError
    from atcfuse.many import optimize_files
    from atcfuse.report import to_json

    _check_many(models, given)
    models = _without_outputs(models, given)
    reports: list[dict[str, Any]] = []
    entries: list[Entry] = []

    def done(path: Path, result: FileResult | AtcfuseError) -> None:
        entries.append(_entry(path, result))
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
        jobs=_jobs(given["jobs"]),
        backend=given["backend"],
        resume=given["resume"],
        report=given["report"],
        verify=given["verify"],
        dry_run=given["dry_run"],
        progress=console.copy_progress(),
        lang=console.language(),
        **(_of_one(given) if len(models) == 1 else {}),
    )
    if given["merged"] is not None:
        _write_merged(given["merged"], entries, found.kernels, models)
    if given["style"] == "json":
        many: Any = reports
        console.out(to_json(many if len(models) > 1 else many[0]) if reports else "[]")
    elif found.kernels is not None and not given["quiet"]:
        console.out(console.say("operator project of all models: {}", found.kernels))
    return 1 if found.failed else 0


def _without_outputs(models: tuple[Path, ...], given: dict[str, Any]) -> tuple[Path, ...]:
    """The models without those that an earlier run of others among them wrote: a pattern names these as well."""
    from atcfuse.diagnostics import info
    from atcfuse.many import written_by_others

    left = written_by_others(models)
    if left:
        more = [f"and {len(left) - _LEFT_SHOWN} more"] if len(left) > _LEFT_SHOWN else []
        notes = [*(str(path) for path in left[:_LEFT_SHOWN]), *more]
        message = f"left out {len(left)} of {len(models)} models, which are what others of them are written to"
        console.show([info("ATF184", message, notes=notes)], quiet=given["quiet"])
    return tuple(path for path in models if path not in left)


def _jobs(given: int | None) -> int:
    import os

    return 1 if given is None else given or len(os.sched_getaffinity(0))


def _entry(path: Path, result: FileResult | AtcfuseError) -> Entry:
    from atcfuse.diagnostics import AtcfuseError
    from atcfuse.report.merged import Entry

    if isinstance(result, AtcfuseError):
        return Entry(path.name, "failed", None, result.diagnostics)
    outcome: Outcome = "failed" if result.failed else "skipped" if result.skipped else "done"
    return Entry(path.name, outcome, result.report, result.diagnostics)


def _write_merged(target: Path, entries: Sequence[Entry], kernels: Path | None, models: Sequence[Path]) -> None:
    from atcfuse.files import Transaction
    from atcfuse.report import to_json
    from atcfuse.report.merged import merged, merged_markdown

    document = merged(entries, kernels.name if kernels else None)
    with Transaction(models) as transaction:
        transaction.write(target, to_json(document))
        transaction.write(target.with_suffix(".md"), merged_markdown(document, console.language()))


def _of_one(given: dict[str, Any]) -> dict[str, Any]:
    limit = given["max_regression"] or 0.0
    return {"out": given["output"], "baseline": given["baseline"], "max_regression": limit}


def _check_many(models: tuple[Path, ...], given: dict[str, Any]) -> None:
    """Options that say something about one model."""
    if given["no_kernels"] and given["kernels_dir"] is not None:
        raise UsageError(error("ATF179", "--no-kernels leaves nothing for --kernels-dir", hint="give one of the two"))
    merged = given["merged"]
    if merged is not None:
        if merged.suffix != ".json":
            hint = "give a file FILE.json; FILE.md is written beside it"
            raise UsageError(error("ATF122", f"{merged.name} is not a .json file", hint=hint))
        _check_merged(models, merged)
    if len(models) == 1:
        return
    single = {"-o": given["output"], "--baseline": given["baseline"]}
    report = given["report"]
    single["--report FILE.json"] = report if report is not None and report.suffix == ".json" else None
    for name, value in single.items():
        if value is not None:
            hint = "outputs go beside each model; --report takes a folder, in which each model gets one of its own"
            raise UsageError(error("ATF179", f"{name} goes with one model, {len(models)} are given", hint=hint))


def _check_merged(models: tuple[Path, ...], merged: Path) -> None:
    """Fails before any work is done where the merged report could not be written."""
    from atcfuse.files import Transaction

    for target in (merged, merged.with_suffix(".md")):
        Transaction(models).check(target)


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
