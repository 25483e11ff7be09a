"""What a run leaves beside its outputs so that a later run can tell that it would write the same ones."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from atcfuse import __version__
from atcfuse.api import FileResult, default_output, report_files, settled, sha256_of
from atcfuse.diagnostics import AtcfuseError, info
from atcfuse.files import Transaction
from atcfuse.graph.external import external_tensors, reference, resolve
from atcfuse.graph.store import load
from atcfuse.options import Options
from atcfuse.paths import is_file, is_folder
from atcfuse.report import read_report

SCHEMA = "atcfuse.resume/1"


def record_file(out: Path) -> Path:
    """`bert.fused.resume.json` beside `bert.fused.onnx`."""
    return out.with_name(f"{out.name.removesuffix('.onnx')}.resume.json")


def run_key(path: Path, options: Options, each: Mapping[str, Any]) -> str:
    """What outputs depend on, as a hash: model and external data, options with the files they name, this version.

    Files of weights count by size and time of change. Raises what loading the model and settling options raise.
    """
    chosen = settled(options, {})
    texts = {f.name: _plain(getattr(chosen, f.name)) for f in dataclasses.fields(chosen) if f.name != "kernel_cache"}
    named = [chosen.switch_file, *chosen.rules, Path(chosen.soc), *map(Path, chosen.keep_nodes), each.get("baseline")]
    weights = list(_weights(path))  # loads the model, and so tells what is wrong with the file
    parts = {
        "atcfuse": __version__,
        "model": sha256_of(path),
        "weights": weights,
        "options": texts,
        "files": [_content(p) for p in named if p is not None],
        "each": {k: _plain(v) for k, v in sorted(each.items()) if k != "progress"},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def earlier_result(path: Path, key: str, each: Mapping[str, Any]) -> FileResult | None:
    """The result of an earlier run with the same key, None where its outputs are not there, or not as they were."""
    out = each.get("out") or default_output(path)
    try:
        record = json.loads(record_file(out).read_bytes())
        files = {out.parent / name: digest for name, digest in record["files"].items()}
        if record["schema"] != SCHEMA or record["key"] != key or not files:
            return None
        if any(_content(file) != digest for file, digest in files.items()):
            return None
        load(out)  # its external data is there too
        report = read_report(report_files(out, each.get("report"))[0])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AtcfuseError):
        return None
    said = info("ATF183", f"{path.name} was skipped: {out.name} is of the same model, options and version of atcfuse")
    return FileResult(report, (said,), (), skipped=True)


def write_record(path: Path, key: str, result: FileResult, each: Mapping[str, Any], shared: Path | None) -> None:
    """Leaves the record of a run whose outputs are in place; `shared` is a folder that other models share."""
    out = each.get("out") or default_output(path)
    written = [file for file in result.written if file != shared]
    files = {os.path.relpath(file, out.parent): _content(file) for file in written}
    document = {"schema": SCHEMA, "key": key, "files": files}
    with Transaction([path]) as transaction:
        transaction.write(record_file(out), json.dumps(document, indent=2, sort_keys=True) + "\n")


def _weights(path: Path) -> Iterator[tuple[str, int, int]]:
    for location in sorted({reference(tensor).location for tensor in external_tensors(load(path))}):
        try:
            status = resolve(location, path).stat()
        except OSError:  # the run itself tells of a file that it cannot do without
            yield location, -1, 0
        else:
            yield location, status.st_size, status.st_mtime_ns


def _content(path: Path) -> str:
    """A hash of a file, or of all files of a folder; "" where there is none."""
    if is_folder(path):
        files = sorted(p for p in path.rglob("*") if p.is_file())
        listed = "\n".join(f"{p.relative_to(path).as_posix()} {sha256_of(p)}" for p in files)
        return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()
    return sha256_of(path) if is_file(path) else ""


def _plain(value: Any) -> Any:
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in sorted(value.items())}
    return str(value) if isinstance(value, Path) else value
