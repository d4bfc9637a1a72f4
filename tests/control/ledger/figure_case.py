"""Jobs, attempts, steps and saves of known times, stored as the services store them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from sqlalchemy import text

from control.core.sequencer import sequence_once
from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs.jobs import READ
from control.ledger import figures
from control.ledger.figures import Answer, By, FigureStep, Question
from muster.db.models import Attempt, AttemptHost, Checkpoint, Job, TrainingRank, TrainingStep
from muster.domain.ids import AttemptId, CheckpointId, Fence, JobId, NodeId, TenantId
from muster.domain.job.spec import NodeLossRule
from muster.domain.principals import Principal, Role
from muster.domain.states import AttemptState, CheckpointStatus, HostPartState, JobState
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet

_NUMBERS = count(1)
PACE = {"num_steps": 1, "data_s": 0, "forward_s": 0, "backward_s": 0, "collective_s": 0, "optimizer_s": 0, "other_s": 0}


@dataclass
class Lived:
    """A past that a test writes. Times are minutes after ``begin``."""

    units: UnitOfWorkFactory
    clock: SetClock
    fleet: Fleet
    begin: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.begin = self.clock.now

    def at(self, minutes: float) -> datetime:
        return self.begin + timedelta(minutes=minutes)

    def job(
        self,
        state: str,
        *attempts: tuple[float, float | None, str | None],
        ended: float | None = None,
        tier: str = "standard",
        job_class: str | None = None,
        tenant_id: TenantId | None = None,
        node_id: NodeId | None = None,
        **fields: Any,
    ) -> list[AttemptId]:
        """Store a job. ``attempts``: begin, end and cause of each."""
        job_id = JobId(f"job_{next(_NUMBERS):026d}")
        tenant_id = tenant_id or self.fleet.tenant_id
        with self.units.begin(OPERATOR, READ, quiet=True) as unit:
            unit.session.add(
                Job(
                    id=job_id,
                    tenant_id=tenant_id,
                    name="train",
                    tier=tier,
                    state=JobState(state),
                    spec={},
                    submitted_by="test",
                    created_at=self.begin,
                    updated_at=self.begin,
                    finished_at=None if ended is None else self.at(ended),
                    stored_request=fields,
                    job_class=job_class,
                )
            )
            unit.session.flush()
            made = [self._attempt(job_id, tenant_id, number, *times) for number, times in enumerate(attempts, start=1)]
            unit.session.add_all(made)
            unit.session.flush()
            unit.session.add_all(
                AttemptHost(
                    attempt_id=each.id,
                    node_id=node_id or self.fleet.node_id,
                    node_rank=0,
                    state=HostPartState.CLEAN,
                )
                for each in made
            )
        return [each.id for each in made]

    def _attempt(
        self, job_id: JobId, tenant_id: TenantId, number: int, began: float, ended: float | None, cause: str | None
    ) -> Attempt:
        unique = next(_NUMBERS)
        return Attempt(
            id=AttemptId(f"att_{unique:026d}"),
            job_id=job_id,
            tenant_id=tenant_id,
            number=number,
            fence=Fence(unique),
            state=AttemptState.RUNNING if ended is None else AttemptState.ENDED,
            cause=cause,  # type: ignore[arg-type]  # as the tests write it
            placed_at=self.at(began),
            ended_at=None if ended is None else self.at(ended),
            on_node_loss=NodeLossRule.FENCED,
            rendezvous_address="127.0.0.1",
            rendezvous_port=1,
        )

    def steps(self, attempt_id: AttemptId, minute: float, *seconds: float, first: int = 1) -> None:
        with self.units.begin(OPERATOR, READ, quiet=True) as unit:
            job_id, tenant_id = self._of(attempt_id)
            unit.session.add_all(
                TrainingStep(
                    attempt_id=attempt_id,
                    step=first + place,
                    job_id=job_id,
                    tenant_id=tenant_id,
                    step_s=each,
                    at=self.at(minute),
                )
                for place, each in enumerate(seconds)
            )

    def pace(self, attempt_id: AttemptId, minute: float, *, step: int = 1_000, **parts: float | None) -> None:
        with self.units.begin(OPERATOR, READ, quiet=True) as unit:
            job_id, tenant_id = self._of(attempt_id)
            pace = {**PACE, **parts}
            at = self.at(minute)
            unit.session.add(
                TrainingStep(attempt_id=attempt_id, step=step, job_id=job_id, tenant_id=tenant_id, at=at, pace=pace)
            )

    def rank(
        self,
        attempt_id: AttemptId,
        *,
        world_size: int = 1,
        losses: Sequence[float | None] = (),
        step: int | None = None,
        **pace: float | None,
    ) -> None:
        history = {"stride": 1, "points": [[step, loss, None] for step, loss in enumerate(losses)]}
        with self.units.begin(OPERATOR, READ, quiet=True) as unit:
            unit.session.add(
                TrainingRank(
                    attempt_id=attempt_id,
                    rank=0,
                    tenant_id=self._of(attempt_id)[1],
                    node_id=self.fleet.node_id,
                    world_size=world_size,
                    step=step,
                    updated_at=self.begin,
                    history=history if losses else None,
                    pace={name: value for name, value in pace.items() if value is not None} or None,
                )
            )

    def save(
        self,
        attempt_id: AttemptId,
        minute: float,
        status: str,
        *,
        save_s: float | None = None,
        is_verified: bool = False,
        is_committed: bool = True,
    ) -> None:
        unique = next(_NUMBERS)
        at = self.at(minute)
        with self.units.begin(OPERATOR, READ, quiet=True) as unit:
            job_id, tenant_id = self._of(attempt_id)
            fence = unit.session.get_one(Attempt, attempt_id).fence
            unit.session.add(
                Checkpoint(
                    id=CheckpointId(f"ckpt_{unique:026d}"),
                    job_id=job_id,
                    attempt_id=attempt_id,
                    tenant_id=tenant_id,
                    fence=fence,
                    step=unique,
                    generation=f"step-{unique}/gen-{unique}",
                    status=CheckpointStatus(status),
                    manifest={} if save_s is None else {"save_s": save_s},
                    created_at=at,
                    committed_at=at if is_committed else None,
                    verified_at=at if is_verified else None,
                )
            )

    def event(self, kind: str, attempt_id: AttemptId, minute: float, generation: str) -> None:
        """Store an event, and give it its position."""
        was, self.clock.now = self.clock.now, self.at(minute)
        payload = {"generation": generation, "job_id": self._of(attempt_id)[0]}
        with self.units.begin(OPERATOR, READ) as unit:
            unit.emit(kind, "attempt", attempt_id, payload=payload)
        sequence_once(self.units)
        self.clock.now = was

    def change(self, statement: str, **given: object) -> None:
        with self.units.begin(OPERATOR, READ, quiet=True) as unit:
            unit.session.execute(text(statement), given)

    def _of(self, attempt_id: AttemptId) -> tuple[JobId, TenantId]:
        with self.units.read() as session:
            found = session.get_one(Attempt, attempt_id)
            return found.job_id, found.tenant_id

    def answer(
        self,
        name: str,
        *,
        by: str = "none",
        step: str = "hour",
        since: float = 0,
        until: float = 60,
        reader: Principal = OPERATOR,
        is_whole: bool = False,
    ) -> Answer:
        question = Question(name, self.at(since), self.at(until), FigureStep(step), By(by), is_whole)
        with self.units.begin(reader, figures.READ, dry_run=True, quiet=True) as unit:
            return figures.figures_in(unit, question)

    def nums(self, name: str, **question: Any) -> Mapping[str, int]:
        """Return the number of each part of the whole."""
        series = self.answer(name, **question).series
        return {part: one.num for part, one in series[0].whole.sums.items()} if series else {}

    def value(self, name: str, **question: Any) -> float | None:
        series = self.answer(name, **question).series
        return series[0].whole.value if series else None

    def facts(self) -> list[tuple[Any, ...]]:
        statement = text("""
            SELECT begins_at, span_s, figure, part, tenant_id, tier, job_class, site, num, total, buckets, counts
            FROM figure_facts ORDER BY 1, 2, 3, 4, 5, 6, 7, 8
        """)
        with self.units.read() as session:
            return [tuple(row) for row in session.execute(statement)]


def member_of(tenant_id: TenantId) -> Principal:
    return Principal(name="member", role=Role.TENANT_MEMBER, tenant_id=tenant_id)
