"""The rules that come with atcfuse are kept as they were read, and only where nobody else could have put them."""

import os
import re
import subprocess
import sys

import pytest

from atcfuse import library as kept
from atcfuse.kernel import load_kernels
from atcfuse.loader import load_rules
from atcfuse.resources import data_folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The user's cache folder, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "atcfuse" / "rules"


def loaded():
    """What a new process loads."""
    kept._library.cache_clear()
    return kept.library()


def reading_fails(monkeypatch):
    monkeypatch.setattr(kept, "load_rules", None)


def described(book):
    """A book as text: rules and fragments with all that is in them; trees of expressions have their text beside."""
    return re.sub(r" at 0x[0-9a-f]+", "", "\n".join(map(repr, (*book.rules, *book.atc, *book.fragments.values()))))


def test_it_is_what_is_read_from_the_files(cache):
    specs = load_kernels(data_folder("kernels"))
    book = load_rules([data_folder("rules")], specs)
    for _ in range(2):
        found, kernels = loaded()
        assert described(found) == described(book)
        assert list(kernels) == list(specs)
        assert [k.requires for k in kernels.values()] != []
    assert len(list(cache.iterdir())) == 1


def test_files_are_read_once(cache, monkeypatch):
    loaded()
    with monkeypatch.context() as patched:
        reading_fails(patched)
        assert loaded()[0].rules


@pytest.mark.parametrize("changed", ["rules/norm/rms_norm.yaml", "kernels/attention/kernel.yaml"])
def test_a_changed_file_is_read(cache, tmp_path, monkeypatch, changed):
    loaded()
    name, _, rest = changed.partition("/")
    copies = {folder: tmp_path / folder for folder in ("rules", "kernels")}
    for folder, copy in copies.items():
        for path in data_folder(folder).rglob("*.yaml"):
            there = copy / path.relative_to(data_folder(folder))
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(path.read_bytes())
    target = copies[name] / rest
    monkeypatch.setattr(kept, "data_folder", copies.__getitem__)
    before = loaded()
    target.write_text(target.read_text().replace("summary: ", "summary: Changed, ", 1))
    after = loaded()
    assert len(list(cache.iterdir())) == 3
    assert "Changed, " not in repr(before)
    assert "Changed, " in repr(after)


def test_what_is_damaged_is_read_anew(cache):
    loaded()
    (entry,) = cache.iterdir()
    whole = entry.read_bytes()
    for damaged in (b"", b"noise", whole[:-20], whole[:40] + b"\x00" + whole[41:]):
        entry.write_bytes(damaged)
        assert loaded()[0].rules
        assert entry.read_bytes() == whole


def test_a_pipe_in_place_of_an_entry_is_not_waited_for(cache):
    """A child process reads, which a wait would stop for good."""
    loaded()
    (entry,) = cache.iterdir()
    entry.unlink()
    os.mkfifo(entry)
    code = "from atcfuse.library import library; assert library()[0].rules"
    environment = os.environ | {"XDG_CACHE_HOME": str(cache.parents[1])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    assert entry.is_file()


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_can_write_into_is_not_trusted(cache, mode):
    cache.mkdir(parents=True)
    cache.chmod(mode)
    assert loaded()[0].rules
    assert not list(cache.iterdir())


def test_an_entry_that_others_can_write_is_not_trusted(cache, monkeypatch):
    loaded()
    (entry,) = cache.iterdir()
    entry.chmod(0o666)
    reading_fails(monkeypatch)
    with pytest.raises(TypeError):
        loaded()


@pytest.mark.parametrize("named", ["/dev/null", "relative"])
def test_without_a_cache_folder_everything_works(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    assert loaded()[0].rules
    assert not list(tmp_path.iterdir())


def test_a_full_disk_costs_time_only(cache, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept.os, "open", full)
    assert loaded()[0].rules
    assert not list(cache.iterdir())


def test_old_entries_go(cache, monkeypatch):
    for version in range(kept.KEPT + 3):
        monkeypatch.setattr(kept.sys, "version", f"3.11 {version}")
        loaded()
    assert len(list(cache.iterdir())) == kept.KEPT
