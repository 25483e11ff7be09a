"""Records do what the standard library's dataclasses do; each case makes one class with either and compares."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from atcfuse import records


def _classes(dataclass: Callable[..., Any]) -> dict[str, Any]:
    @dataclass(frozen=True)
    class Base:
        a: int
        b: str = field(default="b", compare=False)
        c: list[int] = field(default_factory=list, hash=False)
        d: int | None = field(default=None, init=False, compare=False, repr=False)

    @dataclass(frozen=True)
    class Derived(Base):
        e: float = 0.5

    @dataclass(frozen=True)
    class One:
        x: float

    @dataclass(frozen=True)
    class Nothing:
        pass

    @dataclass(frozen=True, eq=False)
    class Thing:
        x: int

    @dataclass(frozen=True)
    class Own:
        x: int
        y: int = 0

        def __post_init__(self) -> None:
            object.__setattr__(self, "y", self.x + 1)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and self.x % 10 == other.x % 10

        def __hash__(self) -> int:
            return self.x % 10

        def __repr__(self) -> str:
            return "own"

    @dataclass
    class Open:
        x: int
        y: list[int] = field(default_factory=list)

    return {cls.__name__: cls for cls in (Base, Derived, One, Nothing, Thing, Own, Open)}


OURS, STANDARD = _classes(records.dataclass), _classes(dataclasses.dataclass)
NAN = float("nan")

MADE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "base": lambda c: c["Base"](1),
    "base by name": lambda c: c["Base"](b="x", a=2, c=[3]),
    "derived": lambda c: c["Derived"](1, "b", [2], 0.25),
    "one": lambda c: c["One"](NAN),
    "nothing": lambda c: c["Nothing"](),
    "own": lambda c: c["Own"](12),
    "open": lambda c: c["Open"](1),
}


@pytest.mark.parametrize("name", MADE)
def test_fields_text_and_hash_are_the_same(name: str) -> None:
    ours, standard = MADE[name](OURS), MADE[name](STANDARD)
    assert repr(ours) == repr(standard)
    assert {f.name: getattr(ours, f.name) for f in dataclasses.fields(ours)} == {
        f.name: getattr(standard, f.name) for f in dataclasses.fields(standard)
    }
    if type(standard).__hash__ is None:
        with pytest.raises(TypeError, match="unhashable"):
            hash(ours)
    else:
        assert hash(ours) == hash(standard)


@pytest.mark.parametrize("classes", [OURS, STANDARD])
def test_what_is_equal(classes: dict[str, Any]) -> None:
    base, derived, one, open_ = classes["Base"], classes["Derived"], classes["One"], classes["Open"]
    assert base(1, "x") == base(1, "y")
    assert base(1) != base(2)
    assert base(1, c=[1]) != base(1)
    assert base(1) != derived(1)
    assert one(NAN) == one(NAN)
    assert one(0.0) == one(-0.0)
    assert one(1.0).__eq__(1.0) is NotImplemented
    assert classes["Thing"](1) != classes["Thing"](1)
    assert classes["Own"](3) == classes["Own"](13)
    assert open_(1) == open_(1, [])
    assert open_(1) != open_(1, [2])


@pytest.mark.parametrize("classes", [OURS, STANDARD])
def test_frozen_ones_stay_as_they_are(classes: dict[str, Any]) -> None:
    record = classes["Derived"](1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'a'"):
        record.a = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'a'"):
        del record.a
    opened = classes["Open"](1)
    opened.x = 2
    assert opened.x == 2


@pytest.mark.parametrize("classes", [OURS, STANDARD])
def test_replace_and_copies(classes: dict[str, Any]) -> None:
    record = classes["Derived"](1, c=[2])
    assert dataclasses.replace(record, a=3) == classes["Derived"](3, c=[2])
    assert copy.deepcopy(record) == record
    assert classes["Base"](1).c is not classes["Base"](1).c
    assert dataclasses.is_dataclass(record)
    with pytest.raises(TypeError):
        classes["Base"]()
    with pytest.raises(TypeError):
        classes["Base"](1, d=2)


@pytest.mark.parametrize(("first", "second"), [(OURS, dataclasses.dataclass), (STANDARD, records.dataclass)])
def test_either_inherits_from_the_other(first: dict[str, Any], second: Callable[..., Any]) -> None:
    @second(frozen=True)
    class Child(first["One"]):  # type: ignore[misc]
        y: int = 1

    assert (Child(0.5).x, Child(0.5).y) == (0.5, 1)
    assert Child(0.5) == Child(0.5, 1) != Child(0.5, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Child(0.5).y = 3
    with pytest.raises(TypeError, match="cannot inherit"):

        @second
        class Opened(first["One"]):  # type: ignore[misc]
            y: int = 1


def test_a_record_goes_to_another_process() -> None:
    from atcfuse.diagnostics import Span

    span = Span("a.yaml", 3, 4)
    assert pickle.loads(pickle.dumps(span)) == span


def test_a_record_that_holds_itself_is_shown() -> None:
    record = OURS["Base"](1)
    record.c.append(record)
    assert "..." in repr(record)
