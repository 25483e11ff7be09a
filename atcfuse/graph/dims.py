"""Moved to `atcfuse.dims`."""

from atcfuse.dims import *  # noqa: F403
