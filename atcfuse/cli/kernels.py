"""`atcfuse kernels`: the fused operators, the projects with their kernels, and the kernels at work on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atcfuse.cli import console
from atcfuse.cli.chip import chip_options, settled_chip
from atcfuse.cli.completion import among
from atcfuse.cli.completion import kernels as names_of_kernels
from atcfuse.cli.helptext import SpokenGroup
from atcfuse.diagnostics import AtcfuseError, UsageError, did_you_mean, error

if TYPE_CHECKING:
    from onnx import ModelProto

    from atcfuse.kernel import KernelSpec
    from atcfuse.options import Options
    from atcfuse.verify.kernels import KernelRuns


@click.group("kernels", cls=SpokenGroup, short_help="List, show, generate and run the kernels of fused operators.")
@console.lang_option
def command() -> None:
    """The fused operators and the kernels that make them."""


@command.command("list")
@console.lang_option
def list_kernels() -> int:
    """List every kernel: its operator, the chips and element types that it takes, and what has checked it."""
    from atcfuse.codegen import support_of

    rows = [
        (spec.name, spec.op, ", ".join(f"{soc}*" for soc in s.socs), ", ".join(s.elements), console.tell(s.status))
        for spec in _specs().values()
        for s in support_of(spec)
    ]
    say = console.say
    head = (say("kernel"), say("operator"), say("chips"), say("element types"), say("status"))
    console.out(console.table(head, rows))
    return 0


@command.command("show")
@click.argument("name", shell_complete=among(names_of_kernels))
@console.lang_option
def show_kernel(name: str) -> int:
    """Show the declaration of the kernel NAME (or of the operator NAME), and where it lies."""
    specs = _specs()
    spec = specs.get(name) or next((s for s in specs.values() if s.op == name), None)
    if spec is None:
        hint = did_you_mean(name, [*specs, *(s.op for s in specs.values())]) or "`atcfuse kernels list` shows them"
        raise UsageError(error("ATF135", f"there is no kernel {name!r}", hint=hint))
    path = spec.folder / "kernel.yaml"
    console.note(str(path))
    console.out(path.read_text(encoding="utf-8"))
    return 0


@command.command("generate")
@click.argument("model", type=console.FILE)
@click.option("-o", "--output", type=console.FILE, metavar="DIR", help="The project.  [default: MODEL.kernels]")
@chip_options
@console.lang_option
def generate(model: Path, output: Path | None, **chip: Any) -> int:
    """Write the operator project for the fused nodes of MODEL, which `atcfuse optimize` has written.

    DIR is replaced as a whole if it is such a project already.
    """
    from atcfuse.artifacts import EXECUTABLE, MARKER, model_project
    from atcfuse.device import load_device
    from atcfuse.estimate import build_name, planned_chip
    from atcfuse.files import Transaction

    options = settled_chip(chip, model)
    device = load_device(options.soc)
    planned = planned_chip(device, options)
    project = model_project(_load(model), model, _specs(), build_name(device), options.precision_mode, planned)
    if not project.fused:
        hint = "optimize the model first: atcfuse optimize MODEL"
        raise AtcfuseError(error("ATF736", "the model has no fused node", hint=hint))
    console.show(project.diagnostics)
    if not project.files:
        raise AtcfuseError(error("ATF734", f"the project for {model.name} would hold no operator"))
    target = model.with_suffix(".kernels") if output is None else output
    with Transaction([model]) as transaction:
        transaction.folder(target, project.files, marker=MARKER, executable=EXECUTABLE)
    console.out(str(target))
    return 0


@command.command("run")
@click.argument("model", type=console.FILE)
@click.option("--inputs", type=console.FILE, metavar="F.npz", help="Arrays named like the inputs.  [default: made up]")
@click.option("--node", metavar="NAME", help="Only the fused node of this name.")
@chip_options
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
@console.output_options
def run(model: Path, inputs: Path | None, node: str | None, style: str, **chip: Any) -> int:
    """Run the kernel of every fused node of MODEL in the twin and compare it with onnxruntime.

    The operands are those that onnxruntime computes when it runs the model. Errors, the bytes that each kernel moved
    and its on-chip memory are shown. Exits with 1 where a kernel is off, broke a rule of the chip, or moved other bytes
    than predicted. Needs a C++17 compiler.
    """
    from atcfuse.report import to_json
    from atcfuse.verify.kernels_text import kernels_dict, kernels_text

    found = run_in_twin(model, inputs, node=node, options=settled_chip(chip, model))
    console.show(found.diagnostics)
    console.out(to_json(kernels_dict(found)) if style == "json" else kernels_text(found, console.language()))
    return 0 if found.ok else 1


def run_in_twin(model: Path, inputs: Path | None, *, node: str | None, options: Options) -> KernelRuns:
    """The kernels of a model's fused nodes, run; compiled programs are dropped afterwards."""
    from tempfile import TemporaryDirectory

    from atcfuse.device import load_device
    from atcfuse.estimate import build_name, planned_chip
    from atcfuse.verify import load_inputs
    from atcfuse.verify.kernels import run_kernels

    given = None if inputs is None else load_inputs(inputs)
    device = load_device(options.soc)
    settings: dict[str, Any] = {"soc": build_name(device), "precision_mode": options.precision_mode}
    if device.family is not None:
        settings["chip"] = planned_chip(device, options)
    with TemporaryDirectory(prefix="atcfuse-kernels-") as cache:
        return run_kernels(_load(model), model, _specs(), inputs=given, node=node, cache=Path(cache), **settings)


def _load(model: Path) -> ModelProto:
    from atcfuse.graph.dialect import to_dialect
    from atcfuse.graph.store import load

    proto = load(model)
    to_dialect(proto, "portable")
    return proto


def _specs() -> dict[str, KernelSpec]:
    from atcfuse.kernel import load_kernels
    from atcfuse.resources import data_folder

    return load_kernels(data_folder("kernels"))
