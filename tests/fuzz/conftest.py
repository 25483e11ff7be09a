"""The fuzzer uses the generators of other tests."""

from __future__ import annotations

import folders  # noqa: F401
