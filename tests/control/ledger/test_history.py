"""What the ledger knows of the past: why jobs waited, when hosts were silent, and what a restore forgot."""

from datetime import timedelta

from sqlalchemy import select

from control.fleet import inventory
from control.system import restores
from muster.db.models import JobWaitChange, Node, NodeContactChange
from muster.domain.states import Contact
from muster.domain.times import to_ms
from tests.control.ledger.played_hour import FOUR, PlayedHour
from tests.fleet_factory import OPERATOR, enrol_host
from tests.played_host import PlayedHost


def test_free_time_counts_by_the_binding_reason_while_a_job_waits(played: PlayedHour) -> None:
    played.at(10)
    played.start()
    job_id = played.fleet.submit(shape={"gpus_per_node": 2})
    played.at(11)
    played.fleet.cycle()
    played.fleet.cycle()
    played.at(31)
    played.fleet.cancel(job_id)
    with played.units.read() as session:
        bindings = session.scalars(select(JobWaitChange.binding).order_by(JobWaitChange.id)).all()
    assert len(bindings) == 2, "one of its reason, however many cycles find it, and one of its end"
    played.at(66)
    played.keep()
    waited = {entry.cause: entry.num_ms for entry in played.entries() if entry.account == "pending"}
    assert waited == {"not_considered": 60_000, bindings[0]: 20 * 60_000}
    assert bindings[1] is None
    assert sum(played.seconds().values()) == 7200


def test_free_gpus_count_as_wanted_only_on_hosts_that_the_waiting_job_could_use(played: PlayedHour) -> None:
    beta = enrol_host(played.units, "beta")
    with played.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        unit.session.get_one(Node, beta).labels = {"gpu": "h200"}
    other = PlayedHost(played.units, beta)
    played.at(10)
    for host in (played.host, other):
        host.beat()
    played.fleet.reconcile()
    job_id = played.fleet.submit(shape={"nodes": 2}, node_labels={"required": {"gpu": ["h200"]}})
    played.fleet.cycle()
    played.at(20)
    wide = played.fleet.submit(shape={"gpus_per_node": 3})
    played.at(30)
    played.fleet.cancel(job_id)
    played.fleet.cancel(wide)
    played.at(66)
    played.keep()
    pending = [entry for entry in played.entries() if entry.account == "pending"]
    assert {entry.node_id for entry in pending} == {beta}
    assert sum(entry.num_ms for entry in pending) == 2 * 20 * 60_000
    assert sum(played.seconds().values()) == 4 * 3600


def test_a_host_without_contact_has_its_free_time_in_an_account_of_its_own(played: PlayedHour) -> None:
    played.at(10)
    played.host.beat()
    played.at(20)
    played.fleet.reconcile()
    played.at(50)
    played.host.beat()
    with played.units.read() as session:
        contacts = session.scalars(select(NodeContactChange.contact).order_by(NodeContactChange.id)).all()
    assert contacts == [Contact.LOST, Contact.LIVE, Contact.LOST, Contact.LIVE]
    played.at(66)
    played.keep()
    assert played.seconds() == {"no_contact": 2 * 40 * 60.0, "free": 2 * 20 * 60.0}


def test_hours_since_a_restore_are_computed_again_and_state_what_is_forgotten(played: PlayedHour) -> None:
    played.at(20)
    played.fleet.reconcile()  # the API's last beat in the backup
    played.at(66)
    played.keep()
    assert played.hours()[0].gaps == {}
    played.at(110)
    with played.units.begin(OPERATOR, restores.RESTORED) as unit:
        restores.restored(unit, reason="the disk broke")
    played.at(126)
    played.keep()
    lost_ms = [to_ms(FOUR + timedelta(minutes=20)), to_ms(FOUR + timedelta(minutes=60))]
    assert played.hours()[0].gaps == {"restores": [lost_ms]}
    assert played.hours()[0].computed_at == played.clock.now
    assert sum(played.seconds().values()) == 7200
