"""Ed25519 signatures: DSSE envelopes over in-toto statements, made and checked offline.

A statement says which digest is vouched for (its subject) and as what (its predicate type), so that a
signature of a verdict can never pass as the signature of a lock. Hosts pin public keys; keys rotate by
keyid: a new public key is pinned beside the old one, signatures move over, then the old one is removed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

from rackforge_runtime.canonical import canonical_json, check_digest, digest_json

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
MANIFEST = "urn:rackforge:manifest:v1"
LOCK = "urn:rackforge:lock:v1"
SWITCH = "urn:rackforge:kill-switch:v1"
VERDICT = "urn:rackforge:verdict:v1"
SECRET_MODE_MASK = 0o077
MAX_ENVELOPE_BYTES = 16 << 20


class SignatureError(ValueError):
    """Something is not signed by a key we trust, or does not say what it should; the text says why."""


class KeyFileError(ValueError):
    """A key file that must not be used; the text says what to do."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key to pin. `keyid` is the SHA-256 of its canonical description, the TUF form."""

    keyid: str
    value: str  # 64 hex digits

    def to_json(self) -> dict[str, str]:
        return {"keyid": self.keyid, "keytype": "ed25519", "scheme": "ed25519", "public": self.value}

    @classmethod
    def from_json(cls, data: Any) -> PublicKey:
        """Raises KeyFileError for anything but an Ed25519 key whose keyid is its own."""
        try:
            if data["keytype"] != "ed25519" or data["scheme"] != "ed25519":
                raise KeyFileError(f"key type {data['keytype']!r}: only ed25519 is taken")
            key = cls(str(data["keyid"]), str(data["public"]))
            ok = len(bytes.fromhex(key.value)) == 32 and _keyid(key.value) == key.keyid
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, KeyFileError):
                raise
            raise KeyFileError(f"not a public key: {error!r}") from error
        if not ok:
            raise KeyFileError(f"keyid {key.keyid[:12]} does not belong to its key")
        return key


@dataclass(frozen=True, slots=True)
class Statement:
    """A verified statement: what it vouches for, as what, and who signed it."""

    subject_name: str
    subject_digest: str
    predicate_type: str
    predicate: Mapping[str, Any]
    keyids: tuple[str, ...]


class SigningKey:
    """A private key in memory. Its text never shows the secret."""

    __slots__ = ("_signer", "public")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        value = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
        self.public = PublicKey(_keyid(value), value)
        self._signer = CryptoSigner(private, _ss_key(self.public))

    def __repr__(self) -> str:
        return f"SigningKey(keyid={self.public.keyid[:12]})"

    @classmethod
    def generate(cls) -> SigningKey:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """Read a PEM (PKCS#8) file. KeyFileError when others may read it, or it holds no Ed25519 key."""
        try:
            # Opened first and asked afterwards: the file that is checked is the file that is read.
            with path.open("rb") as f:
                info = os.fstat(f.fileno())
                data = f.read(1 << 16)
        except OSError as error:
            raise KeyFileError(f"{path}: {error.strerror}") from error
        if stat.S_IMODE(info.st_mode) & SECRET_MODE_MASK:
            raise KeyFileError(f"{path}: others may read this private key; run `chmod 600 {path}`")
        if info.st_uid not in (os.geteuid(), 0):
            raise KeyFileError(f"{path}: belongs to another user")
        try:
            private = load_pem_private_key(data, None)
        except (ValueError, TypeError) as error:
            raise KeyFileError(f"{path}: not a PEM private key without a password") from error
        if not isinstance(private, Ed25519PrivateKey):
            raise KeyFileError(f"{path}: not an Ed25519 key")
        return cls(private)

    @classmethod
    def load_or_create(cls, path: Path) -> SigningKey:
        """The key of a file, made on first use; safe when several processes come at once."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            scratch = path.with_name(f".{path.name}.{os.getpid()}")
            cls.generate().save(scratch)
            try:
                os.link(scratch, path)  # fails where somebody was quicker: then theirs is the key
            except FileExistsError:
                pass
            finally:
                scratch.unlink()
        return cls.load(path)

    def save(self, path: Path) -> None:
        """Write the private key, mode 600; an existing file is never overwritten (FileExistsError)."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as f:
            f.write(self._signer.private_bytes)
            f.flush()
            os.fsync(f.fileno())

    def sign(
        self, *, subject_name: str, subject_digest: str, predicate_type: str, predicate: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A DSSE envelope (JSON value) of a statement about one digest. Same input, same bytes."""
        statement = {
            "_type": STATEMENT_TYPE,
            "subject": [
                {"name": subject_name, "digest": {"sha256": check_digest(subject_digest).removeprefix("sha256:")}}
            ],
            "predicateType": predicate_type,
            "predicate": dict(predicate),
        }
        envelope = Envelope(canonical_json(statement), PAYLOAD_TYPE, {})
        envelope.sign(self._signer)
        return envelope.to_dict()  # type: ignore[no-any-return]

    def sign_value(self, value: Mapping[str, Any], *, name: str, predicate_type: str) -> dict[str, Any]:
        """Envelope that carries a JSON value as its predicate; the subject is the value's own digest."""
        return self.sign(
            subject_name=name, subject_digest=digest_json(value), predicate_type=predicate_type, predicate=value
        )

    def add_signature(self, envelope: Mapping[str, Any]) -> dict[str, Any]:
        """The same statement with this key's signature beside those it has: how keys are rotated."""
        parsed = _parse(envelope)
        parsed.sign(self._signer)
        return parsed.to_dict()  # type: ignore[no-any-return]


def verify(
    envelope: Mapping[str, Any] | bytes,
    keys: Iterable[PublicKey],
    *,
    predicate_type: str,
    subject_digest: str | None = None,
    threshold: int = 1,
) -> Statement:
    """The statement of an envelope signed by at least `threshold` of the pinned keys.

    Raises SignatureError with the reason: not an envelope, no signature of a pinned key, a signature that
    does not match, another predicate type, another subject than `subject_digest`.
    """
    parsed = _parse(envelope)
    pinned = {k.keyid: k for k in keys}
    if not pinned:
        raise SignatureError("no public key is pinned: name a folder of keys (RACKFORGE_KEYS)")
    if parsed.payload_type != PAYLOAD_TYPE:
        raise SignatureError(f"payload type {parsed.payload_type!r} is not {PAYLOAD_TYPE}")
    named = sorted(parsed.signatures)
    if not named:
        raise SignatureError("not signed")
    if not any(k in pinned for k in named):
        raise SignatureError(f"signed by {', '.join(k[:12] for k in named)}: no pinned key among them")
    try:
        accepted = parsed.verify([_ss_key(k) for k in pinned.values()], threshold)
    except (VerificationError, ValueError) as error:
        raise SignatureError("the signature does not match the content") from error
    try:
        body = json.loads(parsed.payload)
        if body["_type"] != STATEMENT_TYPE:
            raise SignatureError(f"statement type {body['_type']!r} is not known")
        (subject,) = body["subject"]
        statement = Statement(
            str(subject["name"]),
            check_digest("sha256:" + subject["digest"]["sha256"]),
            str(body["predicateType"]),
            dict(body["predicate"]),
            tuple(sorted(accepted)),
        )
    except SignatureError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise SignatureError(f"the signed payload is not an in-toto statement about one subject: {error}") from error
    if statement.predicate_type != predicate_type:
        raise SignatureError(f"signed as {statement.predicate_type!r}, not as {predicate_type!r}")
    if subject_digest is not None and statement.subject_digest != subject_digest:
        raise SignatureError(f"signed for {statement.subject_digest}, not for {subject_digest}")
    return statement


def verify_value(envelope: Mapping[str, Any] | bytes, keys: Iterable[PublicKey], *, predicate_type: str) -> Statement:
    """As `verify`, for envelopes of `sign_value`: the predicate must be what the subject's digest says."""
    statement = verify(envelope, keys, predicate_type=predicate_type)
    if digest_json(statement.predicate) != statement.subject_digest:
        raise SignatureError("the signed content does not have the digest it was signed for")
    return statement


def load_public_keys(places: Sequence[Path]) -> tuple[PublicKey, ...]:
    """Pinned keys of files and folders (`*.pub.json`). KeyFileError for an unreadable or foreign one.

    A place that others may write to is refused: whoever writes there decides what is trusted.
    """
    found: dict[str, PublicKey] = {}
    for place in places:
        for path in sorted(place.glob("*.pub.json")) if place.is_dir() else [place]:
            for checked in (path, path.parent):
                _check_not_writable(checked)
            try:
                key = PublicKey.from_json(json.loads(path.read_bytes()))
            except (OSError, ValueError) as error:
                raise KeyFileError(f"{path}: {error}") from error
            found[key.keyid] = key
    return tuple(found.values())


def save_public_key(key: PublicKey, folder: Path) -> Path:
    """Write `<keyid>.pub.json` into a folder; the path comes back."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    path = folder / f"{key.keyid[:16]}.pub.json"
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(key.to_json(), indent=2) + "\n")
    scratch.chmod(0o644)
    scratch.replace(path)
    return path


def _check_not_writable(path: Path) -> None:
    try:
        info = path.stat()
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    # A sticky folder (/tmp) lets others add files but not replace ours.
    if info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX:
        raise KeyFileError(f"{path}: others may write here; run `chmod go-w {path}`")


def _parse(envelope: Mapping[str, Any] | bytes) -> Envelope:
    try:
        if isinstance(envelope, bytes):
            if len(envelope) > MAX_ENVELOPE_BYTES:
                raise SignatureError("envelope too large")
            envelope = json.loads(envelope)
        # from_dict rewrites the signatures it is given
        return Envelope.from_dict(json.loads(json.dumps(envelope)))
    except SignatureError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SignatureError(f"not a signed envelope: {error!r}") from error


def _ss_key(key: PublicKey) -> SSlibKey:
    return SSlibKey(key.keyid, "ed25519", "ed25519", {"public": key.value})


def _keyid(value: str) -> str:
    return digest_json({"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": value}}).removeprefix(
        "sha256:"
    )
