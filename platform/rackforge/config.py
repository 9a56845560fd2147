"""Where things are and how they are reached, read from the environment once; no Django here.

Every variable has a default that works on a laptop. The embedded PostgreSQL and Valkey are used unless
DATABASE_URL and BROKER_URL name servers.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class ConfigError(RuntimeError):
    """The environment says something that cannot be; the text names the variable."""


@dataclass(frozen=True, slots=True)
class Config:
    """Paths and addresses of one installation."""

    home: Path  # data of this installation: database, blobs, logs, servers, keys
    serving_python: Path  # interpreter of the serving environment (vLLM and torch)
    host: str
    port: int
    database_url: str
    broker_url: str
    debug: bool
    allowed_hosts: tuple[str, ...]

    @property
    def embedded_database(self) -> bool:
        return not os.environ.get("DATABASE_URL")

    @property
    def embedded_broker(self) -> bool:
        return not os.environ.get("BROKER_URL")

    @property
    def blobs(self) -> Path:
        return self.home / "blobs"

    @property
    def servers(self) -> Path:
        return self.home / "servers"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    @property
    def keys(self) -> Path:
        return self.home / "keys"

    @property
    def models(self) -> Path:
        return self.home / "models"

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104 - compared, not bound
        return f"http://{host}:{self.port}"


def _port(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise ConfigError(f"{name}={text!r} is not a port number (1 to 65535)")
    return int(text)


def load() -> Config:
    """The configuration of this process, from its environment. Raises ConfigError."""
    home = Path(os.environ.get("RACKFORGE_HOME", ROOT / "var")).resolve()
    serving = Path(os.environ.get("RACKFORGE_SERVING_PYTHON", ROOT / ".venv-serving" / "bin" / "python"))
    return Config(
        home=home,
        serving_python=serving,
        host=os.environ.get("RACKFORGE_HOST", "127.0.0.1"),
        port=_port("RACKFORGE_PORT", 8787),
        # The embedded PostgreSQL listens on a socket in its own data folder only.
        database_url=os.environ.get("DATABASE_URL") or f"postgresql://postgres@/postgres?host={home / 'postgres'}",
        broker_url=os.environ.get("BROKER_URL") or f"redis+socket://{home / 'valkey' / 'valkey.sock'}",
        debug=os.environ.get("RACKFORGE_DEBUG", "") == "1",
        allowed_hosts=tuple(
            filter(None, os.environ.get("RACKFORGE_ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]").split(","))
        ),
    )


def secret_key(config: Config) -> str:
    """Django's secret: RACKFORGE_SECRET_KEY, else made once and kept, readable by the owner only."""
    given = os.environ.get("RACKFORGE_SECRET_KEY")
    if given:
        return given
    path = config.home / "secret_key"
    if not path.exists():
        config.home.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".secret_key.{os.getpid()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as f:
            f.write(secrets.token_urlsafe(48))
        try:
            os.link(temporary, path)  # fails if another process was quicker: theirs counts then
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    return path.read_text().strip()
