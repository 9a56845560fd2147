"""The serving environment: the Python that has vLLM and torch, and the libraries it runs best with."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from optimizer.engine.children import Finished, Limits, run
from optimizer.engine.serving.errors import ServingError

SCRIPTS = Path(__file__).parent / "scripts"

# What a served model may see of the platform's environment. A list of what passes, not of what is held back:
# the platform's holds a database password and a signing key.
_PASSED = frozenset(
    ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CC", "CXX", "CPATH")
)
_PASSED_PREFIXES = ("LC_", "XDG_", "CUDA_", "HIP_", "ROCR_", "ROCM_", "NVIDIA_")

# Where Debian, Fedora and the vLLM images keep tcmalloc. vLLM's CPU guide asks for it and for Intel's OpenMP.
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
)
_TCMALLOC = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEnvironment:
    """A Python interpreter with vLLM, and where compiled graphs are cached between starts.

    `python` may be a virtual environment's link: it is kept as it is, since resolving it would leave the
    environment. `cache_root` None is ~/.cache/rackforge/serving.
    """

    python: Path
    cache_root: Path | None = None

    @property
    def caches(self) -> Path:
        return self.cache_root or Path.home() / ".cache" / "rackforge" / "serving"

    @property
    def prefix(self) -> Path:
        return self.python.parent.parent

    def preloads(self) -> tuple[str, ...]:
        """tcmalloc and libiomp5 where they are found: what vLLM recommends to preload on a CPU."""
        found = []
        for names, folders in (
            (_TCMALLOC, _LIBRARY_FOLDERS),
            (("libiomp5.so",), (str(self.prefix / "lib"), *_LIBRARY_FOLDERS)),
        ):
            path = _first(Path(folder) / name for folder in folders for name in names)
            if path:
                found.append(str(path))
        return tuple(found)

    def base_environ(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment every child of the serving Python starts from: offline, quiet, without secrets."""
        environ = os.environ if environ is None else environ
        kept = {k: v for k, v in environ.items() if k in _PASSED or k.startswith(_PASSED_PREFIXES)}
        # ninja, triton and inductor look for their tools beside the interpreter
        kept["PATH"] = f"{self.python.parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
        return kept | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "NO_PROXY": "127.0.0.1,localhost",
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }

    def run_script(self, name: str, *args: str, wall_s: float = 300) -> Finished:
        """Run one of this package's scripts to its end; ServingError where the interpreter is missing."""
        try:
            return run(
                [str(self.python), str(SCRIPTS / name), *args],
                limits=Limits(wall_s=wall_s),
                env=self.base_environ(),
            )
        except OSError as error:
            raise ServingError(
                f"the serving environment's Python does not start: {self.python}: {error.strerror}; "
                "create the environment (`make run` does) or set RACKFORGE_SERVING_PYTHON"
            ) from error


def _first(paths: Iterable[Path]) -> Path | None:
    return next((p for p in paths if p.exists()), None)
