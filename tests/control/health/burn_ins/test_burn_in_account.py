"""A burn-in that a rule orders, in the account of capacity that rules take out (I29)."""

import msgspec

from control.core.unit_of_work import UnitOfWorkFactory
from control.health.rule_cordons import hold_nodes_once
from health.standing.account import FLEET, BreakerState, num_counted
from muster.db.models import Breaker
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import BurnInState, Standing
from muster.domain.times import to_ms
from tests.control.burn_in_case import JUDGE, figures, judge, newest, order, standing, store
from tests.control.conftest import SetClock
from tests.control.health.burn_ins.test_burn_in_orders import fault, proved

BREAKER = DEFAULT_POLICY.health.breaker
REFUSED = "its host has no torch"


def account(units: UnitOfWorkFactory) -> BreakerState:
    """The account after a round of the loop that makes it agree with the rows."""
    hold_nodes_once(units, JUDGE)
    with units.read() as session:
        return msgspec.convert(session.get_one(Breaker, "quarantine").state, BreakerState)


def entries(units: UnitOfWorkFactory) -> list[tuple[str, tuple[str, ...], bool]]:
    return [(each.gpu_uuid, each.ways, each.is_out) for each in account(units).quarantined]


def test_an_order_that_its_agent_refuses_counts_once_and_gives_its_place_back_when_it_is_abandoned(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    store(units, burn_in={"tries_max": 2})
    host = proved(units)
    (gpu,) = host.gpus
    for _ in range(2):
        fault(units, gpu, clock)
    assert entries(units) == [(gpu, ("burn_in",), True)]
    host.burn_in(REFUSED)
    assert newest(units, gpu).state is BurnInState.ORDERED, "it is tried again"
    assert entries(units) == [(gpu, ("burn_in",), True)]
    (retried,) = host.ask().orders
    assert entries(units) == [(gpu, ("burn_in",), True)], "it runs"
    clock.advance(BREAKER.window_s + 1)
    assert counted(units, clock) == 1, "for as long as it lasts"
    assert host.report(retried, REFUSED)
    assert newest(units, gpu).state is BurnInState.ABANDONED
    assert standing(units, gpu) is Standing.PROBATION
    assert entries(units) == [(gpu, (), False)]
    assert counted(units, clock) == 0


def counted(units: UnitOfWorkFactory, clock: SetClock) -> int:
    return num_counted(account(units), FLEET, BREAKER, to_ms(clock.now))


def test_an_order_that_takes_the_place_of_an_abandoned_one_is_no_second_gpu(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    """The account has not met the end of the first order yet: the next one is of the same GPU."""
    store(units, burn_in={"tries_max": 1})
    host = proved(units)
    (gpu,) = host.gpus
    for _ in range(2):
        fault(units, gpu, clock)
    host.burn_in(REFUSED)
    fault(units, gpu, clock, 13)
    fault(units, gpu, clock, 13)
    assert newest(units, gpu).state is BurnInState.ORDERED
    assert entries(units) == [(gpu, ("burn_in",), True)]
    assert counted(units, clock) == 1


def test_an_order_of_a_person_takes_nothing_from_the_account(units: UnitOfWorkFactory) -> None:
    host = proved(units)
    order(units, host.gpus[0])
    assert entries(units) == []


def test_one_that_passes_gives_its_place_back(units: UnitOfWorkFactory, clock: SetClock) -> None:
    host = proved(units)
    (gpu,) = host.gpus
    for _ in range(2):
        fault(units, gpu, clock)
    host.burn_in(figures())
    judge(units)
    assert entries(units) == [(gpu, (), False)]
