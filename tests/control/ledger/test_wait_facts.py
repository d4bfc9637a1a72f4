"""The hosts that a waiting job could use: by its GPUs a host, its labels and its tenant's sites."""

from contextlib import AbstractContextManager

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.fleet import inventory
from control.ledger.reading import Window
from control.ledger.wait_facts import waits_of
from muster.db.models import Gpu, Node, Tenant
from muster.domain.states import Standing
from muster.domain.times import to_ms
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, enrol_host, make_fleet

HOUR_MS = 3_600_000


class Waiting:
    """A host alpha without labels, and a host beta of the site fra; both have two GPUs."""

    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self.units, self.clock = units, clock
        self.fleet: Fleet = make_fleet(units)
        self.beta = enrol_host(units, "beta")
        self.since_ms = to_ms(clock.now)
        with self.changing() as unit:
            unit.session.get_one(Node, self.beta).labels = {"site": "fra", "gpu": "h200"}

    def changing(self) -> AbstractContextManager[UnitOfWork]:
        return self.units.begin(OPERATOR, inventory.ENROL, quiet=True)

    def hosts(self) -> list[str]:
        """Return the names of the hosts on which free GPUs count as wanted, after a minute."""
        self.clock.advance(60)
        with self.units.read() as session:
            window = Window(session, self.since_ms, self.since_ms + HOUR_MS)
            found = waits_of(window, session)
        groups = {wait.group for wait in found.waits}
        known = {"alpha": self.fleet.node_id, "beta": self.beta}
        return [name for name, node_id in known.items() if found.groups.get(node_id, "") in groups]


@pytest.fixture
def waiting(units: UnitOfWorkFactory, clock: SetClock) -> Waiting:
    return Waiting(units, clock)


@pytest.mark.parametrize(
    ("spec", "hosts"),
    [
        ({}, ["alpha", "beta"]),
        ({"shape": {"gpus_per_node": 2}}, ["alpha", "beta"]),
        ({"shape": {"gpus_per_node": 3}}, []),
        ({"node_labels": {"required": {"gpu": ["h100", "h200"]}}}, ["beta"]),
        ({"node_labels": {"forbidden": {"gpu": ["h200"]}}}, ["alpha"]),
        ({"shape": {"gpus_per_node": 3}, "node_labels": {"required": {"gpu": ["h200"]}}}, []),
    ],
)
def test_a_job_could_use_hosts_with_its_gpus_and_labels(
    waiting: Waiting, spec: dict[str, object], hosts: list[str]
) -> None:
    waiting.fleet.submit(**spec)
    assert waiting.hosts() == hosts


def test_of_several_jobs_a_host_counts_for_those_that_could_use_it(waiting: Waiting) -> None:
    waiting.fleet.submit(shape={"gpus_per_node": 3})
    waiting.fleet.submit(node_labels={"forbidden": {"gpu": ["h200"]}})
    assert waiting.hosts() == ["alpha"]


def test_jobs_that_name_different_labels_want_each_its_own_hosts(waiting: Waiting) -> None:
    waiting.fleet.submit(node_labels={"required": {"site": ["fra"]}})
    assert waiting.hosts() == ["beta"]
    waiting.fleet.submit(node_labels={"forbidden": {"gpu": ["h200"]}})
    assert waiting.hosts() == ["alpha", "beta"]


def test_a_tenants_jobs_could_use_hosts_of_its_sites(waiting: Waiting) -> None:
    with waiting.changing() as unit:
        unit.session.get_one(Tenant, waiting.fleet.tenant_id).residency = {"sites": ["fra"]}
    waiting.fleet.submit()
    assert waiting.hosts() == ["beta"]


@pytest.mark.parametrize(("after_s", "hosts"), [(0, ["alpha"]), (60, ["alpha", "beta"])])
def test_a_gpu_that_is_retired_before_the_hour_is_no_gpu_of_its_host(
    waiting: Waiting, clock: SetClock, after_s: float, hosts: list[str]
) -> None:
    waiting.fleet.submit(shape={"gpus_per_node": 2})
    clock.advance(after_s)
    with waiting.changing() as unit:
        gpu = unit.session.scalars(select(Gpu).where(Gpu.node_id == waiting.beta).limit(1)).one()
        gpu.standing, gpu.standing_since = Standing.RETIRED, unit.now
    assert waiting.hosts() == hosts


def test_without_a_waiting_job_no_host_is_wanted(waiting: Waiting) -> None:
    assert waiting.hosts() == []
