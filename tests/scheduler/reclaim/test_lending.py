"""Lending taken back: within a guarantee, from tenants over theirs, where the tree parts; never a mere swap."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from muster.domain.ids import JobId, NodeId, TenantId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from scheduler.model import ElasticGang, GpuView, Plan, Reason, RunningAttempt, StandingReclaim, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.quota.tenancy import Member, Quota, Tenancy
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, hold, host, job, running

OPEN: Policy = DEFAULT_POLICY.model_copy(
    update={"reclaim": DEFAULT_POLICY.reclaim.model_copy(update={"cap_fraction": 1.0})}
)
LENDER, BORROWER, TEAM, TOP = (TenantId(name) for name in ("lender", "borrower", "team", "top"))


def spot(name: str, tenant: TenantId, hosts: list[str], saved_min: int = 10) -> RunningAttempt:
    gpus = tuple(view.uuid for each in hosts for view in host(each, 8))
    return replace(running(name, gpus), tenant_id=tenant, tier="spot", saved_ms=NOW_MS - saved_min * MINUTE_MS)


def fleet(num_hosts: int, attempts: list[RunningAttempt]) -> list[GpuView]:
    gpus = [view for number in range(num_hosts) for view in host(f"h{number}", 8)]
    return hold(gpus, [uuid for attempt in attempts for uuid in attempt.gpus])


def wanting(tenant: TenantId, nodes: int = 1, tier: str = "spot", name: str = "mine") -> WaitingJob:
    return replace(job(name, nodes=nodes, gpus=8), tenant_id=tenant, tier=tier)


def decided(attempts: list[RunningAttempt], queue: list[WaitingJob], tenancy: Tenancy, policy: Policy = OPEN) -> Plan:
    num_hosts = sum(len(attempt.gpus) for attempt in attempts) // 8
    return plan(fleet(num_hosts, attempts), queue, policy, Workload(NOW_MS, tuple(attempts), tenancy=tenancy))


def guaranteed(**gpus: int) -> Tenancy:
    return Tenancy(quotas={(TenantId(name), "spot"): Quota(guaranteed=number) for name, number in gpus.items()})


FOUR = [spot(f"b{number}", BORROWER, [f"h{number}"], saved_min=10 + number) for number in range(4)]
HOSTS = ("e0", "e1", "e2", "h0", "h1", "h2", "h3")
FLEXIBLE = spot("e", LENDER, ["e0", "e1", "e2"])


def victims(found: Plan) -> list[str]:
    return sorted(reclaim.victim for reclaim in found.reclaims)


def test_a_lender_takes_back_the_cheapest_and_no_more_than_it_needs() -> None:
    found = decided(FOUR, [wanting(LENDER, 2)], guaranteed(lender=32))
    assert victims(found) == ["b0", "b1"]
    assert {reclaim.notice_s for reclaim in found.reclaims} == {120.0}
    assert decided(FOUR, [wanting(LENDER, 2)], Tenancy()).reclaims == ()


def test_not_past_its_own_guarantee_and_not_out_of_anothers() -> None:
    assert decided(FOUR, [wanting(LENDER, 2)], guaranteed(lender=15)).reclaims == ()
    assert decided(FOUR, [wanting(LENDER, 1)], guaranteed(lender=32, borrower=32)).reclaims == ()
    (told,) = decided(FOUR, [wanting(LENDER, 2)], guaranteed(lender=32, borrower=24)).waiting
    assert told.verdict.reasons[-1] == Reason(WaitReason.GUARANTEES, 32)
    assert "the GPUs that other tenants borrow are not enough for it" in told.why


def test_the_cap_is_not_blamed_where_its_end_would_change_nothing() -> None:
    """Both bind: in an hour the cap would allow it, and the guarantees of others still would not."""
    for guarantee, binding in ((24, WaitReason.GUARANTEES), (16, WaitReason.RECLAIM_CAP)):
        tenancy = guaranteed(lender=32, borrower=guarantee)
        (told,) = decided(FOUR, [wanting(LENDER, 2)], tenancy, DEFAULT_POLICY).waiting
        tokens = {reason.token for reason in told.verdict.reasons}
        assert tokens & {WaitReason.GUARANTEES, WaitReason.RECLAIM_CAP} == {binding}


def test_a_gang_that_is_not_divided_gives_way_as_a_whole_while_its_tenant_is_over() -> None:
    wide = [spot("wide", BORROWER, ["h0", "h1", "h2", "h3"])]
    assert victims(decided(wide, [wanting(LENDER, 2)], guaranteed(lender=16, borrower=16))) == ["wide"]
    assert decided(wide, [wanting(LENDER, 2)], guaranteed(lender=16, borrower=32)).reclaims == ()


def test_a_tier_that_is_not_reclaimable_lends_for_good() -> None:
    held = [replace(attempt, tier="on_demand") for attempt in FOUR]
    tenancy = Tenancy(quotas={(LENDER, "on_demand"): Quota(guaranteed=32)})
    assert decided(held, [wanting(LENDER, 1, "on_demand")], tenancy).reclaims == (), "I7"


def test_minimum_run_and_cap_hold_for_lending_too() -> None:
    young = [replace(attempt, started_ms=NOW_MS - 5 * MINUTE_MS) for attempt in FOUR]
    (told,) = decided(young, [wanting(LENDER, 1)], guaranteed(lender=32)).waiting
    assert WaitReason.RECLAIM_MIN_RUN in {reason.token for reason in told.verdict.reasons}, "I9"
    capped = decided(FOUR, [wanting(LENDER, 1), wanting(LENDER, 1, name="next")], guaranteed(lender=32), DEFAULT_POLICY)
    assert len(capped.reclaims) == 1, "I9: a quarter of 32 GPUs an hour"


def test_what_is_on_its_way_to_the_lender_counts_as_its_own() -> None:
    queue = [wanting(LENDER, name=f"m{number}") for number in range(4)]
    assert len(decided(FOUR, queue, guaranteed(lender=16)).reclaims) == 2


def test_between_departments_the_departments_are_compared_and_a_sibling_within_its_own_is_spared() -> None:
    members = {TEAM: Member(TOP), LENDER: Member(TOP)}
    quotas = {(TOP, "spot"): Quota(guaranteed=16), (TEAM, "spot"): Quota(guaranteed=8)}
    cheap_sibling = spot("sibling", TEAM, ["h0"], saved_min=0)
    attempts = [cheap_sibling, *FOUR[1:]]
    assert victims(decided(attempts, [wanting(LENDER)], Tenancy(members, quotas))) == ["b1"]
    full = [cheap_sibling, replace(spot("more", TEAM, ["h1"], saved_min=1)), *FOUR[2:]]
    claims = {**quotas, (LENDER, "spot"): Quota(guaranteed=8)}
    assert victims(decided(full, [wanting(LENDER)], Tenancy(members, claims))) == ["sibling"], "over its own by one"
    assert decided(full, [wanting(LENDER)], Tenancy(members, quotas)).reclaims == (), "its department is full"


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 60)), min_size=1, max_size=8),
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 6).map(lambda nodes: nodes * 8)),
    st.sampled_from(["a", "b", "c"]),
    st.integers(1, 4),
)
def test_whoever_took_back_is_within_its_guarantee_and_whoever_gave_was_over_its_own(
    jobs: list[tuple[str, int]], guarantees: dict[str, int], by: str, nodes: int
) -> None:
    attempts = [
        spot(f"j{number}", TenantId(tenant), [f"h{number}"], saved) for number, (tenant, saved) in enumerate(jobs)
    ]
    found = decided(attempts, [wanting(TenantId(by), nodes)], guaranteed(**guarantees))
    if not found.reclaims:
        return
    owner = {attempt.attempt_id: attempt.tenant_id for attempt in attempts}
    held = {name: 8 * sum(tenant == name for tenant, _ in jobs) for name in ("a", "b", "c")}
    assert held[by] + nodes * 8 <= guarantees.get(by, 0)
    for name in {owner[reclaim.victim] for reclaim in found.reclaims}:
        lost = 8 * sum(owner[reclaim.victim] == name for reclaim in found.reclaims)
        assert held[name] - lost + 8 > guarantees.get(name, 0), "it was over until the last was taken"
        assert name != by


def test_what_shrinks_for_another_still_has_what_it_keeps() -> None:
    """A tenant that gives one host of three to a reclaim holds the others, notified or not: they fill its guarantee."""
    given, kept = FLEXIBLE.gpus[:8], FLEXIBLE.gpus[8:]
    gives = StandingReclaim(FLEXIBLE.attempt_id, JobId("urgent"), NOW_MS + MINUTE_MS, given, kept)
    told = replace(FLEXIBLE, is_stopping=True, ends_ms=NOW_MS + MINUTE_MS)
    queue = [wanting(TEAM, name="urgent", tier="reserved"), wanting(LENDER)]
    for victim in (FLEXIBLE, told):
        attempts = [victim, *FOUR]
        gpus = hold([view for name in HOSTS for view in host(name, 8)], [u for one in attempts for u in one.gpus])
        for guarantee, num_reclaims in ((16, 0), (24, 1)):
            workload = Workload(NOW_MS, tuple(attempts), (gives,), tenancy=guaranteed(lender=guarantee))
            assert len(plan(gpus, queue, OPEN, workload).reclaims) == num_reclaims


def test_an_elastic_borrower_gives_hosts_back_before_a_rigid_one_ends() -> None:
    hosts = ["h0", "h1", "h2"]
    parts = tuple((NodeId(name), tuple(view.uuid for view in host(name, 8))) for name in hosts)
    spreads = replace(spot("e", BORROWER, hosts), elastic=ElasticGang(parts, 1, 3, 8))
    attempts = [spreads, *(spot(name, BORROWER, [name]) for name in ("h3", "h4"))]
    found = decided(attempts, [wanting(LENDER, 2)], guaranteed(lender=16, borrower=24)).reclaims
    assert [(one.victim, len(one.gpus), len(one.keeps)) for one in found] == [("e", 16, 8)]
    nearly = decided(attempts, [wanting(LENDER, 2)], guaranteed(lender=16, borrower=32))
    assert nearly.reclaims == (), "its second host would be of its guarantee"


def test_an_elastic_borrower_gives_a_host_next_to_a_rigid_one_that_ends() -> None:
    """Its cap leaves it 20 of 40 GPUs: not the elastic one as a whole, which can spare one host."""
    hosts = ["h0", "h1", "h2", "h3"]
    parts = tuple((NodeId(name), tuple(view.uuid for view in host(name, 8))) for name in hosts)
    spreads = replace(spot("e", BORROWER, hosts), elastic=ElasticGang(parts, 3, 4, 8))
    reclaim = DEFAULT_POLICY.reclaim.model_copy(update={"cap_fraction": 0.5})
    half = DEFAULT_POLICY.model_copy(update={"reclaim": reclaim})
    both = [spreads, spot("rigid", BORROWER, ["h4"])]
    found = decided(both, [wanting(LENDER, 2)], guaranteed(lender=16, borrower=16), half)
    assert {one.victim: len(one.gpus) for one in found.reclaims} == {"e": 8, "rigid": 8}
    spared = decided(both, [wanting(LENDER, 2)], guaranteed(lender=16, borrower=32), half)
    assert spared.reclaims == (), "it is over by no more than one of them"


def test_what_is_past_its_own_guarantee_is_reported_that_it_takes_nothing_back() -> None:
    (told,) = decided(FOUR, [wanting(LENDER, 2)], guaranteed(lender=15)).waiting
    assert told.verdict.reasons[-1].token is WaitReason.OWN_GUARANTEE
    assert "its tenant, or the tenant's department, would hold more than is guaranteed in this tier" in told.why
    queue = [wanting(LENDER, 2), wanting(TEAM, 2, name="theirs")]
    mine, theirs = decided(FOUR, queue, guaranteed(lender=15)).waiting
    assert "guaranteed" in mine.why, "it requests the same and gets another reason"
    assert "guaranteed" not in theirs.why, "nothing was ever guaranteed to it"


def test_in_a_tier_that_lends_for_good_none_is_notified_of_a_guarantee() -> None:
    held = [replace(attempt, tier="on_demand") for attempt in FOUR]
    tenancy = Tenancy(quotas={(LENDER, "on_demand"): Quota(guaranteed=32)})
    (told,) = decided(held, [wanting(LENDER, 1, "on_demand")], tenancy).waiting
    assert "guaranteed" not in told.why
