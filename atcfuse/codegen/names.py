"""Names of generated operators as the Ascend toolkit derives and restricts them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

PREFIX = "Atcfuse"
_HASH_LETTERS = 10


def op_type_stem(op: str) -> str:
    """`FusedAttention` as the start of a GE op type, which takes letters and digits only: `AtcfuseAttention`."""
    return PREFIX + re.sub(r"[^A-Za-z0-9]", "", op.removeprefix("Fused"))


def kernel_function(op_type: str) -> str:
    """The kernel function that the toolkit expects for an op type: `Conv2D` -> `conv2_d`, `GRUCell` -> `gru_cell`."""
    after_small = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", op_type)
    return re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])", "_", after_small).lower()


def content_letters(files: Mapping[str, str]) -> str:
    """Ten letters a to p that tell generated sources apart, the first one a capital."""
    digest = hashlib.sha256()
    for name, text in sorted(files.items()):
        digest.update(f"{name}\0{len(text)}\0{text}".encode())
    letters = "".join(chr(ord("a") + int(nibble, 16)) for nibble in digest.hexdigest()[:_HASH_LETTERS])
    return letters.capitalize()
