"""Questions about paths: whatever the system says, the answer is yes, no or the bytes.

`pathlib` raises for names that are too long or lie in folders nobody may look into; there, a path names nothing here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def is_file(path: Path) -> bool:
    """Whether the path is a file that can be seen."""
    return _asked(path.is_file)


def is_folder(path: Path) -> bool:
    """Whether the path is a folder that can be seen."""
    return _asked(path.is_dir)


def exists(path: Path) -> bool:
    """Whether there is anything at the path that can be seen."""
    return _asked(path.exists)


def read_at_most(path: Path, limit: int) -> bytes | None:
    """The content of a file, None where it is more than `limit` bytes, of which no more are read. Raises OSError."""
    with path.open("rb") as stream:
        data = stream.read(limit + 1)
    return None if len(data) > limit else data


def head_of(path: Path, size: int) -> bytes:
    """The first bytes of a file, none where it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(size)
    except (OSError, ValueError):
        return b""


def own_cache(name: str) -> Path | None:
    """A folder of that name in the user's cache of atcfuse, made where there is none; None where it does not belong to
    the user, or others can write into it.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if not base.is_absolute():
        return None
    folder = base / "atcfuse" / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    return folder if is_own(status) else None


def is_own(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to the user and nobody else can write into it."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _asked(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except (OSError, ValueError):
        return False
