"""`dataclass`, made several times faster than the standard library makes it.

Until Python 3.13 that compiles six functions for a frozen class, and two hundred classes are imported before the first
model is read: a fifth of what importing them took. Here `__init__` alone is compiled; to compare, hash and show records
and to keep frozen ones as they are, all classes share functions that know the fields. What a record does is the same,
and `dataclasses.fields` and `replace` take it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, eq: bool = True) -> Any:
        """A class whose annotated fields are the arguments of `__init__`; `frozen` and `eq` as in `dataclasses`."""
        return (lambda given: _made(given, frozen, eq)) if cls is None else _made(cls, frozen, eq)


def _made(cls: type, frozen: bool, eq: bool) -> Any:
    written = frozenset(vars(cls))
    # The standard library compares what a class says of itself with what its bases say, whoever made them.
    inherited = any(b.__dataclass_params__.frozen for b in cls.__mro__[1:] if hasattr(b, "__dataclass_params__"))
    made: Any = dataclasses.dataclass(init=not frozen, repr=False, eq=False, frozen=frozen and inherited)(cls)
    made.__dataclass_params__.frozen = frozen
    fields = dataclasses.fields(made)
    added: dict[str, Any] = {"__repr__": _repr([f.name for f in fields if f.repr])}
    if eq:
        added["__eq__"] = _eq(_values([f.name for f in fields if f.compare]))
        hashed = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
        added["__hash__"] = _hash(_values(hashed)) if frozen else None
    if frozen:
        added |= {"__init__": _init(made, fields), "__setattr__": _refuse, "__delattr__": _refuse}
    for name, function in added.items():
        if name not in written:
            setattr(made, name, function)
    return made


def _init(cls: type, fields: Sequence[Field[Any]]) -> Callable[..., None]:
    """The `__init__` of a frozen class."""
    given: dict[str, Any] = {"_absent": MISSING}
    arguments, values = ["self"], []
    for f in (f for f in fields if f.init):
        default, value = "", f.name
        if f.default_factory is not MISSING:
            given[f"_make_{f.name}"] = f.default_factory
            default, value = "=_absent", f"_make_{f.name}() if {f.name} is _absent else {f.name}"
        elif f.default is not MISSING:
            given[f"_default_{f.name}"] = f.default
            default = f"=_default_{f.name}"
        arguments.append(f.name + default)
        values.append(f"{f.name}={value}")
    # All at once into the namespace of the instance: `object.__setattr__` for each takes twice as long.
    after = "; self.__post_init__()" if hasattr(cls, "__post_init__") else ""
    exec(f"def __init__({', '.join(arguments)}):\n self.__dict__.update({', '.join(values)}){after}", given)
    init: Callable[..., None] = given["__init__"]
    init.__annotations__ = {**{f.name: f.type for f in fields if f.init}, "return": None}
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return init


def _values(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """The values of some fields as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda record: (getattr(record, names[0]),)) if names else lambda record: ()


def _eq(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, Any], Any]:
    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _repr(names: Sequence[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


def _refuse(self: Any, name: str, *value: object) -> None:
    raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")
