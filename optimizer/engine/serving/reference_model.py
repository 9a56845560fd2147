"""The reference model: a real Llama with a tokenizer trained on this machine, nothing downloaded."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from optimizer.engine.serving.environment import ServingEnvironment
from optimizer.engine.serving.errors import ServingError

MARKER = "rackforge-model.json"
_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceShape:
    """Sizes of a Llama in bfloat16 and the seed of its weights. On disk: 2 bytes a parameter."""

    hidden: int = 1024
    layers: int = 8
    intermediate: int = 2816
    vocab: int = 10_240  # vLLM's latency benchmark wants 10,000 at least
    head_dim: int = 64
    max_position: int = 4096
    seed: int = 0

    @property
    def heads(self) -> int:
        return self.hidden // self.head_dim

    @property
    def kv_heads(self) -> int:
        """Grouped-query attention: four query heads share a key and value head."""
        return max(1, self.heads // 4)

    @property
    def weight_bytes_per_step(self) -> int:
        """Bytes of weights one decoding step reads: all linear layers and the output head, 2 bytes each.

        The embedding is left out, of which a step reads one row a request.
        """
        kv = self.kv_heads * self.head_dim
        attention = self.hidden * (self.hidden + 2 * kv) + self.hidden * self.hidden
        mlp = 3 * self.hidden * self.intermediate
        norms = (2 * self.layers + 1) * self.hidden
        return 2 * (self.layers * (attention + mlp) + norms + self.hidden * self.vocab)


REFERENCE = ReferenceShape()
# For tests: every matrix dimension a multiple of 32, up in seconds.
TINY = ReferenceShape(hidden=256, layers=2, intermediate=512, vocab=1024, max_position=1024)

PRESETS: Mapping[str, ReferenceShape] = {"reference": REFERENCE, "tiny": TINY}


def make_reference_model(folder: Path, shape: ReferenceShape = REFERENCE, *, environment: ServingEnvironment) -> Path:
    """Write the model's folder, or leave it if it is already there with this shape; the folder comes back.

    The folder appears whole or not at all, also where several processes make it at once. A folder of
    another content is never touched: ServingError.
    """
    wanted = json.dumps({"schema": _SCHEMA, **asdict(shape)}, sort_keys=True)
    if _is_ours(folder, wanted):
        return folder
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise ServingError(f"{folder} holds something else: choose another folder for the reference model")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        sizes = {**asdict(shape), "heads": shape.heads, "kv_heads": shape.kv_heads}
        done = environment.run_script("make_model.py", str(scratch), json.dumps(sizes))
        if not done.ok:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise ServingError(f"making the reference model failed: {last}")
        (scratch / MARKER).write_text(wanted)
        scratch.chmod(0o755)
        if folder.exists():  # a shape of before, or empty
            old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
            os.replace(folder, old / "model")  # noqa: PTH105 - a folder onto a new name
            shutil.rmtree(old, ignore_errors=True)
        try:
            scratch.rename(folder)
        except OSError:
            if not _is_ours(folder, wanted):  # else somebody else was quicker, with the same
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _is_ours(folder: Path, wanted: str) -> bool:
    try:
        return (folder / MARKER).read_text() == wanted
    except OSError:
        return False
