"""Free GPUs that the scheduler keeps as spares are in an account of their own, for as long as they are kept."""

from control.policy.policies import ACTIVATE, store_policy
from muster.domain.policy.document import Policy
from muster.domain.policy.recovery import RecoveryPolicy, SparePolicy
from tests.control.ledger.played_hour import PlayedHour
from tests.fleet_factory import OPERATOR, enrol_host
from tests.played_host import PlayedHost

KEPT = SparePolicy(confidence=0.99, replacement_h=8_760)


def set_spares(played: PlayedHour, spares: SparePolicy) -> None:
    with played.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(recovery=RecoveryPolicy(spares=spares)), reason="test")


def test_spares_are_counted_from_the_plan_that_keeps_them_until_the_policy_keeps_none(played: PlayedHour) -> None:
    beta = PlayedHost(played.units, enrol_host(played.units, "beta"))
    set_spares(played, KEPT)
    played.at(10)
    for host in (played.host, beta):
        host.beat()
    played.fleet.reconcile()
    job_id = played.fleet.submit(shape={"nodes": 2, "gpus_per_node": 2})
    for minute in (10, 11, 12):
        played.at(minute)
        played.fleet.cycle()
    played.at(20)
    played.fleet.cancel(job_id)
    played.fleet.cycle()
    played.at(40)
    set_spares(played, SparePolicy())
    played.fleet.cycle()
    played.at(66)
    played.keep()
    found = played.seconds()
    assert found["spare"] == 4 * 30 * 60.0, "from 4:10 to 4:40"
    assert sum(found.values()) == 4 * 3600
