"""Which variant of which version a host gets: pure rules, no database. Every verdict has its reason.

Hard filters come first; what passes is ranked; a variant wins where it adds shapes that no better ranked one
covers. Same facts and same offers give the same answer.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from rackforge_runtime.canonical import canonical_json
from rackforge_runtime.isa import ISA_REQUIRES
from rackforge_runtime.manifests import ENVIRONMENT_KINDS, KINDS, Manifest, Range, Variant, semver_key

ENGINES = ("torch", "triton", "vllm", "rocm")
ABIS = frozenset(("rackforge-c-1", "python", "environment"))
# Evidence that a kernel computes what it should; an A/B or a microbenchmark alone does not say so.
PROOF = frozenset(("correctness",))


class FactsError(ValueError):
    """Facts that cannot be understood: `field: what is wrong`."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What decides, of a host and of what it serves. None: not said, so nothing that depends on it matches.

    `shapes` maps an operator to the shapes the model has, e.g. {"cpu_unquantized_gemm": [{"N": 5632, "K": 1024}]};
    without it shapes are left to the runtime, which falls back outside of an envelope.
    """

    backend: str
    isa: tuple[str, ...] = ()
    arch: str | None = None
    cu_num: int | None = None
    device_name: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    dtype: str | None = None
    model: str | None = None
    tp: int | None = None
    compile: str | None = None
    cudagraph: str | None = None
    shapes: Mapping[str, Sequence[Mapping[str, int]]] | None = None
    regime: Mapping[str, int] | None = None
    kinds: frozenset[str] = frozenset(KINDS)

    @classmethod
    def parse(cls, data: Any) -> Facts:
        """Check what a host sent. Raises FactsError; unknown fields are facts of newer hosts and are ignored."""
        if not isinstance(data, Mapping):
            raise FactsError("facts: must be an object")
        backend = data.get("backend")
        if backend not in ("cpu", "rocm", "cuda"):
            raise FactsError("facts.backend: must be cpu, rocm or cuda")
        isa = data.get("isa") or []
        if not isinstance(isa, list) or not all(isinstance(i, str) for i in isa):
            raise FactsError("facts.isa: must be a list of instruction sets, best first")
        versions = {}
        for engine in ENGINES:
            text = data.get(engine)
            if text is not None:
                try:
                    Version(str(text))
                except InvalidVersion as error:
                    raise FactsError(f"facts.{engine}: {text!r} is not a version") from error
                versions[engine] = str(text)
        texts: dict[str, str | None] = {}
        for key in ("arch", "device_name", "dtype", "model", "compile", "cudagraph"):
            value = data.get(key)
            if key == "compile" and isinstance(value, bool):
                value = "compiled" if value else "eager"
            if value is not None and not isinstance(value, str):
                raise FactsError(f"facts.{key}: must be text")
            texts[key] = value
        numbers: dict[str, int | None] = {}
        for key in ("cu_num", "tp"):
            number = data.get(key)
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
                raise FactsError(f"facts.{key}: must be a positive number")
            numbers[key] = number
        regime = data.get("regime")
        if regime is not None and not _is_lengths(regime):
            raise FactsError("facts.regime: must map concurrency or tokens_per_step to numbers")
        shapes = data.get("shapes")
        if shapes is not None and not (
            isinstance(shapes, Mapping)
            and all(isinstance(boxes, list) and all(_is_lengths(b) for b in boxes) for boxes in shapes.values())
        ):
            raise FactsError("facts.shapes: must map operators to lists of shapes")
        kinds = data.get("kinds")
        if kinds is not None and not isinstance(kinds, list):
            raise FactsError("facts.kinds: must be a list")
        return cls(
            backend=backend,
            isa=tuple(isa),
            arch=texts["arch"],
            cu_num=numbers["cu_num"],
            device_name=texts["device_name"],
            versions=versions,
            dtype=texts["dtype"],
            model=texts["model"],
            tp=numbers["tp"],
            compile=texts["compile"],
            cudagraph=texts["cudagraph"],
            shapes=shapes,
            regime=regime,
            kinds=frozenset(str(k) for k in kinds) if kinds is not None else frozenset(KINDS),
        )

    def to_json(self) -> dict[str, Any]:
        """The facts that were used: what the lock's facts_digest is of."""
        return {
            "backend": self.backend,
            "isa": list(self.isa),
            "arch": self.arch,
            "cu_num": self.cu_num,
            "device_name": self.device_name,
            "versions": dict(self.versions),
            "dtype": self.dtype,
            "model": self.model,
            "tp": self.tp,
            "compile": self.compile,
            "cudagraph": self.cudagraph,
            "shapes": self.shapes,
            "regime": self.regime,
            "kinds": sorted(self.kinds),
        }


@dataclass(frozen=True, slots=True)
class Offer:
    """A version that may be chosen: what its channel points to, or what was pinned."""

    manifest: Manifest
    digest: str
    signature_digest: str
    pinned: bool = False
    yanked: str = ""  # the reason, when yanked
    revoked: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A winner. Better ranked ones come first, which is also the order the runtime asks them in."""

    offer: Offer
    variant: Variant
    rank: tuple[str, ...]  # in words, for people


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the trace."""

    name: str
    version: str
    variant: str
    accepted: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "variant": self.variant,
            "accepted": self.accepted,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Resolution:
    """Winners, and a verdict on every variant that was looked at."""

    chosen: tuple[Chosen, ...]
    trace: tuple[Verdict, ...]
    warnings: tuple[str, ...]


def resolve(facts: Facts, offers: Iterable[Offer]) -> Resolution:
    """Choose. Deterministic: offers may come in any order."""
    trace: list[Verdict] = []
    warnings: list[str] = []
    passed: list[tuple[tuple[Any, ...], Offer, Variant]] = []
    for offer in sorted(offers, key=lambda o: (o.manifest.name, semver_key(o.manifest.version), o.digest)):
        m = offer.manifest
        if offer.revoked:
            trace.append(Verdict(m.name, m.version, "", accepted=False, reason=f"revoked: {offer.revoked}"))
            continue
        if offer.yanked and not offer.pinned:
            trace.append(Verdict(m.name, m.version, "", accepted=False, reason=f"yanked: {offer.yanked}"))
            continue
        if offer.yanked:
            warnings.append(f"{m.name}@{m.version} is pinned but yanked: {offer.yanked}")
        for variant in m.variants:
            why = refuse(facts, m, variant)
            if why:
                trace.append(Verdict(m.name, m.version, variant.id, accepted=False, reason=why))
            else:
                passed.append((_rank(facts, offer, variant), offer, variant))
    passed.sort(key=lambda item: item[0])
    won: dict[tuple[str, str, str], list[tuple[Mapping[str, Range], str]]] = {}
    chosen: list[Chosen] = []
    for _, offer, variant in passed:
        m = offer.manifest
        beaten_by = ""
        adds = False
        dtypes = [d for d in variant.selector.get("dtypes", [""]) if not facts.dtype or d in ("", facts.dtype)]
        boxes = _live_boxes(facts, m, variant)
        for dtype in dtypes:
            held = won.setdefault((m.kind, m.target, dtype), [])
            for box in boxes:
                by = next((who for other, who in held if _covers(other, box)), "")
                if by:
                    beaten_by = by
                else:
                    adds = True
                    held.append((box, f"{m.name}@{m.version}#{variant.id}"))
        if adds:
            words = _in_words(facts, variant)
            chosen.append(Chosen(offer, variant, words))
            trace.append(Verdict(m.name, m.version, variant.id, accepted=True, reason="; ".join(words)))
        else:
            trace.append(
                Verdict(m.name, m.version, variant.id, accepted=False, reason=f"{beaten_by} is better for its shapes")
            )
    trace.sort(key=lambda v: (v.name, semver_key(v.version), v.variant))
    return Resolution(tuple(chosen), tuple(trace), tuple(warnings))


def refuse(facts: Facts, manifest: Manifest, variant: Variant) -> str:
    """Why a host must not run a variant; empty when it may."""
    s = variant.selector
    if manifest.kind not in facts.kinds:
        return f"the host's runtime does not take kind {manifest.kind}"
    if manifest.abi not in ABIS:
        return f"interface {manifest.abi!r} is not known"
    backend = s.get("backend")
    if backend is not None and backend != facts.backend:
        return f"for backend {backend}, the host has {facts.backend}"
    isa = s.get("isa")
    if isa is not None and isa not in facts.isa:
        known = isa if isa in ISA_REQUIRES else f"{isa} (unknown)"
        return f"needs {known}, the host has {', '.join(facts.isa) or 'none'}"
    gfx = s.get("gfx")
    if gfx and not any(fnmatch.fnmatchcase(facts.arch or "", pattern) for pattern in gfx):
        return f"for {', '.join(gfx)}, the host has {facts.arch}"
    cu_num = s.get("cu_num")
    if cu_num and facts.cu_num not in cu_num:
        return f"for {', '.join(map(str, cu_num))} compute units, the host has {facts.cu_num}"
    for engine in ENGINES:
        wanted = s.get(engine)
        if wanted is None:
            continue
        have = facts.versions.get(engine)
        if have is None:
            return f"needs {engine} {wanted}, the host does not say its {engine}"
        try:
            if not SpecifierSet(wanted).contains(Version(have), prereleases=True):
                return f"needs {engine} {wanted}, the host has {have}"
        except InvalidSpecifier:
            return f"its specifier for {engine} ({wanted!r}) is malformed"
    dtypes = s.get("dtypes")
    if dtypes and facts.dtype and facts.dtype not in dtypes:
        return f"for {', '.join(dtypes)}, the host serves {facts.dtype}"
    for key, have in (("compile", facts.compile), ("cudagraph", facts.cudagraph)):
        allowed = s.get(key)
        allowed = [allowed] if isinstance(allowed, str) else allowed
        if allowed and have not in allowed:
            return f"for {key} mode {', '.join(allowed)}, the host has {have}"
    model = s.get("model")
    if model is not None and model != facts.model:
        return f"for model {model}, the host serves {facts.model}"
    tp = s.get("tp")
    if tp is not None and facts.tp not in (tp if isinstance(tp, list) else [tp]):
        return f"for tensor parallelism {tp}, the host has {facts.tp}"
    if not _live_boxes(facts, manifest, variant):
        return "covers no shape of the host's model"
    if why := _outside_regime(facts, s):
        return why
    return _unproven(facts, manifest, variant)


def _outside_regime(facts: Facts, selector: Mapping[str, Any]) -> str:
    for axis, have in (facts.regime or {}).items():
        allowed = (selector.get("regime") or {}).get(axis)
        if allowed is None:
            continue
        if isinstance(allowed, list):
            low, high = min(allowed), max(allowed)
        elif isinstance(allowed, Mapping):
            low, high = allowed.get("min", 0), allowed.get("max")
        else:
            low = high = allowed
        if have < low or (high is not None and have > high):
            return f"measured at {axis} {low} to {high}, the host runs at {have}"
    return ""


def _unproven(facts: Facts, manifest: Manifest, variant: Variant) -> str:
    """Evidence of correctness for this very architecture: gfx950 never vouches for gfx1250."""
    if manifest.kind in ENVIRONMENT_KINDS:
        return ""
    arch = facts.arch if facts.backend != "cpu" else variant.selector.get("isa", "generic")
    made_on = (manifest.raw.get("provenance") or {}).get("arch")
    vouched: set[str] = set()
    for e in manifest.raw.get("evidence", ()):
        if e.get("type") in PROOF and e.get("variant", variant.id) == variant.id:
            where = e.get("arch", made_on)
            vouched |= {where} if isinstance(where, str) else set(where or ())
    if arch in vouched:
        return ""
    return f"no evidence of correctness on {arch}" + (f", only on {', '.join(sorted(vouched))}" if vouched else "")


def _live_boxes(facts: Facts, manifest: Manifest, variant: Variant) -> list[Mapping[str, Range]]:
    """Boxes of the envelope that hold a shape of the host's model; all where the host does not say its shapes."""
    boxes: list[Mapping[str, Range]] = list(variant.shapes) or [{}]
    shapes = (facts.shapes or {}).get(manifest.target)
    if facts.shapes is None or shapes is None:
        return boxes
    return [
        box
        for box in boxes
        if any(all(_holds(box[axis], shape[axis]) for axis in box if axis in shape) for shape in shapes)
    ]


def _holds(allowed: Range, value: int) -> bool:
    return value >= allowed[0] and (allowed[1] is None or value <= allowed[1])


def _covers(outer: Mapping[str, Range], inner: Mapping[str, Range]) -> bool:
    for axis, (low, high) in outer.items():
        if axis not in inner:
            return False
        i_low, i_high = inner[axis]
        if i_low < low or (high is not None and (i_high is None or i_high > high)):
            return False
    return True


def _rank(facts: Facts, offer: Offer, variant: Variant) -> tuple[Any, ...]:
    """Sort key, best first: pin, architecture, model, narrowness, proven gain, version, digest."""
    s = variant.selector
    newest = tuple(_descending(part) for part in semver_key(offer.manifest.version)[:3])
    return (
        not offer.pinned,
        _arch_rank(facts, s),
        s.get("model") is None,
        _width(variant),
        -proven_gain(offer.manifest, variant),
        newest,
        not semver_key(offer.manifest.version)[3],
        offer.digest,
        variant.id,
    )


def _descending(number: Any) -> int:
    return -int(number)


def _arch_rank(facts: Facts, s: Mapping[str, Any]) -> int:
    if facts.backend == "cpu":
        isa = s.get("isa", "generic")
        return facts.isa.index(isa) if isa in facts.isa else len(facts.isa)
    gfx = s.get("gfx") or []
    exact = facts.arch in gfx
    if exact and s.get("cu_num"):
        return 0
    if exact:
        return 1
    return 2 if gfx else 3


def _width(variant: Variant) -> float:
    """How much an envelope spans: the sum over its boxes of the product of range lengths, open ends as 2**20."""
    boxes = list(variant.shapes)
    if not boxes:
        return float("inf")
    total = 0.0
    for box in boxes:
        size = 1.0
        for low, high in box.values():
            size *= (high if high is not None else low + (1 << 20)) - low + 1
        total = max(total, size)
    return total


def proven_gain(manifest: Manifest, variant: Variant) -> float:
    """Lower bound of the measured end-to-end gain in per cent: the best of its A/B evidence; 0 where none says."""
    found = [
        float(e["gain_low_pct"])
        for e in manifest.raw.get("evidence", ())
        if e.get("type") == "ab" and e.get("variant", variant.id) == variant.id and "gain_low_pct" in e
    ]
    return max(found, default=0.0)


def _in_words(facts: Facts, variant: Variant) -> tuple[str, ...]:
    s = variant.selector
    if facts.backend == "cpu":
        arch = f"instruction set {s.get('isa', 'generic')}"
    else:
        arch = ("exact arch and compute units", "exact arch", "family", "generic")[_arch_rank(facts, s)]
    return (
        arch,
        *(["exact model"] if s.get("model") else []),
        *(["its shapes"] if variant.shapes else ["any shape"]),
    )


def _is_lengths(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(v, int) and not isinstance(v, bool) for v in value.values())


def resolve_key(facts: Facts, channel: str, pins: Sequence[str]) -> bytes:
    """What decides a resolution, apart from the registry's generation."""
    return canonical_json({"facts": facts.to_json(), "channel": channel, "pins": sorted(pins)})
