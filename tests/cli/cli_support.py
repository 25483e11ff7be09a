"""What the command line tests share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SAMPLES = Path(__file__).parents[2] / "sample_models"


@dataclass(frozen=True)
class Outcome:
    """What a command line left: its exit code and both streams."""

    code: int
    out: str
    err: str


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
