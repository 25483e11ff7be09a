"""atcfuse: transformer fusion for Ascend, just before ATC."""

__version__ = "0.1.0"
