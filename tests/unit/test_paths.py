"""Paths that no system can look at are no files, wherever they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from atcfuse.api import report_files
from atcfuse.device import load_device
from atcfuse.diagnostics import AtcfuseError
from atcfuse.keep_nodes import MAX_BYTES, parse_keep_nodes
from atcfuse.loader import rule_files
from atcfuse.paths import exists, is_file, is_folder, read_at_most
from atcfuse.strict_yaml import read_documents
from atcfuse.verify import load_inputs

UNSEEN = [Path("n" * 5000), Path("a\0b"), Path("x" * 300) / "y"]


@pytest.mark.parametrize("path", UNSEEN, ids=["long", "NUL", "long folder"])
def test_what_cannot_be_seen_is_nothing(path: Path) -> None:
    assert [question(path) for question in (exists, is_file, is_folder)] == [False] * 3


def test_what_is_there_is_seen(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    assert exists(tmp_path)
    assert is_folder(tmp_path)
    assert is_file(tmp_path / "f")
    assert read_at_most(tmp_path / "f", 5) == b"12345"
    assert read_at_most(tmp_path / "f", 4) is None


@pytest.mark.parametrize("path", UNSEEN, ids=["long", "NUL", "long folder"])
def test_every_reader_refuses_it_with_a_code(path: Path) -> None:
    for read in (rule_files, load_inputs, lambda p: load_device(f"{p}.yaml")):
        with pytest.raises(AtcfuseError, match=r"ATF[125]\d\d"):
            read(path)
    assert parse_keep_nodes([str(path)]).entries[0].text == str(path)
    assert report_files(Path("out.onnx"), path)


def test_a_file_without_end_is_not_read_to_the_end(tmp_path: Path) -> None:
    """A link to a device, or a sparse file of terabytes: a rule or SoC file cannot exhaust memory."""
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    with pytest.raises(AtcfuseError, match="ATF217"):
        read_documents(tmp_path / "zero.yaml", "zero.yaml")
    with (tmp_path / "keep.ini").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(AtcfuseError, match=f"larger than {MAX_BYTES}"):
        parse_keep_nodes([str(tmp_path / "keep.ini")])
