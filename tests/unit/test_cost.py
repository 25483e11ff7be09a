"""The cost model: what L2 keeps, how stages overlap, what a chip cannot save, and the decisions that follow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cost_cases import attention, elementwise, norm_qkv, product
from hypothesis import given
from hypothesis import strategies as st

from atcfuse.cost import Policy, api_calls, code_bytes, decide, fused_cost, fusion_cost, handovers, unfused_cost
from atcfuse.cost.memory import L2
from atcfuse.device import Device, Range, load_device
from atcfuse.graph.work import OpWork, cast_work, transdata_work
from atcfuse.match.values import Refusal
from atcfuse.planner import KernelWork, plan_attention, plan_norm
from atcfuse.tiling.attention_problem import Problem
from atcfuse.tiling.layer_norm_qkv import Problem as NormProblem
from atcfuse.tiling.layer_norm_qkv import Projection

B1, P3 = load_device("Ascend910B1"), load_device("Ascend310P3")
MIB = 1 << 20


def chain(count: int, elements: int) -> list[OpWork]:
    return [elementwise("Relu", [f"v{i}"], f"v{i + 1}", elements) for i in range(count)]


def fused_chain(elements: int, **changes: object) -> KernelWork:
    plain = KernelWork(
        "elementwise",
        reads={"v0": 2 * elements},
        writes={"out": 2 * elements},
        sizes={"v0": 2 * elements},
        vector_elements=elements,
        tasks=48,
        vector_blocks=48,
        tiles=4,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


# ---------------------------------------------------------------- memory


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 6)), max_size=40))
def test_l2_holds_what_was_used_last(uses: list[tuple[str, int]]) -> None:
    cache, sizes = L2(10), dict(uses)
    history: list[str] = []
    for name, _ in uses:
        since = history[history.index(name) + 1 :] if name in history else None
        fits = since is not None and sum(sizes[n] for n in {*since, name}) <= 10
        assert cache.touch(name, sizes[name]) == fits
        history = [n for n in history if n != name] + [name]


def test_intermediates_that_fit_l2_cost_no_ddr() -> None:
    small = unfused_cost(chain(5, MIB), B1)
    assert small.gm_bytes == small.tensor_bytes == 5 * 2 * 2 * MIB
    assert small.ddr_bytes == 2 * 2 * MIB, "the first input and the last output"


def test_intermediates_that_spill_are_written_and_read_back() -> None:
    large = unfused_cost(chain(5, 256 * MIB), B1)
    assert large.ddr_bytes == large.tensor_bytes


def test_values_read_elsewhere_are_written_to_ddr_once() -> None:
    works = chain(3, MIB)
    assert unfused_cost(works, B1, ["v1"]).ddr_bytes == unfused_cost(works, B1).ddr_bytes + 2 * MIB


def test_handovers_are_values_between_launches() -> None:
    assert handovers(chain(5, 8)) == 4
    assert handovers(norm_qkv(8, 8, [8, 8, 8])) == 4
    assert handovers([elementwise("Mul", ["x", "x"], "y", 8)]) == 0


def test_an_unfused_product_reads_as_a_fused_one_does() -> None:
    """The weights once a block of 128 rows, however it is computed."""
    rows, hidden = 4096, 768
    before = unfused_cost([product("m", "x", "w", "y", (1, rows, hidden, hidden))], B1)
    assert before.gm_bytes > before.tensor_bytes
    assert before.gm_bytes - before.tensor_bytes >= hidden * hidden * 2 * (rows // 128 - 1)


def test_the_workspace_overflows_into_ddr_by_its_share() -> None:
    kernel = fused_chain(8, workspace_read=1000 * MIB, workspace_written=1000 * MIB, workspace_footprint=96 * MIB)
    assert fused_cost(kernel, B1).ddr_bytes == 32
    twice = replace(kernel, workspace_footprint=2 * 192 * MIB)
    assert fused_cost(twice, B1).ddr_bytes == 32 + 1000 * MIB


# ---------------------------------------------------------------- time


def test_overhead_is_launches_and_accesses() -> None:
    side = unfused_cost(chain(4, 8), B1)
    assert (side.launches, side.accesses) == (4, 3)
    assert side.overhead_us == Range(4 * 2 + 3 * 0.5, 4 * 15 + 3 * 2)


def test_views_cost_nothing() -> None:
    works = chain(4, MIB)
    assert unfused_cost([*works, OpWork("Reshape", "r", launches=0)], B1) == unfused_cost(works, B1)
    assert unfused_cost([], B1).time_us == Range(0, 0)


def test_a_large_product_runs_at_the_cubes_rate() -> None:
    side = unfused_cost([product("m", "x", "w", "y", (1, 3072, 8192, 8192))], B1)
    peak_us = side.cube_flops / 2 / (4096 * 24 * 1850)
    assert side.fast[0].cube_us == pytest.approx(peak_us / 0.85, rel=1e-6)
    assert side.slow[0].cube_us == pytest.approx(peak_us / 0.6, rel=1e-6)
    assert side.fast[0].total_us == pytest.approx(side.fast[0].cube_us, rel=0.05)


def test_an_elementwise_node_runs_at_the_rate_of_memory() -> None:
    side = unfused_cost(chain(1, 512 * MIB), B1)
    assert side.fast[0].total_us == pytest.approx(2 * 2 * 512 * MIB / (B1.ddr_gb_s * 1000), rel=0.05)
    assert side.fast[0].wait_us > 0.9 * (side.fast[0].total_us - side.fast[0].vector_us)


def test_cube_and_vector_overlap_only_on_cores_apart() -> None:
    kernel = fused_chain(
        8, cube_flops=10**12, vector_elements=10**10, tasks=24, blocks=24, vector_blocks=24, tiles=1000
    )
    apart, shared = (fused_cost(kernel, chip).fast[-1] for chip in (B1, replace(B1, cores="shared")))
    assert apart.total_us == pytest.approx(max(apart.cube_us, apart.vector_us), rel=0.01)
    assert shared.total_us == pytest.approx(shared.cube_us + shared.vector_us, rel=0.01)


@given(st.integers(1, 64), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**8))
def test_a_pipeline_is_between_its_slowest_stage_and_their_sum(
    tiles: int, flops: int, elements: int, moved: int
) -> None:
    kernel = KernelWork(
        "k", {"x": moved}, {"y": moved}, cube_flops=flops, vector_elements=elements, tiles=tiles, double_buffered=True
    )
    stage = fused_cost(kernel, B1).fast[-1]
    parts = (stage.load_us + stage.store_us, stage.cube_us, stage.vector_us)
    assert max(parts) - 1e-9 <= stage.total_us <= sum(parts) + 1e-9
    serial = fused_cost(replace(kernel, double_buffered=False), B1).fast[-1]
    assert serial.total_us == pytest.approx(sum(parts))
    assert stage.wait_us >= -1e-9


def test_a_core_with_one_task_more_decides() -> None:
    full = fused_chain(MIB, tasks=48)
    uneven = fused_chain(MIB, tasks=49)
    ratio = fused_cost(uneven, B1).fast[-1].total_us / fused_cost(full, B1).fast[-1].total_us
    assert ratio == pytest.approx(2 * 48 / 49)


def test_casts_and_layout_changes_around_a_kernel_are_launches_and_bytes() -> None:
    around = (cast_work("x", MIB, 4, 2), transdata_work("w", MIB))
    bare, dressed = fused_chain(MIB), fused_chain(MIB, around=around)
    plain, more = fused_cost(bare, P3), fused_cost(dressed, P3)
    assert (more.launches, more.conversions) == (plain.launches, 2)
    assert more.tensor_bytes == plain.tensor_bytes
    assert more.gm_bytes == plain.gm_bytes + 6 * MIB + 2 * MIB
    assert more.time_us.low > plain.time_us.low + 2 * P3.launch_us.low
    assert [stage.op for stage in more.fast] == ["Cast", "TransData", ""]


def test_as_dict_is_plain_json() -> None:
    cost = fusion_cost(chain(3, MIB), fused_chain(MIB), B1).as_dict()
    assert cost["before"]["launches"] == 3
    assert [row["op"] for row in cost["before"]["stages"]] == ["Relu"] * 3
    low, high = cost["saved_us"]
    assert low < high
    assert set(cost["before"]) - {"stages"} <= set(cost["basis"])


# ---------------------------------------------------------------- what a chip cannot save


def planned_attention(chip: Device, batch: int, heads: int, length: int, dim: int, element: int = 2) -> KernelWork:
    causal = (False, False, False)
    problem = Problem(heads, heads, dim, dim, element, 0, False, False, *causal, False, batch, length, length)
    work = plan_attention(problem, chip)
    assert isinstance(work, KernelWork)
    return work


def planned_norm(rows: int, hidden: int, columns: list[int], bias: bool = True, element: int = 2) -> KernelWork:
    parts = tuple(Projection(width, False, bias) for width in columns)
    work = plan_norm(NormProblem(rows, hidden, parts, element, element, element), B1)
    assert isinstance(work, KernelWork)
    return work


def test_on_910b_attention_moves_more_and_saves_ddr_only_where_scores_spill() -> None:
    short = fusion_cost(attention(1, 12, 512, 64, split=False), planned_attention(B1, 1, 12, 512, 64), B1)
    assert short.after.gm_bytes > short.before.gm_bytes
    assert short.ddr_bytes_saved <= 512 * 512 * 2 * 12, "the mask at most"
    long = fusion_cost(attention(1, 32, 4096, 128, split=False), planned_attention(B1, 1, 32, 4096, 128), B1)
    scores = 32 * 4096 * 4096 * 2
    assert long.ddr_bytes_saved >= 6 * scores
    assert long.after.workspace_footprint < 16 * MIB


def test_on_310p_scores_save_their_bytes_at_every_length() -> None:
    for length in (512, 2048):
        cost = fusion_cost(attention(1, 12, length, 64), planned_attention(P3, 1, 12, length, 64), P3)
        assert cost.after.workspace_bytes == 0
        assert cost.after.gm_bytes < cost.before.gm_bytes


def test_an_epilogue_behind_a_product_on_910b_saves_its_launch_and_no_ddr() -> None:
    m, n, k = 512, 768, 768
    works = [product("mm", "x", "w", "y", (1, m, n, k)), elementwise("Relu", ["y"], "z", m * n)]
    alone = unfused_cost(works[:1], B1)
    through_workspace = KernelWork(
        "linear",
        reads={"inputs": alone.gm_bytes - 2 * m * n},
        writes={"z": 2 * m * n},
        sizes={"inputs": alone.tensor_bytes - 2 * m * n},
        workspace_read=2 * m * n,
        workspace_written=2 * m * n,
        workspace_footprint=2 * m * n,
        cube_flops=works[0].cube_flops,
        vector_elements=m * n,
        tasks=24,
        blocks=24,
        vector_blocks=48,
        handover="workspace",
    )
    cost = fusion_cost(works, through_workspace, B1)
    assert cost.launches_saved == 1
    assert cost.ddr_bytes_saved == 0
    assert cost.after.gm_bytes == cost.before.gm_bytes


# ---------------------------------------------------------------- decisions


def code_of(found: Refusal | None) -> str:
    return found.code if found else ""


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize(
    "shape", [(1, 4, 8, 12), (2, 4, 8, 16), (1, 12, 128, 64), (8, 12, 512, 64), (64, 12, 128, 64), (1, 32, 4096, 128)]
)
def test_attention_is_fused_by_default_from_tiny_to_long(shape: tuple[int, int, int, int], split: bool) -> None:
    for chip in (B1, P3):
        cost = fusion_cost(attention(*shape, split=split), planned_attention(chip, *shape), chip)
        assert decide(cost, chip) is None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("rows", "hidden", "columns"),
    [
        (8, 48, [48, 48, 48]),
        (128, 768, [768] * 3),
        (4096, 768, [768] * 3),
        (12_608, 768, [768] * 3),
        (4096, 4096, [4096, 4096, 4096]),
        (4096, 4096, [4096, 1024, 1024]),
        (1, 4096, [4096, 1024, 1024]),
        (8, 48, [144]),
        (128, 768, [2304]),
        (197, 768, [2304]),
    ],
)
def test_norm_and_projections_are_fused_by_default(rows: int, hidden: int, columns: list[int], bias: bool) -> None:
    cost = fusion_cost(norm_qkv(rows, hidden, columns, bias), planned_norm(rows, hidden, columns, bias), B1)
    assert decide(cost, B1) is None


def test_a_saving_under_the_threshold_is_refused_with_its_figures() -> None:
    cost = fusion_cost(norm_qkv(4096, 1024, [3072], bias=False), planned_norm(4096, 1024, [3072], bias=False), B1)
    found = decide(cost, B1)
    assert found is not None
    assert found.code == "ATF330"
    assert f"{cost.saved_us.high:,.1f} µs by 1 launches" in found.reason
    assert "the threshold is 10 µs" in found.reason
    assert decide(cost, B1, Policy(forced=True)) is None


@given(st.floats(0, 400))
def test_the_threshold_meets_the_high_end(threshold: float) -> None:
    cost = fusion_cost(chain(10, 8), fused_chain(8), B1)
    refused = decide(cost, B1, Policy(min_saving_us=threshold)) is not None
    assert refused == (cost.saved_us.high < threshold)


def test_decisions_have_their_codes() -> None:
    works = chain(10, 8)
    cases = {
        "ATF331": fused_chain(8, peak={"ub": int(0.81 * B1.ub)}),
        "ATF332": fused_chain(8, api_calls={"vector": B1.icache // B1.vector_call_bytes + 1}),
        "ATF333": fused_chain(8, keeps_float32=False),
        "ATF334": fused_chain(8, static_dims=("seq",)),
        "ATF335": fused_chain(8, handover="on_chip"),
        "": fused_chain(8, peak={"ub": int(0.79 * B1.ub), "l0c": B1.l0c}, handover="workspace"),
    }
    policy = Policy(keep_fp32=frozenset({"Relu"}))
    for code, kernel in cases.items():
        assert code_of(decide(fusion_cost(works, kernel, B1), B1, policy)) == code


def test_reasons_name_what_they_measure() -> None:
    cost = fusion_cost(chain(10, 8), fused_chain(8, peak={"l1": 500_000}), B1)
    found = decide(cost, B1)
    assert found is not None
    assert found.reason == "elementwise holds 500,000 of 524,288 bytes of L1, 95.4%; the bound is 80%"
    assert decide(cost, B1, Policy(occupancy=0.96)) is None


def test_force_overrides_what_does_not_pay_and_nothing_else() -> None:
    force = Policy(forced=True, keep_fp32=frozenset({"Relu"}))
    works = chain(2, 8)
    safe = fused_chain(8, api_calls={"vector": 10_000}, peak={"ub": B1.ub})
    assert decide(fusion_cost(works, safe, B1), B1, force) is None
    for code, kernel in {
        "ATF331": fused_chain(8, peak={"ub": B1.ub + 1}),
        "ATF333": fused_chain(8, keeps_float32=False),
        "ATF334": fused_chain(8, static_dims=("seq",)),
        "ATF335": fused_chain(8, handover="on_chip"),
    }.items():
        assert code_of(decide(fusion_cost(works, kernel, B1), B1, force)) == code


def test_products_that_read_weights_again_need_a_saving_at_the_low_end() -> None:
    works = norm_qkv(4096, 768, [768] * 3)
    bold = planned_norm(4096, 768, [768] * 3)
    assert fusion_cost(works, bold, B1).saved_us.low < 0
    assert decide(fusion_cost(works, bold, B1), B1) is None
    assert code_of(decide(fusion_cost(works, replace(bold, cautious=True), B1), B1)) == "ATF337"
    tiny = replace(planned_norm(8, 48, [48] * 3), cautious=True)
    assert decide(fusion_cost(norm_qkv(8, 48, [48] * 3), tiny, B1), B1) is None


def test_the_precision_policy_is_met_by_kernels_that_keep_float32() -> None:
    cost = fusion_cost(attention(1, 4, 8, 12), planned_attention(B1, 1, 4, 8, 12), B1)
    assert decide(cost, B1, Policy(keep_fp32=frozenset({"Softmax"}))) is None


# ---------------------------------------------------------------- code size


def test_calls_are_counted_where_they_stand() -> None:
    source = """
    // Add(a, b, c, n);
    Matmul<A, B, C> scores; /* Exp(x, y, n); */
    matmul::Matmul<A, B, C, Bias> values;
    DataCopyPad(dst, src, params);
    AscendC::WholeReduceMax<float>(d, s, 64, 8, 1, 1, 8);
    SetFlag<HardEvent::MTE2_V>(id);
    queue.Cast(x);
    Process();
    """
    assert api_calls(source) == {"cube": 2, "vector": 3}


def test_cores_apart_load_their_own_code() -> None:
    calls = {"cube": 2, "vector": 10}
    assert code_bytes(calls, B1) == {"cube core": 2 * 8192, "vector core": 10 * 128}
    assert code_bytes(calls, P3) == {"core": 2 * 8192 + 10 * 128}
