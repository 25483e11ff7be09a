"""Comparing two models by execution: the same inputs through the original and the optimized one, in onnxruntime."""

from atcfuse.verify.compare import OutputError
from atcfuse.verify.core import Verification, verify
from atcfuse.verify.files import load_inputs
from atcfuse.verify.plan import generate_feeds
from atcfuse.verify.text import verification_dict, verification_text
from atcfuse.verify.values import Feed

__all__ = [
    "Feed",
    "OutputError",
    "Verification",
    "generate_feeds",
    "load_inputs",
    "verification_dict",
    "verification_text",
    "verify",
]
