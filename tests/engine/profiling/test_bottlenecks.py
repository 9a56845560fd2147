"""Which operators hold a CPU server back, and by how much."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from optimizer.engine.profiling import Roofline, load_trace, rank_bottlenecks
from optimizer.engine.profiling.bottlenecks import HOST, amdahl_gain_pct
from optimizer.engine.tasks import builtin_tasks

sys.path.insert(0, str(Path(__file__).parent))
from traces import SHARED, op, tensors, write

ROOF = Roofline(read_bw_gbps=20.0, peak_gflops={"bfloat16": 1000.0}, threads=1)


def linear(ts: float, dur: float, m: int = 1, *, bias: bool = False) -> dict[str, Any]:
    return op("_C::onednn_mm", ts, dur, **tensors([m, 2000], [m, 1000], [2000] if bias else [], []))


def step(ts: float, dur: float, prefill: int, decode: int) -> dict[str, Any]:
    name = f"execute_context_{int(prefill > 0)}({prefill})_generation_{decode}({decode})"
    return op(name, ts, dur, cat="user_annotation")


def test_a_linear_layer_against_the_roofline(tmp_path: Path) -> None:
    events = [
        step(0, 1000, 8, 0), linear(100, 500, 8),
        step(1000, 1000, 0, 1), linear(1100, 400), linear(1600, 400),
        step(2000, 1000, 0, 1), linear(2100, 400),
        step(3000, 10, 0, 0),
    ]  # fmt: skip
    trace = load_trace(write(tmp_path / "t.json", events))
    first = rank_bottlenecks(trace, tasks=builtin_tasks(), roofline=ROOF)[0]
    assert (first.op, first.task, first.no_swap_reason) == ("_C::onednn_mm", "linear_bf16_cpu", None)
    assert (first.calls, first.total_us, first.share) == (4, 1700.0, 1700 / 3000)
    assert first.by_phase == {"prefill": 500.0, "decode": 1200.0}
    # 2 (m k + n k + m n) bytes at 20 GB/s, us: the weights' 4 MB weigh most.
    floor1, floor8 = 2 * (1000 + 2e6 + 2000) / 20e3, 2 * (8000 + 2e6 + 16000) / 20e3
    assert [(dict(s.axes), s.dtype, s.calls, s.total_us, s.mean_us, s.phase) for s in first.shapes] == [
        ({"M": 1, "N": 2000, "K": 1000}, "bfloat16", 3, 1200.0, 400.0, "decode"),
        ({"M": 8, "N": 2000, "K": 1000}, "bfloat16", 1, 500.0, 500.0, "prefill"),
    ]
    assert first.shapes[0].floor_us == pytest.approx(floor1, rel=1e-12)
    attainable = 1700 / (3 * floor1 + floor8)
    assert first.attainable == pytest.approx(attainable, rel=1e-12)
    saved = 1700 / 3000 * (1 - 1 / attainable)
    assert first.score == pytest.approx(saved, rel=1e-12)
    assert first.gain_ceiling_pct == pytest.approx(100 * (1 / (1 - saved) - 1), rel=1e-12)
    assert first.gbps == pytest.approx((3 * floor1 + floor8) * 20 / 1700, rel=1e-12)


def test_what_is_left_belongs_to_the_host(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path / "t.json", [step(0, 1000, 0, 1), linear(0, 400), step(1000, 1, 0, 0)]))
    lines = {b.op: b for b in rank_bottlenecks(trace, tasks=builtin_tasks(), roofline=ROOF)}
    assert lines[HOST].total_us == 600.0
    assert sum(b.share for b in lines.values()) == pytest.approx(1.0)


def test_calls_a_task_does_not_fit_are_a_line_of_their_own(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path / "t.json", [linear(0, 400), linear(400, 600, bias=True)]))
    fits, other = rank_bottlenecks(trace, tasks=builtin_tasks(), roofline=ROOF)
    assert (fits.task, fits.total_us) == ("linear_bf16_cpu", 400.0)
    assert (other.task, other.total_us) == (None, 600.0)
    assert other.no_swap_reason is not None
    assert "bfloat16[1, 1000], bfloat16[2000]" in other.no_swap_reason


def norm(ts: float, *, fused: bool, m: int = 2, h: int = 64) -> list[dict[str, Any]]:
    full, row, f32 = [m, h], [m, 1], {"dtype": "float"}
    made = [op("aten::to", ts, 2, **tensors(full, [])), op("aten::_to_copy", ts + 0.5, 1, **tensors(full, []))]
    if fused:
        made += [op("aten::to", ts + 2, 2, **tensors(full, []))]
        made += [op("aten::add", ts + 4, 2, **tensors(full, full, **f32)), op("aten::to", ts + 6, 2, **tensors(full))]
    made += [
        op("aten::pow", ts + 10, 2, **tensors(full, **f32)),
        op("aten::mean", ts + 12, 8, **tensors(full, **f32)),
    ]
    made += [op("aten::sum", ts + 13, 3, **tensors(full, **f32)), op("aten::add", ts + 20, 2, **tensors(row, **f32))]
    made += [
        op("aten::rsqrt", ts + 22, 2, **tensors(row, **f32)),
        op("aten::mul", ts + 24, 2, **tensors(full, row, **f32)),
    ]
    return [
        *made,
        op("aten::to", ts + 28, 2, **tensors(full, **f32)),
        op("aten::mul", ts + 30, 10, **tensors(full, [h])),
    ]


@pytest.mark.parametrize(("fused", "name"), [(False, "rms_norm"), (True, "fused_add_rms_norm")])
def test_an_eager_norm_is_found_in_its_parts(tmp_path: Path, fused: bool, name: str) -> None:
    events = [e for i in range(3) for e in norm(100 * i, fused=fused)]
    trace = load_trace(write(tmp_path / "t.json", events))
    lines = rank_bottlenecks(trace, tasks=builtin_tasks(), roofline=ROOF)
    found = next(b for b in lines if b.op == f"vllm_ir::{name}")
    assert (found.task, found.calls, found.total_us) == (f"{name}_cpu", 3, 120.0)
    assert [dict(s.axes) for s in found.shapes] == [{"M": 2, "H": 64}]
    assert not [b for b in lines if b.op.startswith("aten::")]


def test_a_swap_point_that_is_never_called_is_no_target(tmp_path: Path) -> None:
    events = [op("aten::silu", 0, 10, **tensors([2, 8])), op("aten::mul", 12, 5, **tensors([2, 8], [2, 8]))]
    lines = rank_bottlenecks(load_trace(write(tmp_path / "t.json", events)), tasks=builtin_tasks(), roofline=ROOF)
    assert (lines[0].op, lines[0].task, lines[0].total_us) == ("_C::silu_and_mul", None, 17.0)
    assert "never called" in (lines[0].no_swap_reason or "")


def test_children_do_not_count_twice(tmp_path: Path) -> None:
    events = [op("vllm::outer", 0, 100), op("_C::inner", 10, 30), op("_C::inner", 50, 30), op("_C::leaf", 55, 5)]
    lines = rank_bottlenecks(load_trace(write(tmp_path / "t.json", events)), tasks={}, roofline=ROOF)
    assert {b.op: b.total_us for b in lines} == {"vllm::outer": 40.0, "_C::inner": 55.0, "_C::leaf": 5.0}


def test_amdahl() -> None:
    assert amdahl_gain_pct(0.5, 2.0) == pytest.approx(100 / 3)
    assert amdahl_gain_pct(0.3, 1.0) == 0.0


@pytest.mark.skipif(not SHARED.exists(), reason="no shared traces here")
@pytest.mark.parametrize(
    ("name", "linears", "linear_us", "norms"), [("eager", 825, 402965.0, 400), ("compiled", 825, 413548.0, None)]
)
def test_real_traces_of_vllm_on_a_cpu(name: str, linears: int, linear_us: float, norms: int | None) -> None:
    trace = load_trace(SHARED / "vllm_cpu" / f"{name}.pt.trace.json.gz")
    assert trace.warnings == ()
    assert trace.vendor == "cpu"
    lines = rank_bottlenecks(trace, tasks=builtin_tasks(), roofline=ROOF)
    assert (lines[0].op, lines[0].task, lines[0].calls) == ("_C::onednn_mm", "linear_bf16_cpu", linears)
    assert lines[0].total_us == pytest.approx(linear_us, abs=1.0)
    assert sum(b.share for b in lines) == pytest.approx(1.0, abs=1e-9)
    found = {b.op: b.calls for b in lines}
    assert found.get("vllm_ir::fused_add_rms_norm") == norms
