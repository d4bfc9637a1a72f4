"""The predicted run time of a job without a wall time, from similar jobs. No job is stopped by it.

Similar are finished jobs of the same tenant, name and shape. If runs are exchangeable, the next of n + 1 is no longer
than the k-th shortest of n with probability k ÷ (n + 1), whatever their distribution (Wilks, "Determination of sample
sizes for setting tolerance limits", 1941). Too few runs give no prediction, and one very long run does not change it.
"""

import math
from collections.abc import Sequence

from muster.domain.policy.document import Policy


def predicted_s(runs_s: Sequence[float], policy: Policy) -> float | None:
    """Return the seconds that `queue.history_quantile` of such runs do not exceed; None if there are too few."""
    rank = math.ceil(policy.queue.history_quantile * (len(runs_s) + 1))
    return sorted(runs_s)[rank - 1] if 0 < rank <= len(runs_s) else None
