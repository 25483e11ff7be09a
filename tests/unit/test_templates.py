"""Compiled templates are kept between runs, and only where nobody else could have put code."""

from pathlib import Path

import pytest

from atcfuse.templates import environment


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The user's cache folder, empty."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "atcfuse" / "templates"


def rendered(folder: Path, text: str | None = None) -> str:
    """A template rendered by an environment of a new process, as far as its caches go."""
    if text is not None:
        folder.mkdir(exist_ok=True)
        (folder / "a.j2").write_text(text)
    environment.cache_clear()
    return environment(folder).get_template("a.j2").render(x=3)


def test_a_compiled_template_is_used_again_until_it_changes(tmp_path, cache, monkeypatch):
    folder = tmp_path / "templates"
    assert rendered(folder, "{{ x }}") == "3"
    assert len(list(cache.iterdir())) == 1
    with monkeypatch.context() as patched:
        patched.setattr("jinja2.Environment._generate", None)  # compiling would fail
        assert rendered(folder) == "3"
    assert rendered(folder, "{{ x + 1 }}") == "4"


def test_a_damaged_entry_is_compiled_anew(tmp_path, cache):
    folder = tmp_path / "templates"
    rendered(folder, "{{ x }}")
    (entry,) = cache.iterdir()
    for damaged in (b"", b"noise", entry.read_bytes()[:-20]):
        entry.write_bytes(damaged)
        assert rendered(folder) == "3"


def test_a_folder_that_others_can_write_into_is_not_trusted(tmp_path, cache):
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert rendered(tmp_path / "templates", "{{ x }}") == "3"
    assert not list(cache.iterdir())


@pytest.mark.parametrize("named", ["/dev/null", "relative"])
def test_without_a_cache_folder_everything_works(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    assert rendered(tmp_path / "templates", "{{ x }}") == "3"
    assert [p.name for p in tmp_path.iterdir()] == ["templates"]


def test_a_full_disk_costs_time_only(tmp_path, cache, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jinja2.bccache.tempfile.NamedTemporaryFile", full)
    assert rendered(tmp_path / "templates", "{{ x }}") == "3"
