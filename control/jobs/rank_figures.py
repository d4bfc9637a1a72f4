"""The newest figures of each rank of one attempt, compared with the median of ranks with equal work: by PostgreSQL.

A gang may have 100,000 ranks. Statements return a page of them, or counts in classes; none reads all ranks into memory
but the one for a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import func, select, text

from control.attempts.mapping import job_request
from control.core.unit_of_work import UnitOfWork
from control.jobs.read import row_of
from control.jobs.training_views import LEAST_STEP_S, MOST_STEP_S
from muster.db.models import Attempt, Job, TrainingRank
from muster.db.queries.newest_ranks import newest_with_ranks
from muster.domain.errors import NotFoundError
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.job.pace import OWN_PARTS, PARTS
from muster.domain.job.rank_places import widths_of
from muster.domain.robust import LARGEST, LEAST_WIDTH, NORMAL_WIDTH
from muster.domain.spread import LEAST_RANKS, ODD_SHARE, ODD_Z
from muster.domain.states import AttemptState, Cause

SLOW_SHOWN: Final = 5
_LEAST: Final = 1e-9
"""Figures below count as 0: a program may report any number, and a quotient of two would overflow."""


class RankFigure(StrEnum):
    """The number of a rank and its figures: columns of the statements below, by which ranks are sorted."""

    RANK = "rank"
    RATIO = "own_ratio"
    STEP = "step_s"
    OWN = "own_s"
    DATA = "data_s"
    COLLECTIVE = "collective_s"
    WAIT = "wait_s"
    SAMPLES_PER_S = "samples_per_s"
    SAMPLES = "samples"
    TOKENS_PER_S = "tokens_per_s"
    MEMORY = "memory_mib"


FIGURES_OF_RANKS: Final = tuple(each for each in RankFigure if each is not RankFigure.RANK)


class Order(StrEnum):
    UP = "asc"
    DOWN = "desc"


@dataclass(frozen=True, slots=True)
class AttemptShown:
    """One attempt of a job. ``gpus_per_node``: 0 where a rank has no GPU of its own. ``stage_ranks``, ``tp``: of the
    job's layout (``widths_of``); 0 without one.
    """

    id: AttemptId
    number: int
    state: AttemptState
    running_at: datetime | None
    ended_at: datetime | None
    cause: Cause | None
    gpus_per_node: int
    stage_ranks: int
    tp: int

    @property
    def given(self) -> dict[str, Any]:
        """The parameters of the statements."""
        own = {"attempt": self.id, "gpus_per_node": self.gpus_per_node}
        return {**own, "stage_ranks": self.stage_ranks, "tp": self.tp}


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank. ``local_index``, ``gpu_uuid``, ``gpu_bytes``: of its GPU; None where it has none of its own.

    ``values``: of each of ``FIGURES_OF_RANKS``. ``is_slow``: its own compute stands out among ranks with
    equal work. ``p50_s``, ``p99_s``: of the steps that are kept of it.
    """

    rank: int
    node_id: NodeId
    node_name: str | None
    local_index: int | None
    gpu_uuid: GpuUuid | None
    gpu_bytes: int | None
    is_slow: bool
    values: Mapping[RankFigure, float | None]
    p50_s: float | None = None
    p99_s: float | None = None


@dataclass(frozen=True, slots=True)
class Gang:
    """All ranks of an attempt that have reported. ``num_paced``: that report a pace. ``medians``: of each figure.

    ``world_size``: the number of ranks, as they report it.
    """

    num_ranks: int
    num_paced: int
    num_slow: int
    world_size: int | None
    newest_at: datetime | None
    medians: Mapping[RankFigure, float | None]


def _figure(expression: str) -> str:
    """Return the SQL expression of a figure: null for what can be none (``is_figure``), 0 for what is next to 0."""
    return f"CASE WHEN abs({expression}) < {_LEAST} THEN 0 WHEN abs({expression}) <= {LARGEST} THEN {expression} END"


_OWN: Final = f"coalesce(pace.own_s, {' + '.join(f'pace.{part}_s' for part in OWN_PARTS)})"
_ALL_PARTS: Final = " + ".join(f"coalesce(pace.{part}_s, 0)" for part in PARTS)
_PACE_FIGURES: Final = ("own_s", "wait_s", *(f"{part}_s" for part in PARTS), "samples", "samples_per_step")
RANKS: Final = f"""
WITH reports AS MATERIALIZED (
    SELECT rank.rank, rank.node_id, rank.world_size, rank.updated_at, rank.pace IS NOT NULL AS has_pace,
        coalesce(nullif(pace.place, ''), CASE WHEN CAST(:stage_ranks AS int) > 0
            THEN rank.rank / :stage_ranks || '/' || rank.rank % :tp ELSE '' END) AS place,
        {_figure("rank.step_s")} AS step_s, {_figure(_OWN)} AS own_s, {_figure("pace.data_s")} AS data_s,
        {_figure("pace.collective_s")} AS collective_s,
        {_figure("coalesce(pace.wait_s, pace.collective_s)")} AS wait_s,
        {_figure("pace.samples_per_step")} / nullif({_figure(_ALL_PARTS)}, 0) AS samples_per_s,
        {_figure("pace.samples")} AS samples, {_figure("pace.tokens_per_s")} AS tokens_per_s,
        {_figure("pace.memory_mib")} AS memory_mib
    FROM training_ranks AS rank CROSS JOIN LATERAL jsonb_to_record(coalesce(rank.pace, '{{}}')) AS pace(
        {", ".join(f"{name} float8" for name in _PACE_FIGURES)}, tokens_per_s float8, memory_mib float8, place text)
    WHERE rank.attempt_id = :attempt
), usual AS (
    SELECT place, percentile_cont(0.5) WITHIN GROUP (ORDER BY own_s) AS own_s, count(own_s) AS num_ranks
    FROM reports GROUP BY place
), noise AS (
    SELECT place, greatest(
        {NORMAL_WIDTH} * percentile_cont(0.5) WITHIN GROUP (ORDER BY abs(reports.own_s - usual.own_s)),
        {LEAST_WIDTH} * min(usual.own_s)
    ) AS width_s
    FROM reports JOIN usual USING (place) GROUP BY place
), judged AS (
    SELECT reports.*, reports.own_s / nullif(usual.own_s, 0) AS own_ratio, coalesce(usual.num_ranks >= {LEAST_RANKS}
        AND reports.own_s > (1 + {ODD_SHARE}) * usual.own_s
        AND reports.own_s - usual.own_s >= {ODD_Z} * noise.width_s, false) AS is_slow
    FROM reports JOIN usual USING (place) JOIN noise USING (place)
)
"""  # noqa: S608  # words of ours
_COLUMNS: Final = ", ".join(FIGURES_OF_RANKS)
_ROWS: Final = f"""
SELECT part.rank, coalesce(held.node_id, part.node_id), node.name, held.local_index, held.gpu_uuid, gpu.memory_bytes,
    part.is_slow, {_COLUMNS}
FROM part
LEFT JOIN (
    SELECT own.node_rank * CAST(:gpus_per_node AS int) + own.local_index AS number, own.node_id, own.local_index,
        own.gpu_uuid
    FROM allocations AS placed JOIN allocation_gpus AS own ON own.allocation_id = placed.id
    WHERE placed.attempt_id = :attempt AND CAST(:gpus_per_node AS int) > 0
) AS held ON held.number = part.rank
LEFT JOIN nodes AS node ON node.id = coalesce(held.node_id, part.node_id)
LEFT JOIN gpus AS gpu ON gpu.uuid = held.gpu_uuid
"""  # noqa: S608  # words of ours
_GANG: Final = f"""
SELECT count(*), count(*) FILTER (WHERE has_pace), count(*) FILTER (WHERE is_slow), max(world_size), max(updated_at),
    {", ".join(f"percentile_cont(0.5) WITHIN GROUP (ORDER BY {name})" for name in FIGURES_OF_RANKS)}
FROM judged
"""  # noqa: S608  # words of ours
_KEPT: Final = f"""
SELECT rank.rank, percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY (point ->> 2)::float8)
FROM training_ranks AS rank
CROSS JOIN LATERAL jsonb_array_elements(rank.history -> 'points') WITH ORDINALITY AS kept (point, place)
WHERE rank.attempt_id = :attempt AND rank.rank = ANY(:ranks) AND kept.place > 1
    AND (point ->> 2)::float8 BETWEEN {LEAST_STEP_S} AND {MOST_STEP_S}
GROUP BY rank.rank
"""  # noqa: S608  # words of ours


def attempt_of(unit: UnitOfWork, job_id: JobId, number: int | None = None) -> AttemptShown | None:
    """Return an attempt of a visible job: by default the newest of which a rank has reported, else the newest.

    None: the job has none. Raises ``NotFoundError``: no such job or attempt.
    """
    job = row_of(unit, job_id)
    query = select(Attempt).where(Attempt.job_id == job.id).order_by(Attempt.number.desc()).limit(1)
    if number is not None:
        attempt = unit.session.scalar(query.where(Attempt.number == number))
        if attempt is None:
            raise NotFoundError("the job has no such attempt")
        return _shown(job, attempt)
    attempt = unit.session.scalar(query.where(Attempt.id == newest_with_ranks(job.id))) or unit.session.scalar(query)
    return None if attempt is None else _shown(job, attempt)


def numbers_of(unit: UnitOfWork, job_id: JobId, *, most: int) -> Sequence[int]:
    """Return the numbers of a visible job's newest attempts, the oldest of them first."""
    query = select(Attempt.number).where(Attempt.job_id == row_of(unit, job_id).id)
    return sorted(unit.session.scalars(query.order_by(Attempt.number.desc()).limit(most)))


def _shown(job: Job, attempt: Attempt) -> AttemptShown:
    asked = job_request(job)
    stage_ranks, tp = (0, 1) if asked.layout is None else widths_of(asked.layout.model_dump())
    return AttemptShown(
        attempt.id,
        attempt.number,
        attempt.state,
        attempt.running_at,
        attempt.ended_at,
        attempt.cause,
        asked.shape.gpus_per_node if asked.shape.has_a_gpu_for_each_rank else 0,
        stage_ranks,
        tp,
    )


def gang_of(unit: UnitOfWork, attempt: AttemptShown) -> Gang:
    """Return what the ranks of an attempt have in common."""
    row = unit.session.execute(text(RANKS + _GANG), attempt.given).one()
    return Gang(row[0], row[1], row[2], row[3], row[4], dict(zip(FIGURES_OF_RANKS, row[5:], strict=True)))


def num_ranks_of(unit: UnitOfWork, attempt: AttemptShown) -> int:
    """Return how many ranks of an attempt have reported."""
    query = select(func.count()).select_from(TrainingRank).where(TrainingRank.attempt_id == attempt.id)
    return unit.session.scalar(query) or 0


def slow_ranks_of(
    unit: UnitOfWork, attempt: AttemptShown, gang: Gang, slowest_first: Sequence[RankRow] = ()
) -> Sequence[RankRow]:
    """Return the ranks whose own compute stands out, the slowest first.

    ``slowest_first``: the first ranks in this order, if they are read already: mostly they have them all.
    """
    known = [row for row in slowest_first if row.is_slow]
    if len(known) >= min(gang.num_slow, SLOW_SHOWN):
        return known[:SLOW_SHOWN]
    part = ", part AS (SELECT * FROM judged WHERE is_slow ORDER BY own_ratio DESC, rank LIMIT :most)"
    return _rows(unit, attempt, part, "own_ratio DESC", {"most": SLOW_SHOWN})


def list_ranks(
    unit: UnitOfWork,
    attempt: AttemptShown,
    sort: RankFigure,
    order: Order,
    *,
    limit: int | None,
    after: Sequence[str] | None = None,
) -> Sequence[RankRow]:
    """Return ranks in the order of ``sort``; a rank without the figure comes last. ``after``: ``position_of`` a row."""
    key = f"coalesce({sort.value}::float8, {_last(order)})"  # no figure is below 0
    way, sign, beyond = ("DESC", "-", "<") if order is Order.DOWN else ("ASC", "+", ">")
    where = ""
    given: dict[str, Any] = {"most": limit}
    if after is not None:
        where = f"WHERE ({key}, {sign}rank) {beyond} (CAST(:value AS float8), {sign}CAST(:rank AS int))"
        given |= {"value": float(after[0]), "rank": int(after[1])}
    part = f", part AS (SELECT * FROM judged {where} ORDER BY {key} {way}, rank LIMIT :most)"  # noqa: S608
    return _rows(unit, attempt, part, f"{key} {way}", given)


def position_of(row: RankRow, sort: RankFigure, order: Order) -> list[str]:
    """Return the place of a row in the order of ``sort``."""
    value = float(row.rank) if sort is RankFigure.RANK else row.values[sort]
    return [repr(_last(order) if value is None else value), str(row.rank)]


def _last(order: Order) -> float:
    return -1.0 if order is Order.DOWN else 10 * LARGEST


def _rows(unit: UnitOfWork, attempt: AttemptShown, part: str, order: str, given: Mapping[str, Any]) -> list[RankRow]:
    statement = text(f"{RANKS}{part}{_ROWS} ORDER BY {order}, part.rank")
    found = unit.session.execute(statement, {**attempt.given, **given})
    return [_row(row) for row in found]


def _row(row: Any) -> RankRow:
    rank, node_id, node_name, local_index, gpu_uuid, gpu_bytes, is_slow, *figures = row
    values = dict(zip(FIGURES_OF_RANKS, figures, strict=True))
    return RankRow(rank, node_id, node_name, local_index, gpu_uuid, gpu_bytes, is_slow, values)


def with_kept_steps(unit: UnitOfWork, attempt: AttemptShown, rows: Sequence[RankRow]) -> list[RankRow]:
    """Return the rows with the percentiles of the steps that are kept of each, without its first: it compiles."""
    given = {"attempt": attempt.id, "ranks": [row.rank for row in rows]}
    kept = {row[0]: row[1] for row in unit.session.execute(text(_KEPT), given)}
    return [replace(row, p50_s=kept[row.rank][0], p99_s=kept[row.rank][1]) if row.rank in kept else row for row in rows]
