"""The newest figures of ranks of one attempt, as PostgreSQL reads them from their reports.

A gang may have 100,000 ranks, and each name that is read from a report costs 20 ms of CPU over all of them. So all
figures are read of a page of ranks, or of ranks chosen evenly. What needs all ranks is in ``gang_times``.
"""

from collections.abc import Iterable, Mapping, Sequence
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
from muster.domain.robust import LARGEST
from muster.domain.states import AttemptState, Cause

RANKS_SAMPLED: Final = 4_096
"""Medians and histograms of a wider gang are over so many of its ranks."""
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
    """One attempt of a job. ``gpus_per_node``: 0 where a rank has no GPU of its own. ``ranks_per_node``: of each host.

    ``stage_ranks``, ``tp``: of the job's layout (``widths_of``); 0 without one.
    """

    id: AttemptId
    number: int
    state: AttemptState
    running_at: datetime | None
    ended_at: datetime | None
    cause: Cause | None
    ranks_per_node: int
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

    ``values``: of each of ``FIGURES_OF_RANKS``. ``p50_s``, ``p99_s``: of the steps that are kept of it.
    ``is_slow``: its own compute stands out among ranks with equal work. ``silent_s``: by how much its last report is
    older than the newest of all, where that is long.
    """

    rank: int
    node_id: NodeId
    node_name: str | None
    local_index: int | None
    gpu_uuid: GpuUuid | None
    gpu_bytes: int | None
    values: Mapping[RankFigure, float | None]
    p50_s: float | None = None
    p99_s: float | None = None
    is_slow: bool = False
    silent_s: float | None = None


def _figure(expression: str) -> str:
    """Return the SQL expression of a figure: null for what can be none (``is_figure``), 0 for what is next to 0."""
    return f"CASE WHEN abs({expression}) < {_LEAST} THEN 0 WHEN abs({expression}) <= {LARGEST} THEN {expression} END"


_PARTS_SUMMED: Final = " + ".join(f"coalesce(pace.{part}_s, 0)" for part in PARTS)
_OWN_SUMMED: Final = " + ".join(f"parts.{part}_s" for part in OWN_PARTS)
_OWN_COLUMNS: Final = ", ".join(f"{part}_s float8" for part in OWN_PARTS)
_OWN_BY_PARTS: Final = f"""(
    SELECT {_OWN_SUMMED} FROM jsonb_to_record(coalesce(rank.pace, '{{}}')) AS parts({_OWN_COLUMNS})
)"""  # noqa: S608  # words of ours
OWN: Final = _figure(f"coalesce(pace.own_s, {_OWN_BY_PARTS})")
"""Own compute; the sum of its parts is read only where a rank does not report it: each name in JSON costs time."""
PLACE: Final = """coalesce(nullif(pace.place, ''), CASE WHEN CAST(:stage_ranks AS int) > 0
    THEN rank.rank / :stage_ranks || '/' || rank.rank % :tp ELSE '' END)"""
"""The same for ranks with equal work."""
_OF_PARTS: Final = tuple(f"{part}_s" for part in PARTS)
READ_BY: Final[Mapping[RankFigure, tuple[str, tuple[str, ...]]]] = {
    RankFigure.RANK: ("rank.rank", ()),
    RankFigure.STEP: (_figure("rank.step_s"), ()),
    RankFigure.OWN: (OWN, ("own_s",)),
    RankFigure.DATA: (_figure("pace.data_s"), ("data_s",)),
    RankFigure.COLLECTIVE: (_figure("pace.collective_s"), ("collective_s",)),
    RankFigure.WAIT: (_figure("coalesce(pace.wait_s, pace.collective_s)"), ("wait_s", "collective_s")),
    RankFigure.SAMPLES_PER_S: (
        f"{_figure('pace.samples_per_step')} / nullif({_figure(_PARTS_SUMMED)}, 0)",
        ("samples_per_step", *_OF_PARTS),
    ),
    RankFigure.SAMPLES: (_figure("pace.samples"), ("samples",)),
    RankFigure.TOKENS_PER_S: (_figure("pace.tokens_per_s"), ("tokens_per_s",)),
    RankFigure.MEMORY: (_figure("pace.memory_mib"), ("memory_mib",)),
}
"""Figure → its expression in SQL, and the names in a report of pace that it needs. The ratio needs all ranks."""
_FIGURES_READ: Final = tuple(figure for figure in FIGURES_OF_RANKS if figure in READ_BY)


def pace_with(figures: Iterable[RankFigure], *further: str) -> str:
    """Return the table ``pace`` with what these figures need. ``further``: other columns, with their types."""
    names = dict.fromkeys(name for figure in figures for name in READ_BY[figure][1])
    columns = ", ".join([*(f"{name} float8" for name in names), *further])
    return f"jsonb_to_record(coalesce(rank.pace, '{{}}')) AS pace({columns})"


def reports_of(figures: Sequence[RankFigure], chosen: str) -> str:
    """Return the query for figures of the ranks of the table ``chosen``, each in a column of its name."""
    columns = ", ".join(f"{READ_BY[figure][0]} AS {figure.value}" for figure in figures)
    return f"""SELECT rank.rank, rank.node_id, {columns}
    FROM {chosen} AS chosen JOIN training_ranks AS rank ON rank.attempt_id = :attempt AND rank.rank = chosen.rank
    CROSS JOIN LATERAL {pace_with(figures)}"""  # noqa: S608  # words of ours


EVENLY: Final = """evenly AS MATERIALIZED (
    SELECT rank FROM training_ranks WHERE attempt_id = :attempt ORDER BY hashint4(rank), rank LIMIT :most
)"""
"""Ranks whose numbers follow no rule that a layout could follow too, always the same ones of an attempt."""
_ROWS: Final = f"""
WITH asked AS (SELECT unnest(CAST(:ranks AS int[])) AS rank), part AS ({reports_of(_FIGURES_READ, "asked")})
SELECT part.rank, coalesce(own.node_id, part.node_id), node.name, own.local_index, own.gpu_uuid, gpu.memory_bytes,
    {", ".join(_FIGURES_READ)}
FROM part
LEFT JOIN allocations AS placed ON placed.attempt_id = :attempt AND CAST(:gpus_per_node AS int) > 0
LEFT JOIN allocation_gpus AS own ON own.allocation_id = placed.id
    AND own.node_rank = part.rank / nullif(CAST(:gpus_per_node AS int), 0)
    AND own.local_index = part.rank % nullif(CAST(:gpus_per_node AS int), 0)
LEFT JOIN nodes AS node ON node.id = coalesce(own.node_id, part.node_id)
LEFT JOIN gpus AS gpu ON gpu.uuid = own.gpu_uuid
"""  # noqa: S608  # words of ours
_MEDIANS: Final = f"""
WITH {EVENLY}, part AS ({reports_of(_FIGURES_READ, "evenly")})
SELECT {", ".join(f"percentile_cont(0.5) WITHIN GROUP (ORDER BY {name})" for name in _FIGURES_READ)} FROM part
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
        asked.shape.num_ranks_per_node,
        asked.shape.gpus_per_node if asked.shape.has_a_gpu_for_each_rank else 0,
        stage_ranks,
        tp,
    )


def read_by_one_process(unit: UnitOfWork) -> None:
    """Let one process of PostgreSQL read for the rest of the transaction.

    Further ones double the CPU time of statements that only read many rows, since all rows pass between processes.
    """
    unit.session.execute(text("SET LOCAL max_parallel_workers_per_gather = 0"))


def medians_of(unit: UnitOfWork, attempt: AttemptShown) -> Mapping[RankFigure, float | None]:
    """Return the median of each figure over the ranks: of a gang of more than ``RANKS_SAMPLED``, over so many."""
    found = unit.session.execute(text(_MEDIANS), {**attempt.given, "most": RANKS_SAMPLED}).one()
    return dict(zip(_FIGURES_READ, found, strict=True))


def num_ranks_of(unit: UnitOfWork, attempt: AttemptShown) -> int:
    """Return how many ranks of an attempt have reported."""
    query = select(func.count()).select_from(TrainingRank).where(TrainingRank.attempt_id == attempt.id)
    return unit.session.scalar(query) or 0


def reported_by(unit: UnitOfWork, attempt: AttemptShown, ranks: Sequence[int]) -> dict[int, RankRow]:
    """Return the rows of these ranks, without what only a comparison with the others shows."""
    found = unit.session.execute(text(_ROWS), {**attempt.given, "ranks": list(ranks)})
    return {row[0]: _row(row) for row in found}


def _row(row: Any) -> RankRow:
    rank, node_id, node_name, local_index, gpu_uuid, gpu_bytes, *figures = row
    values = {**dict.fromkeys(FIGURES_OF_RANKS), **dict(zip(_FIGURES_READ, figures, strict=True))}
    return RankRow(rank, node_id, node_name, local_index, gpu_uuid, gpu_bytes, values)


def with_kept_steps(unit: UnitOfWork, attempt: AttemptShown, rows: Sequence[RankRow]) -> list[RankRow]:
    """Return the rows with the percentiles of the steps that are kept of each, without its first: it compiles."""
    given = {"attempt": attempt.id, "ranks": [row.rank for row in rows]}
    kept = {row[0]: row[1] for row in unit.session.execute(text(_KEPT), given)}
    return [replace(row, p50_s=kept[row.rank][0], p99_s=kept[row.rank][1]) if row.rank in kept else row for row in rows]
