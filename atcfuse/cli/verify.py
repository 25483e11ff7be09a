"""`atcfuse verify`: two models on the same inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from atcfuse.cli import console
from atcfuse.cli.chip import chip_options, settled_chip
from atcfuse.cli.kernels import run_in_twin


@click.command("verify", short_help="Run two models on the same inputs and compare them.")
@click.argument("original", type=console.FILE)
@click.argument("optimized", type=console.FILE)
@click.option("--inputs", type=console.FILE, metavar="F.npz", help="Arrays named like the inputs.  [default: made up]")
@click.option("--rtol", type=click.FloatRange(min=0), help="Largest relative error.  [default: by precision]")
@click.option("--atol", type=click.FloatRange(min=0), help="Largest absolute error.  [default: 0]")
@click.option("--kernels", is_flag=True, help="Also run every fused node by its kernel, as `kernels run` does.")
@chip_options
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
@console.output_options
def command(
    original: Path,
    optimized: Path,
    inputs: Path | None,
    rtol: float | None,
    atol: float | None,
    kernels: bool,
    style: str,
    **chip: Any,
) -> int:
    """Run ORIGINAL and OPTIMIZED, models of any dialect, in onnxruntime and compare every output.

    Exits with 1 where they differ by more than the tolerance or cannot be compared.
    """
    from atcfuse.graph.dialect import to_dialect
    from atcfuse.graph.store import load
    from atcfuse.report import to_json
    from atcfuse.verify import load_inputs, verification_dict, verification_text, verify
    from atcfuse.verify.kernels_text import kernels_dict, kernels_text

    options = settled_chip(chip, optimized)
    given = None if inputs is None else load_inputs(inputs)
    models = [load(path) for path in (original, optimized)]
    for model in models:
        to_dialect(model, "portable")
    found = verify(
        *models,
        base_dir_original=original.parent,
        base_dir_optimized=optimized.parent,
        inputs=given,
        rtol=rtol,
        atol=atol,
    )
    runs = run_in_twin(optimized, inputs, node=None, options=options) if kernels else None
    console.show([*found.diagnostics, *(runs.diagnostics if runs else ())])
    if style == "json":
        console.out(to_json({**verification_dict(found), **({"kernels": kernels_dict(runs)} if runs else {})}))
    else:
        said = console.language()
        console.out("\n".join([verification_text(found, said), *([kernels_text(runs, said)] if runs else [])]))
    return 0 if found.ok and (runs is None or runs.ok) else 1
