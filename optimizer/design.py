"""From a campaign's configuration to the designs of its tests."""

from __future__ import annotations

from optimizer.engine.abtest import ConfirmationDesign, SequentialDesign, pairs_needed
from optimizer.plan import CampaignConfig


def sequential_design(config: CampaignConfig) -> SequentialDesign:
    """The discovery A/B, fixed before the first block."""
    test = config.test
    return SequentialDesign(looks=test.looks, alpha=test.alpha, power=test.power, seed=config.seed)


def confirmation_design(config: CampaignConfig, *, regimes: int, attempt: int, candidates: int) -> ConfirmationDesign:
    """The confirmation. Every regime it claims is a test of its own: alpha is divided among them."""
    test = config.test
    alpha = test.alpha / max(1, regimes)
    return ConfirmationDesign(
        pairs=max(test.confirm_restarts, pairs_needed(alpha=alpha, attempt=attempt, candidates=candidates)),
        blocks_per_pair=test.confirm_blocks,
        alpha=alpha,
        attempt=attempt,
        candidates=candidates,
        seed=config.seed,
    )
