"""The cost of a job so far, by account, and the predicted cost of one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from sqlalchemy import Double, cast, func, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import may_see
from control.ledger.charges import Charges, Scope, charges
from control.ledger.figure_counts import MOST_RATE
from control.ledger.rates import active_rates
from ledger.bills import Line
from muster.db.models import Attempt, Checkpoint, Gpu, Job, TrainingRank
from muster.db.queries.newest_ranks import newest_with_ranks
from muster.domain.amounts import MS_PER_HOUR, amount
from muster.domain.errors import NotFoundError
from muster.domain.ids import GpuUuid, JobId
from muster.domain.principals import Permission
from muster.domain.rates import Tariff

READ: Final = declare_action("job_cost.read")
_DIGITS: Final = 9
_NINE: Final = Decimal(1).scaleb(-_DIGITS)
_LEAST_EPOCHS: Final = 0.001


@dataclass(frozen=True, slots=True)
class JobCost:
    """The cost of a job. ``step``: the farthest that its first rank reported; ``num_tokens``: of all ranks until then.

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

    def per(self, count: int | None) -> Decimal | None:
        """Return what one of ``count`` cost, to 9 decimals: a figure to compare jobs by, and nothing is charged by it.

        None where nothing was counted, or a part of the time has no price.
        """
        spent = self.exactly_spent
        return None if spent is None or not count else (spent / count).quantize(_NINE)

    @property
    def per_million_tokens(self) -> Decimal | None:
        spent, tokens = self.exactly_spent, self.num_tokens
        return None if spent is None or not tokens else (spent * 1_000_000 / tokens).quantize(_NINE)

    @property
    def per_epoch(self) -> Decimal | None:
        """What an epoch cost; None also for less than a thousandth of one, which is too little to judge by."""
        spent, epochs = self.exactly_spent, self.num_epochs
        if spent is None or epochs is None or epochs < _LEAST_EPOCHS:
            return None
        return (spent / Decimal(str(epochs))).quantize(_NINE)

    @property
    def every_line(self) -> tuple[Line, ...]:
        """All lines: of counted hours and of the time since."""
        return (*self.charges.lines, *self.charges.running)

    @property
    def exactly_charged(self) -> Decimal | None:
        """What its time costs before credits, to 9 decimals, as ``exactly_spent``."""
        return self._exactly(lambda line: line.num_ms)

    @property
    def exactly_spent(self) -> Decimal | None:
        """What is spent, to 9 decimals: a line of a bill is rounded, which would be most of what a short job costs.

        None where no cards are set, or a part of the time has no price.
        """
        return self._exactly(lambda line: line.num_ms - line.credited_ms)

    def _exactly(self, num_ms: Callable[[Line], int]) -> Decimal | None:
        if self.charges.rates is None or any(line.price is None for line in self.every_line):
            return None
        used = (amount(num_ms(line), line.price, _DIGITS) for line in self.every_line if line.price is not None)
        return sum(used, Decimal(0))


def cost_of_job(unit: UnitOfWork, job_id: JobId) -> JobCost:
    """Return the cost of a visible job until now. Raises ``NotFoundError``."""
    unit.principal.require(Permission.JOB_READ)
    job = unit.session.get(Job, job_id)
    if job is None or not may_see(unit.principal, job.tenant_id):
        raise NotFoundError
    return cost_until_now(unit, job)


def cost_until_now(unit: UnitOfWork, job: Job) -> JobCost:
    """Return the cost of the job."""
    job_id = job.id
    start = job.created_at.replace(minute=0, second=0, microsecond=0)
    found = charges(unit.session, Scope(job_id=job_id), start, unit.now, now=unit.now)
    of_job = select(Attempt.id).where(Attempt.job_id == job_id)
    first = select(func.max(TrainingRank.step)).where(TrainingRank.rank == 0, TrainingRank.attempt_id.in_(of_job))
    step = unit.session.scalar(first)
    committed = select(func.count()).where(Checkpoint.job_id == job_id, Checkpoint.committed_at.is_not(None))
    num_checkpoints = unit.session.scalar(committed) or 0
    epochs = func.max(cast(TrainingRank.pace["epochs"].astext, Double))
    num_epochs = unit.session.scalar(select(epochs).where(TrainingRank.rank == 0, TrainingRank.attempt_id.in_(of_job)))
    tokens = _tokens(unit.session, job_id, step)
    return JobCost(job_id, job.tier, found, step, tokens, num_checkpoints, num_epochs)


def _tokens(session: Session, job_id: JobId, step: int | None) -> int | None:
    """Return the tokens until ``step``, by what each rank of the newest attempt with reports states of a step.

    None unless every rank of it states it.
    """
    of_a_step = stated_by_all(ranks_of_newest(session, job_id), "tokens_per_step")
    return int(step * of_a_step) if step and of_a_step is not None else None


def ranks_of_newest(session: Session, job_id: JobId) -> Sequence[TrainingRank]:
    """Return the newest reports of the ranks of a job's newest attempt with reports."""
    return session.scalars(select(TrainingRank).where(TrainingRank.attempt_id == newest_with_ranks(job_id))).all()


def stated_by_all(ranks: Sequence[TrainingRank], name: str) -> float | None:
    """Return the sum over the ranks of a figure of their pace; None unless each rank of the attempt states it.

    A figure of more than ``MOST_RATE`` is not stated.
    """
    stated = [float(rank.pace[name]) for rank in ranks if rank.pace is not None and rank.pace.get(name) is not None]
    found = [each for each in stated if each <= MOST_RATE]
    is_whole = bool(ranks) and len(found) == len(ranks) == (ranks[0].world_size or len(ranks))
    return sum(found) if is_whole else None


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
