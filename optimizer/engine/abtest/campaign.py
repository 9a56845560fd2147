"""Several candidates, several regimes: who may go on, and what may be claimed where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimizer.engine.abtest.decision import Decision, Outcome
from optimizer.engine.abtest.engagement import EngagementProof
from optimizer.engine.abtest.resampling import holm


@dataclass(frozen=True, slots=True)
class Selection:
    """Who goes to confirmation, best first, and why the others do not."""

    ranked: tuple[str, ...]
    adjusted: Mapping[str, float]  # Holm's adjusted p-values of all that were tested
    dropped: Mapping[str, str]


def select_for_confirmation(decisions: Mapping[str, Decision], alpha: float) -> Selection:
    """Holm over every candidate whose discovery has ended, whatever it ended in; the survivors ranked by lower bound.

    A candidate that was stopped early for want of gain is still one of the tests. By the lower bound and not by the
    gain: the largest estimate is the luckiest one. ValueError while a discovery still runs.
    """
    for name, d in decisions.items():
        if d.stage != "discovery" or d.outcome is Outcome.CONTINUE:
            raise ValueError(
                f"candidate {name!r}: Holm needs discoveries that have ended, this is {d.stage}, {d.outcome}"
            )
    names = sorted(decisions)
    # without a p-value nothing was shown, which is p = 1
    pvalues = [1.0 if (p := decisions[n].p_value) is None else p for n in names]
    adjusted = dict(zip(names, holm(pvalues), strict=True))
    dropped: dict[str, str] = {}
    kept: list[str] = []
    for name in names:
        d = decisions[name]
        if d.outcome is not Outcome.ACCEPT:
            dropped[name] = f"{d.outcome}: {d.reasons[-1]}"
        elif adjusted[name] > alpha:
            dropped[name] = f"Holm over {len(names)} candidates: p = {adjusted[name]:.3g} > {alpha:g}"
        else:
            kept.append(name)
    kept.sort(key=lambda n: (-(decisions[n].ci_low_pct or 0.0), n))
    return Selection(tuple(kept), adjusted, dropped)


@dataclass(frozen=True, slots=True)
class RegimeVerdict:
    """Where a kernel may be used: `envelope` are the regimes it was confirmed in, `refused` the others with the
    reason.
    """

    envelope: tuple[str, ...]
    refused: Mapping[str, str]

    @property
    def outcome(self) -> Outcome:
        return Outcome.ACCEPT if self.envelope else Outcome.REJECT


def decide_regimes(confirmations: Mapping[str, Decision], alpha: float) -> RegimeVerdict:
    """What one kernel may claim, from a confirmation per regime (`concurrency=1`, `concurrency=8`, ...).

    Each regime stands for itself: a gain at one never carries to another. Holm over the regimes, since each
    accepted one is published as a claim; with m regimes plan the confirmations for it (pairs_needed(alpha=alpha /
    m)).
    """
    names = sorted(confirmations)
    for name in names:
        if confirmations[name].stage != "confirmation":
            raise ValueError(
                f"regime {name!r}: only a confirmation may be claimed, this is {confirmations[name].stage}"
            )
    pvalues = [1.0 if (p := confirmations[n].p_value) is None else p for n in names]
    adjusted = dict(zip(names, holm(pvalues), strict=True))
    refused: dict[str, str] = {}
    envelope: list[str] = []
    for name in names:
        d = confirmations[name]
        if not d.publishable:
            refused[name] = f"{d.outcome}: {d.reasons[-1]}"
        elif adjusted[name] > alpha:
            refused[name] = f"Holm over {len(names)} regimes: p = {adjusted[name]:.3g} > {alpha:g}"
        else:
            envelope.append(name)
    return RegimeVerdict(tuple(envelope), refused)


def join_proofs(proofs: Sequence[EngagementProof]) -> EngagementProof:
    """One proof out of one per server. ValueError for none: no server is not every server."""
    return EngagementProof(tuple(w for p in proofs for w in p.workers))
