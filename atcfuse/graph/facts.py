"""What is proved about a value: element type, symbolic shape, and its elements where they are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from atcfuse.dims import Dim, Poly, product

if TYPE_CHECKING:
    import numpy as np

SMALL = 4096
"""Constants of at most this many elements are evaluated; larger ones stay tensors that a rule may still read."""

MAX_ELEMENTS = 256
"""Integer and boolean tensors of at most this many elements are known element by element, as dims."""

INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
"""The `TensorProto.DataType` of (u)int8 to (u)int64."""

BOOL = 9
INTEGRAL = INTEGERS | {BOOL}


class Fact:
    """Proved knowledge of one value; what is None (or 0 for `dtype`) is not known.

    `dtype` is an ONNX `TensorProto.DataType`. `shape` is a tuple of dims (a fresh symbol where an extent is unknown).
    `elements` are those of an integer or boolean tensor in row-major order as dims (booleans as 0 and 1); `array`
    is the whole tensor as a constant; `splat` is the one number that every element has, whatever the extent (an
    initializer of many equal elements has none: it stays a parameter). `array` may be given as `read`, which is
    called when it is first asked for.
    """

    __slots__ = ("_array", "_elements", "_read", "dtype", "shape", "splat")

    def __init__(
        self,
        dtype: int = 0,
        shape: tuple[Dim, ...] | None = None,
        elements: tuple[Dim, ...] | None = None,
        array: np.ndarray | None = None,
        splat: Dim | float | None = None,
        read: Callable[[], np.ndarray | None] | None = None,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self._elements = elements
        self._array = array
        self._read = read
        self.splat = elements[0] if splat is None and elements is not None and len(elements) == 1 else splat

    @property
    def elements(self) -> tuple[Dim, ...] | None:
        """The elements of a small integer or boolean tensor, row-major, or None."""
        if self._elements is None and (self._array is not None or self._read) and self.dtype in INTEGRAL:
            array = self.array
            if array is not None and array.size <= MAX_ELEMENTS:
                self._elements = tuple(map(int, array.ravel().tolist()))
        return self._elements

    @property
    def array(self) -> np.ndarray | None:
        """The whole tensor (at most SMALL elements) as a constant, or None."""
        if self._read is not None:
            read, self._read = self._read, None
            self._array = read()
        if self._array is None and self._elements is not None and self.is_constant:
            self._array = _integers(self._elements, self.dtype, self.shape)
        return self._array

    @property
    def is_constant(self) -> bool:
        """Whether the whole tensor is a known small constant (or is, unless its bytes turn out to be unreadable)."""
        if self._array is not None or self._read is not None:
            return True
        return self._elements is not None and all(type(e) is int for e in self._elements)

    @property
    def integer(self) -> Dim | None:
        """The one number of a one-element or uniform integer or boolean tensor as a dim, or None."""
        return None if isinstance(self.splat, float) or self.dtype not in INTEGRAL else self.splat

    @property
    def content(self) -> object:
        """What facts that say the same have in common; None where that is not cheap to tell."""
        if self._array is not None or self._read is not None or isinstance(self.splat, float):
            return None
        return self.dtype, self.shape, self._elements, self.splat

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


def _integers(elements: tuple[Dim, ...], dtype: int, shape: tuple[Dim, ...] | None) -> np.ndarray | None:
    import numpy as np

    if shape is None or any(isinstance(d, Poly) for d in shape) or product(shape) != len(elements):
        return None
    if any(abs(e) >= 2**63 for e in elements if isinstance(e, int)):
        return None
    names = {2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 12: "uint32"}
    return np.array(elements, dtype=names.get(dtype, "uint64")).reshape(shape)


UNKNOWN = Fact()
