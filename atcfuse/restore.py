"""`atcfuse restore`: an optimized model with its fused nodes turned back into standard operators."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atcfuse.diagnostics import Diagnostic, warning
from atcfuse.files import Transaction
from atcfuse.graph.dialect import normalise, to_dialect
from atcfuse.graph.external import Progress
from atcfuse.graph.inline import inline_fused
from atcfuse.graph.store import load, write

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Restored:
    """What `restore_file` did: the names of the fused nodes replaced, in the order of the model."""

    nodes: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]


def restore(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of an optimized model, of any dialect, in standard operators only (dialect `portable`).

    Each fused node gives way to the nodes of its function. The original's own nodes do not come back: what is restored
    is what the fused nodes compute. Raises AtcfuseError ATF140 or ATF141, see `inline_fused`.
    """
    restored = normalise(model)
    inline_fused(restored)
    return restored


def restore_file(path: Path, out: Path, progress: Progress | None = None) -> Restored:
    """Restores a model file into another; external data comes along. Raises AtcfuseError."""
    transaction = Transaction([path])
    transaction.check(out)
    model = load(path)
    to_dialect(model, "portable")
    nodes = tuple(inline_fused(model))
    found = [] if nodes else [warning("ATF142", f"{path.name} has no fused node; only its spelling was normalised")]
    with transaction:
        found += write(model, transaction, out, source=path, progress=progress)
    return Restored(nodes, tuple(found))
