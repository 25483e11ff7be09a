"""Puts this checkout and the folders of other tests' modules on the path: importing this is all there is to do."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for _folder in ("tests/unit", "tests/rules", "tests/fuzz", ""):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))
