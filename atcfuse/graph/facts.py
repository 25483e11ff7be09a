"""What is proved about a value: element type, symbolic shape, and its elements where they are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atcfuse.graph.dims import Dim, product

if TYPE_CHECKING:
    import numpy as np

SMALL = 4096
"""Constants of at most this many elements are evaluated; larger ones stay tensors that a rule may still read."""


class Fact:
    """Proved knowledge of one value; what is None (or 0 for `dtype`) is not known.

    `dtype` is an ONNX `TensorProto.DataType`. `shape` is a tuple of dims (a fresh symbol where an extent is unknown).
    `elements` are those of an integer or boolean tensor in row-major order as dims (booleans as 0 and 1); `array`
    is the whole tensor as a constant; `splat` is the one number that every element has, whatever the extent.
    """

    __slots__ = ("array", "dtype", "elements", "shape", "splat")

    def __init__(
        self,
        dtype: int = 0,
        shape: tuple[Dim, ...] | None = None,
        elements: tuple[Dim, ...] | None = None,
        array: np.ndarray | None = None,
        splat: Dim | float | None = None,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.elements = elements
        self.array = array
        self.splat = splat

    @property
    def rank(self) -> int | None:
        """The number of dims, or None."""
        return None if self.shape is None else len(self.shape)

    @property
    def size(self) -> Dim | None:
        """The number of elements, or None."""
        return None if self.shape is None else product(self.shape)

    def __repr__(self) -> str:
        shape = "?" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        known = self.elements if self.elements is not None else self.splat if self.splat is not None else self.array
        return f"Fact({self.dtype}, {shape}{'' if known is None else f', {known}'})"


UNKNOWN = Fact()
