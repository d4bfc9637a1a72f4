"""Jobs side by side: how fast they train, what their GPU time was, and what tokens cost.

Time until the last counted hour is as the ledger has it. Time since then is shared out by the same rules, as if each
host had contact, so that a job of a minute can be compared with another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Final

from sqlalchemy import func, select, true
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork, declare_action
from control.ledger.attempt_facts import attempts_of
from control.ledger.job_costs import JobCost, costs_of_jobs
from control.ledger.reading import Window
from ledger.accounts import CHARGED, Account
from ledger.attempt_claims import accounts_of
from ledger.facts import Attempt as AttemptFacts
from ledger.findings import StepShares
from muster.db.models import Allocation, AllocationGpu, Attempt, Job, TrainingStep
from muster.db.queries.newest_ranks import newest_with_ranks
from muster.domain.amounts import MS_PER_HOUR
from muster.domain.ids import JobId
from muster.domain.states import Cause, JobState
from muster.domain.times import to_ms

READ: Final = declare_action("job_comparison.read")
MOST_JOBS: Final = 20
STEPS_COMPARED: Final = 1_000
"""The newest steps of a job's newest attempt."""
SAVES: Final = (Account.SAVING, Account.RESTORING)


@dataclass(frozen=True, slots=True)
class ComparedJob:
    """One job. ``num_gpus``: of its newest attempt; None: it has none yet. ``accounts``: milliseconds of GPU time.

    ``p50_s``, ``p95_s``: of a step, without saves. ``tokens_per_step``, ``samples_per_step``: of all ranks. Each is
    None where its program does not report it.
    """

    job_id: JobId
    name: str
    state: JobState
    tier: str
    cost: JobCost
    num_attempts: int
    num_reclaims: int
    num_gpus: int | None
    accounts: Mapping[Account, int]
    p50_s: float | None
    p95_s: float | None
    tokens_per_step: float | None
    samples_per_step: float | None
    shares: StepShares

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second of all ranks, at the median step."""
        return _rate(self.tokens_per_step, self.p50_s)

    @property
    def samples_per_s(self) -> float | None:
        return _rate(self.samples_per_step, self.p50_s)

    @property
    def num_ms(self) -> int:
        return sum(line.num_ms for line in self.cost.charges.every_line)

    @property
    def price_per_gpu_hour(self) -> Decimal | None:
        """The mean price of its time, before credits."""
        charged = self.cost.exactly_charged
        return None if charged is None or not self.num_ms else charged * MS_PER_HOUR / self.num_ms

    @property
    def tokens_per_unit(self) -> Decimal | None:
        """Tokens that one unit of the currency has bought, with all that was lost."""
        spent, tokens = self.cost.exactly_spent, self.cost.num_tokens
        return None if not spent or tokens is None else tokens / spent

    @property
    def tokens_per_unit_while_training(self) -> Decimal | None:
        """Tokens that one unit buys while steps are done: tokens a second for a unit a second."""
        price, speed = self.price_per_gpu_hour, self.tokens_per_s
        if not price or speed is None or not self.num_gpus:
            return None
        return Decimal(speed) * 3600 / (price * self.num_gpus)

    def share(self, *accounts: Account) -> float | None:
        """Return the share of these accounts in its GPU time; None: it never had a GPU."""
        whole = sum(self.accounts.values())
        return sum(self.accounts.get(each, 0) for each in accounts) / whole if whole else None


def compare(unit: UnitOfWork, job_ids: Sequence[JobId]) -> list[ComparedJob]:
    """Return visible jobs side by side, each once, in their order. Raises ``NotFoundError``."""
    wanted = list(dict.fromkeys(job_ids))
    costs = costs_of_jobs(unit, wanted)
    since = min(cost.charges.start for cost in costs.values())
    counted = [cost.charges.counted_until for cost in costs.values() if cost.charges.counted_until is not None]
    running = _running(unit, wanted, max([since, *counted]))
    steps = _steps(unit.session, wanted)
    attempts, num_gpus = _attempts(unit.session, wanted), _num_gpus(unit.session, wanted)
    jobs = {job.id: job for job in unit.session.scalars(select(Job).where(Job.id.in_(wanted)))}
    found: list[ComparedJob] = []
    for job_id in wanted:
        job, stated = jobs[job_id], costs[job_id].stated
        num_attempts, num_reclaims = attempts.get(job_id, (0, 0))
        p50_s, p95_s = steps.get(job_id, (None, None))
        row = ComparedJob(
            *(job.id, job.name, job.state, job.tier),
            costs[job_id],
            num_attempts,
            num_reclaims,
            num_gpus.get(job_id),
            _accounts(costs[job_id], running.get(job_id, {})),
            p50_s,
            p95_s,
            stated.tokens,
            stated.samples,
            stated.shares,
        )
        found.append(row)
    return found


def _accounts(cost: JobCost, running: Mapping[Account, int]) -> dict[Account, int]:
    accounts = dict(running)
    for line in cost.charges.lines:
        accounts[line.key.account] = accounts.get(line.key.account, 0) + line.num_ms
    return accounts


def _attempts(session: Session, job_ids: Sequence[JobId]) -> dict[JobId, tuple[int, int]]:
    """Return how many attempts each job had, and how many of them were reclaimed."""
    num_reclaims = func.count().filter(Attempt.cause == Cause.RECLAIMED)
    query = select(Attempt.job_id, func.count(), num_reclaims).where(Attempt.job_id.in_(job_ids))
    return {job_id: (num, reclaims) for job_id, num, reclaims in session.execute(query.group_by(Attempt.job_id))}


def _running(unit: UnitOfWork, job_ids: Sequence[JobId], since: datetime) -> dict[str, dict[Account, int]]:
    """Return the time of jobs since the last counted hour, by account."""
    start_ms, end_ms = to_ms(since), to_ms(unit.now)
    if start_ms >= end_ms:
        return {}
    attempts = attempts_of(Window(unit.session, start_ms, end_ms), job_ids)
    num_gpus = _gpus_of_attempts(unit.session, attempts)
    found: dict[str, dict[Account, int]] = {}
    for attempt in attempts.values():
        own = found.setdefault(attempt.job_id, {})
        for account, num_ms in accounts_of(attempt, start_ms, end_ms).items():
            if account in CHARGED:
                own[account] = own.get(account, 0) + num_ms * num_gpus.get(attempt.attempt_id, 0)
    return found


def _gpus_of_attempts(session: Session, attempts: Mapping[str, AttemptFacts]) -> dict[str, int]:
    query = (
        select(Allocation.attempt_id, func.count())
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .where(Allocation.attempt_id.in_(list(attempts)))
        .group_by(Allocation.attempt_id)
    )
    return {str(attempt_id): num for attempt_id, num in session.execute(query)}


def _num_gpus(session: Session, job_ids: Sequence[JobId]) -> dict[JobId, int]:
    """Return the number of GPUs of each job's newest attempt, where it has any."""
    newest = (
        select(Attempt.id, Attempt.job_id)
        .where(Attempt.job_id.in_(job_ids))
        .ext(distinct_on(Attempt.job_id))
        .order_by(Attempt.job_id, Attempt.number.desc())
        .subquery()
    )
    query = (
        select(newest.c.job_id, func.count())
        .join(Allocation, Allocation.attempt_id == newest.c.id)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .group_by(newest.c.job_id)
    )
    return dict(session.execute(query).all())


def _steps(session: Session, job_ids: Sequence[JobId]) -> dict[JobId, tuple[float, float]]:
    """Return the median and the 95th percentile of the time of each job's newest steps."""
    newest = (
        select(TrainingStep.step_s)
        .where(TrainingStep.attempt_id == newest_with_ranks(Job.id), TrainingStep.step_s > 0)
        .order_by(TrainingStep.step.desc())
        .limit(STEPS_COMPARED)
        .correlate(Job)
        .lateral()
    )
    p50, p95 = (func.percentile_cont(share).within_group(newest.c.step_s) for share in (0.5, 0.95))
    query = select(Job.id, p50, p95).join(newest, true()).where(Job.id.in_(job_ids)).group_by(Job.id)
    return {job_id: (median, high) for job_id, median, high in session.execute(query)}


def _rate(number: float | None, seconds: float | None) -> float | None:
    found = None if number is None or not seconds else number / seconds
    return found if found is not None and isfinite(found) else None
