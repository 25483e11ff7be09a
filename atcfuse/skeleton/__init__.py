"""A first rule from a region of a real model: pattern, dims as letters, an example. `atcfuse rules new` is this."""

from atcfuse.skeleton.write import Skeleton, new_rule

__all__ = ["Skeleton", "new_rule"]
