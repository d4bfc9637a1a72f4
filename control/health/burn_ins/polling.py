"""How often an agent asks for what it is to do."""

from typing import Final

from sqlalchemy import func, select

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Node
from muster.domain.policy.health import BurnInPolicy

ASK_S_MIN: Final = 1.0
ASK_S_MAX: Final = 60.0


def ask_again_s(unit: UnitOfWork, policy: BurnInPolicy) -> float:
    """Seconds until the next question: the fleet as a whole asks no more often than the policy says."""
    num_nodes = unit.session.scalar(select(func.count()).select_from(Node)) or 1
    return min(max(num_nodes / policy.asks_per_s, ASK_S_MIN), ASK_S_MAX)
