"""Environments of templates. What Jinja compiled is kept for later runs, as Python keeps its compiled modules.

Compiling the templates of a transformer's kernels takes longer than everything else about its plan, and comes out the
same until a template or Jinja changes. Kept is only what nobody but the user can have written, since it is code.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment, FileSystemBytecodeCache


@lru_cache(maxsize=64)
def environment(*folders: Path, autoescape: bool = False) -> Environment:
    """The templates in some folders; the first that has one wins, and a name that is not given is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folders),
        bytecode_cache=_compiled(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=autoescape,
    )


def _compiled() -> FileSystemBytecodeCache | None:
    """Compiled templates in the user's cache folder; None where there is no safe one."""
    folder = _own_folder()
    if folder is None:
        return None
    from jinja2 import FileSystemBytecodeCache
    from jinja2.bccache import Bucket

    class Compiled(FileSystemBytecodeCache):
        def load_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):
                super().load_bytecode(bucket)

        def dump_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):  # a full disk costs time, nothing else
                super().dump_bytecode(bucket)

    return Compiled(str(folder))


def _own_folder() -> Path | None:
    """A folder that belongs to the user and that nobody else can write into."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if not base.is_absolute():
        return None
    folder = base / "atcfuse" / "templates"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    return folder if status.st_uid == os.geteuid() and not status.st_mode & 0o022 else None
