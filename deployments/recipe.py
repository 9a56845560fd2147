"""How a deployment is served and what load it has: checked once, at the edge."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rackforge_runtime.canonical import digest_json


class RecipeError(ValueError):
    """A recipe that cannot be served; the text names the field and what to do."""


class Regime(BaseModel):
    """One way the deployment is used: this many requests at a time, of this size.

    Lengths in tokens. `num_requests` is one benchmark run; `warmup_requests` are sent first and thrown away.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    concurrency: int = Field(ge=1, le=4096)
    input_len: int = Field(ge=1)
    output_len: int = Field(ge=1)
    num_requests: int = Field(ge=1)
    warmup_requests: int = Field(default=0, ge=0)

    @property
    def name(self) -> str:
        return f"c{self.concurrency}"

    @model_validator(mode="after")
    def _enough_requests(self) -> Regime:
        if self.num_requests < self.concurrency:
            raise ValueError(
                f"num_requests ({self.num_requests}) is below the concurrency ({self.concurrency}): "
                "the regime would never be reached; raise num_requests"
            )
        return self


class Recipe(BaseModel):
    """Engine, arguments, environment and workload of a deployment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Literal["vllm"] = "vllm"
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    max_model_len: int = Field(default=2048, ge=16)
    kv_cache_gib: int = Field(default=1, ge=1)
    regimes: tuple[Regime, ...] = Field(min_length=1)
    seed: int = Field(default=0, ge=0, lt=2**31)

    @field_validator("args")
    @classmethod
    def _no_managed_arguments(cls, args: tuple[str, ...]) -> tuple[str, ...]:
        managed = ("--host", "--port", "--model", "--max-model-len", "--seed", "--profiler-config")
        for arg in args:
            if arg.split("=", 1)[0] in managed:
                raise ValueError(f"{arg.split('=', 1)[0]} is set by the platform; leave it out of args")
        return args

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        names = [regime.name for regime in self.regimes]
        if len(set(names)) != len(names):
            raise ValueError("two regimes have the same concurrency")
        for regime in self.regimes:
            need = regime.input_len + regime.output_len
            if need > self.max_model_len:
                raise ValueError(
                    f"regime {regime.name}: {regime.input_len} input and {regime.output_len} output tokens are "
                    f"{need}, more than the context of {self.max_model_len}; shorten them or raise max_model_len"
                )
        return self

    @property
    def digest(self) -> str:
        return digest_json(self.model_dump(mode="json"))


def parse_recipe(value: Any) -> Recipe:
    """A recipe from JSON. Raises RecipeError that names the first fault and its place."""
    try:
        return Recipe.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "recipe"
        raise RecipeError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from error
