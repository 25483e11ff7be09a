"""Outputs of a run appear whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atcfuse.diagnostics import AtcfuseError, UsageError
from atcfuse.files import Transaction, staging

OLD, NEW = b"old" * 1000, b"new" * 1000


def names(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


def code_of(call: pytest.ExceptionInfo[AtcfuseError]) -> str:
    return call.value.diagnostics[0].code


def test_all_files_appear_at_the_end_and_not_before(tmp_path: Path) -> None:
    model, report = tmp_path / "out.onnx", tmp_path / "out.json"
    with Transaction() as outputs:
        outputs.write(model, NEW, last=True)
        outputs.write(report, "r\u00e9port")
        with outputs.open(tmp_path / "data") as stream:
            stream.write(b"1")
            stream.write(b"2")
        assert not model.exists()
        assert not report.exists()
    assert names(tmp_path) == {"out.onnx", "out.json", "data"}
    assert model.read_bytes() == NEW
    assert report.read_text(encoding="utf-8") == "r\u00e9port"
    assert (tmp_path / "data").read_bytes() == b"12"


def test_the_model_is_renamed_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append(Path(b).name), replace(a, b)))
    with Transaction() as outputs:
        outputs.write(tmp_path / "model", NEW, last=True)
        outputs.write(tmp_path / "b", NEW)
        outputs.write(tmp_path / "a", NEW)
    assert order == ["b", "a", "model"]


def test_an_error_leaves_the_old_files(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(OLD)
    with pytest.raises(RuntimeError, match="boom"), Transaction() as outputs:
        outputs.write(tmp_path / "out", NEW)
        outputs.folder(tmp_path / "kernels", {"a/b.cpp": "x"}, marker="a/b.cpp")
        raise RuntimeError("boom")
    assert names(tmp_path) == {"out"}
    assert (tmp_path / "out").read_bytes() == OLD


@pytest.mark.parametrize("failing", ["model", "second"])
def test_a_failure_in_the_commit_puts_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    (tmp_path / "first").write_bytes(OLD)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "mark").write_bytes(OLD)
    replace = os.replace

    def refuse(source: Path, target: Path) -> None:
        if Path(target).name == failing:
            raise OSError(errno.EPERM, "not permitted")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(AtcfuseError) as caught, Transaction() as outputs:
        outputs.write(tmp_path / "model", NEW, last=True)
        outputs.folder(tmp_path / "tree", {"mark": NEW, "more": NEW}, marker="mark")
        outputs.folder(tmp_path / "tree2", {"mark": NEW}, marker="mark")
        outputs.write(tmp_path / "first", NEW)
        outputs.write(tmp_path / "second", NEW)
    assert code_of(caught) == "ATF120"
    assert names(tmp_path) == {"first", "tree", "tree/mark"}
    assert (tmp_path / "first").read_bytes() == OLD
    assert (tmp_path / "tree" / "mark").read_bytes() == OLD


@pytest.mark.parametrize("exchange", [True, False])
def test_a_generated_folder_is_replaced_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr(staging, "_exchange", lambda a, b: False)
    tree = tmp_path / "out.kernels"
    with Transaction() as outputs:
        outputs.folder(tree, {"mark": "1", "op/a.cpp": "a", "build.sh": "#!"}, marker="mark", executable=["build.sh"])
    assert os.access(tree / "build.sh", os.X_OK)
    assert not os.access(tree / "mark", os.X_OK)
    with Transaction() as outputs:
        outputs.folder(tree, {"mark": "1", "op/b.cpp": "b"}, marker="mark")
    assert names(tmp_path) == {"out.kernels", "out.kernels/mark", "out.kernels/op", "out.kernels/op/b.cpp"}


def test_an_unchanged_folder_keeps_what_was_built_in_it(tmp_path: Path) -> None:
    contents = {"mark": "1", "op/a.cpp": "a"}
    for _ in range(2):
        with Transaction() as outputs:
            outputs.folder(tmp_path / "k", contents, marker="mark")
        (tmp_path / "k" / "built.so").write_bytes(b"so")
    assert (tmp_path / "k" / "built.so").exists()


def test_somebody_elses_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "thesis.tex").write_bytes(OLD)
    with pytest.raises(AtcfuseError) as caught, Transaction() as outputs:
        outputs.folder(tmp_path / "k", {"mark": "1"}, marker="mark")
    assert code_of(caught) == "ATF128"
    assert names(tmp_path) == {"k", "k/thesis.tex"}


@pytest.mark.parametrize("name", ["../x", "/tmp/x"])
def test_a_folder_holds_its_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a path inside"), Transaction() as outputs:
        outputs.folder(tmp_path / "k", {"mark": "1", name: "x"}, marker="mark")
    assert names(tmp_path) == set()


def test_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").write_bytes(OLD)
    write, written = os.write, []

    def fill(descriptor: int, data: memoryview) -> int:
        if sum(written) > 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(write(descriptor, data[:60]))
        return written[-1]

    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(AtcfuseError) as caught, Transaction() as outputs:
        outputs.write(tmp_path / "out", NEW)
    assert code_of(caught) == "ATF121"
    assert names(tmp_path) == {"out"}
    assert (tmp_path / "out").read_bytes() == OLD


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.EROFS, "ATF120"), (errno.EACCES, "ATF120"), (errno.EDQUOT, "ATF121"), (errno.EIO, "ATF124")],
)
def test_system_errors_have_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(AtcfuseError) as caught, Transaction() as outputs:
        outputs.write(tmp_path / "out", NEW)
    assert code_of(caught) == code


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(AtcfuseError) as caught:
        Transaction().check(tmp_path / "out")
    assert code_of(caught) == "ATF120"


def test_where_an_output_cannot_go(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OLD)
    outputs = Transaction()
    for target, folder, code in [
        (tmp_path / "no" / "out", False, "ATF119"),
        (tmp_path / "file" / "out", False, "ATF119"),
        (tmp_path, False, "ATF122"),
        (Path(os.devnull), False, "ATF122"),
        (tmp_path / "file", True, "ATF122"),
        (tmp_path / ("n" * 300), False, "ATF124"),
    ]:
        with pytest.raises(AtcfuseError) as caught:
            outputs.check(target, folder=folder)
        assert code_of(caught) == code, target
        assert caught.value.exit_code == 1


@pytest.mark.parametrize("link", ["same", "symlink", "hardlink"])
def test_the_input_is_never_overwritten(tmp_path: Path, link: str) -> None:
    source = target = tmp_path / "in.onnx"
    source.write_bytes(OLD)
    if link != "same":
        target = tmp_path / "out.onnx"
        (os.symlink if link == "symlink" else os.link)(source, target)
    with pytest.raises(UsageError) as caught, Transaction([source]) as outputs:
        outputs.write(target, NEW)
    assert code_of(caught) == "ATF123"
    assert source.read_bytes() == OLD


def test_an_input_named_late_is_protected_too(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(OLD)
    with pytest.raises(UsageError) as caught, Transaction() as outputs:
        outputs.write(tmp_path / "weights", NEW)
        outputs.protect(tmp_path / "weights")
    assert code_of(caught) == "ATF123"
    assert (tmp_path / "weights").read_bytes() == OLD


def test_two_outputs_on_one_path(tmp_path: Path) -> None:
    os.symlink(tmp_path / "a", tmp_path / "b")
    with pytest.raises(UsageError) as caught, Transaction() as outputs:
        outputs.write(tmp_path / "a", NEW)
        outputs.write(tmp_path / "b", NEW)
    assert code_of(caught) == "ATF127"


def test_writing_through_a_symbolic_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "real").write_bytes(OLD)
    (tmp_path / "link").symlink_to(tmp_path / "sub" / "real")
    with Transaction() as outputs:
        outputs.write(tmp_path / "link", NEW)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "sub" / "real").read_bytes() == NEW


def test_names_with_spaces_and_chinese(tmp_path: Path) -> None:
    with Transaction() as outputs:
        outputs.write(tmp_path / "模型 一.onnx", NEW)
    assert (tmp_path / "模型 一.onnx").read_bytes() == NEW


def test_two_runs_on_one_output_never_mix(tmp_path: Path) -> None:
    with Transaction() as one, Transaction() as two:
        one.write(tmp_path / "out", OLD)
        two.write(tmp_path / "out", NEW)
    assert names(tmp_path) == {"out"}
    assert (tmp_path / "out").read_bytes() == OLD  # the outer one ended last


def test_runs_that_end_at_once_do_not_mix_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def slow(source: Path, target: Path) -> None:
        time.sleep(0.002)
        replace(source, target)

    monkeypatch.setattr(os, "replace", slow)
    targets = [tmp_path / name for name in "abcde"]

    def write(content: bytes) -> None:
        with Transaction() as outputs:
            for target in targets:
                outputs.write(target, content)

    for _ in range(4):
        threads = [threading.Thread(target=write, args=(bytes([65 + k]) * 100,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({target.read_bytes() for target in targets}) == 1
    assert names(tmp_path) == set("abcde")


def test_new_files_have_ordinary_permissions(tmp_path: Path) -> None:
    with Transaction() as outputs:
        outputs.write(tmp_path / "out", NEW)
    (tmp_path / "ordinary").write_bytes(NEW)
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as Python starts with; a shell ignores it for what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_signal_in_the_commit_waits_until_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def interrupted(source: Path, target: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), Transaction() as outputs:
        outputs.write(tmp_path / "a", NEW)
        outputs.write(tmp_path / "b", NEW)
    assert names(tmp_path) == {"a", "b"}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigterm_removes_what_was_staged_and_the_handler_is_restored(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, Transaction() as outputs:
        outputs.write(tmp_path / "a", NEW)
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM
    assert names(tmp_path) == set()
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Transaction() as outputs:
            signal.raise_signal(signal.SIGHUP)
            outputs.write(tmp_path / "a", NEW)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert names(tmp_path) == {"a"}


LIMITED = """
import resource, signal, sys
from pathlib import Path
from atcfuse.diagnostics import AtcfuseError
from atcfuse.files import Transaction
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with Transaction() as outputs:
        outputs.write(Path(sys.argv[1]), b"x" * 10_000)
except AtcfuseError as exc:
    print(exc.diagnostics[0].code)
"""

ENDLESS = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
from pathlib import Path
from atcfuse.files import Transaction
folder = Path(sys.argv[1])
print("ready", flush=True)
for k in range(10**9):
    data = bytes([65 + k % 2]) * 300_000
    with Transaction() as outputs:
        outputs.write(folder / "out", data, last=True)
        outputs.folder(folder / "tree", {"mark": data, "a": data}, marker="mark")
"""


def test_a_real_file_size_limit(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "out")], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "ATF121"
    assert names(tmp_path) == set()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("delay", [0.0, 0.013, 0.037])
def test_killed_at_any_moment_files_are_old_or_new(tmp_path: Path, number: signal.Signals, delay: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.readline()
    while not (tmp_path / "out").exists():
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(number)
    process.wait(timeout=30)
    assert process.returncode != 0
    for path in (tmp_path / "out", tmp_path / "tree" / "mark", tmp_path / "tree" / "a"):
        data = path.read_bytes()
        assert data in (b"A" * 300_000, b"B" * 300_000)
    assert (tmp_path / "tree" / "mark").read_bytes() == (tmp_path / "tree" / "a").read_bytes()
    if number != signal.SIGKILL:
        assert names(tmp_path) == {"out", "tree", "tree/mark", "tree/a"}
