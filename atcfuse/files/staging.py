"""One output on its way: written and synced under another name, renamed into place, put back after a failure."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from atcfuse.diagnostics import AtcfuseError, error

CHUNK = 16 << 20
"""Bytes written by one system call, so that an interrupt does not wait for gigabytes."""

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than the system allows",
}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


@dataclass
class Staged:
    """One output: what is staged under `temporary` and becomes `target`; `backup` is the replaced one until the end."""

    target: Path
    temporary: Path
    last: bool
    folder: bool
    backup: Path | None = None
    existed: bool = False
    published: bool = False

    def publish(self) -> None:
        """Renames the staged file or folder into place and keeps the replaced one at hand."""
        self.existed = self.target.exists()
        spare = self.temporary.with_suffix(".old")
        if not (self.folder and self.existed):
            if self.existed and _hard_link(self.target, spare):
                self.backup = spare
            os.replace(self.temporary, self.target)
        elif _exchange(self.temporary, self.target):
            self.backup = self.temporary
        else:  # no atomic exchange on this system: two renames
            os.rename(self.target, spare)
            self.backup = spare
            os.rename(self.temporary, self.target)
        self.published = True

    def revert(self) -> None:
        """Puts the replaced file or folder back, where there was one and it could be kept."""
        if self.folder and self.backup is not None:
            if self.published and _exchange(self.backup, self.target):
                return
            if self.published:
                os.rename(self.target, self.temporary)
            os.rename(self.backup, self.target)
        elif self.published and self.backup is not None:
            os.replace(self.backup, self.target)
        elif self.published and not self.existed:
            remove(self.target)

    def remove_leftovers(self) -> None:
        """Removes the temporary names of this output."""
        for leftover in (self.temporary, self.temporary.with_suffix(".old")):
            remove(leftover)


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turns an OSError while `target` is written into the coded error a user can act on."""
    try:
        yield
    except OSError as exc:
        raise _coded(exc, target) from exc


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Writes every byte; a short write is continued."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view[:CHUNK]) :]


@contextlib.contextmanager
def create(path: Path, mode: int = 0o666, *, synced: bool = True) -> Iterator[BinaryIO]:
    """A new unbuffered file; FileExistsError where there is one. Unless `synced` is false, it is on disk at the end of
    the block.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb", buffering=0) as stream:
        yield cast("BinaryIO", stream)
        if synced:
            os.fsync(stream.fileno())


def write_tree(root: Path, contents: Mapping[str, bytes], executable: frozenset[str]) -> None:
    """A new folder with these contents by relative path. ValueError for a path that leaves it."""
    root.mkdir()
    folders, made = {root}, list[Path]()
    for name in sorted(contents):
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts:
            raise ValueError(f"not a path inside the folder: {name!r}")
        path = root / relative
        if path.parent not in folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            folders.add(path.parent)
        with create(path, 0o777 if name in executable else 0o666, synced=False) as stream:
            write_all(stream.fileno(), contents[name])
        made.append(path)
    for path in made:  # all are written: what the first of these waits for serves the others
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def holds(folder: Path, contents: Mapping[str, bytes]) -> bool:
    """Whether a folder has all of these contents; more may be in it."""
    paths = {folder / name: data for name, data in contents.items()}
    return all(path.is_file() and path.read_bytes() == data for path, data in paths.items())


@contextlib.contextmanager
def held_folders(folders: Iterable[Path]) -> Iterator[None]:
    """Keeps other runs from renaming files into the folders meanwhile, so that no mix of two runs' outputs stays.

    The lock is on the folders themselves: nothing is left behind, and the system lifts it from a run that is killed.
    """
    with contextlib.ExitStack() as held:
        for folder in sorted(folders):  # in one order, so that two runs never wait for each other
            with contextlib.suppress(OSError, ImportError):  # a filesystem or system without such locks
                import fcntl

                descriptor = os.open(folder, os.O_RDONLY)
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder last through a power cut, where the filesystem can."""
    with contextlib.suppress(OSError):  # some filesystems cannot sync a folder; the files themselves are synced
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove(path: Path) -> None:
    """Removes a file or folder; what cannot be removed stays, since the outcome of the run matters more."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _hard_link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:  # a filesystem without hard links: the replaced file is then not kept
        return False
    return True


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two names in one step; False where the system cannot."""
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code))


def _coded(exc: OSError, target: Path) -> AtcfuseError:
    reason = exc.strerror or str(exc)
    if exc.errno in _FULL:
        message = f"cannot write {target}: {_FULL[exc.errno]}"
        return AtcfuseError(error("ATF121", message, hint="free some space, or write to another disk"))
    if exc.errno in _FORBIDDEN:
        hint = "choose a folder that you may write to"
        return AtcfuseError(error("ATF120", f"cannot write {target}: {reason}", hint=hint))
    return AtcfuseError(error("ATF124", f"cannot write {target}: {reason}", hint="choose another output path"))
