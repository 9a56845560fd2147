"""The life of a server, with faults injected by a stand-in; real vLLM is in test_real_server.py."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from optimizer.engine.serving import (
    LocalServer,
    ServerAnswered,
    ServerDied,
    ServerRecord,
    ServerSpec,
    ServingEnvironment,
    StartCancelled,
    StartFailed,
    reap,
)
from optimizer.engine.serving import server as server_module
from optimizer.engine.serving.processes import all_marked, start_ticks

SPEC = ServerSpec(model="some/model")


def with_mode(mode: str) -> ServerSpec:
    return ServerSpec(model="some/model", env={"FAKE": mode})


def start(fake: ServingEnvironment, folder: Path, spec: ServerSpec = SPEC, **options: object) -> LocalServer:
    return LocalServer.start(spec, environment=fake, state_dir=folder, **options)  # type: ignore[arg-type]


def running_under(folder: Path) -> list[int]:
    return [pid for pid, mark in all_marked().items() if mark.state.is_relative_to(folder)]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def test_starts_tells_progress_and_stops(fake: ServingEnvironment, tmp_path: Path) -> None:
    told: list[str] = []
    server = start(fake, tmp_path / "s", progress=lambda stage, _seconds: told.append(stage))
    assert server.alive
    assert server.healthy()
    assert server.max_model_len() == 512
    assert told[0] == "importing vLLM"
    record = ServerRecord.read(tmp_path / "s" / "server.json")
    assert record == server.record
    assert record is not None
    assert record.pid in server.pids
    assert record.start_ticks == start_ticks(record.pid or 0)
    assert record.spec_digest == SPEC.digest
    server.stop()
    server.stop()
    assert running_under(tmp_path) == []
    assert not (tmp_path / "s" / "server.json").exists()
    assert "Application startup complete" in server.log.read_text()
    assert not Path(server.record.scratch).exists()


def test_a_second_start_in_the_same_folder_is_refused(fake: ServingEnvironment, tmp_path: Path) -> None:
    with start(fake, tmp_path / "s") as server:
        with pytest.raises(StartFailed, match="already runs"):
            start(fake, tmp_path / "s")
        assert server.healthy()


def test_stop_ends_a_child_that_left_the_group_and_ignores_sigterm(fake: ServingEnvironment, tmp_path: Path) -> None:
    server = start(fake, tmp_path / "s", with_mode("stubborn"))
    wait_for(lambda: len(server.pids) == 2)
    server.stop(grace_s=0.2)
    assert running_under(tmp_path) == []


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("memory", "out_of_memory", "out of memory"),
        ("killed", "out_of_memory", "killed by signal 9"),
    ],
)
def test_a_death_while_starting_shows_its_cause(
    fake: ServingEnvironment, tmp_path: Path, mode: str, kind: str, words: str
) -> None:
    with pytest.raises(StartFailed) as failed:
        start(fake, tmp_path / "s", with_mode(mode))
    assert failed.value.kind == kind
    assert words in failed.value.cause
    assert running_under(tmp_path) == []


def test_a_silent_server_meets_its_deadline(fake: ServingEnvironment, tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="not ready after 1 s") as failed:
        start(fake, tmp_path / "s", with_mode("silent"), deadline_s=1)
    assert failed.value.kind == "deadline"
    assert running_under(tmp_path) == []


def test_a_cancelled_start_leaves_nothing(fake: ServingEnvironment, tmp_path: Path) -> None:
    with pytest.raises(StartCancelled):
        start(fake, tmp_path / "s", with_mode("silent"), cancelled=lambda: bool(running_under(tmp_path)))
    assert running_under(tmp_path) == []
    assert not (tmp_path / "s" / "server.json").exists()


def test_an_unknown_model_path_fails_before_anything_runs(fake: ServingEnvironment, tmp_path: Path) -> None:
    spec = ServerSpec(model=str(tmp_path / "nowhere"))
    with pytest.raises(StartFailed, match=r"give the path of a folder with a config\.json") as failed:
        start(fake, tmp_path / "s", spec)
    assert failed.value.kind == "model_missing"
    assert not (tmp_path / "s").exists()


def test_no_serving_environment(tmp_path: Path) -> None:
    nowhere = ServingEnvironment(python=tmp_path / "bin" / "python")
    with pytest.raises(StartFailed, match="make run") as failed:
        start(nowhere, tmp_path / "s")
    assert failed.value.kind == "environment"


def test_a_port_in_use_is_named(fake: ServingEnvironment, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartFailed, match=f"port {port} .* is in use") as failed:
            start(fake, tmp_path / "s", port=port)
    assert failed.value.kind == "port_in_use"


def test_a_port_lost_between_choosing_and_binding_is_chosen_anew(
    fake: ServingEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        stolen = taken.getsockname()[1]
        choose = server_module._free_port
        ports = iter([stolen])
        monkeypatch.setattr(server_module, "_free_port", lambda: next(ports, None) or choose())
        with start(fake, tmp_path / "s") as server:
            assert server.port != stolen
            assert server.healthy()


def test_a_stranger_on_the_port_is_not_taken_for_ours(
    fake: ServingEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(fake, tmp_path / "other") as other:
        # Our own server never listens, and the health check is answered by somebody else.
        monkeypatch.setattr(server_module, "_free_port", lambda: other.port)
        with pytest.raises(StartFailed, match="not ready"):
            start(fake, tmp_path / "s", with_mode("silent"), deadline_s=1)


def test_a_full_disk(fake: ServingEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_options: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    monkeypatch.setattr(server_module.tempfile, "mkdtemp", full)
    with pytest.raises(StartFailed, match="no space left") as failed:
        start(fake, tmp_path / "s")
    assert failed.value.kind == "no_space"


def test_an_error_status_names_request_and_text(fake: ServingEnvironment, tmp_path: Path) -> None:
    with start(fake, tmp_path / "s", with_mode("sick")) as server:
        with pytest.raises(ServerAnswered, match="HTTP 500: the engine is on fire") as answered:
            server.request("POST", "/start_profile")
        assert answered.value.status == 500


def test_a_server_that_dies_later_is_noticed(fake: ServingEnvironment, tmp_path: Path) -> None:
    with start(fake, tmp_path / "s") as server:
        assert server.record.pid is not None
        os.kill(server.record.pid, signal.SIGKILL)
        wait_for(lambda: not server.alive)
        with pytest.raises(ServerDied):
            server.request("GET", "/v1/models")


# -- the worker is killed ---------------------------------------------------------------------------------

WORKER = """
import sys
from pathlib import Path
from optimizer.engine.serving import LocalServer, ServerSpec, ServingEnvironment
python, folder, mode = sys.argv[1:]
LocalServer.start(ServerSpec(model="some/model", env={"FAKE": mode} if mode else {}),
    environment=ServingEnvironment(python=Path(python)), state_dir=Path(folder), owner="campaign-1")
print("up", flush=True)
sys.stdin.read()
"""


def killed_worker(fake: ServingEnvironment, folder: Path, *, mode: str = "", when: Callable[[], bool]) -> None:
    """A worker that starts a server and is killed by SIGKILL at a moment."""
    root = Path(__file__).parents[3]
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(fake.python), str(folder), mode],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'runtime'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with worker:
        assert worker.stdout is not None
        try:
            if mode:
                wait_for(when)
            else:
                assert worker.stdout.readline() == b"up\n"
        finally:
            worker.kill()


def test_a_killed_workers_server_is_adopted(fake: ServingEnvironment, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    killed_worker(fake, folder, when=lambda: True)
    adopted = LocalServer.attach(SPEC, state_dir=folder)
    assert adopted is not None
    assert adopted.record.owner == "campaign-1"
    again = LocalServer.ensure(SPEC, environment=fake, state_dir=folder)
    assert again.record.pid == adopted.record.pid
    again.http.close()
    adopted.stop()
    assert running_under(tmp_path) == []


def test_a_server_of_another_spec_is_replaced(fake: ServingEnvironment, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    killed_worker(fake, folder, when=lambda: True)
    other = ServerSpec(model="some/model", seed=1)
    assert LocalServer.attach(other, state_dir=folder) is None
    before = running_under(folder)
    with LocalServer.ensure(other, environment=fake, state_dir=folder) as server:
        assert server.record.spec_digest == other.digest
        assert not set(before) & set(running_under(folder))


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another"}, {"pid": 1}])
def test_a_reused_process_id_is_not_adopted(
    fake: ServingEnvironment, tmp_path: Path, change: dict[str, object]
) -> None:
    with start(fake, tmp_path / "s"):
        state = tmp_path / "s" / "server.json"
        state.write_text(json.dumps({**json.loads(state.read_text()), **change}))
        assert LocalServer.attach(SPEC, state_dir=tmp_path / "s") is None


def test_a_worker_killed_while_the_server_starts_leaves_it_known(fake: ServingEnvironment, tmp_path: Path) -> None:
    folder = tmp_path / "s"

    def recorded() -> bool:
        record = ServerRecord.read(folder / "server.json")
        return record is not None and record.pid is not None

    killed_worker(fake, folder, mode="silent", when=recorded)
    assert len(running_under(folder)) == 1
    assert len(reap(tmp_path, keep=lambda _: False)) == 1
    assert running_under(folder) == []


def test_reap_ends_what_nobody_wants_and_keeps_the_rest(fake: ServingEnvironment, tmp_path: Path) -> None:
    wanted = start(fake, tmp_path / "a", owner="running")
    unwanted = start(fake, tmp_path / "deep" / "b", owner="finished")
    lost = start(fake, tmp_path / "c", owner="running")
    (tmp_path / "c" / "server.json").unlink()  # its state is lost, its process is not
    elsewhere = start(fake, tmp_path.parent / f"{tmp_path.name}-elsewhere" / "d")
    try:
        ended = reap(tmp_path, keep=lambda record: record.owner == "running")
        assert ended == sorted([unwanted.record.id, lost.record.id])
        assert wanted.healthy()
        assert elsewhere.healthy()
        assert not unwanted.alive
        assert not lost.alive
    finally:
        for server in (wanted, unwanted, lost, elsewhere):
            server.stop()


def test_reap_ends_what_is_left_of_a_server_whose_leader_died(fake: ServingEnvironment, tmp_path: Path) -> None:
    server = start(fake, tmp_path / "s", with_mode("stubborn"), owner="running")
    wait_for(lambda: len(server.pids) == 2)
    assert server.record.pid is not None
    os.kill(server.record.pid, signal.SIGKILL)
    wait_for(lambda: not server.alive)
    assert len(running_under(tmp_path)) == 1
    assert reap(tmp_path, keep=lambda _: True) == [server.record.id]
    assert running_under(tmp_path) == []
    server.http.close()
