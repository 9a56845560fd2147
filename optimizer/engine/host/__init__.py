"""The machine underneath: what it can do, measured, and whether all that is needed is there."""

from optimizer.engine.host.checks import Check, preflight
from optimizer.engine.host.roofline import Rates, Roofline, RooflineFailed, measure_roofline

__all__ = ["Check", "Rates", "Roofline", "RooflineFailed", "measure_roofline", "preflight"]
