"""The parts of made-up names: name scopes, and pieces that a name of the model may be."""

from __future__ import annotations

from collections.abc import Iterator


def scopes(name: str) -> Iterator[str]:
    """The name scopes that a name is in, with the slash that ends them."""
    return (name[: i + 1] for i, letter in enumerate(name) if letter == "/")


def as_much(name: str, part: str, known: str) -> str:
    """As much of a name as `part` is of the `known` one: all of it, or a name scope of as many steps."""
    if part == known:
        return name
    return "/".join(name.split("/")[: part.count("/")]) + "/"


def spans(name: str) -> list[tuple[int, int]]:
    """Where parts of a made-up name may start and stop, the longest first."""
    starts = [0, *(i + 1 for i, letter in enumerate(name) if letter == "_")]
    stops = [len(name), *(i for i, letter in enumerate(name) if letter in "/_")]
    stops += [i + 1 for i, letter in enumerate(name) if letter == "/"]
    return sorted(((i, j) for i in starts for j in stops if i < j), key=lambda span: (span[0] - span[1], span[0]))
