"""The kernel cache: hits are equal to what would be rendered, keys tell everything apart, damage and races do no harm."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from atcfuse.codegen import KernelCache, Signature, kernel_cache, render_kernel
from atcfuse.codegen import cache as module
from atcfuse.codegen.cache import MANIFEST, key_of
from atcfuse.diagnostics import AtcfuseError
from atcfuse.kernel import KernelSpec, load_kernels
from atcfuse.resources import data_folder

ATTRIBUTES = {"norm": "layer_norm", "epsilon": 1e-5, "num_projections": 1, "transposed": (0,)}
DTYPES = {"x": 10, "gamma": 10, "w1": 10, "y1": 10}


@pytest.fixture(scope="module")
def spec() -> KernelSpec:
    return load_kernels(data_folder("kernels"))["layer_norm_qkv"]


def signature(spec: KernelSpec, **changes: object) -> Signature:
    return Signature.of(spec, {**ATTRIBUTES, **changes}, DTYPES, "910B")  # type: ignore[arg-type]


def rendered(spec: KernelSpec, folder: Path) -> tuple[object, KernelCache]:
    with kernel_cache(folder) as cache:
        kernel = render_kernel(spec, ATTRIBUTES, DTYPES, "Ascend910B1")
    return kernel, cache


def test_a_second_run_takes_what_the_first_rendered(spec: KernelSpec, tmp_path: Path) -> None:
    plain = render_kernel(spec, ATTRIBUTES, DTYPES, "Ascend910B1")
    first, missed = rendered(spec, tmp_path)
    second, hit = rendered(spec, tmp_path)
    assert plain == first == second
    assert ((missed.hits, missed.misses), (hit.hits, hit.misses)) == ((0, 1), (1, 0))
    assert [p.name for p in tmp_path.iterdir()] == [key_of(signature(spec))]


def test_keys_tell_apart_what_kernels_depend_on(
    spec: KernelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = signature(spec)
    others = [
        signature(spec, epsilon=1e-6),
        signature(spec, transposed=(1,)),
        replace(one, dtypes={**DTYPES, "x": 1}),
        replace(one, family="310P"),
    ]
    keys = {key_of(one), *(key_of(o) for o in others)}
    assert len(keys) == 5
    assert key_of(signature(spec)) == key_of(one)
    monkeypatch.setattr(module, "_contents", lambda folder, endings: "other sources")
    assert key_of(one) not in keys


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest"])
def test_a_damaged_entry_is_rendered_anew(spec: KernelSpec, tmp_path: Path, damage: str) -> None:
    plain, _ = rendered(spec, tmp_path)
    (entry,) = tmp_path.iterdir()
    source = next(p for p in sorted(entry.iterdir()) if p.suffix == ".cpp")
    if damage == "cut":
        source.write_text(source.read_text()[:-100])
    elif damage == "gone":
        source.unlink()
    else:
        (entry / MANIFEST).write_text("[]")
    again, cache = rendered(spec, tmp_path)
    assert again == plain
    assert cache.misses == 1
    third, cache = rendered(spec, tmp_path)
    assert third == plain
    assert cache.hits == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_many_runs_at_once_agree_and_leave_nothing_behind(spec: KernelSpec, tmp_path: Path) -> None:
    barrier, found = threading.Barrier(8), []

    def run() -> None:
        barrier.wait()
        found.append(rendered(spec, tmp_path)[0])

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(kernel == found[0] for kernel in found)
    assert [p.name for p in tmp_path.iterdir()] == [key_of(signature(spec))]


def test_within_a_run_a_kernel_is_rendered_once(spec: KernelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    from atcfuse.codegen import render

    calls = []
    plain = render._rendered
    monkeypatch.setattr(render, "_rendered", lambda s: calls.append(1) or plain(s))
    with kernel_cache(), kernel_cache():
        for _ in range(3):
            render_kernel(spec, ATTRIBUTES, DTYPES, "Ascend910B1")
    assert len(calls) == 1
    render_kernel(spec, ATTRIBUTES, DTYPES, "Ascend910B1")
    assert len(calls) == 2


def test_a_folder_that_cannot_be_used_is_an_error(spec: KernelSpec, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AtcfuseError):
        rendered(spec, tmp_path / "file")
