"""The interval at which agents ask for burn-ins and repairs."""

from typing import Final

from sqlalchemy import func, select

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Node
from muster.domain.policy.health import BurnInPolicy

POLL_S_MIN: Final = 1.0
POLL_S_MAX: Final = 60.0


def poll_again_s(unit: UnitOfWork, policy: BurnInPolicy) -> float:
    """Return the seconds until an agent's next request, so that the fleet asks no more often than the policy allows."""
    num_nodes = unit.session.scalar(select(func.count()).select_from(Node)) or 1
    return min(max(num_nodes / policy.polls_per_s, POLL_S_MIN), POLL_S_MAX)
