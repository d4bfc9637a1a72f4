"""Objectives: their good and bad events by five minutes, and the state of each error budget."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Double
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base


class ObjectiveCount(Base):
    """Events of one objective in the five minutes before ``ends_at``. There is no row without events."""

    __tablename__ = "objective_counts"
    __table_args__ = (CheckConstraint("num_good >= 0 AND num_bad >= 0", name="counts"),)

    objective: Mapped[str] = mapped_column(primary_key=True)
    ends_at: Mapped[datetime] = mapped_column(primary_key=True)
    num_good: Mapped[int] = mapped_column(BigInteger)
    num_bad: Mapped[int] = mapped_column(BigInteger)


class ObjectiveState(Base):
    """The state of one objective's error budget at ``counted_until``.

    ``basis``: which events are counted; once the policy changes that, they are counted again. ``counted_from``: since
    when events are known. ``state_since``: the exact begin of ``state``. ``burning``: name of each pair of windows that
    burns → since when. ``rates``: name of a pair → its long and its short rate. ``num_good``, ``num_bad``: within the
    budget's days. ``left_fraction``: of the budget, 1 for all of it; 0 or less once it is spent.
    """

    __tablename__ = "objective_states"
    __table_args__ = (CheckConstraint("state IN ('ok', 'ticket', 'page')", name="state"),)

    objective: Mapped[str] = mapped_column(primary_key=True)
    job_class: Mapped[str]
    indicator: Mapped[str]
    basis: Mapped[str]
    target: Mapped[float] = mapped_column(Double)
    window_days: Mapped[int]
    counted_from: Mapped[datetime]
    counted_until: Mapped[datetime]
    state: Mapped[str]
    state_since: Mapped[datetime]
    burning: Mapped[dict[str, Any]]
    rates: Mapped[dict[str, Any]]
    num_good: Mapped[int] = mapped_column(BigInteger)
    num_bad: Mapped[int] = mapped_column(BigInteger)
    left_fraction: Mapped[float] = mapped_column(Double)
    is_spent: Mapped[bool]
