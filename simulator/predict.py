"""What a campaign can find and what it will cost, before it spends anything."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from scipy import special, stats

from optimizer.engine.abtest.aa import AAResult, detectable_effect, spread_upper_limit
from optimizer.engine.abtest.blocks import from_percent, percent
from optimizer.engine.abtest.confirmation import ConfirmationDesign
from optimizer.engine.abtest.sequential import SequentialDesign


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectableGain:
    """Gains in percent found with `power`: by the last look, by the first look, confirmed; overall is the largest
    needed.

    Each is for its own stage at the stated power, by normal theory; the chance to pass both stages is a little lower.
    """

    power: float
    discovery_pct: float
    first_look_pct: float
    confirmation_pct: float
    overall_pct: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Wall time in seconds by stage: at least, and at most. least_total is a clear gain found at the first look."""

    aa_s: float
    discovery_least_s: float
    discovery_most_s: float
    confirmation_s: float
    least_total_s: float
    most_total_s: float
    server_starts: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def predict_mde(
    aa: AAResult | None = None,
    *,
    sd_pct: float | None = None,
    design: SequentialDesign | None = None,
    confirmation: ConfirmationDesign | None = None,
    server_sd_pct: float = 0.0,
    power: float = 0.8,
) -> DetectableGain:
    """From an A/A (the 80 % upper limit of its spread is used), or from an assumed SD of block log-ratios in percent.

    server_sd_pct: SD of the effect of a server start, which no A/A of one pair can tell; it widens only the
    confirmation.
    Confirmation: all but the allowed number of the K pair means must be above 0, and Student's bound too; with
    s = sqrt(2 server^2 + sd^2 / m) the first needs s z(power^(1/K)), the second is the usual formula; the larger
    counts. ValueError unless exactly one of aa and sd_pct is given.
    """
    if (aa is None) == (sd_pct is None):
        raise ValueError("give either an A/A result or an assumed sd_pct")
    design, confirmation = design or SequentialDesign(), confirmation or ConfirmationDesign()
    if aa is not None:
        sd = spread_upper_limit(aa.sd, aa.n_blocks - aa.n_pairs + 1)
    else:
        sd = from_percent(sd_pct or 0.0)
    levels = design.interval_levels
    least = from_percent(design.min_gain_pct) + (aa.offset if aa else 0.0)
    last = least + detectable_effect(sd, design.max_blocks, level=levels[-1], power=power)
    first = least + detectable_effect(sd, design.looks[0], level=levels[0], power=power)
    k = confirmation.pairs
    pair_sd = math.sqrt(2 * from_percent(server_sd_pct) ** 2 + sd**2 / confirmation.blocks_per_pair)
    signs = pair_sd * float(special.ndtri(power ** (1 / k)))
    df = k - 1
    bound = (stats.t.ppf(1 - confirmation.interval_level, df) + stats.t.ppf(power, df)) * pair_sd / math.sqrt(k)
    confirm = from_percent(confirmation.min_gain_pct) + max(signs, float(bound))
    return DetectableGain(
        power=power,
        discovery_pct=percent(last),
        first_look_pct=percent(first),
        confirmation_pct=percent(confirm),
        overall_pct=percent(max(last, confirm)),
    )


def predict_cost(
    *,
    run_s: float,
    start_s: float,
    warm_up_s: float = 0.0,
    aa_blocks: int = 6,
    design: SequentialDesign | None = None,
    confirmation: ConfirmationDesign | None = None,
    parallel_starts: bool = False,
) -> Cost:
    """Wall time of the A/B part of a campaign.

    run_s: one run of the workload; start_s, warm_up_s: one server until it answers, and until its figures are steady.
    parallel_starts: the two servers of a pair start side by side (then start_s is for both).
    """
    if min(run_s, start_s, warm_up_s) < 0 or aa_blocks < 0:
        raise ValueError("times and counts cannot be negative")
    design, confirmation = design or SequentialDesign(), confirmation or ConfirmationDesign()
    ready = (start_s if parallel_starts else 2 * start_s) + 2 * warm_up_s
    block = 4 * run_s
    aa = ready + aa_blocks * block
    change = start_s + warm_up_s  # B takes the place of A's twin
    least, most = change + design.looks[0] * block, change + design.max_blocks * block
    confirm = confirmation.pairs * ready + confirmation.n_blocks * block
    return Cost(
        aa_s=aa,
        discovery_least_s=least,
        discovery_most_s=most,
        confirmation_s=confirm,
        least_total_s=aa + least + confirm,
        most_total_s=aa + most + confirm,
        server_starts=3 + 2 * confirmation.pairs,
    )
