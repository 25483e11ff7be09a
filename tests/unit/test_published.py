"""The worked examples of three CANN articles, each with the figures of its own SoC file (docs/costs.md tells them)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from cost_cases import elementwise, product

from atcfuse.cost import FusionCost, decide, fusion_cost, unfused_cost
from atcfuse.device import Device, Range, load_device
from atcfuse.graph.work import OpWork
from atcfuse.planner import KernelWork, plan_attention
from atcfuse.tiling.attention_problem import Problem

ATTENTION = load_device("published-attention")
AUTOFUSION = load_device("published-autofusion")
ELEMENTWISE = load_device("published-elementwise")


def close(found: Range, low: float, high: float) -> bool:
    return (found.low, found.high) == pytest.approx((low, high))


def kernel_of(works: list[OpWork], device: Device, **changes: object) -> KernelWork:
    """A kernel that reads what the works read from outside, writes what nobody of them reads, and holds the rest."""
    made = {v for work in works for v in work.writes}
    read = {v for work in works for v in work.reads}
    inputs = {v: size for work in works for v, size in work.reads.items() if v not in made}
    outputs = {v: size for work in works for v, size in work.writes.items() if v not in read}
    plain = KernelWork(
        "fused",
        inputs,
        outputs,
        inputs,
        cube_flops=sum(work.cube_flops for work in works),
        vector_elements=sum(work.vector_elements for work in works),
        tasks=device.vector_cores,
        blocks=device.cube_cores,
        vector_blocks=device.vector_cores,
        tiles=16,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def fused(works: list[OpWork], device: Device, **changes: object) -> FusionCost:
    return fusion_cost(works, kernel_of(works, device, **changes), device)


# ---------------------------------------------------------------- fused attention


def six_operators(heads: int, length: int, dim: int) -> list[OpWork]:
    """The article's block: Q·Kᵀ, scale, mask, softmax, dropout, ·V."""
    scores = heads * length * length
    return [
        product("qk", "q", "k", "s", (heads, length, length, dim)),
        elementwise("Mul", ["s"], "scaled", scores),
        elementwise("Add", ["scaled"], "masked", scores),
        OpWork("Softmax", "softmax", {"masked": 2 * scores}, {"p": 2 * scores}, 0, 5 * scores, "float32"),
        elementwise("Mul", ["p"], "kept", scores),
        product("pv", "kept", "v", "o", (heads, length, dim, length)),
    ]


def test_six_launches_become_one_and_what_is_not_computing_shrinks() -> None:
    cost = fused(six_operators(32, 512, 128), ATTENTION)
    assert (cost.before.launches, cost.after.launches) == (6, 1)
    assert (cost.before.accesses, cost.after.accesses) == (5, 1)
    assert close(cost.before.overhead_us, 80, 190)
    assert close(cost.after.overhead_us, 15, 35)


def test_the_articles_190_and_25_are_the_high_end_and_the_middle() -> None:
    cost = fused(six_operators(32, 512, 128), ATTENTION)
    after = cost.after.overhead_us
    assert cost.before.overhead_us.high == pytest.approx(190)
    assert (after.low + after.high) / 2 == pytest.approx(25)
    assert cost.before.overhead_us.high - after.high < 190 - 25


def test_llama_7b_saves_per_layer_times_its_layers() -> None:
    layers = 32
    cost = fused(six_operators(32, 4096, 128), ATTENTION)
    overhead = [
        layers * (getattr(cost.before.overhead_us, end) - getattr(cost.after.overhead_us, end))
        for end in ("low", "high")
    ]
    assert overhead == pytest.approx([2080, 4960])
    assert layers * (190 - 25) == 5280, "the article's own two figures, above the range"
    scores = 32 * 4096 * 4096 * 2
    assert cost.tensor_bytes_saved == 2 * 5 * scores, "five intermediates of 1 GiB, written and read"
    assert cost.saved_us.low > overhead[0] / layers, "the bytes come on top"


def one_head(length: int) -> Problem:
    return Problem(1, 1, 128, 128, 2, 0, False, False, False, False, False, False, 1, length, length)


def test_scores_of_one_head_at_131072_are_32_gib_and_never_written() -> None:
    assert six_operators(1, 131_072, 128)[0].writes == {"s": 32 << 30}
    for length in (1024, 131_072):
        work = plan_attention(one_head(length), ATTENTION)
        assert isinstance(work, KernelWork)
        assert work.workspace_written == 0
        assert sum(work.writes.values()) == length * 128 * 2, "the result alone, at every length"


def test_above_16k_the_scores_are_cut_into_tiles() -> None:
    work = plan_attention(one_head(16_385), load_device("Ascend910B1"))
    assert isinstance(work, KernelWork)
    assert work.form == "flash"
    assert work.workspace_footprint < 16 << 20
    row = 16_384 * (4 + 2)
    assert 16 * row > 0.8 * ATTENTION.l1 > row, "16 rows of scores and probabilities never fit there, one row does"


def test_two_products_with_five_operators_between_are_too_much_code() -> None:
    def between(count: int) -> list[OpWork]:
        names = ["s", *(f"e{i}" for i in range(count))]
        steps = [elementwise("Mul", [a], b, 1 << 20) for a, b in pairwise(names)]
        ends = (1, 1024, 1024, 1024)
        return [product("first", "x", "w", "s", ends), *steps, product("second", names[-1], "u", "y", ends)]

    found = decide(fused(between(5), ATTENTION), ATTENTION)
    assert found is not None
    assert found.code == "ATF332"
    assert "69,632 bytes of code for a core: 2 cube and 5 vector operators" in found.reason
    assert "the instruction cache has 65,536" in found.reason
    assert decide(fused(between(4), ATTENTION), ATTENTION) is None
    assert decide(fused(six_operators(32, 512, 128), ATTENTION), ATTENTION) is None


# ---------------------------------------------------------------- automatic fusion


def twelve_operators() -> list[list[OpWork]]:
    """Four groups of three operators on tensors of 1 MB, as the article counts them: activations only."""
    names = [f"v{i}" for i in range(13)]
    works = [elementwise("Op", [a], b, 500_000) for a, b in pairwise(names)]
    return [works[i : i + 3] for i in range(0, 12, 3)]


def test_twelve_operators_become_four_kernels() -> None:
    groups = twelve_operators()
    before = unfused_cost([work for group in groups for work in group], AUTOFUSION)
    after = [fused(group, AUTOFUSION).after for group in groups]
    assert (before.launches, sum(side.launches for side in after)) == (12, 4)
    assert close(before.overhead_us, 600, 600)
    assert sum(side.overhead_us.low for side in after) == pytest.approx(200)
    assert before.tensor_bytes == 24_000_000
    assert sum(side.tensor_bytes for side in after) == 8_000_000


def test_at_900_gb_s_the_articles_traffic_is_a_fifth_of_one_launch_a_kernel() -> None:
    assert AUTOFUSION.ddr_gb_s == pytest.approx(900)
    saved_us = (24_000_000 - 8_000_000) / (AUTOFUSION.ddr_gb_s * 1000)
    assert saved_us == pytest.approx(17.8, abs=0.1)
    assert saved_us < (600 - 200) / 20


def test_rows_of_8192_floats_do_not_fit_80_percent_of_32_kb() -> None:
    rows, hidden = 64, 8192
    works = [
        elementwise("LayerNormalization", ["x"], "n", rows * hidden),
        product("up", "n", "w", "y", (1, rows, hidden, hidden)),
    ]
    found = decide(fused(works, AUTOFUSION, kernel="norm", peak={"l1": hidden * 4}), AUTOFUSION)
    assert found is not None
    assert (found.code, found.reason) == (
        "ATF331",
        "norm holds 32,768 of 32,768 bytes of L1, 100.0%; the bound is 80%",
    )
    assert decide(fused(works, AUTOFUSION, peak={"l1": hidden * 2}), AUTOFUSION) is None, "in float16 they would"


def test_a_threshold_of_10_us_refuses_nothing_that_saves_a_launch_of_50() -> None:
    pair = [elementwise("Add", ["x"], "y", 8), elementwise("Mul", ["y"], "z", 8)]
    assert AUTOFUSION.min_saving_us < fused(pair, AUTOFUSION).saved_us.low
    assert decide(fused(pair, AUTOFUSION), AUTOFUSION) is None


# ---------------------------------------------------------------- element-wise fusion


def test_element_wise_chains_of_a_block_halve_their_launches() -> None:
    tokens, hidden = 4096, 4096
    pairs = [
        [
            elementwise("Mul", [f"x{i}"], f"y{i}", tokens * hidden),
            elementwise("Add", [f"y{i}"], f"z{i}", tokens * hidden),
        ]
        for i in range(12)
    ]
    before = [unfused_cost(pair, ELEMENTWISE) for pair in pairs]
    after = [fused(pair, ELEMENTWISE).after for pair in pairs]
    assert (sum(s.launches for s in before), sum(s.launches for s in after)) == (24, 12)
    assert sum(s.overhead_us.low for s in before) == pytest.approx(240)
    assert sum(s.overhead_us.high for s in after) == pytest.approx(120)


def test_three_operators_become_one() -> None:
    n = 4096 * 4096
    chain = [
        elementwise("Add", ["x", "y"], "sum", n),
        elementwise("Mul", ["sum"], "scaled", n),
        elementwise("Add", ["scaled"], "out", n),
    ]
    cost = fused(chain, ELEMENTWISE)
    assert (cost.before.launches, cost.after.launches) == (3, 1)
    assert close(Range(cost.before.overhead_us.low, cost.after.overhead_us.high), 30, 10)
    assert cost.before.tensor_bytes == 7 * 2 * n
    assert cost.after.tensor_bytes == 3 * 2 * n
    assert decide(cost, ELEMENTWISE) is None


def test_the_articles_disagree_on_the_price_of_a_launch() -> None:
    prices = [str(device.launch_us) for device in (ATTENTION, AUTOFUSION, ELEMENTWISE)]
    assert prices == ["5 to 15", "50", "10"]
