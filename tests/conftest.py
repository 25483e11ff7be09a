"""Golden files, and which of many cases an ordinary run takes.

`golden(path, text)` compares with `tests/golden/<path>`; `pytest --update-golden` writes them. Of the many cases for which
tests compile a generated kernel or build a model, an ordinary run takes some; the others are `slow`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import onnxruntime
import pytest

from atcfuse import twin
from atcfuse.graph.inline import inlined_copy
from atcfuse.verify.session import TELLS_OVERLOADS

GOLDEN = Path(__file__).parent / "golden"

os.environ["ATCFUSE_LANG"] = "en"
"""Texts are compared in English, whatever the tester reads; tests of other languages ask for them."""


if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < TELLS_OVERLOADS:
    # Tests that run a fused model as it is can do so with a newer onnxruntime only; here they run what it means.
    _Session = onnxruntime.InferenceSession

    def _session(model: Any, *given: Any, **more: Any) -> Any:
        if isinstance(model, bytes):
            proto = onnx.load_from_string(model)
            if any(function.domain == "atcfuse" for function in proto.functions):
                model = inlined_copy(proto).SerializeToString()
        return _Session(model, *given, **more)

    onnxruntime.InferenceSession = _session


PROGRAMS = "ATCFUSE_TEST_PROGRAMS"
"""Names the folder of compiled kernels to the processes that share the tests."""


def pytest_configure(config: pytest.Config) -> None:
    """Makes the folder before the processes of pytest-xdist start, which find its name in the environment."""
    if PROGRAMS not in os.environ:
        folder = TemporaryDirectory(prefix="atcfuse-programs-")
        os.environ[PROGRAMS] = folder.name
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(lambda: os.environ.pop(PROGRAMS))


@pytest.fixture
def programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Compiled kernels by their content: one serves all sizes, all files of tests and all processes of a run.

    An ordinary run compiles them as for a debugger, with all warnings in two thirds of the time: they run for moments.
    `-m slow`, and commands in every run, compile them as users have them.
    """
    if "not slow" in request.config.getoption("markexpr"):
        monkeypatch.setattr(twin, "FLAGS", tuple("-Og" if flag == "-O1" else flag for flag in twin.FLAGS))
    return Path(os.environ[PROGRAMS])


SAMPLED = {
    "test_codegen_": 16,
    "test_artifacts": 16,
    "test_twin": 16,
    "test_activations": 16,
    "test_generated": 5,
    "test_mutants": 5,
    "test_versions": 4,
    "test_fold": 4,
    "test_sample_models": 2,
}
"""Files, by the beginning of their names, whose functions are sampled: one case in so many."""
FEW = 3
"""Functions with no more cases than these keep all."""
LONG = "test_random_shapes"
"""Functions of these files that run a kernel many times over."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the cases that an ordinary run leaves out."""
    cases: dict[tuple[str, str, int], list[pytest.Item]] = {}
    for item in items:
        every = next((n for start, n in SAMPLED.items() if item.path.name.startswith(start)), 0)
        if not every or not isinstance(item, pytest.Function):
            continue
        if item.originalname.startswith(LONG):
            item.add_marker(pytest.mark.slow)
        elif hasattr(item, "callspec"):
            cases.setdefault((item.path.name, item.originalname, every), []).append(item)
    for (_, _, every), alike in cases.items():
        for index, item in enumerate(alike if len(alike) > FEW else ()):
            if index % every:
                item.add_marker(pytest.mark.slow)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a golden file, byte for byte, or writes the file with --update-golden."""

    def check(path: str, text: str) -> None:
        file = GOLDEN / path
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())
            return
        assert file.is_file(), f"no golden file {path}; write it with --update-golden"
        assert text == file.read_bytes().decode(), f"{path} differs; when this is wanted, run with --update-golden"

    return check
