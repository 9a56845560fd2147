"""How far two servers of one model are from saying the same: log-probabilities, token by token.

Two ways of asking, because they run different kernels. Teacher-forced: a fixed continuation is scored in one
pass, as a prompt (`prompt_logprobs`); every token's context is the same on both servers, and the matrices
have many rows. Decoding: tokens are generated greedily, one row a request, which is what a kernel for small
batches serves; tokens are compared as long as both servers have generated the same, so that the context is
the same there too. Distances are absolute differences of natural log-probabilities.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer.engine.serving.errors import ServerAnswered, ServingError
from optimizer.engine.serving.server import LocalServer

# Below this spread (standard deviation, nats) a model holds all tokens for equally likely, as vLLM's dummy
# weights do (1e-5): log-probabilities then tell nothing about a kernel.
FLAT_SPREAD = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What the servers are asked: `prompts` token sequences, `steps` tokens decoded after each.

    `concurrency` prompts are sent together, so that decoding runs at that batch size.
    """

    vocab: int
    prompts: int = 8
    prompt_len: int = 32
    steps: int = 16
    concurrency: int = 8
    seed: int = 0

    @classmethod
    def for_model(cls, model: str, **fields: Any) -> Probe:
        """A probe with the vocabulary of a model's folder."""
        try:
            vocab = int(json.loads((Path(model) / "config.json").read_text())["vocab_size"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ServingError(f"no vocabulary size in {model}/config.json: {error}") from error
        return cls(vocab=vocab, **fields)

    def sequences(self) -> list[list[int]]:
        """Token ids of the prompts, the same for the same seed."""
        source = random.Random(self.seed)  # noqa: S311 - reproducible, not secret
        # The first ids are control tokens in the tokenizers we know.
        first = min(4, self.vocab - 1)
        return [[source.randrange(first, self.vocab) for _ in range(self.prompt_len)] for _ in range(self.prompts)]


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probability of each token of a sequence; `best` is what the model held most likely there."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    best: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Readings:
    """What one server answered to a probe, in the order of its prompts."""

    probe: Probe
    forced: tuple[Scored, ...]
    decoded: tuple[Scored, ...]


@dataclass(frozen=True, slots=True)
class Distance:
    """Over `tokens` compared tokens; zero where none could be compared."""

    tokens: int
    mean_abs: float
    max_abs: float

    @classmethod
    def between(cls, pairs: Sequence[tuple[float, float]]) -> Distance:
        gaps = [abs(a - b) for a, b in pairs]
        # max() would drop a NaN, and NaN is the worst answer there is
        if any(math.isnan(g) for g in gaps):
            return cls(len(gaps), math.nan, math.nan)
        return cls(len(gaps), statistics.fmean(gaps) if gaps else 0.0, max(gaps, default=0.0))


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How far two servers are apart. Rates are 0 to 1, distances in nats.

    `top1_rate`: teacher-forced positions where both hold the same token most likely. `greedy_rate`: decoded
    positions with the same token, counting none after a sequence's first difference. `spread`: standard
    deviation of the first server's teacher-forced log-probabilities; `flat` says that it is too small for the
    distances to mean anything.
    """

    forced: Distance
    decoded: Distance
    top1_rate: float
    greedy_rate: float
    spread: float

    @property
    def flat(self) -> bool:
        return not self.spread >= FLAT_SPREAD

    def to_dict(self) -> dict[str, Any]:
        def distance(d: Distance) -> dict[str, Any]:
            return {"tokens": d.tokens, "mean_abs": _finite(d.mean_abs), "max_abs": _finite(d.max_abs)}

        return {
            "forced": distance(self.forced),
            "decoded": distance(self.decoded),
            "top1_rate": self.top1_rate,
            "greedy_rate": self.greedy_rate,
            "spread": _finite(self.spread),
            "flat": self.flat,
        }


def take_readings(server: LocalServer, probe: Probe, *, timeout_s: float = 120) -> Readings:
    """Ask one server. ServerAnswered for an error status or an answer of another form."""
    sequences = probe.sequences()
    forced: list[Scored] = []
    decoded: list[Scored] = []
    for start in range(0, len(sequences), probe.concurrency):
        batch = sequences[start : start + probe.concurrency]
        body = {
            "model": server.spec.served_name,
            "prompt": batch,
            "max_tokens": probe.steps,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 1,
            "prompt_logprobs": 1,
            "return_token_ids": True,
        }
        answer = server.request("POST", "/v1/completions", json=body, timeout_s=timeout_s).json()
        try:
            choices = sorted(answer["choices"], key=lambda c: int(c["index"]))
            if len(choices) != len(batch):
                raise ValueError(f"{len(choices)} answers to {len(batch)} prompts")
            forced += [_forced(tokens, choice) for tokens, choice in zip(batch, choices, strict=True)]
            decoded += [_decoded(choice) for choice in choices]
        except (KeyError, TypeError, ValueError) as error:
            raise ServerAnswered("log-probabilities", 0, f"unexpected answer: {error!r}") from error
    return Readings(probe, tuple(forced), tuple(decoded))


def compare_readings(a: Readings, b: Readings) -> Fidelity:
    """The distance between two servers that were asked the same; ValueError where they were not."""
    if a.probe != b.probe:
        raise ValueError("the servers were asked different things: take both readings with one probe")
    forced = [
        (x, y)
        for one, other in zip(a.forced, b.forced, strict=True)
        for x, y in zip(one.logprobs, other.logprobs, strict=True)
    ]
    same_best = [
        x == y
        for one, other in zip(a.forced, b.forced, strict=True)
        for x, y in zip(one.best, other.best, strict=True)
    ]
    decoded: list[tuple[float, float]] = []
    positions = 0
    for one, other in zip(a.decoded, b.decoded, strict=True):
        positions += max(len(one.tokens), len(other.tokens))
        for i, (x, y) in enumerate(zip(one.tokens, other.tokens, strict=False)):
            if x != y:
                break
            decoded.append((one.logprobs[i], other.logprobs[i]))
    return Fidelity(
        forced=Distance.between(forced),
        decoded=Distance.between(decoded),
        top1_rate=sum(same_best) / len(same_best) if same_best else 1.0,
        greedy_rate=len(decoded) / positions if positions else 1.0,
        spread=statistics.pstdev(x for x, _ in forced) if forced else 0.0,
    )


def _forced(tokens: list[int], choice: dict[str, Any]) -> Scored:
    """From `prompt_logprobs`: one mapping a token, none for the first, which has no context."""
    places = choice["prompt_logprobs"][1:]
    scored = tokens[1:]
    if len(places) != len(scored):
        raise ValueError(f"{len(places)} log-probabilities for {len(scored)} tokens")
    logprobs, best = [], []
    for token, place in zip(scored, places, strict=True):
        logprobs.append(float(place[str(token)]["logprob"]))
        best.append(min(place, key=lambda t: int(place[t]["rank"])))
    return Scored(tuple(scored), tuple(logprobs), tuple(int(t) for t in best))


def _decoded(choice: dict[str, Any]) -> Scored:
    tokens = tuple(int(t) for t in choice["token_ids"])
    logprobs = tuple(float(v) for v in choice["logprobs"]["token_logprobs"])
    if len(tokens) != len(logprobs):
        raise ValueError(f"{len(logprobs)} log-probabilities for {len(tokens)} tokens")
    return Scored(tokens, logprobs, tokens)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
