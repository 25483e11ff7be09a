"""Attention masks that torch.jit.trace can record.

transformers builds its masks with torch.vmap, which the TorchScript exporter turns into constants of the example's
shape. Whoever exports with it (Optimum among them) replaces the mask functions by broadcasting ones, as here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    AttentionMaskInterface,
    and_masks,
    causal_mask_function,
    padding_mask_function,
    prepare_padding_mask,
)


def allowed(
    batch_size, cache_position, kv_length, kv_offset=0, mask_function=causal_mask_function, attention_mask=None, **_
) -> torch.Tensor:
    """Boolean [batch, 1, query, key], true where a key takes part."""
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        mask_function = and_masks(mask_function, padding_mask_function(padding))
    batch = torch.arange(batch_size)[:, None, None, None]
    head = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    query = cache_position[None, None, :, None]
    key = (torch.arange(kv_length) + kv_offset)[None, None, None, :]
    return mask_function(batch, head, query, key).expand(batch_size, -1, cache_position.shape[0], kv_length)


def additive(*args, dtype: torch.dtype = torch.float32, **kwargs) -> torch.Tensor:
    """The same as 0 and the type's lowest finite value."""
    return torch.where(allowed(*args, **kwargs), torch.tensor(0.0, dtype=dtype), torch.finfo(dtype).min)


@contextmanager
def traceable_masks() -> Iterator[None]:
    own = {"sdpa": allowed, "eager": additive}
    before = {name: ALL_MASK_ATTENTION_FUNCTIONS[name] for name in own}
    try:
        for name, function in own.items():
            AttentionMaskInterface.register(name, function)
        yield
    finally:
        for name, function in before.items():
            AttentionMaskInterface.register(name, function)
