"""End-to-end A/B: blocks, tests, intervals, planned looks, guards, decisions. See docs/adr/0004."""

from optimizer.engine.abtest.aa import AAResult, assess_aa
from optimizer.engine.abtest.amdahl import amdahl_gain
from optimizer.engine.abtest.blocks import Block, PlannedBlock, from_percent, percent, plan_blocks, plan_pairs
from optimizer.engine.abtest.campaign import decide_regimes, join_proofs, select_for_confirmation
from optimizer.engine.abtest.confirmation import ConfirmationDesign, decide_confirmation, pairs_needed
from optimizer.engine.abtest.decision import Decision, ImpossibleDecision, Outcome
from optimizer.engine.abtest.discovery import REQUIRED_GUARDS, decide
from optimizer.engine.abtest.engagement import EngagementProof, NotEngaged, check_engagement, check_stock
from optimizer.engine.abtest.guards import GuardResult, error_guard, fidelity_guard, latency_guard, memory_guard
from optimizer.engine.abtest.resampling import bca_interval, holm, sign_flip_pvalue
from optimizer.engine.abtest.sequential import SequentialDesign
from optimizer.engine.abtest.warmup import warm_up_length

__all__ = [
    "REQUIRED_GUARDS",
    "AAResult",
    "Block",
    "ConfirmationDesign",
    "Decision",
    "EngagementProof",
    "GuardResult",
    "ImpossibleDecision",
    "NotEngaged",
    "Outcome",
    "PlannedBlock",
    "SequentialDesign",
    "amdahl_gain",
    "assess_aa",
    "bca_interval",
    "check_engagement",
    "check_stock",
    "decide",
    "decide_confirmation",
    "decide_regimes",
    "error_guard",
    "fidelity_guard",
    "from_percent",
    "holm",
    "join_proofs",
    "latency_guard",
    "memory_guard",
    "pairs_needed",
    "percent",
    "plan_blocks",
    "plan_pairs",
    "select_for_confirmation",
    "sign_flip_pvalue",
    "warm_up_length",
]
