"""The figure store: which hours are counted, and what was counted in each, by group."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Double, Index, Integer, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base


class FigureHour(Base):
    """One hour of one source of figures (``ledger.figures.definitions.Source``).

    ``counted_at``: when it was last counted; its facts are of then. ``closed_at``: since when they are final.
    ``claimed_until``: a process reads its samples until then.
    """

    __tablename__ = "figure_hours"
    __table_args__ = (
        CheckConstraint("date_trunc('hour', hour, 'UTC') = hour", name="hour"),
        CheckConstraint("closed_at IS NULL OR counted_at IS NOT NULL", name="closed_at"),
        Index("ix_figure_hours_open", "source", "hour", postgresql_where=text("closed_at IS NULL")),
    )

    source: Mapped[str] = mapped_column(primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)
    counted_at: Mapped[datetime | None] = mapped_column(default=None)
    closed_at: Mapped[datetime | None] = mapped_column(default=None)
    claimed_until: Mapped[datetime | None] = mapped_column(default=None)


class FigureFact(Base):
    """One part of a figure in one hour or day, of jobs that are alike in tenant, tier, class and site.

    ``span_s``: 3600 or 86400, from ``begins_at`` on; a day is there once its hours are closed. ``num``, ``total``:
    observations and their sum. ``buckets``, ``counts``, ``least``, ``most``: a sketch of how values are spread
    (``ledger.figures.sketch``). Unknown values are empty texts, so that they compare.
    """

    __tablename__ = "figure_facts"
    __table_args__ = (
        CheckConstraint("span_s IN (3600, 86400)", name="span_s"),
        CheckConstraint("cardinality(buckets) = cardinality(counts)", name="buckets"),
        CheckConstraint("(cardinality(buckets) = 0) = (least IS NULL)", name="least"),
        CheckConstraint("(least IS NULL) = (most IS NULL)", name="most"),
        Index(None, "figure", "span_s", "begins_at"),
    )

    begins_at: Mapped[datetime] = mapped_column(primary_key=True)
    span_s: Mapped[int] = mapped_column(primary_key=True)
    figure: Mapped[str] = mapped_column(primary_key=True)
    part: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    tier: Mapped[str] = mapped_column(primary_key=True)
    job_class: Mapped[str] = mapped_column(primary_key=True)
    site: Mapped[str] = mapped_column(primary_key=True)
    num: Mapped[int] = mapped_column(BigInteger)
    total: Mapped[float] = mapped_column(Double)
    least: Mapped[float | None] = mapped_column(Double, default=None)
    most: Mapped[float | None] = mapped_column(Double, default=None)
    buckets: Mapped[list[int]] = mapped_column(ARRAY(Integer), default_factory=list)
    counts: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), default_factory=list)
