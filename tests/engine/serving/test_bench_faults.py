"""The benchmark client's child, with faults injected by a stand-in."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimizer.engine.serving import BenchCancelled, BenchClient, BenchFailed, Endpoint, ServingEnvironment, Workload

WORKLOAD = Workload(input_len=8, output_len=16, concurrency=2, num_requests=4, seed=7)
ENDPOINT = Endpoint(base_url="http://127.0.0.1:1", served_name="model", tokenizer="/models/llama")


@pytest.fixture
def client(fake: ServingEnvironment, tmp_path: Path) -> Iterator[BenchClient]:
    with BenchClient(fake, log=tmp_path / "client.log") as client:
        yield client


def set_mode(fake: ServingEnvironment, mode: str) -> None:
    (fake.python.parent / "mode").write_text(mode)


def starts(fake: ServingEnvironment) -> int:
    return len((fake.python.parent / "starts").read_text())


def test_runs_one_job_after_another_in_one_child(client: BenchClient, fake: ServingEnvironment) -> None:
    first = client.run(ENDPOINT, WORKLOAD)
    pid = client.pid
    second = client.run(ENDPOINT, WORKLOAD)
    assert first.output_tok_s == second.output_tok_s == 32.0
    assert client.pid == pid
    assert starts(fake) == 1
    argv = first.raw["argv"]
    for option, value in (
        ("--base-url", "http://127.0.0.1:1"),
        ("--model", "model"),
        ("--tokenizer", "/models/llama"),
        ("--dataset-name", "random"),
        ("--random-input-len", "8"),
        ("--random-output-len", "16"),
        ("--num-prompts", "4"),
        ("--max-concurrency", "2"),
        ("--seed", "7"),
        ("--temperature", "0"),
    ):
        assert argv[argv.index(option) + 1] == value
    assert "--ignore-eos" in argv


def test_a_crash_is_survived_once(client: BenchClient, fake: ServingEnvironment) -> None:
    set_mode(fake, "crash once")
    assert client.run(ENDPOINT, WORKLOAD).completed == 4
    assert starts(fake) == 2


def test_a_second_crash_is_told_with_its_last_words(client: BenchClient, fake: ServingEnvironment) -> None:
    set_mode(fake, "crash")
    with pytest.raises(BenchFailed, match="crashed twice: Segmentation fault"):
        client.run(ENDPOINT, WORKLOAD)
    set_mode(fake, "ok")
    assert client.run(ENDPOINT, WORKLOAD).completed == 4


def test_a_hang_meets_its_deadline_and_the_next_run_is_sound(client: BenchClient, fake: ServingEnvironment) -> None:
    client.run(ENDPOINT, WORKLOAD)
    set_mode(fake, "hang")
    with pytest.raises(BenchFailed, match=r"no result from the benchmark .* within 1 s"):
        client.run(ENDPOINT, WORKLOAD, timeout_s=1)
    assert client.pid is None
    set_mode(fake, "ok")
    assert client.run(ENDPOINT, WORKLOAD).completed == 4


def test_a_cancel_ends_the_run(client: BenchClient, fake: ServingEnvironment) -> None:
    set_mode(fake, "hang")
    with pytest.raises(BenchCancelled):
        client.run(ENDPOINT, WORKLOAD, cancelled=lambda: True)
    assert client.pid is None


def test_an_error_of_the_client_is_passed_on(client: BenchClient, fake: ServingEnvironment) -> None:
    set_mode(fake, "error")
    with pytest.raises(BenchFailed, match=r"127\.0\.0\.1:1 failed: ValueError: no such server"):
        client.run(ENDPOINT, WORKLOAD)


def test_a_child_killed_while_idle_is_replaced(client: BenchClient, fake: ServingEnvironment) -> None:
    client.run(ENDPOINT, WORKLOAD)
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    assert client.run(ENDPOINT, WORKLOAD).completed == 4
    assert starts(fake) == 2


def test_close_leaves_no_process(fake: ServingEnvironment, tmp_path: Path) -> None:
    client = BenchClient(fake, log=tmp_path / "client.log")
    pid = client.pid
    assert pid is not None
    client.close()
    client.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_no_interpreter(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match="does not start"):
        BenchClient(ServingEnvironment(python=tmp_path / "bin" / "python"), log=tmp_path / "log")
