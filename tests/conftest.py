"""Golden files: `golden(path, text)` compares with `tests/golden/<path>`; `pytest --update-golden` writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


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
