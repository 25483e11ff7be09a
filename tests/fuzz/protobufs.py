"""Random damage to protobufs: of bytes, and of fields, where the message stays well formed but says something else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as F

Message = Any
NAMES = ("", "x", "a b", "层/注意力", "'\"`$(id)", "*/ #error", "a\nb\r", "../../x", "\u202egnp", "n" * 10_000, "\x00")
INTEGERS = (0, 1, -1, 2, 3, 4, 7, 64, 127, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-12, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan"))


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one to eight faults: flips, cuts, repeats, foreign pieces."""
    made = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 3, 8])):
        # Structure is where names and small numbers are, at the front of a file as of each message.
        at = rng.randrange(min(len(made), rng.choice([200, 5_000, len(made)])) or 1) if made else 0
        size = rng.choice([1, 1, 2, 4, 16, 300])
        kind = rng.randrange(6)
        if kind <= 1 and made:
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 2 and made:
            made[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 3:
            del made[at : at + size]
        elif kind == 4:
            made[at:at] = made[at : at + size]
        else:
            made[at:at] = bytes(rng.randrange(256) for _ in range(min(size, 16)))
    return bytes(made[: rng.randrange(len(made))]) if rng.random() < 0.1 and made else bytes(made)


def damage_fields(root: Message, rng: random.Random, count: int) -> list[str]:
    """Changes `count` fields of a message tree in place; what was done."""
    done = []
    for _ in range(50 * count):
        groups: dict[str, list[Message]] = {}
        for message in _messages(root):
            groups.setdefault(message.DESCRIPTOR.name, []).append(message)
        name = rng.choice(sorted(groups))
        what = _damage(rng.choice(groups[name]), groups, rng)
        if what:
            done.append(what)
        if len(done) == count:
            break
    return done


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.cpp_type == F.CPPTYPE_MESSAGE:
            for child in value if _repeated(field) else [value]:
                yield from _messages(child)


def _repeated(field: Any) -> bool:
    repeated = getattr(field, "is_repeated", None)  # newer protobuf; `label` is going away
    return bool(field.label == F.LABEL_REPEATED if repeated is None else repeated)


def _damage(message: Message, groups: dict[str, list[Message]], rng: random.Random) -> str:
    present = [field for field, _ in message.ListFields()]
    fields = present if present and rng.random() < 0.8 else list(message.DESCRIPTOR.fields)
    field = rng.choice(fields)
    where = f"{message.DESCRIPTOR.name}.{field.name}"
    if _repeated(field):
        return _damage_list(getattr(message, field.name), field, groups, rng, where)
    if field.cpp_type == F.CPPTYPE_MESSAGE:
        return _damage_child(message, field, groups, rng, where)
    if rng.random() < 0.15:
        message.ClearField(field.name)
        return f"{where} cleared"
    value = _scalar(field, getattr(message, field.name), groups, rng)
    setattr(message, field.name, value)
    return f"{where} = {value!r:.60}"


def _damage_child(message: Message, field: Any, groups: dict[str, list[Message]], rng: random.Random, at: str) -> str:
    others = groups.get(field.message_type.name, [])
    if rng.random() < 0.3 or not others:
        message.ClearField(field.name)
        return f"{at} cleared"
    copy = _copied(rng.choice(others))
    getattr(message, field.name).CopyFrom(copy)
    return f"{at} taken from elsewhere"


def _damage_list(items: Any, field: Any, groups: dict[str, list[Message]], rng: random.Random, at: str) -> str:
    kind = rng.choice(["drop", "repeat", "swap", "change", "change", "add", "clear"])
    if kind == "clear" and rng.random() < 0.3:
        del items[:]
    elif kind == "drop" and items:
        del items[rng.randrange(len(items))]
    elif kind == "add" or not items:
        return _add(items, field, groups, rng, at)
    elif kind == "repeat" and items:
        items.extend([items[rng.randrange(len(items))]])
    elif kind == "swap" and len(items) > 1:
        order = list(items)
        a, b = rng.sample(range(len(order)), 2)
        order[a], order[b] = order[b], order[a]
        kept = [_copied(o) for o in order] if field.cpp_type == F.CPPTYPE_MESSAGE else order
        del items[:]
        items.extend(kept)
    elif field.cpp_type != F.CPPTYPE_MESSAGE:
        place = rng.randrange(len(items))
        items[place] = _scalar(field, items[place], groups, rng)
        return f"{at}[{place}] = {items[place]!r:.60}"
    else:
        return ""
    return f"{at} {kind}"


def _add(items: Any, field: Any, groups: dict[str, list[Message]], rng: random.Random, at: str) -> str:
    if field.cpp_type == F.CPPTYPE_MESSAGE:
        others = groups.get(field.message_type.name, [])
        if not others:
            return ""
        items.extend([_copied(rng.choice(others))])
    else:
        items.extend([_scalar(field, None, groups, rng)])
    return f"{at} one more"


def _copied(message: Message) -> Message:
    made = type(message)()
    made.CopyFrom(message)
    return made


def _scalar(field: Any, old: Any, groups: dict[str, list[Message]], rng: random.Random) -> Any:
    kind = field.cpp_type
    if kind == F.CPPTYPE_STRING:
        return _text(old, groups, rng) if field.type == F.TYPE_STRING else damaged_bytes(old or b"\0" * 8, rng)
    if kind in (F.CPPTYPE_FLOAT, F.CPPTYPE_DOUBLE):
        return rng.choice([*FLOATS, (old or 1.0) * 1.5])
    if kind == F.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == F.CPPTYPE_ENUM:
        return rng.choice([v.number for v in field.enum_type.values])
    low, high = (0, 2**64 - 1) if kind == F.CPPTYPE_UINT64 else (-(2**63), 2**63 - 1)
    if kind in (F.CPPTYPE_INT32, F.CPPTYPE_UINT32):
        low, high = (-(2**31), 2**31 - 1) if kind == F.CPPTYPE_INT32 else (0, 2**32 - 1)
    near = [(old or 0) + d for d in (-1, 1, 2)] + [rng.randrange(30)]
    return min(max(rng.choice([*INTEGERS, *near, *near]), low), high)


def _text(old: Any, groups: dict[str, list[Message]], rng: random.Random) -> Any:
    """Another name of the model, one that is awkward, or an operator's."""
    known: list[Any] = []
    if groups.get("NodeProto"):
        node = rng.choice(groups["NodeProto"])
        known = [node.name, node.op_type, node.domain, *node.input, *node.output]
    if groups.get("AttributeProto"):
        known.append(rng.choice(groups["AttributeProto"]).name)
    return rng.choice([*known, *known, rng.choice(NAMES), f"{old or ''}_"])
