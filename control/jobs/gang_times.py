"""Own compute and last report of all ranks of one attempt: which are slow, which are silent, and on which hosts.

A gang may have 100,000 ranks. One statement packs a few numbers of each, 37 bytes a rank, into arrays: to compare them
by statements takes twice the CPU time. A rank is compared with the median of ranks with equal work.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import text

from control.core.unit_of_work import UnitOfWork
from control.jobs.rank_figures import (
    OWN,
    PLACE,
    READ_BY,
    AttemptShown,
    Order,
    RankFigure,
    RankRow,
    pace_with,
    read_by_one_process,
    reported_by,
)
from muster.domain.robust import LEAST_WIDTH, NORMAL_WIDTH
from muster.domain.spread import LEAST_RANKS, ODD_SHARE, ODD_Z

SILENT_AFTER_S: Final = 60.0
"""A rank is silent if its last report is so much older than the newest of all, and ``SILENT_STEPS`` steps too.

One that has ended is not, nor one that has done no step: how long a first step takes is not known.
"""
SILENT_STEPS: Final = 10
_MICROSECONDS: Final = 1e6


@dataclass(frozen=True, slots=True)
class GangTimes:
    """All ranks of an attempt that have reported, by their numbers: each array has a value of each.

    ``own_s``: NaN where a rank reports none. ``ratio``: it over the median of ranks with equal work. ``behind_s``: by
    how much a rank's last report is older than the newest. ``figure``: by which they may be sorted; NaN: not reported.
    ``num_paced``: ranks that report a pace. ``world_size``: the number of ranks, as they report it.
    """

    ranks: NDArray[np.int64]
    own_s: NDArray[np.float64]
    ratio: NDArray[np.float64]
    is_slow: NDArray[np.bool_]
    behind_s: NDArray[np.float64]
    is_silent: NDArray[np.bool_]
    figure: NDArray[np.float64]
    num_paced: int
    world_size: int | None
    newest_at: datetime | None

    @property
    def num_ranks(self) -> int:
        return len(self.ranks)

    @property
    def num_slow(self) -> int:
        return int(self.is_slow.sum())

    @property
    def num_silent(self) -> int:
        return int(self.is_silent.sum())

    @property
    def num_missing(self) -> int:
        """Ranks that have never reported."""
        return max((self.world_size or 0) - self.num_ranks, 0)

    def missing(self, most: int) -> list[int]:
        """Return the first ranks that have never reported."""
        is_missing = np.ones(min(self.world_size or 0, self.num_ranks + most), bool)
        is_missing[self.ranks[self.ranks < len(is_missing)]] = False
        return [int(rank) for rank in np.flatnonzero(is_missing)[:most]]

    def longest_silent(self, most: int) -> list[int]:
        """Return silent ranks, the one that is silent for longest first."""
        found = np.flatnonzero(self.is_silent)
        return self._numbers(found[np.argsort(-self.behind_s[found], kind="stable")][:most])

    def slowest(self, most: int) -> list[int]:
        """Return slow ranks, the slowest first."""
        found = np.flatnonzero(self.is_slow)
        return self._numbers(found[np.argsort(-self.ratio[found], kind="stable")][:most])

    def among(self, ranks: Collection[int]) -> NDArray[np.bool_]:
        """Return which ranks are among these."""
        return np.isin(self.ranks, np.fromiter(ranks, np.int64, len(ranks)))

    def sorted_ranks(
        self,
        sort: RankFigure,
        order: Order,
        *,
        only: NDArray[np.bool_] | None = None,
        after: Sequence[str] | None = None,
        limit: int,
    ) -> list[int]:
        """Return ranks in the order of ``sort``, which is ``figure``; a rank without it comes last.

        ``only``: which ranks. ``after``: the ``position_of`` a row.
        """
        values = {RankFigure.RANK: self.ranks, RankFigure.RATIO: self.ratio, RankFigure.OWN: self.own_s}
        key = np.asarray(values.get(sort, self.figure), dtype=float)
        rising = np.where(np.isnan(key), np.inf, -key if order is Order.DOWN else key)
        shown = np.ones(len(rising), bool) if only is None else only
        if after is not None:
            value, rank = _rising(after[0], order), int(after[1])
            shown = shown & ((rising > value) | ((rising == value) & (self.ranks > rank)))
        found = np.flatnonzero(shown)
        return self._numbers(found[np.lexsort((self.ranks[found], rising[found]))[:limit]])

    def rows(self, unit: UnitOfWork, attempt: AttemptShown, ranks: Sequence[int]) -> list[RankRow]:
        """Return the rows of ranks in this order, each compared with the others."""
        found = reported_by(unit, attempt, ranks)
        places = np.searchsorted(self.ranks, ranks)
        both = zip(ranks, places.tolist(), strict=True)
        return [self._compared(found[rank], place) for rank, place in both if rank in found]

    def _numbers(self, places: NDArray[np.intp]) -> list[int]:
        return [int(rank) for rank in self.ranks[places]]

    def _compared(self, row: RankRow, place: int) -> RankRow:
        ratio = float(self.ratio[place])
        return replace(
            row,
            values={**row.values, RankFigure.RATIO: None if np.isnan(ratio) else ratio},
            is_slow=bool(self.is_slow[place]),
            silent_s=float(self.behind_s[place]) if self.is_silent[place] else None,
        )


def position_of(row: RankRow, sort: RankFigure) -> list[str]:
    """Return the place of a row in the order of ``sort``."""
    value = float(row.rank) if sort is RankFigure.RANK else row.values[sort]
    return ["" if value is None else repr(value), str(row.rank)]


def gang_times_of(unit: UnitOfWork, attempt: AttemptShown, sort: RankFigure = RankFigure.RATIO) -> GangTimes:
    """Return all ranks of an attempt. ``sort``: by which they may be sorted."""
    is_read = sort not in {RankFigure.RANK, RankFigure.RATIO, RankFigure.OWN}
    figures = (RankFigure.OWN, sort) if is_read else (RankFigure.OWN,)
    figure = READ_BY[sort][0] if is_read else "CAST(NULL AS float8)"
    statement = f"""
    SELECT string_agg(int4send(rank), CAST('' AS bytea)),
        string_agg(float8send(coalesce(own_s, 'NaN')), CAST('' AS bytea)),
        string_agg(timestamptz_send(updated_at), CAST('' AS bytea)),
        string_agg(float8send(coalesce(figure, 'NaN')), CAST('' AS bytea)),
        string_agg(float8send(coalesce(step_s, 'NaN')), CAST('' AS bytea)),
        string_agg(boolsend(outcome IS NOT NULL), CAST('' AS bytea)),
        count(*) FILTER (WHERE has_pace), max(world_size), max(updated_at)
    FROM (
        SELECT rank.rank, rank.updated_at, rank.world_size, rank.outcome, rank.pace IS NOT NULL AS has_pace,
            {PLACE} AS place, {OWN} AS own_s, {READ_BY[RankFigure.STEP][0]} AS step_s, {figure} AS figure
        FROM training_ranks AS rank CROSS JOIN LATERAL {pace_with(figures, "place text")}
        WHERE rank.attempt_id = :attempt
    ) AS report
    GROUP BY place
    """  # noqa: S608  # words of ours
    read_by_one_process(unit)
    groups = unit.session.execute(text(statement), attempt.given).all()
    return _joined([_Group.of(row) for row in groups])


@dataclass(frozen=True, slots=True)
class _Group:
    """The ranks with equal work. ``at_us``: of each one's last report, by PostgreSQL's count of microseconds."""

    ranks: NDArray[np.int64]
    own_s: NDArray[np.float64]
    at_us: NDArray[np.int64]
    figure: NDArray[np.float64]
    step_s: NDArray[np.float64]
    has_ended: NDArray[np.bool_]
    num_paced: int
    world_size: int | None
    newest_at: datetime

    @classmethod
    def of(cls, row: Any) -> "_Group":
        ranks, own_s, at_us, figure, step_s, has_ended, num_paced, world_size, newest_at = row
        return cls(
            np.frombuffer(ranks, ">i4").astype(np.int64),
            np.frombuffer(own_s, ">f8").astype(float),
            np.frombuffer(at_us, ">i8").astype(np.int64),
            np.frombuffer(figure, ">f8").astype(float),
            np.frombuffer(step_s, ">f8").astype(float),
            np.frombuffer(has_ended, np.bool_),
            num_paced,
            world_size,
            newest_at,
        )

    def ratio(self) -> NDArray[np.float64]:
        """Return own compute over its median; NaN where that is 0."""
        usual_s = _median(self.own_s)
        return self.own_s / usual_s if usual_s else np.full(len(self.own_s), np.nan)


def slow_among(own_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which ranks stand out by long own compute; of a large group as ``muster.domain.spread`` decides.

    ``own_s``: of ranks with equal work; NaN where a rank reports none, which is not slow.
    """
    if np.count_nonzero(~np.isnan(own_s)) < LEAST_RANKS:
        return np.zeros(len(own_s), bool)
    usual_s = _median(own_s)
    distance_s = own_s - usual_s
    width_s = max(NORMAL_WIDTH * _median(np.abs(distance_s)), LEAST_WIDTH * usual_s)
    return (distance_s > ODD_SHARE * usual_s) & (distance_s >= ODD_Z * width_s)


def _median(values: NDArray[np.float64]) -> float:
    """Return the median of the values that are known; 0 without one."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else 0.0


def _joined(groups: Sequence[_Group]) -> GangTimes:
    if not groups:
        nothing = np.zeros(0)
        none = nothing.astype(bool)
        return GangTimes(nothing.astype(np.int64), nothing, nothing, none, nothing, none, nothing, 0, None, None)
    ranks = np.concatenate([group.ranks for group in groups])
    by_rank = np.argsort(ranks)
    at_us = np.concatenate([group.at_us for group in groups])[by_rank]
    behind_s = (at_us.max() - at_us) / _MICROSECONDS
    step_s = np.concatenate([group.step_s for group in groups])[by_rank]
    may_be_silent = ~np.isnan(step_s) & ~np.concatenate([group.has_ended for group in groups])[by_rank]
    silent_after_s = max(SILENT_AFTER_S, SILENT_STEPS * _median(step_s))
    return GangTimes(
        ranks[by_rank],
        np.concatenate([group.own_s for group in groups])[by_rank],
        np.concatenate([group.ratio() for group in groups])[by_rank],
        np.concatenate([slow_among(group.own_s) for group in groups])[by_rank],
        behind_s,
        may_be_silent & (behind_s > silent_after_s),
        np.concatenate([group.figure for group in groups])[by_rank],
        sum(group.num_paced for group in groups),
        max((group.world_size for group in groups if group.world_size is not None), default=None),
        max(group.newest_at for group in groups),
    )


def _rising(value: str, order: Order) -> float:
    """Return the place of a figure in rising order; a missing one is last."""
    if not value:
        return float("inf")
    return -float(value) if order is Order.DOWN else float(value)
