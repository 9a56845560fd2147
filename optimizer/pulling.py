"""Pulling from this installation's own registry, over HTTP, as any inference server does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optimizer.context import StepContext, TryAgain
from optimizer.steps.arms import Group
from rackforge_runtime import signing
from rackforge_runtime.cache import BlobStore
from rackforge_runtime.facts import collect_facts
from rackforge_runtime.locks import now_utc
from rackforge_runtime.pull import Request, pull
from registry import facade as registry


@dataclass(frozen=True, slots=True)
class Pulled:
    """A lock folder on this host, and what a server's environment needs to trust it."""

    lock: Path
    lock_digest: str
    fetched: int
    environment: dict[str, str]


def pull_channel(context: StepContext, group: Group) -> Pulled:
    """Resolve the campaign's channel for this host and fetch what it answers. Raises TryAgain."""
    config = context.platform
    keys = context.work / "registry-keys"
    key = registry.signing_key()
    signing.save_public_key(key.public, keys)
    token_file = config.home / "admin_token"
    request = Request(
        url=config.url,
        channel=context.config.channel,
        token=token_file.read_text().strip() if token_file.exists() else None,
        timeout_s=30,
        facts=collect_facts(config.serving_python),
        extra={"compile": not group.config.enforce_eager, "dtype": "bfloat16", "model": context.model.name},
    )
    try:
        pulled = pull(request, BlobStore(context.work / "cache"), (key.public,), now=now_utc())
    except (OSError, RuntimeError, ValueError) as error:
        raise TryAgain(f"the registry could not be pulled from: {error}") from error
    return Pulled(
        lock=pulled.folder / "lock.json",
        lock_digest=pulled.lock.digest,
        fetched=pulled.fetched,
        environment={"RACKFORGE_KEYS": str(keys)},
    )
