"""Tiles for a chip: bounded memory, forms, levels, what an unfused product reads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atcfuse.cost.memory import moved_by_kernel
from atcfuse.cost.stages import fused_stage
from atcfuse.device import Device, load_device
from atcfuse.graph.work import Product
from atcfuse.match.values import Refusal
from atcfuse.options import TileLevel
from atcfuse.planner import TILE_ROWS, KernelWork, plan_attention, plan_norm, plan_product, platform
from atcfuse.tiling import PLATFORM_310P, PLATFORM_910B, attention
from atcfuse.tiling.attention_problem import Problem
from atcfuse.tiling.layer_norm_qkv import Problem as NormProblem
from atcfuse.tiling.layer_norm_qkv import Projection

B1, P3 = load_device("Ascend910B1"), load_device("Ascend310P3")


def problem(queries: int = 512, keys: int | None = None, **changes: object) -> Problem:
    plain = Problem(
        heads=12,
        kv_heads=12,
        head_dim=64,
        value_dim=64,
        element_bytes=2,
        bias_bytes=0,
        has_mask=False,
        has_softcap=False,
        keys_transposed=False,
        skips=False,
        bottom_right=False,
        shared_core=False,
        batch=1,
        queries=queries,
        keys=queries if keys is None else keys,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def planned(work: KernelWork | Refusal) -> KernelWork:
    assert isinstance(work, KernelWork), work
    return work


def test_the_whole_chip_is_what_the_tilings_take_for_it() -> None:
    assert platform(B1) == PLATFORM_910B
    assert platform(P3) == PLATFORM_310P


def test_the_bound_is_a_share_of_l1_and_ub_alone() -> None:
    bounded = platform(B1, 0.5)
    assert (bounded.ub, bounded.l1) == (98_304, 262_144)
    assert (bounded.l0a, bounded.l0b, bounded.l0c) == (65_536, 65_536, 131_072)


@given(
    st.sampled_from([1, 8, 17, 128, 512, 1000, 4097]),
    st.sampled_from([32, 64, 128, 256]),
    st.sampled_from([2, 4]),
    st.booleans(),
    st.sampled_from([0.6, 0.8, 1.0]),
)
def test_attention_stays_under_the_bound(
    length: int, head_dim: int, size: int, has_mask: bool, occupancy: float
) -> None:
    shape = (1, 1, length, length) if has_mask else ()
    asked = problem(
        length, head_dim=head_dim, value_dim=head_dim, element_bytes=size, has_mask=has_mask, mask_shape=shape
    )
    work = plan_attention(asked, B1, occupancy)
    if isinstance(work, Refusal):
        assert work.code == "ATF338"
        return
    assert work.peak["ub"] <= occupancy * B1.ub
    assert work.peak["l1"] <= occupancy * B1.l1


def test_the_full_bound_gives_what_the_kernel_itself_predicts() -> None:
    work = planned(plan_attention(problem(), B1, 1.0))
    predicted = attention.predict(problem(), PLATFORM_910B)
    assert not isinstance(predicted, str)
    assert (work.reads, work.writes, work.peak) == (predicted.reads, predicted.writes, predicted.peak)
    assert work.workspace_footprint == predicted.workspace_footprint


def test_a_chip_of_shared_cores_keeps_scores_on_chip() -> None:
    on_910b, on_310p = (planned(plan_attention(problem(), chip)) for chip in (B1, P3))
    assert (on_910b.handover, on_310p.handover) == ("workspace", "on_chip")
    assert on_910b.workspace_written > 0
    assert on_310p.workspace_written == on_310p.workspace_read == 0


def test_forms_follow_the_lengths() -> None:
    assert planned(plan_attention(problem(64), B1)).form == "one_tile"
    assert planned(plan_attention(problem(1, 512), B1)).form == "decode"
    for length in (16_385, 20_000):
        assert planned(plan_attention(problem(length, heads=1, kv_heads=1), B1)).form == "flash"


def test_flops_count_what_is_computed() -> None:
    whole = planned(plan_attention(problem(1024), B1))
    assert whole.cube_flops == 2 * 12 * 1024 * 1024 * 128
    causal = planned(plan_attention(problem(1024, skips=True), B1))
    assert whole.cube_flops / 2 < causal.cube_flops < whole.cube_flops * 0.6
    decode = planned(plan_attention(problem(1, 512), B1))
    assert decode.cube_flops == 0
    assert decode.vector_elements > 2 * 12 * 512 * 128


def test_sizes_are_each_operand_once() -> None:
    work = planned(plan_attention(problem(256, kv_heads=4, has_mask=True, mask_shape=(256, 256)), B1))
    assert work.sizes == {
        "q": 256 * 12 * 64 * 2,
        "k": 256 * 4 * 64 * 2,
        "v": 256 * 4 * 64 * 2,
        "mask": 256 * 256,
    }


def test_lengths_that_break_alignment_are_remarked_with_their_cost() -> None:
    (remark,) = planned(plan_attention(problem(4097), B1)).remarks
    assert remark == (
        "4,097 not a multiple of 16: the cube computes 0.7% more, and every query tile visits one more tile of 128 "
        "for 1 key"
    )
    assert planned(plan_attention(problem(4096), B1)).remarks == ()
    assert planned(plan_attention(problem(1, 4097), B1)).remarks == ()


@pytest.mark.parametrize("device", [B1, P3], ids=["910B", "310P"])
@pytest.mark.parametrize("none", [{"batch": 0}, {"queries": 0}, {"queries": 0, "keys": 0}, {"queries": 3, "keys": 0}])
def test_sizes_of_nothing_have_a_plan_and_a_price(device: Device, none: dict[str, int]) -> None:
    """A model may have no queries at the sizes assumed, where these are a difference of two dynamic dims."""
    work = plan_attention(replace(problem(1), **none), device)
    assert isinstance(work, KernelWork)
    assert work.cube_flops == 0
    stage = fused_stage(work, moved_by_kernel(work, device.l2), device, 0.5)
    assert stage.total_us >= 0


@pytest.mark.parametrize("device", [B1, P3], ids=["910B", "310P"])
@pytest.mark.parametrize("many", [{"queries": 10**12}, {"keys": 10**12}, {"queries": 10**12, "keys": 10**12}])
def test_sizes_beyond_all_measure_have_no_plan(device: Device, many: dict[str, int]) -> None:
    work = plan_attention(replace(problem(), **many), device)  # type: ignore[arg-type]
    assert isinstance(work, Refusal)
    assert work.code == "ATF338"


@pytest.mark.parametrize("chip", ["Ascend910A", "Ascend310B1"])
def test_chips_without_kernels_refuse(chip: str) -> None:
    for work in (plan_attention(problem(), load_device(chip)), plan_norm(norm(), load_device(chip))):
        assert isinstance(work, Refusal)
        assert work.code == "ATF336"
        assert chip in work.reason


def test_no_tile_in_a_small_memory() -> None:
    work = plan_attention(problem(), B1, 0.1)
    assert isinstance(work, Refusal)
    assert work.code == "ATF338"
    assert "10%" in work.reason


# ---------------------------------------------------------------- levels


def level(name: TileLevel, chip: str = "Ascend910B1", **changes: object) -> KernelWork:
    device = replace(load_device(chip), tile_rows=TILE_ROWS[name])
    return planned(plan_attention(problem(**changes), device))  # type: ignore[arg-type]


@pytest.mark.parametrize("chip", ["Ascend910B1", "Ascend310P3"])
def test_a_level_takes_the_widest_tile_up_to_its_rows_that_fits(chip: str) -> None:
    for sizes in ({"queries": 512}, {"queries": 4096}, {"queries": 2048, "head_dim": 128, "value_dim": 128}):
        small, large = (level(name, chip, **sizes).parameters["rows"] for name in ("small", "large"))
        assert small == 32
        assert large == 64, "128 rows do not fit 80 % of UB on either chip"
        assert level("auto", chip, **sizes).parameters["rows"] in (16, 32, 64, 128)
    assert level("small", chip, queries=512, head_dim=256, value_dim=256, bias_bytes=2, bias_shape=(512, 512))


def test_128_rows_are_taken_where_they_fit() -> None:
    device = replace(B1, tile_rows=TILE_ROWS["large"])
    work = planned(plan_attention(problem(2048), device, occupancy=1.0))
    assert (work.parameters["rows"], work.parameters["columns"], work.parameters["load_buffers"]) == (128, 128, 1)
    assert work.remarks == ()


@pytest.mark.parametrize(
    ("name", "sizes", "remark"),
    [
        ("small", {"batch": 8, "queries": 1024}, ""),
        ("small", {"batch": 4, "queries": 1024}, "small tiles are meant for batch from 8 and sequences up to 1,024"),
        ("small", {"batch": 8, "queries": 1040}, "small tiles are meant for batch from 8 and sequences up to 1,024"),
        ("large", {"queries": 1024}, "large tiles are meant for sequences from 2,048 and head dims from 64"),
        ("large", {"queries": 2048}, "tiles of 128 rows do not fit the bound of UB; 64 rows are the most that do"),
        (
            "large",
            {"queries": 2048, "head_dim": 32, "value_dim": 32},
            "large tiles are meant for sequences from 2,048 and head dims from 64",
        ),
        ("large", {"queries": 1, "keys": 512}, "one query a head is taken as it is, whatever the tile level"),
        ("auto", {"queries": 1, "keys": 512}, ""),
    ],
)
def test_a_level_that_is_not_meant_for_the_sizes_is_remarked(
    name: TileLevel, sizes: dict[str, int], remark: str
) -> None:
    remarks = level(name, **sizes).remarks
    assert (remark in remarks) if remark else remarks == ()


# ---------------------------------------------------------------- norms and products


def norm(rows: int = 128, hidden: int = 768, columns: int = 768) -> NormProblem:
    return NormProblem(rows, hidden, (Projection(columns),) * 3)


def test_a_norm_reads_at_least_its_inputs_and_stays_under_the_bound() -> None:
    for hidden in (48, 768, 4096, 8192):
        work = planned(plan_norm(norm(hidden=hidden), B1))
        assert work.reads["inputs"] >= work.sizes["inputs"]
        assert work.peak["ub"] <= 0.8 * B1.ub
        assert work.peak["l1"] <= 0.8 * B1.l1
        assert work.cube_flops == 2 * 128 * hidden * 768 * 3


def test_a_norm_needs_cores_apart_and_sizes_the_kernel_takes() -> None:
    for work, code in ((plan_norm(norm(), P3), "ATF336"), (plan_norm(norm(hidden=70_000), B1), "ATF338")):
        assert isinstance(work, Refusal)
        assert work.code == code


def test_a_product_that_one_core_can_hold_is_read_once() -> None:
    cut = plan_product(Product(1, 16, 256, 64), PLATFORM_910B)
    assert (cut.tasks, cut.a_reads, cut.b_reads) == (1, 16 * 64 * 2, 64 * 256 * 2)


@given(
    st.integers(1, 4),
    st.sampled_from([1, 17, 128, 1000, 4096]),
    st.sampled_from([1, 64, 255, 768, 4096]),
    st.sampled_from([1, 64, 768, 4096]),
)
def test_products_read_whole_operands_a_whole_number_of_times(batch: int, m: int, n: int, k: int) -> None:
    cut = plan_product(Product(batch, m, n, k), PLATFORM_910B)
    assert cut.a_reads % (batch * m * k * 2) == 0
    assert cut.b_reads % (batch * k * n * 2) == 0
    assert cut.a_reads > 0
    assert cut.b_reads > 0
    assert cut.blocks <= min(cut.tasks, PLATFORM_910B.cube_cores)


@pytest.mark.parametrize("empty", ["batch", "m", "n", "k"])
def test_a_product_of_empty_tensors_reads_what_is_not_empty(empty: str) -> None:
    cut = plan_product(Product(2, 128, 64, 16)._replace(**{empty: 0}), PLATFORM_910B)
    assert cut.tasks >= 1
    assert (cut.a_reads == 0) == (empty in ("batch", "m", "k"))


def test_products_with_many_rows_read_weights_again() -> None:
    cut = plan_product(Product(1, 4096, 768, 768), PLATFORM_910B)
    assert cut.b_reads == 768 * 768 * 2 * (4096 // cut.rows)
