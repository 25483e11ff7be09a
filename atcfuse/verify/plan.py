"""Which input sets a model is verified on, and finding those that the original model accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from atcfuse.diagnostics import Diagnostic, info
from atcfuse.graph.feeds import BOOL, FLOATS, Interface, ModelProto, override_values, read_interface
from atcfuse.verify.session import RuntimeFailure
from atcfuse.verify.sizes import (
    EMPTY_CACHE,
    ODD,
    SINGLE,
    SMALL,
    STATIC,
    Profile,
    Sizes,
    assignments,
    has_cache,
    is_dynamic,
    last_resorts,
)
from atcfuse.verify.values import Feed, Masking, Recipe, Value, fill

MAX_LAST_RESORTS = 200
NARROW_INTEGERS = 2
MASKINGS: tuple[Masking, ...] = ("all ones", "right-padded", "left-padded", "scattered", "one row masked")

Run = Callable[[Mapping[str, Value]], dict[str, Value]]
Wanted = tuple[Profile, Recipe]
"""One input set that is wanted: how large, and how filled."""


@dataclass
class Collected:
    """The sets that the original ran on, its results, and what was dropped."""

    feeds: list[Feed] = field(default_factory=list)
    references: list[dict[str, Value]] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)


def generate_feeds(model: ModelProto, seed: int) -> list[Feed]:
    """The input sets that are tried first, without running anything; equal seeds give equal values."""
    interface = read_interface(model)
    feeds = []
    for number, (profile, recipe) in enumerate(wanted_sets(interface)):
        for sizes in islice(assignments(interface, profile), 1):
            values = fill(interface, sizes, recipe, _rng(seed, number))
            if values is not None:
                feeds.append(Feed(_describe(interface, profile, sizes, recipe), values))
    return feeds


def wanted_sets(interface: Interface) -> list[Wanted]:
    """The sets to try on an interface, the plainest first."""
    masked = any(s.role in ("mask", "bias") for s in interface.inputs)
    if not is_dynamic(interface):
        wanted = [(STATIC, Recipe(masking)) for masking in (MASKINGS if masked else MASKINGS[:1])]
    elif masked:
        sizes = (SMALL, ODD, ODD, SMALL, ODD)
        wanted = [(profile, Recipe(masking)) for profile, masking in zip(sizes, MASKINGS, strict=True)]
        wanted += [(SINGLE, Recipe())] + [(EMPTY_CACHE, Recipe("right-padded"))] * has_cache(interface)
    else:
        wanted = [(p, Recipe()) for p in (SMALL, ODD, SINGLE, *([EMPTY_CACHE] if has_cache(interface) else []))]
    if any(s.role == "mask" and s.dtype == BOOL for s in interface.inputs):
        # A boolean mask may mean "attend" or "ignore"; both readings must see ragged and full rows.
        picked = [w for w in wanted if w[1].masking in ("all ones", "right-padded", "one row masked")]
        wanted += [(profile, replace(recipe, inverted=True)) for profile, recipe in picked if profile is not SINGLE]
    return _with_flags(interface, wanted)


def _with_flags(interface: Interface, wanted: list[Wanted]) -> list[Wanted]:
    if all(s.role != "flag" for s in interface.inputs):
        return wanted
    out = []
    for number, (profile, recipe) in enumerate(wanted):
        both = number < 2 or profile is EMPTY_CACHE
        out += [(profile, replace(recipe, flag=flag)) for flag in ((True, False) if both else (number % 2 == 0,))]
    return out


def collect(model: ModelProto, interface: Interface, run: Run, seed: int) -> Collected:
    """Run the original on every wanted set, at other sizes where it refuses the first ones.

    Sets on which it runs at no size are dropped with an info diagnostic. Without any feed, inputs must be given.
    """
    out = Collected()
    finder = _Finder(interface, run, seed, out)
    wanted = wanted_sets(interface)
    for want in wanted:
        finder.add(want)
    sized = [p for p in (SMALL, ODD) if finder.found.get(p.name)]
    if is_dynamic(interface) and len(sized) < 2:
        finder.search(2 - len(sized), list(dict.fromkeys(recipe for _, recipe in wanted)))
    if not out.feeds:
        return out
    overridden = override_values(model)
    if overridden:
        finder.attempt(f"{out.feeds[0].name}, initializers overridden", {**out.feeds[0].values, **overridden})
    return out


class _Finder:
    """Tries sets on the original and remembers which sizes work for which profile."""

    def __init__(self, interface: Interface, run: Run, seed: int, out: Collected) -> None:
        self.interface, self.run, self.seed, self.out = interface, run, seed, out
        self.found: dict[str, tuple[Sizes, int] | None] = {}
        self.number = 0
        self.unknown = any(s.role == "value" and s.dtype not in FLOATS and s.dtype != BOOL for s in interface.inputs)

    def add(self, want: Wanted) -> None:
        """Run one wanted set; what fails at every size is dropped."""
        profile, recipe = want
        self.number += 1
        if profile.name in self.found and self.found[profile.name] is None:
            return
        failure = "no sizes to try"
        for sizes, integers in self._candidates(profile):
            tried = replace(recipe, integers=integers)
            values = fill(self.interface, sizes, tried, _rng(self.seed, self.number))
            if values is None:
                continue
            failure = self.attempt(_describe(self.interface, profile, sizes, tried), values)
            if not failure:
                self.found[profile.name] = (sizes, integers)
                return
        first = profile.name not in self.found
        self.found.setdefault(profile.name, None)
        what = f"inputs of profile {profile.name!r}" if first else f"{profile.name}, {recipe.describe(self.interface)}"
        self.out.diagnostics.append(
            info("ATF510", f"generated {what} dropped: the original model does not run on them", notes=[failure])
        )

    def _candidates(self, profile: Profile) -> Iterator[tuple[Sizes, int]]:
        known = self.found.get(profile.name)
        if known is not None:
            yield known
            return
        for integers in (Recipe.integers, NARROW_INTEGERS) if self.unknown else (Recipe.integers,):
            for sizes in assignments(self.interface, profile):
                yield sizes, integers

    def attempt(self, name: str, values: Mapping[str, Value]) -> str:
        """Run the original once; keeps feed and result, or returns why it failed."""
        try:
            reference = self.run(values)
        except RuntimeFailure as e:
            return str(e)
        self.out.feeds.append(Feed(name, values))
        self.out.references.append(reference)
        return ""

    def search(self, count: int, recipes: list[Recipe]) -> None:
        """Look for `count` more sizes that work, each with every recipe. What fails here is no news."""
        for profile in islice(last_resorts(self.interface), MAX_LAST_RESORTS):
            kept = list(self.out.diagnostics)
            self.add((profile, recipes[0]))
            if self.found[profile.name] is None:
                self.out.diagnostics[:] = kept
                continue
            for recipe in recipes[1:]:
                self.add((profile, recipe))
            count -= 1
            if not count:
                return


def _rng(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, number])


def _describe(interface: Interface, profile: Profile, sizes: Sizes, recipe: Recipe) -> str:
    extents = " ".join(f"{name.strip(chr(39))}={size}" for name, size in sizes.items())
    return "; ".join(part for part in (profile.name, extents, recipe.describe(interface)) if part)
