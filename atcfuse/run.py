"""What one run works with, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atcfuse.decide import Pricer
from atcfuse.device import Device
from atcfuse.fold import Folding
from atcfuse.graph.index import Scope
from atcfuse.graph.traffic import Remembered
from atcfuse.graph.unroll import Unrolling
from atcfuse.keep_nodes import NO_NODES, KeepNodes
from atcfuse.kernel import KernelSpec
from atcfuse.match.find import Match, NearMiss
from atcfuse.match.values import Refusal
from atcfuse.options import Options
from atcfuse.rewrite import Fusion
from atcfuse.rule.model import Rule, RuleBook
from atcfuse.switches import Switches


@dataclass(frozen=True)
class Toolbox:
    """The rules, kernels, switches and chip of a run. `stages` asks for a stage table of every fusion."""

    book: RuleBook
    kernels: Mapping[str, KernelSpec]
    switches: Switches
    options: Options
    device: Device
    keep: KeepNodes = NO_NODES
    stages: bool = False

    def why_off(self, rule: Rule) -> Refusal | None:
        """Why a rule must not be applied, or None where it may."""
        if self.options.keep_all:
            return Refusal("ATF322", "GF_AUTOFUSION_DEBUG keeps every operator separate")
        if rule.name in self.options.disabled:
            return Refusal("ATF321", f"GF_AUTOFUSION_DISABLE turns the rule {rule.name} off")
        if not self.switches.is_on(rule.switch, rule.switch_kind):
            return Refusal("ATF321", f"{rule.switch} is off in {self.switches.file}")
        return None

    def is_made(self, kernel: str) -> bool:
        """Whether a rule that makes the kernel's operator may be applied."""
        return any(r.kernel == kernel and r.rebuilt is None and self.why_off(r) is None for r in self.book.rules)


@dataclass(frozen=True)
class Kept:
    """An anchor that stayed as it was, and why."""

    rule: Rule
    scope: Scope
    anchor: str
    index: int
    refusal: Refusal
    members: frozenset[int]

    @classmethod
    def of(cls, found: Match | NearMiss, refusal: Refusal) -> Kept:
        """What a match, or one that was missed, would have taken, and why it stays."""
        return cls(found.rule, found.scope, found.anchor.name, found.anchor.index, refusal, found.members)


@dataclass
class Findings:
    """What the rounds of one run found, and what it costs; `pricer` is None where no kernels are wanted."""

    pricer: Pricer | None

    kinds_of: Remembered = field(init=False)
    folded: list[tuple[Folding, str]] = field(default_factory=list)
    unfolded: list[Kept] = field(default_factory=list)
    fusions: list[tuple[Fusion, str]] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    blocked: list[Kept] = field(default_factory=list)
    overtaken: list[Kept] = field(default_factory=list)
    """What the last round kept although a fusion took its anchor: the next round does not find it again."""
    left_out: list[Kept] = field(default_factory=list)
    """What only a limit of its kernel kept out of an element-wise group, pass after pass."""
    matched: dict[str, list[str]] = field(default_factory=dict)
    """By rule, the anchors of its matches, those of every round."""
    waiting: bool = False
    """Whether fusions of level `elementwise` wait for a round in which nothing larger fuses."""
    finished: bool = False
    """Whether they were carried out."""
    unrolled: Sequence[Unrolling] = ()
    """Stretches of layers for which those of a short model stand in all of the above."""

    def __post_init__(self) -> None:
        self.kinds_of = self.pricer.kinds_of if self.pricer else Remembered()
