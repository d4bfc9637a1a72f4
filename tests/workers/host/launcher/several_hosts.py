"""Several hosts of one fleet, each with its own launcher and supervisors, and one of them that dies."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from control.policy.policies import ACTIVATE, store_policy
from muster.domain.ids import JobId
from muster.domain.policy.document import Policy
from muster.domain.states import Cause
from tests.fleet_factory import OPERATOR, enrol_host
from tests.host_case import HostCase
from workers.host import supervisor


class Hosts:
    """Several hosts that turn together with the control plane."""

    def __init__(self, first: HostCase, folder: Path) -> None:
        self.cases, self._folder = [first], folder
        self.fleet = first.fleet

    def add(self, name: str) -> HostCase:
        fleet = replace(self.fleet, node_id=enrol_host(self.fleet.units, name))
        self.cases.append(HostCase(fleet, self._folder / name, python=self.cases[0].python))
        return self.cases[-1]

    def turn_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not is_so():
            assert time.monotonic() < deadline, "did not come about in time"
            for case in self.cases:
                case.launcher.turn(woken=True)
                case.relay.drain_all()
            self.fleet.reconcile()
            self.fleet.cycle()
            time.sleep(0.02)

    def causes(self, job_id: JobId) -> list[Cause | None]:
        return [view.attempt.cause for view in self.fleet.attempts(job_id)]


@contextmanager
def two_hosts(first: HostCase, folder: Path, policy: Policy) -> Iterator[Hosts]:
    """Yield ``first`` and another host of its fleet under ``policy``, and close all but ``first`` afterwards."""
    with first.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, policy, reason="no need to wait here")
    hosts = Hosts(first, folder)
    hosts.add("beta")
    try:
        yield hosts
    finally:
        for case in hosts.cases[1:]:
            case.close()


def kill_part(case: HostCase) -> None:
    """As a host that dies with all that runs on it."""
    (folder,) = (case.state_dir / "attempts").iterdir()
    pid = supervisor.adopt(folder).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
