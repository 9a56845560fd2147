from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.engine.serving import ServerSpec, ServingEnvironment, build_command, launch_configurations
from rackforge_runtime.facts import Gpu, HostFacts, LogicalCpu

ENVIRONMENT = ServingEnvironment(python=Path("/venv/bin/python"), cache_root=Path("/cache"))
SPEC = ServerSpec(model="/models/llama", max_model_len=2048, preload=())


def facts(cpus: tuple[LogicalCpu, ...], gpus: tuple[Gpu, ...] = ()) -> HostFacts:
    return HostFacts(
        hostname="h", os="o", kernel="k", machine="x86_64", cpu_model="m", cpu_flags=frozenset(), cpus=cpus,
        cpu_quota=None, memory_bytes=0, caches=(), gpus=gpus,
    )  # fmt: skip


def test_the_command_of_a_stock_server() -> None:
    command = build_command(SPEC, ENVIRONMENT, port=1234)
    assert command.argv == (
        "/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server",
        "--model", "/models/llama", "--served-model-name", "model", "--host", "127.0.0.1", "--port", "1234",
        "--load-format", "auto", "--dtype", "bfloat16", "--seed", "0", "--no-enable-prefix-caching",
        "--disable-uvicorn-access-log", "--max-model-len", "2048",
    )  # fmt: skip
    assert command.env["VLLM_CPU_OMP_THREADS_BIND"] == "auto"
    assert command.env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert command.env["HF_HUB_OFFLINE"] == "1"
    assert command.env["RACKFORGE_DISABLE"] == "1"
    assert command.env["VLLM_CACHE_ROOT"] == "/cache/stock"
    assert "LD_PRELOAD" not in command.env


def test_options_reach_the_command() -> None:
    spec = replace(
        SPEC,
        enforce_eager=True,
        prefix_caching=True,
        max_num_seqs=8,
        profiler_dir="/traces",
        preload=("/lib/a.so", "/lib/b.so"),
        args=("--block-size", "64"),
        env={"VLLM_CPU_KVCACHE_SPACE": "4"},
    )
    command = build_command(spec, ENVIRONMENT, port=1)
    assert "--enforce-eager" in command.argv
    assert "--enable-prefix-caching" in command.argv
    assert command.argv[command.argv.index("--max-num-seqs") + 1] == "8"
    assert command.argv[-2:] == ("--block-size", "64")
    profiler = json.loads(command.argv[command.argv.index("--profiler-config") + 1])
    assert profiler["torch_profiler_dir"] == "/traces"
    assert profiler["torch_profiler_record_shapes"] is True
    assert command.env["LD_PRELOAD"] == "/lib/a.so:/lib/b.so"
    assert command.env["VLLM_CPU_KVCACHE_SPACE"] == "4"


def test_a_lock_starts_through_the_launcher_with_a_cache_of_its_own(tmp_path: Path) -> None:
    lock = tmp_path / "kernels.lock"
    lock.write_text("one")
    command = build_command(replace(SPEC, lock=str(lock)), ENVIRONMENT, port=1)
    assert command.argv[:7] == (
        "/venv/bin/python", "-m", "rackforge_runtime", "serve", "--lock", str(lock), "--",
    )  # fmt: skip
    assert command.argv[7:10] == ("/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server")
    assert "RACKFORGE_DISABLE" not in command.env
    first = command.env["VLLM_CACHE_ROOT"]
    assert first not in ("/cache/stock", "/cache/")
    lock.write_text("two")
    assert build_command(replace(SPEC, lock=str(lock)), ENVIRONMENT, port=1).env["VLLM_CACHE_ROOT"] != first


def test_secrets_of_the_platform_do_not_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "SECRET_KEY", "RACKFORGE_SECRET_KEY", "HTTP_PROXY", "PYTHONPATH", "LD_PRELOAD"):
        monkeypatch.setenv(name, "leak")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    env = build_command(SPEC, ENVIRONMENT, port=1).env
    assert "leak" not in env.values()
    assert env["LC_ALL"] == "C.UTF-8"
    assert env["PATH"].startswith("/venv/bin:")


def test_the_digest_says_what_runs(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("one")
    specs = [
        SPEC,
        replace(SPEC, seed=1),
        replace(SPEC, enforce_eager=True),
        replace(SPEC, threads_bind="0-1"),
        replace(SPEC, env={"A": "1"}),
        replace(SPEC, preload=None),
        replace(SPEC, lock=str(lock)),
    ]
    digests = [s.digest for s in specs]
    assert len(set(digests)) == len(specs)
    lock.write_text("two")
    assert specs[-1].digest != digests[-1]
    assert ServerSpec(model="/models/llama", max_model_len=2048, preload=()).digest == digests[0]


def test_preloads_are_those_the_host_has(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    environment = ServingEnvironment(python=tmp_path / "bin" / "python")
    assert not any("libiomp5" in p and str(tmp_path) in p for p in environment.preloads())
    (tmp_path / "lib" / "libiomp5.so").touch()
    assert environment.preloads()[-1] == str(tmp_path / "lib" / "libiomp5.so")


def test_launch_configurations_of_two_cores() -> None:
    found = launch_configurations(facts((LogicalCpu(0, 0, 0, 0), LogicalCpu(1, 1, 0, 0))))
    assert [(c.name, c.enforce_eager, c.threads_bind) for c in found] == [
        ("compiled/auto", False, "auto"),
        ("compiled/all-cores", False, "0,1"),
        ("eager/auto", True, "auto"),
        ("eager/all-cores", True, "0,1"),
    ]
    applied = found[3].apply(SPEC)
    assert applied == replace(SPEC, enforce_eager=True, threads_bind="0,1")


def test_launch_configurations_count_cores_not_threads_and_stay_on_one_node() -> None:
    # Two nodes of two cores, two threads on each.
    cpus = tuple(LogicalCpu(i, i % 4, 0, (i % 4) // 2) for i in range(8))
    assert launch_configurations(facts(cpus))[1].threads_bind == "0,1"


def test_launch_configurations_where_there_is_no_choice() -> None:
    one = (LogicalCpu(0, 0, 0, 0),)
    assert [c.name for c in launch_configurations(facts(one))] == ["compiled/auto", "eager/auto"]
    two = (*one, LogicalCpu(1, 1, 0, 0))
    gpu = Gpu("amd", "MI355X", "gfx950", 288 << 30)
    assert [c.name for c in launch_configurations(facts(two, (gpu,)))] == ["compiled/auto", "eager/auto"]
