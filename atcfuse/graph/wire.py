"""The protobuf wire format of a model: why bytes are none, and writing without a second copy of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import GraphProto, ModelProto

_VARINT, _LENGTH_DELIMITED = 0, 2
_GRAPH = ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_KINDS = {
    known.number: _VARINT if known.type == known.TYPE_INT64 else _LENGTH_DELIMITED
    for known in ModelProto.DESCRIPTOR.fields
}
_INITIALIZER = GraphProto.DESCRIPTOR.fields_by_name["initializer"].number


class Message:
    """A model as protobuf bytes, made one initializer at a time: in all `size` bytes, the same for the same model.

    They are those of `SerializeToString`, which would hold the weights twice more. `chunks` reads the model's main
    initializers when it is called; they must not have changed since. Raises protobuf's EncodeError or ValueError where
    a part is larger than 2 GB.
    """

    def __init__(self, model: ModelProto) -> None:
        whole = _has_unknown_fields(model) or _has_unknown_fields(model.graph)  # these could not be split
        self._tensors = () if whole else model.graph.initializer
        if not self._tensors:
            self._before, self._after = model.SerializeToString(deterministic=True), b""
            self.size = len(self._before)
            return
        head, tail = _split(model, ModelProto(), ModelProto(), _GRAPH)
        first, last = _split(model.graph, GraphProto(), GraphProto(), _INITIALIZER)
        sizes = [tensor.ByteSize() for tensor in self._tensors]
        inner = len(first) + len(last) + sum(size + len(_tag(_INITIALIZER, size)) for size in sizes)
        self._before = head + _tag(_GRAPH, inner) + first
        self._after = last + tail
        self.size = len(head) + len(_tag(_GRAPH, inner)) + inner + len(tail)

    def chunks(self) -> Iterator[bytes]:
        """The bytes, in pieces none of which is much larger than the largest initializer."""
        yield self._before
        for tensor in self._tensors:
            data = tensor.SerializeToString(deterministic=True)
            yield _tag(_INITIALIZER, len(data))
            yield data
        yield self._after


def _split(message: Any, low: Any, high: Any, number: int) -> tuple[bytes, bytes]:
    """The fields of a message before and after the one with the given number, serialised."""
    for descriptor, value in message.ListFields():
        if descriptor.number == number:
            continue
        part = low if descriptor.number < number else high
        if isinstance(value, (int, str)):
            setattr(part, descriptor.name, value)
        elif isinstance(value, bytes):  # a string that is not UTF-8: it cannot be assigned, only parsed
            part.MergeFromString(_tag(descriptor.number, len(value)) + value)
        else:
            getattr(part, descriptor.name).MergeFrom(value)
    return low.SerializeToString(deterministic=True), high.SerializeToString(deterministic=True)


def _has_unknown_fields(message: Any) -> bool:
    try:
        from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]
    except ImportError:  # protobuf before 4.22
        return bool(len(message.UnknownFields()))
    return bool(len(UnknownFieldSet(message)))


def _tag(number: int, length: int) -> bytes:
    """The key and length that introduce a length-delimited field."""
    return _encoded(number << 3 | _LENGTH_DELIMITED) + _encoded(length)


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def damage(data: bytes) -> str:
    """`cut` where a field reaches past the end, `foreign` where the fields are not those of a model, else nothing."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        if tag < 0:
            return "cut"
        if _KINDS.get(tag >> 3) != tag & 7:
            return "foreign"
        value, position = _varint(data, position)
        if tag & 7 == _LENGTH_DELIMITED:
            position += value
        if value < 0 or position > len(data):
            return "cut"
    return ""


_BODIES = {
    "model": {7: "graph"},
    "graph": {1: "node"},
    "node": {5: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
}
"""The fields through which graphs nest: a model's graph, its nodes, their attributes, the bodies in these."""


def nesting(data: bytes, limit: int) -> int:
    """How deep the messages of a model nest through bodies, no further than `limit`; the bytes may be damaged."""
    deepest, pending = 0, [("model", 0, len(data), 1)]
    while pending and deepest < limit:
        kind, position, end, depth = pending.pop()
        deepest = max(deepest, depth)
        while position < end:
            tag, position = _varint(data, position)
            value, after = _varint(data, position) if tag & 7 in (0, _LENGTH_DELIMITED) else (0, position + 8)
            if tag < 0 or value < 0 or tag & 7 not in (0, 1, _LENGTH_DELIMITED, 5):
                break
            position = after - 4 if tag & 7 == 5 else after
            if tag & 7 == _LENGTH_DELIMITED:
                inner = _BODIES[kind].get(tag >> 3)
                if inner is not None and position + value <= end:
                    pending.append((inner, position, position + value, depth + 1))
                position += value
    return deepest


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A base-128 number and the position after it; -1 where the data ends inside."""
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 63:
            return value, position
    return -1, position
