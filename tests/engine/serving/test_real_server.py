"""Real vLLM with a tiny model: one server for all of these."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.engine.serving import (
    TINY,
    BenchClient,
    BenchFailed,
    Endpoint,
    LocalServer,
    Probe,
    ServerDied,
    ServerSpec,
    ServingEnvironment,
    StartFailed,
    Workload,
    capture_profile,
    compare_readings,
    make_reference_model,
    take_readings,
)
from optimizer.engine.serving.processes import marked

pytestmark = pytest.mark.serving

WORKLOAD = Workload(input_len=32, output_len=16, concurrency=2, num_requests=5, seed=3)


@pytest.fixture(scope="module")
def model(serving_environment: ServingEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_reference_model(tmp_path_factory.mktemp("models") / "tiny", TINY, environment=serving_environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def client(serving_environment: ServingEnvironment, folder: Path) -> Iterator[BenchClient]:
    with BenchClient(serving_environment, log=folder / "client.log") as client:
        yield client


@pytest.fixture(scope="module")
def server(
    serving_environment: ServingEnvironment, model: Path, folder: Path, client: BenchClient
) -> Iterator[LocalServer]:
    spec = ServerSpec(
        model=str(model), enforce_eager=True, max_model_len=512, profiler_dir=str(folder / "traces"), max_num_seqs=16
    )
    with LocalServer.start(spec, environment=serving_environment, state_dir=folder / "a", deadline_s=240) as server:
        yield server


def test_the_model_is_made_once_and_whole(
    model: Path, serving_environment: ServingEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((model / "config.json").read_text())
    assert (config["hidden_size"], config["vocab_size"], config["num_key_value_heads"]) == (256, 1024, 1)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    assert len(tokenizer["model"]["vocab"]) == 1024
    assert sorted(p.name for p in model.parent.iterdir()) == ["tiny"]  # no scratch is left
    nowhere = replace(serving_environment, python=Path("/nowhere/bin/python"))
    assert make_reference_model(model, TINY, environment=nowhere) == model  # nothing had to be run


def test_a_benchmark_counts_what_the_server_counts(server: LocalServer, client: BenchClient) -> None:
    WORKLOAD.check_fits(server.max_model_len())
    before = server.metrics()
    result = client.run(server.endpoint, WORKLOAD)
    after = server.metrics()
    assert (result.completed, result.failed) == (5, 0)
    assert result.raw["total_output_tokens"] == 80
    assert after.generation_tokens - before.generation_tokens == 80
    assert after.prompt_tokens - before.prompt_tokens == sum(result.raw["input_lens"])
    assert after.ttft.count - before.ttft.count == 5
    assert result.output_tok_s == pytest.approx(80 / result.duration_s, rel=1e-6)
    assert result.ttft.median > 0
    assert after.running == after.waiting == 0


def test_the_seed_fixes_the_prompts_and_their_answers(server: LocalServer, client: BenchClient) -> None:
    one = replace(WORKLOAD, concurrency=1, num_requests=2)
    first, again = client.run(server.endpoint, one), client.run(server.endpoint, one)
    other = client.run(server.endpoint, replace(one, seed=4))
    assert first.raw["generated_texts"] == again.raw["generated_texts"]
    assert first.raw["generated_texts"] != other.raw["generated_texts"]


def test_repeated_prompts_are_computed_anew(server: LocalServer, client: BenchClient) -> None:
    client.run(server.endpoint, WORKLOAD)
    client.run(server.endpoint, WORKLOAD)
    hits = [
        float(line.split()[-1])
        for line in server.request("GET", "/metrics").text.splitlines()
        if line.startswith("vllm:prefix_cache_hits_total")
    ]
    assert sum(hits) == 0


def test_a_server_is_at_no_distance_from_itself_and_not_flat(server: LocalServer) -> None:
    probe = Probe.for_model(server.spec.model, prompts=2, prompt_len=16, steps=8, concurrency=1)
    one, other = take_readings(server, probe), take_readings(server, probe)
    found = compare_readings(one, other)
    assert found.forced.tokens == 2 * 15
    assert found.decoded.tokens == 2 * 8
    assert found.forced.max_abs == 0.0
    assert found.greedy_rate == found.top1_rate == 1.0
    assert not found.flat
    assert found.spread > 1  # weights of a trained model's scale: a wrong kernel would show


def test_a_profile_holds_the_linear_layers(server: LocalServer, client: BenchClient) -> None:
    captured = capture_profile(server, client, WORKLOAD)
    assert captured.result.completed == 5
    with gzip.open(captured.trace) as f:
        events = json.load(f)["traceEvents"]
    # vLLM gives small matrices, as this model's, to one kernel and large ones to the other.
    linear = [e for e in events if e.get("name") in ("_C::weight_packed_linear", "_C::onednn_mm")]
    steps = {int(e["args"]["Input Dims"][0][0]) for e in linear}
    assert {1, 2} <= steps  # decoding one request and two side by side, with their shapes
    again = capture_profile(server, client, replace(WORKLOAD, num_requests=2))
    assert again.trace != captured.trace


def test_the_next_worker_adopts_it(server: LocalServer) -> None:
    adopted = LocalServer.attach(server.spec, state_dir=server.state_dir)
    assert adopted is not None
    assert adopted.record == server.record
    assert adopted.metrics().running == 0
    adopted.http.close()


# -- faults -----------------------------------------------------------------------------------------------


def test_a_context_longer_than_the_model_is_explained(
    serving_environment: ServingEnvironment, model: Path, folder: Path
) -> None:
    spec = ServerSpec(model=str(model), max_model_len=99_999)
    with pytest.raises(StartFailed, match="max_model_len 99999 is more than the 1024 positions") as failed:
        LocalServer.start(spec, environment=serving_environment, state_dir=folder / "b")
    assert failed.value.kind == "context_too_long"


class Answering500(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_error(500, "engine on fire")

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


def test_requests_answered_500_fail_the_benchmark(model: Path, client: BenchClient) -> None:
    sick = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering500)
    thread = threading.Thread(target=sick.serve_forever)
    thread.start()
    try:
        endpoint = Endpoint(
            base_url=f"http://127.0.0.1:{sick.server_port}", served_name="model", tokenizer=str(model)
        )
        with pytest.raises(BenchFailed, match="5 of 5 requests failed; the first: engine on fire"):
            client.run(endpoint, WORKLOAD)
    finally:
        sick.shutdown()
        thread.join()
        sick.server_close()


def test_a_server_that_never_answers_meets_the_deadline(
    model: Path, serving_environment: ServingEnvironment, client: BenchClient
) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        endpoint = Endpoint(
            base_url=f"http://127.0.0.1:{deaf.getsockname()[1]}", served_name="model", tokenizer=str(model)
        )
        with pytest.raises(BenchFailed, match="does the server hang"):
            client.run(endpoint, WORKLOAD, timeout_s=3)


def test_death_of_the_engine_is_noticed_and_nothing_is_left(server: LocalServer) -> None:
    """Runs last: it takes the server with it."""
    shared = [Path("/dev/shm") / name for name in server.record.shared_memory]
    assert shared
    children = [pid for pid in server.pids if pid != server.record.pid]
    assert children
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while server.alive:
        assert time.monotonic() < deadline, "the API server outlives its engine"
        time.sleep(0.1)
    with pytest.raises(ServerDied):
        server.check()
    server.stop()
    assert marked(server.record.id) == []
    assert [path for path in shared if path.exists()] == []
