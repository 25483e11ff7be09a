"""Where the files of a run go, and what tells one version of a file from another."""

from __future__ import annotations

import hashlib
from pathlib import Path

from atcfuse.diagnostics import UsageError, error
from atcfuse.files import CHUNK
from atcfuse.paths import is_folder

_FORMS = (".json", ".md", ".html")
"""How a report is written: the endings of its files."""


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


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest()
