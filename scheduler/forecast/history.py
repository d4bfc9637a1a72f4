"""What a job without a wall time is believed to take, from how long others like it took. Nobody is stopped by it.

Like it: finished jobs of the same tenant, name and shape. If runs are exchangeable, the next of n + 1 is no longer than
the k-th shortest of n with probability k ÷ (n + 1), whatever their distribution (Wilks, "Determination of sample sizes
for setting tolerance limits", 1941). So few runs say nothing, and one that lasted for ever moves nothing.
"""

import math
from collections.abc import Sequence

from muster.domain.policy.document import Policy


def predicted_s(runs_s: Sequence[float], policy: Policy) -> float | None:
    """Seconds that `queue.history_quantile` of such runs do not pass; None where there are too few of them."""
    rank = math.ceil(policy.queue.history_quantile * (len(runs_s) + 1))
    return sorted(runs_s)[rank - 1] if 0 < rank <= len(runs_s) else None
