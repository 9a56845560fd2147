"""How many first runs of a server to throw away: the point where they stop being of another kind than the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def warm_up_length(throughputs: Sequence[float]) -> int:
    """Number of leading runs to discard, by the marginal standard error rule (MSER; White, *Simulation* 69 (1997)).

    The cut d that makes the standard error of the mean of what is left smallest, over at most the first half (a
    minimum in the second half means that the series never got steady; then half of it is the answer and more runs
    are needed). On logarithms, as the test is. Decide it once, on the A/A, and use it for every server of the
    campaign alike: a cut chosen per server and side would be one more way to choose the result. ValueError for
    fewer than four runs.
    """
    x = np.log(np.asarray(throughputs, dtype=np.float64))
    if x.ndim != 1 or len(x) < 4 or not np.isfinite(x).all():
        raise ValueError(f"needs at least four positive throughputs in order of running, got {list(throughputs)!r}")
    errors = [float(x[d:].var()) / (len(x) - d) for d in range(len(x) // 2 + 1)]
    return int(np.argmin(errors))
