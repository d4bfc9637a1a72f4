"""A timeline in which the control plane may die: a process of its own, which is killed, answers each request.

Before a request the process forks. Its child answers, and continues the timeline if it lives; if it is killed at the
armed failpoint, the parent, which knows nothing of the answer, asks again: a host with its next heartbeat, the
scheduler with the first cycle of a new process, a person again.
"""

import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pytest
from sqlalchemy import select

from control.core import unit_of_work
from muster import failpoints
from muster.db.models import Job, Reclaim
from muster.domain.ids import JobId
from muster.failpoints import arming
from muster.wire.host import HostAttempt, PreflightReport
from tests.control.reclaim.stage import Stage
from tests.played_host import PlayedHost

T = TypeVar("T")
RESTART_S: Final = 0.1
"""How long no control plane is there after a death: too short for a host to fall silent by many."""
_LATER_BEATS: Final = 1000
"""A host still counts its heartbeats while no server answers."""


@dataclass
class Play:
    """``where``: request, by its number in the timeline → failpoints; it is asked again after each death there.

    ``passed``: failpoint → requests that met it. ``deaths``: where it has died so far; ``on_hold``: reclaim → its
    deadline, as it stood after a death.
    """

    stage: Stage
    where: Mapping[int, Sequence[str]] = field(default_factory=dict)
    num_requests: int = 0
    passed: dict[str, list[int]] = field(default_factory=dict)
    deaths: list[str] = field(default_factory=list)
    on_hold: dict[str, object] = field(default_factory=dict)
    stops: list[str] = field(default_factory=list)
    capabilities: tuple[str, ...] = ()
    names: dict[str, JobId] = field(default_factory=dict)

    def ask(self, action: Callable[[], T]) -> T:
        """What the control plane answers, after all its deaths in this request."""
        self.num_requests += 1
        for point in self.where.get(self.num_requests, ()):
            if self._lives(point):
                with arming(f"{point}=kill"):
                    return action()
        return action()

    def passes(self, point: str) -> None:
        """A failpoint is met, in whatever request is being answered."""
        self.passed.setdefault(point, []).append(self.num_requests)

    def _lives(self, point: str) -> bool:
        """True in the process that answers. Else it has died there; one in which all went well ends all before it."""
        self._let_connections_go()
        child = os.fork()
        if child == 0:
            return True
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            self._come_back(point)
            return False
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)

    def _let_connections_go(self) -> None:
        self.stage.units.engine.dispose()

    def _come_back(self, point: str) -> None:
        self.deaths.append(point)
        self.stage.clock.advance(RESTART_S)
        for host in self.stage.hosts:
            host.seq += _LATER_BEATS
        for reclaim in self.stage.reclaims():
            deadline_at = self.on_hold.setdefault(reclaim.id, reclaim.deadline_at)
            assert reclaim.deadline_at == deadline_at, "I8: no death moves a deadline"

    def submits(self, name: str, tier: str, **spec: Any) -> JobId:
        """Under one name once, as an idempotency key has it."""

        def submit() -> JobId:
            with self.stage.units.read() as session:
                known = session.scalar(select(Job.id).where(Job.name == name))
            return known or self.stage.submit(tier, name=name, **spec)

        self.names[name] = self.ask(submit)
        return self.names[name]

    def cycle(self) -> None:
        self.ask(self.stage.cycle)

    def reconcile(self) -> None:
        self.ask(self.stage.reconcile)

    def beats(self) -> None:
        """Each host reports its parts, claims and starts new ones, and runs the preflights that it is asked for."""
        for host in self.stage.hosts:
            self._beat(host)

    def _beat(self, host: PlayedHost) -> None:
        held = [item for parts in self.stage.running.values() for where, item in parts if where is host]
        answer = self.ask(lambda: host.beat(*held, capabilities=self.capabilities))
        self.stops += [f"{stop.reason} of {self.name_of(stop.attempt_id)}" for stop in answer.stops]
        if answer.preflights:
            found = tuple(
                PreflightReport(preflight_id=look.order.attempt_id, found="fit") for look in answer.preflights
            )
            self.ask(lambda: host.beat(*held, capabilities=self.capabilities, checks=found))
        for new in answer.unclaimed:
            self._start(host, HostAttempt(attempt_id=new.attempt_id, fence=new.fence, phase="started"))

    def _start(self, host: PlayedHost, item: HostAttempt) -> None:
        assert self.ask(lambda: host.claim(item.attempt_id, item.fence)).granted
        self.ask(lambda: host.report(item.attempt_id, item.fence, "started"))
        self.stage.running.setdefault(self.stage.job_of(item.attempt_id), []).append((host, item))

    def leaves(self, job_id: JobId, record: dict[str, object]) -> None:
        """Its programs end, and then its hosts are proved clean, one after the other."""
        parts = self.stage.running.pop(job_id)
        for host, item in parts:
            self.ask(lambda host=host, item=item: host.report(item.attempt_id, item.fence, "exited", record=record))  # type: ignore[misc]  # bound at once
        for host, item in parts:
            self.ask(lambda host=host, item=item: host.report(item.attempt_id, item.fence, "cleaned"))  # type: ignore[misc]  # bound at once

    def pass_time(self, seconds: float) -> None:
        """Without letting a host fall silent, and without a death."""
        self.stage.pass_time(seconds)

    def name_of(self, attempt_id: str) -> str:
        job_id = self.stage.job_of(attempt_id)
        return next(name for name, known in self.names.items() if known == job_id)

    def require_holds_kept(self) -> None:
        """Require that each deadline set before a death stands in the end."""
        with self.stage.units.read() as session:
            rows = session.execute(select(Reclaim.id, Reclaim.deadline_at)).all()
        deadlines: dict[str, object] = dict(rows)
        assert {key: deadlines.get(key) for key in self.on_hold} == self.on_hold


@contextmanager
def forked() -> Iterator[bool]:
    """Yield True in a new process, which ends with the block; the old one continues when that has ended well."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        yield False
        assert status == 0, f"the process of the timeline ended with {os.waitstatus_to_exitcode(status)}"
        return
    code = 1
    try:
        yield True
        code = 0
    except BaseException:  # noqa: BLE001  # whoever reads the report has to see what the other process met
        traceback.print_exc()
    finally:
        os._exit(code)


@contextmanager
def listening(passes: Callable[[str], None]) -> Iterator[None]:
    """Calls ``passes`` with each failpoint that a unit of work meets."""
    meet = failpoints.failpoint

    def report(name: str) -> None:
        passes(name)
        meet(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit_of_work, "failpoint", report)
        yield
