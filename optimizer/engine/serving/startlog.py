"""What a vLLM log says: why a server ended, and how far a start has come."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from optimizer.engine.serving.errors import StartCause

TAIL_BYTES = 256 << 10

# "(EngineCore pid=12) ERROR 12-01 06:35:41 [core.py:1510] " before the text proper, any part may be absent
_PREFIX = re.compile(
    r"^(?:\([A-Za-z]\w*(?: pid=\d+)?\)\s*)?(?:(?:ERROR|WARNING|INFO|DEBUG) \d\d-\d\d [\d:.]+ \[[^\]]*\]\s?)?"
)
_HARMLESS = re.compile(r" (?:WARNING|INFO|DEBUG) ")
# A line that ends a traceback: "package.module.SomeError: text"
_EXCEPTION = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning))(?:: (?P<text>.*))?$"
)
# Exceptions that only pass on that another process failed
_SECONDARY = re.compile(
    r"Engine core initialization failed|Worker failed with error|WorkerProc initialization failed"
)


@dataclass(frozen=True, slots=True)
class _Rule:
    kind: StartCause
    pattern: re.Pattern[str]
    sentence: Callable[[re.Match[str]], str]


def _rule(kind: StartCause, pattern: str, sentence: str | Callable[[re.Match[str]], str]) -> _Rule:
    if callable(sentence):
        return _Rule(kind, re.compile(pattern), sentence)
    return _Rule(kind, re.compile(pattern), lambda _: sentence)


# In order: the first that matches anywhere in the log names the cause.
_RULES = (
    _rule(
        "no_space",
        r"No space left on device|\[Errno 28\]|Disk quota exceeded",
        "no space left on the disk: free some, or move TMPDIR and the cache folder to a larger disk",
    ),
    _rule(
        "port_in_use",
        r"\[Errno 98\]|[Aa]ddress already in use",
        "the port is in use: stop what listens there or choose another",
    ),
    _rule(
        "context_too_long",
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len "
        r"\(max_position_embeddings=(\d+)",
        lambda m: f"max_model_len {m[1]} is more than the {m[2]} positions the model has: lower max_model_len",
    ),
    _rule(
        "out_of_memory",
        r"Available memory on node (\d+) \(([\d.]+)/([\d.]+) GiB\).*?requested memory for kv \(([\d.]+) GiB\)",
        lambda m: (
            f"out of memory: {m[4]} GiB of KV cache wanted, {m[2]} GiB of memory left on node {m[1]}: "
            "lower the KV cache or free memory"
        ),
    ),
    _rule(
        "context_too_long",
        r"max seq len \((\d+)\).{0,200}?([\d.]+) GiB KV cache is needed, "
        r"which is larger than the available KV cache memory \(([\d.]+) GiB\)",
        lambda m: (
            f"a sequence of {m[1]} tokens needs {m[2]} GiB of KV cache and there are {m[3]} GiB: "
            "lower max_model_len or give more KV cache"
        ),
    ),
    _rule(
        "out_of_memory",
        r"Cannot allocate memory|DefaultCPUAllocator: (?:not enough|can't allocate) memory"
        r"|MemoryError|std::bad_alloc|out of memory",
        "out of memory: lower the KV cache, serve a smaller model or free memory",
    ),
    _rule(
        "model_missing",
        r"Repo id must be in the form .*?: '([^']*)'",
        lambda m: f"no model at {m[1]!r}: give the path of a folder with a config.json",
    ),
    _rule(
        "model_missing",
        r"(?:Can't load the configuration of|Invalid repository ID or local directory specified:|Couldn't find) "
        r"'?([^'\n]*)",
        lambda m: f"no usable model at {m[1].strip()!r}: give the path of a folder with a config.json",
    ),
    _rule(
        "weights_missing",
        r"Cannot find any model weights with `([^`]*)`",
        lambda m: f"no weights in {m[1]!r}: give the folder that has them, or load_format dummy",
    ),
    _rule(
        "bad_argument",
        r"error: (unrecognized arguments: .*|argument .*)",
        lambda m: f"the server does not take this: {m[1]}",
    ),
    _rule(
        "environment",
        r"(No module named '?(?:vllm|torch|rackforge_runtime)[^\n]*|operator torchvision::nms does not exist"
        r"|cannot execute [^\n]*)",
        lambda m: f"the serving environment is incomplete: {m[1]}: create it anew from its lock file",
    ),
    _rule(
        "compile",
        r"(?:InvalidCxxCompiler|CppCompileError|No working C\+\+ compiler)[^\n]*",
        lambda m: f"the model could not be compiled: {m[0][:300]}: install g++ or serve eager",
    ),
)

_STAGES = (
    ("Application startup complete", "ready"),
    ("Route: /health", "opening the port"),
    ("init engine", "engine ready"),
    ("Warming up", "warming up"),
    ("torch.compile takes", "compiled"),
    ("Dynamo bytecode transform", "compiling"),
    ("Start compiling", "compiling"),
    ("KV cache", "allocating the KV cache"),
    ("Loading weights took", "weights loaded"),
    ("Starting to load model", "loading weights"),
    ("OpenMP thread binding", "starting the workers"),
    ("Initializing a V1 LLM engine", "starting the engine"),
    ("non-default args", "reading the model's configuration"),
)


def read_tail(log: Path, limit: int = TAIL_BYTES) -> str:
    """The last bytes of a log as text; empty where there is none."""
    try:
        with log.open("rb") as f:
            f.seek(0, 2)
            f.seek(max(f.tell() - limit, 0))
            return f.read().decode(errors="replace")
    except OSError:
        return ""


def cause_of(text: str, returncode: int | None = None) -> tuple[StartCause, str]:
    """Kind and one sentence of why a server ended, from its log and its exit status.

    The first exception that is not a mere relay is the root, since processes report in the order they fail.
    """
    lines = [_PREFIX.sub("", line).rstrip() for line in text.splitlines()]
    # A warning about descriptor limits quotes an OSError; warnings and information are no evidence.
    evidence = "\n".join(
        stripped for stripped, line in zip(lines, text.splitlines(), strict=True) if not _HARMLESS.search(line[:60])
    )
    for rule in _RULES:
        match = rule.pattern.search(evidence)
        if match:
            return rule.kind, " ".join(rule.sentence(match).split())
    found = [m for m in map(_EXCEPTION.match, evidence.splitlines()) if m and not m["type"].endswith("Warning")]
    for match in [m for m in found if not _SECONDARY.search(m["text"] or "")] or found:
        return "other", " ".join(f"{match['type'].rpartition('.')[2]}: {match['text'] or ''}".split())[:500]
    if returncode is not None and returncode < 0:
        hint = " (the kernel's out-of-memory killer, most likely)" if returncode == -9 else ""
        kind: StartCause = "out_of_memory" if returncode == -9 else "other"
        return kind, f"killed by signal {-returncode}{hint}"
    last = next((line for line in reversed(lines) if line.strip()), "it wrote nothing")
    return "other", f"exit status {returncode}: {last.strip()[:300]}"


def stage_of(text: str) -> str:
    """How far a start has come, in words, from the latest known line of its log."""
    places = [(text.rfind(needle), words) for needle, words in _STAGES]
    place, words = max(places)
    return words if place >= 0 else "importing vLLM"
