"""The registry's keys: the private one in a file of mode 600, the public ones in the database."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.utils import timezone

from rackforge_runtime import signing
from registry.models import PublicKey

PRIVATE = "registry.pem"


def private_path() -> Path:
    path: Path = settings.CONFIG.keys / PRIVATE
    return path


def signing_key() -> signing.SigningKey:
    """The key that signs now; made on first use. KeyFileError where its file can be read by others."""
    path = private_path()
    if not path.exists():
        signing.SigningKey.load_or_create(path)
    info = path.stat()
    return _load(path, info.st_mtime_ns, info.st_mode, info.st_ino)


@lru_cache(maxsize=4)
def _load(path: Path, _mtime: int, _mode: int, _inode: int) -> signing.SigningKey:
    key = signing.SigningKey.load(path)
    signing.save_public_key(key.public, path.parent / "public")
    return key


def public_folder() -> Path:
    """Folder of the public keys that hosts may pin."""
    signing_key()
    return private_path().parent / "public"


def trusted_keys() -> tuple[signing.PublicKey, ...]:
    """Keys whose signatures are taken: the registry's own and those added, without the retired."""
    own = signing_key().public
    rows = PublicKey.objects.filter(retired_at__isnull=True)
    found = {row.keyid: signing.PublicKey(row.keyid, row.public) for row in rows}
    retired = PublicKey.objects.filter(retired_at__isnull=False, keyid=own.keyid).exists()
    return tuple({own.keyid: own, **found}.values()) if not retired else tuple(found.values())


def rotate_private() -> signing.SigningKey:
    """Make a new private key; the old file is kept beside it, dated."""
    path = private_path()
    if path.exists():
        path.rename(path.with_name(f"{path.stem}-{timezone.now():%Y%m%dT%H%M%S%f}.pem"))
    return signing_key()
