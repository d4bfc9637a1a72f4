"""Credits: time that a tenant had GPUs for and lost by the fleet's own faults, as our own measurements show.

A cause alone gives nothing back, and what a tenant's program reports gives nothing back either: a program could report
itself slow. An entry is credited where its account is one that the rate cards credit, its cause is one of the
fleet's, and at least one thing of its evidence is known to be measured by us.
"""

from collections.abc import Collection
from typing import Final

from ledger.accounts import CHARGED, Account
from muster.domain.exit.causes import CAUSE_RULES, Budget
from muster.domain.ids import PREFIXES

_OF_RUNNING: Final = frozenset({"gpu", "host", "network"})
"""Causes of verdicts on a running attempt that are about the fleet: tokens of ``watch.stragglers.causes``."""
_RECLAIM: Final = f"{PREFIXES['reclaim']}_"
FLEET_CAUSES: Final = _OF_RUNNING | {
    str(cause) for cause, rule in CAUSE_RULES.items() if rule.budget is Budget.INFRASTRUCTURE
}
"""Causes that never count against a job's own restarts, for the same reason: the job did nothing."""


def grounds_of(
    account: Account, cause: str, evidence: Collection[str], *, accounts: Collection[str], measured: Collection[str]
) -> list[str]:
    """Return the ids of the evidence by which the time of an entry is given back, in order; empty: it is not.

    ``accounts``: which the rate cards credit. ``measured``: ids of evidence, verdicts and reclaims that rest on
    what the fleet itself measured or did.
    """
    if account not in CHARGED or str(account) not in accounts or cause not in FLEET_CAUSES:
        return []
    return sorted(one for one in evidence if one in measured and _is_about(account, one))


def _is_about(account: Account, evidence: str) -> bool:
    """Return whether it explains such a loss: a reclaim explains the steps that are trained again after it alone."""
    return account is Account.RECLAIM_LOST or not evidence.startswith(_RECLAIM)
