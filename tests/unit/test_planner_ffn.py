"""Feed-forward networks on a chip: what a launch does, what is refused, what a fusion is judged by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atcfuse.cost.memory import moved_by_kernel
from atcfuse.cost.stages import fused_stage
from atcfuse.device import load_device
from atcfuse.match.values import Refusal
from atcfuse.planner import KernelWork, plan_ffn, plan_norm
from atcfuse.planner.work import platform
from atcfuse.tiling import layer_norm_qkv
from atcfuse.tiling.ffn import plan, predict
from atcfuse.tiling.ffn_problem import Norm, Problem

B1, P3, OLD = (load_device(name) for name in ("Ascend910B1", "Ascend310P3", "Ascend910A"))
BERT = Problem(4096, 768, 3072, 768, "gelu_erf", biases=(True, False, True), norm=Norm(added=True))
LLAMA = Problem(2048, 4096, 11008, 4096, "silu", "separate", residual=True, norm=Norm(beta_bytes=0))


def planned(problem: Problem) -> KernelWork:
    work = plan_ffn(problem, B1)
    assert isinstance(work, KernelWork)
    return work


@pytest.mark.parametrize("problem", [BERT, LLAMA, replace(BERT, norm=None, residual=True)])
def test_work_is_what_the_kernel_moves_and_holds(problem: Problem) -> None:
    work, predicted = planned(problem), predict(plan(problem, platform(B1, B1.occupancy)))
    assert work.kernel == ("layer_norm_ffn" if problem.norm else "ffn")
    assert sum(work.reads.values()) == predicted.tensor_bytes_read
    assert sum(work.writes.values()) == predicted.tensor_bytes_written
    assert work.workspace_read == predicted.workspace_bytes_read
    assert work.peak["ub"] <= B1.occupancy * B1.ub
    assert work.peak["l1"] <= B1.occupancy * B1.l1
    assert work.cube_flops == 2 * problem.rows * problem.weights
    assert work.cautious


def test_every_block_of_rows_reads_the_weights() -> None:
    weights = BERT.weights * BERT.element_bytes
    work = planned(BERT)
    assert work.resident["inputs"] == weights
    assert sum(work.reads.values()) >= work.tasks * weights


def test_few_rows_leave_cores_idle_and_it_is_said() -> None:
    one = planned(replace(LLAMA, rows=1))
    assert one.tasks == one.blocks == one.vector_blocks == 1
    assert one.remarks == ("1 row in 1 block for 24 cube cores: the others stay idle",)
    assert planned(replace(BERT, rows=100_000)).remarks == ()


def test_activations_cost_what_they_take() -> None:
    cheap, dear = (planned(replace(BERT, activation=kind)) for kind in ("relu", "gelu_erf"))
    assert dear.vector_elements - cheap.vector_elements == 26 * BERT.rows * BERT.inner


@pytest.mark.parametrize(
    ("problem", "device", "code"),
    [
        (BERT, "Ascend310P3", "ATF336"),
        (BERT, "Ascend910A", "ATF336"),
        (replace(BERT, hidden=65_520), "Ascend910B1", "ATF338"),
        (replace(BERT, inner=65_536), "Ascend910B1", "ATF338"),
        (replace(LLAMA, inner=40_000, gating="gate_up"), "Ascend910B1", "ATF338"),
        (replace(BERT, columns=0), "Ascend910B1", "ATF338"),
    ],
)
def test_refusals(problem: Problem, device: str, code: str) -> None:
    refused = plan_ffn(problem, load_device(device))
    assert isinstance(refused, Refusal)
    assert refused.code == code


def test_an_empty_input_is_a_launch() -> None:
    norm = plan_norm(layer_norm_qkv.Problem(0, 64, (layer_norm_qkv.Projection(64),)), B1)
    for work in (planned(replace(BERT, rows=0)), norm):
        assert isinstance(work, KernelWork)
        stage = fused_stage(work, moved_by_kernel(work, B1.l2), B1, 0.5)
        assert stage.cube_us == 0
        assert not work.remarks
