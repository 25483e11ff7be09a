"""The rules and kernels that come with atcfuse, kept for later runs as they were read, as Python keeps its modules.

Reading a hundred rule files takes longer than fusing a small model, and comes out the same until a file, or the code
that reads them, changes. An entry is code as much as a compiled module is: none is read that others could have written.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from atcfuse.kernel import KernelSpec, load_kernels
from atcfuse.loader import load_rules, rule_files
from atcfuse.paths import is_own, own_cache
from atcfuse.resources import data_folder
from atcfuse.rule.model import RuleBook

KEPT = 8
"""So many entries stay in the cache: those of a few versions, or of a few places that atcfuse is installed in."""
_READERS = (Path(__file__).parent, Path(__file__).parent / "rule")
_DIGEST = 16

Library: TypeAlias = tuple[RuleBook, Mapping[str, KernelSpec]]


def library(folders: Sequence[Path] = ()) -> Library:
    """The rules and kernels that come with atcfuse, the rules of more folders after them.

    Raises what `load_rules` and `load_kernels` raise.
    """
    book, kernels = _library(_key())
    return (load_rules([data_folder("rules"), *folders], kernels) if folders else book), kernels


@lru_cache(maxsize=1)
def _library(key: str) -> Library:
    folder = own_cache("rules")
    known = None if folder is None else _kept(folder / key)
    if known is not None:
        return known
    kernels = load_kernels(data_folder("kernels"))
    found = load_rules([data_folder("rules")], kernels), kernels
    if folder is not None:
        with suppress(OSError):  # a full disk costs time, nothing else
            _keep(folder / key, pickle.dumps(found, pickle.HIGHEST_PROTOCOL))
    return found


def _key() -> str:
    """Tells the files, the code that reads them and the Python that runs it apart from all others."""
    kernels = data_folder("kernels")
    found = hashlib.blake2b(f"{sys.version} {kernels}".encode(), digest_size=_DIGEST)
    for path in (*rule_files(data_folder("rules")), *sorted(kernels.glob("*/kernel.yaml"))):
        _add(found, os.fsencode(path), path.read_bytes())
    for folder in _READERS:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.name.endswith(".py"):
                status = entry.stat()
                _add(found, os.fsencode(entry.name), b"%d %d" % (status.st_mtime_ns, status.st_size))
    return found.hexdigest()


def _add(digest: hashlib.blake2b, *parts: bytes) -> None:
    for part in parts:
        digest.update(b"%d:" % len(part) + part)


def _kept(path: Path) -> Library | None:
    """What was kept under a key; None where there is nothing, or not what was written."""
    try:
        with open(path, "rb", opener=_at_once) as stream:
            if not is_own(os.fstat(stream.fileno())):
                return None
            data = stream.read()
        if _digest(data[_DIGEST:]) != data[:_DIGEST]:
            return None
        found: Library = pickle.loads(data[_DIGEST:])
    except Exception:  # whatever is wrong with it: the files are there
        return None
    return found


def _keep(path: Path, data: bytes) -> None:
    """Writes an entry whole or not at all, and drops the oldest. Raises OSError."""
    made = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open(made, "xb", opener=_own) as stream:
            stream.write(_digest(data) + data)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    for old in _oldest(path.parent.iterdir()):
        old.unlink(missing_ok=True)


def _at_once(path: str, flags: int) -> int:
    """Opens for reading without waiting for whoever would write into a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _own(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _oldest(entries: Iterable[Path]) -> list[Path]:
    return sorted(entries, key=lambda path: path.stat().st_mtime_ns)[:-KEPT]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()
