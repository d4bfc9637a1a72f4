"""When quota lets a job start later on, held against counting at every moment."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import TenantId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet.topology import NEVER_MS, FleetState
from scheduler.model import WaitingJob, Workload
from scheduler.quota.ahead import Holding, QuotaAhead, Returning
from scheduler.quota.tenancy import Holdings, Member, Quota, Tenancy
from scheduler.reclaim.reclaim import Reclaimer
from tests.scaled import examples
from tests.scheduler.fleets import host, job

TOP, TEAM, OTHER, STRANGER = (TenantId(name) for name in ("top", "team", "other", "stranger"))
LAST = 40
TENANCY = Tenancy(
    {TOP: Member(None), TEAM: Member(TOP), OTHER: Member(TOP), STRANGER: Member(None)},
    {
        (TOP, "on_demand"): Quota(ceiling=12),
        (TEAM, "on_demand"): Quota(ceiling=8),
        (STRANGER, "on_demand"): Quota(ceiling=1),
    },
)


@st.composite
def assigned(draw: st.DrawFn, *, from_now: bool) -> Holding:
    start = 0 if from_now else draw(st.integers(1, LAST // 2))
    end = draw(st.one_of(st.integers(start + 1, LAST), st.just(NEVER_MS)))
    tenant = draw(st.sampled_from([TEAM, TEAM, OTHER, STRANGER]))
    return Holding(
        tenant, draw(st.sampled_from(["on_demand", "on_demand", "spot"])), draw(st.integers(1, 6)), start, end
    )


def ahead_of(running: list[Holding]) -> tuple[QuotaAhead, Returning]:
    holdings = Holdings(TENANCY)
    returning = Returning(holdings)
    for one in running:
        holdings.add(one.tenant_id, one.tier, one.num_gpus)
        returning.add(one.tenant_id, one.tier, one.num_gpus, one.end_ms)
    fleet = FleetState(host("a", 1), DEFAULT_POLICY)
    return QuotaAhead(Reclaimer(fleet, DEFAULT_POLICY, Workload(0)), holdings), returning


def left_at(at: int, all_assigned: list[Holding]) -> int:
    """To the team, by its own limit and by that of its department."""
    there = [one for one in all_assigned if one.tier == "on_demand" and one.start_ms <= at < one.end_ms]
    own = sum(one.num_gpus for one in there if one.tenant_id == TEAM)
    department = own + sum(one.num_gpus for one in there if one.tenant_id == OTHER)
    return min(8 - own, 12 - department)


def wanting(num_gpus: int, run: int | None) -> WaitingJob:
    return replace(job("j", gpus=num_gpus, tenant=TEAM), expected_s=None if run is None else run / 1000)


@settings(max_examples=examples(400))
@given(
    st.lists(assigned(from_now=True), max_size=5),
    st.lists(assigned(from_now=False), max_size=4),
    st.integers(1, 8),
    st.one_of(st.integers(1, LAST), st.none()),
)
def test_it_starts_at_the_first_moment_from_which_its_limits_leave_it_enough_until_it_ends(
    running: list[Holding], reserved: list[Holding], num_gpus: int, run: int | None
) -> None:
    ahead, returning = ahead_of(running)
    wanted = wanting(num_gpus, run)

    def least_left(start: int) -> int:
        until = LAST + 2 if run is None else min(start + run, LAST + 2)
        return min(left_at(at, [*running, *reserved]) for at in range(start, max(until, start + 1)))

    enough = [start for start in range(LAST + 2) if least_left(start) >= num_gpus]
    assert ahead.first_ms(wanted, 0, returning, reserved) == (enough[0] if enough else NEVER_MS)
    limit = ahead.tightest(wanted, 0, returning, reserved)
    assert limit is not None
    assert max(limit.left, 0) == max(least_left(0), 0)


def test_which_no_limit_bounds_is_kept_waiting_by_none() -> None:
    ahead, returning = ahead_of([Holding(TEAM, "on_demand", 8, 0, NEVER_MS)])
    free = replace(wanting(8, None), tier="spot")
    assert ahead.first_ms(free, 7, returning, []) == 7
    assert ahead.tightest(free, 7, returning, []) is None
