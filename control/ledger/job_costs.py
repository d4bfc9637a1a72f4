"""The cost of a job so far, by account, and the predicted cost of one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from sqlalchemy import Double, cast, func, select, text
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import may_see
from control.ledger.charges import Charges, Scope, charges
from control.ledger.figure_counts import MOST_RATE
from control.ledger.rates import active_rates
from ledger.bills import EXACT_DECIMALS, epoch_cost, exactly_charged, exactly_spent
from ledger.figures.hours import hour_of
from ledger.findings import STEP_PARTS, StepShares, StepSums
from muster.db.models import Attempt, Checkpoint, Gpu, Job, TrainingRank
from muster.db.queries.newest_ranks import newest_with_ranks
from muster.domain.amounts import MS_PER_HOUR, amount, quotient
from muster.domain.errors import NotFoundError
from muster.domain.ids import GpuUuid, JobId
from muster.domain.principals import Permission
from muster.domain.rates import Tariff

READ: Final = declare_action("job_cost.read")
_SUMMED_UP: Final = ("tokens_per_step", "samples_per_step", "mfu", *STEP_PARTS)
_STATED: Final = f"""
SELECT attempt_id, count(*), max(world_size),
    count(tokens_per_step), coalesce(sum(tokens_per_step), 0),
    count(samples_per_step), coalesce(sum(samples_per_step), 0),
    count(*) FILTER (WHERE step_s > 0), coalesce(sum(step_s) FILTER (WHERE step_s > 0), 0),
    count(mfu) FILTER (WHERE step_s > 0), coalesce(sum(mfu) FILTER (WHERE step_s > 0), 0),
    count(collective_s) FILTER (WHERE step_s > 0), coalesce(sum(collective_s) FILTER (WHERE step_s > 0), 0),
    coalesce(sum(data_s) FILTER (WHERE step_s > 0), 0)
FROM (
    SELECT attempt_id, world_size, tokens_per_step, samples_per_step, mfu, collective_s, data_s,
        {" + ".join(f"coalesce({part}, 0)" for part in STEP_PARTS)} AS step_s
    FROM (
        SELECT rank.attempt_id, rank.world_size,
            {", ".join(f"CASE WHEN pace.{name} <= {MOST_RATE!r} THEN pace.{name} END AS {name}" for name in _SUMMED_UP)}
        FROM training_ranks AS rank CROSS JOIN LATERAL
            jsonb_to_record(coalesce(rank.pace, '{{}}')) AS pace({", ".join(f"{name} float8" for name in _SUMMED_UP)})
        WHERE rank.attempt_id = ANY(:attempts)
    ) AS report
) AS step
GROUP BY attempt_id
"""  # noqa: S608  # words of ours


@dataclass(frozen=True, slots=True)
class Stated:
    """What the ranks of one attempt state of a step. ``tokens``, ``samples``: of all; None unless each states it.

    A figure of more than ``MOST_RATE`` is not stated.
    """

    tokens: float | None = None
    samples: float | None = None
    shares: StepShares = field(default_factory=StepShares)


@dataclass(frozen=True, slots=True)
class JobCost:
    """The cost of a job. ``step``: the farthest that its first rank reported; ``num_tokens``: of all ranks until then.

    ``stated``: by the ranks of its newest attempt with reports.
    ``num_checkpoints``: commits; ``num_epochs``: the most that its first rank reported as done. Each is None or 0 where
    the program reports none.
    """

    job_id: JobId
    tier: str
    charges: Charges
    step: int | None
    num_tokens: int | None
    num_checkpoints: int
    num_epochs: float | None = None
    stated: Stated = field(default_factory=Stated)

    def per(self, count: int | None) -> Decimal | None:
        """Return what one of ``count`` cost, to 9 decimals: a figure to compare jobs by, and nothing is charged by it.

        None where nothing was counted, or a part of the time has no price.
        """
        spent = self.exactly_spent
        return None if spent is None or not count else quotient(spent, count, EXACT_DECIMALS)

    @property
    def per_million_tokens(self) -> Decimal | None:
        spent, tokens = self.exactly_spent, self.num_tokens
        return None if spent is None or not tokens else quotient(spent * 1_000_000, tokens, EXACT_DECIMALS)

    @property
    def per_epoch(self) -> Decimal | None:
        """What an epoch cost; None also for less than a thousandth of one, which is too little to judge by."""
        return epoch_cost(self.exactly_spent, self.num_epochs)

    @property
    def exactly_charged(self) -> Decimal | None:
        """What its time costs before credits, as ``exactly_spent``."""
        return None if self.charges.rates is None else exactly_charged(self.charges.every_line)

    @property
    def exactly_spent(self) -> Decimal | None:
        """What is spent, to 9 decimals; None where no cards are set, or a part of the time has no price."""
        return None if self.charges.rates is None else exactly_spent(self.charges.every_line)


def cost_of_job(unit: UnitOfWork, job_id: JobId) -> JobCost:
    """Return the cost of a visible job until now. Raises ``NotFoundError``."""
    return costs_of_jobs(unit, [job_id])[job_id]


def costs_of_jobs(unit: UnitOfWork, job_ids: Sequence[JobId]) -> dict[JobId, JobCost]:
    """Return the costs of visible jobs until now, in a number of statements that does not grow with the jobs.

    Raises ``NotFoundError``: one of them is not visible.
    """
    unit.principal.require(Permission.JOB_READ)
    jobs = {job.id: job for job in unit.session.scalars(select(Job).where(Job.id.in_(job_ids)))}
    if any(job_id not in jobs or not may_see(unit.principal, jobs[job_id].tenant_id) for job_id in job_ids):
        raise NotFoundError
    if not jobs:
        return {}
    start = hour_of(min(job.created_at for job in jobs.values()))
    found = charges(unit.session, Scope(job_ids=list(jobs)), start, unit.now, now=unit.now)
    stated, progress = _stated_by_ranks(unit.session, list(jobs)), _progress(unit.session, list(jobs))
    costs: dict[JobId, JobCost] = {}
    for job_id in job_ids:
        own, (step, num_epochs, num_checkpoints) = jobs[job_id], progress[job_id]
        of_ranks = stated.get(job_id, Stated())
        tokens = int(step * of_ranks.tokens) if step and of_ranks.tokens is not None else None
        of_job = found.of_job(job_id, own.created_at)
        costs[job_id] = JobCost(job_id, own.tier, of_job, step, tokens, num_checkpoints, num_epochs, of_ranks)
    return costs


def _progress(session: Session, job_ids: Sequence[JobId]) -> dict[JobId, tuple[int | None, float | None, int]]:
    """Return the farthest step and the most epochs of the first rank, and the number of committed checkpoints."""
    first = (
        select(
            Attempt.job_id,
            func.max(TrainingRank.step),
            func.max(cast(TrainingRank.pace["epochs"].astext, Double)),
        )
        .join(TrainingRank, TrainingRank.attempt_id == Attempt.id)
        .where(Attempt.job_id.in_(job_ids), TrainingRank.rank == 0)
        .group_by(Attempt.job_id)
    )
    committed = (
        select(Checkpoint.job_id, func.count())
        .where(Checkpoint.job_id.in_(job_ids), Checkpoint.committed_at.is_not(None))
        .group_by(Checkpoint.job_id)
    )
    of_rank = {job_id: (step, epochs) for job_id, step, epochs in session.execute(first)}
    num_checkpoints = dict(session.execute(committed).all())
    return {job_id: (*of_rank.get(job_id, (None, None)), num_checkpoints.get(job_id, 0)) for job_id in job_ids}


def _stated_by_ranks(session: Session, job_ids: Sequence[JobId]) -> dict[JobId, Stated]:
    """Return what the ranks of each job's newest attempt with reports state: a gang may have 100,000."""
    newest = session.execute(select(Job.id, newest_with_ranks(Job.id)).where(Job.id.in_(job_ids)))
    job_of = {attempt_id: job_id for job_id, attempt_id in newest if attempt_id}
    found: dict[JobId, Stated] = {}
    for attempt_id, num_ranks, world_size, *figures in session.execute(text(_STATED), {"attempts": list(job_of)}):
        whole = world_size or num_ranks
        num_tokens, tokens, num_samples, samples, *of_steps = figures
        found[job_of[attempt_id]] = Stated(
            tokens if num_tokens == num_ranks == whole else None,
            samples if num_samples == num_ranks == whole else None,
            StepSums(*of_steps).shares,
        )
    return found


@dataclass(frozen=True, slots=True)
class PlannedCost:
    """What a job would cost. ``per_hour_*``: of all its GPUs, by the cheapest and the dearest model that it may get.

    ``by_wall_time``: at most, if it runs as long as its wall time allows, on the dearest. ``by_expected``: if it takes
    as long as it is expected to, on the cheapest. None: that time is not known.
    """

    currency: str
    per_hour_least: Decimal
    per_hour_most: Decimal
    by_wall_time: Decimal | None
    by_expected: Decimal | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a job would take. ``gpus``: those planned for it; empty: not known yet, so of any model with a price."""

    tier: str
    num_gpus: int
    gpus: Sequence[GpuUuid]
    wall_time_s: float | None
    expected_s: float | None


def planned_cost(unit: UnitOfWork, wanted: Wanted) -> PlannedCost | None:
    """Return what a job would cost by the prices of now, or None where a model that it may get has none."""
    rates = active_rates(unit.session)
    if rates is None:
        return None
    prices = Tariff(rates.cards).prices_in(wanted.tier, unit.now)
    models = unit.session.scalars(select(Gpu.model).where(Gpu.uuid.in_(wanted.gpus)).distinct()).all()
    found = [prices.get(model) for model in models] if models else list(prices.values())
    known = [price for price in found if price is not None]
    if not known or len(known) != len(found):
        return None

    def over(seconds: float, price: Decimal) -> Decimal:
        return amount(wanted.num_gpus * round(seconds * 1000), price, rates.decimals)

    return PlannedCost(
        rates.currency,
        amount(wanted.num_gpus * MS_PER_HOUR, min(known), rates.decimals),
        amount(wanted.num_gpus * MS_PER_HOUR, max(known), rates.decimals),
        None if wanted.wall_time_s is None else over(wanted.wall_time_s, max(known)),
        None if wanted.expected_s is None else over(wanted.expected_s, min(known)),
    )
