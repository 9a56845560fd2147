"""What is served and how: a value with a digest, and the one place that turns it into a command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optimizer.engine.serving.environment import ServingEnvironment
from rackforge_runtime.canonical import digest_file, digest_json

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One way to serve one model.

    `preload` None means the libraries vLLM recommends, where the host has them; () means none.
    `threads_bind` is VLLM_CPU_OMP_THREADS_BIND: "auto", "nobind" or a processor list such as "0-3".
    `lock` is a Rackforge lockfile: the server then starts through the runtime's launcher, which swaps the
    locked kernels in. `env` and `args` are passed on as they are and win over what is derived here.
    """

    model: str
    served_name: str = "model"
    load_format: str = "auto"  # "dummy": weights from the seed, nothing is read
    dtype: str = "bfloat16"
    seed: int = 0
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    kv_cache_gib: int = 1
    enforce_eager: bool = False
    threads_bind: str = "auto"
    prefix_caching: bool = False  # repeated prompts of a benchmark must cost the same as fresh ones
    preload: tuple[str, ...] | None = None
    lock: str | None = None
    profiler_dir: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """JSON value with everything that decides what runs; a lock counts by its content."""
        return {
            "model": self.model,
            "served_name": self.served_name,
            "load_format": self.load_format,
            "dtype": self.dtype,
            "seed": self.seed,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "kv_cache_gib": self.kv_cache_gib,
            "enforce_eager": self.enforce_eager,
            "threads_bind": self.threads_bind,
            "prefix_caching": self.prefix_caching,
            "preload": None if self.preload is None else list(self.preload),
            "lock": digest_file(Path(self.lock)) if self.lock else None,
            "profiler_dir": self.profiler_dir,
            "args": list(self.args),
            "env": dict(self.env),
        }

    @property
    def digest(self) -> str:
        return digest_json(self.describe())


@dataclass(frozen=True, slots=True)
class Command:
    """What is executed: argument list and the whole environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def build_command(spec: ServerSpec, environment: ServingEnvironment, *, port: int) -> Command:
    """The command line and environment of a server; the only place that knows them.

    The `vllm` command of the CPU build fails (it looks its own version up under another distribution's
    name), so the server's module is run.
    """
    serve = [
        str(environment.python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        *("--model", spec.model),
        *("--served-model-name", spec.served_name),
        *("--host", HOST),
        *("--port", str(port)),
        *("--load-format", spec.load_format),
        *("--dtype", spec.dtype),
        *("--seed", str(spec.seed)),
        "--enable-prefix-caching" if spec.prefix_caching else "--no-enable-prefix-caching",
        "--disable-uvicorn-access-log",
    ]
    if spec.max_model_len is not None:
        serve += ["--max-model-len", str(spec.max_model_len)]
    if spec.max_num_seqs is not None:
        serve += ["--max-num-seqs", str(spec.max_num_seqs)]
    if spec.enforce_eager:
        serve.append("--enforce-eager")
    if spec.profiler_dir is not None:
        serve += ["--profiler-config", json.dumps(profiler_config(spec.profiler_dir))]
    serve += spec.args

    env = environment.base_environ()
    env["VLLM_CPU_KVCACHE_SPACE"] = str(spec.kv_cache_gib)
    env["VLLM_CPU_OMP_THREADS_BIND"] = spec.threads_bind
    preload = environment.preloads() if spec.preload is None else spec.preload
    if preload:
        env["LD_PRELOAD"] = ":".join(preload)
    # Two kernels behind one wrapper file give vLLM the same compile-cache key: a cache for each lock.
    cache = environment.caches / (digest_file(Path(spec.lock))[7:23] if spec.lock else "stock")
    env["VLLM_CACHE_ROOT"] = str(cache)
    env["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
    env |= spec.env
    if spec.lock is None:
        # Kernels installed by an operator must not slip into a measurement of the stock server.
        env.setdefault("RACKFORGE_DISABLE", "1")
        return Command(tuple(serve), env)
    launcher = (str(environment.python), "-m", "rackforge_runtime", "serve", "--lock", spec.lock, "--")
    return Command((*launcher, *serve), env)


def profiler_config(folder: str) -> dict[str, Any]:
    """vLLM's torch profiler: shapes for the roofline, no Python stacks (they swamp the trace)."""
    return {
        "profiler": "torch",
        "torch_profiler_dir": folder,
        "torch_profiler_record_shapes": True,
        "torch_profiler_with_stack": False,
        "ignore_frontend": True,
    }
