"""Golden files, and which kernels are compiled in an ordinary run.

`golden(path, text)` compares with `tests/golden/<path>`; `pytest --update-golden` writes them. Of the many cases for which
tests of generated kernels compile and run one, an ordinary run takes every sixth; the others are `slow`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

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


SAMPLED, EVERY, FEW = "test_codegen_", 6, 4
"""Files whose functions are sampled, one case in so many, where a function has more than a few."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the cases of kernels that an ordinary run leaves out."""
    cases: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.path.name.startswith(SAMPLED):
            cases.setdefault((item.path.name, item.originalname), []).append(item)
    for alike in cases.values():
        for index, item in enumerate(alike if len(alike) > FEW else ()):
            if index % EVERY:
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
