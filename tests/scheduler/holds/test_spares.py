"""Spares: as many hosts as fail at once, closed to jobs that no rule reclaims, open to gangs that lost a host."""

from dataclasses import replace
from math import comb, exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import GpuUuid, NodeId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.recovery import RecoveryPolicy, SparePolicy
from scheduler.fleet.topology import FleetState
from scheduler.holds.spares import Spares, spares_needed
from scheduler.model import GpuView, Parts, Plan, RunningAttempt, StandingReclaim, WaitingJob, Workload
from scheduler.planner import plan
from tests.scaled import examples
from tests.scheduler.fleets import NOW_MS, hold, host, job, of_host, queueing, racks, running

P99 = SparePolicy(confidence=0.99)
KEEPS = Policy(recovery=RecoveryPolicy(spares=P99))
TWO_OF_SIX = 0.0002
"""Failures per GPU-hour at which two of six hosts are kept, and one of eight GPUs fails in 26 days."""


@settings(max_examples=examples(200))
@given(
    hosts=st.integers(1, 60),
    per_host=st.integers(1, 8),
    rate=st.floats(1e-7, 1e-2),
    confidence=st.sampled_from([0.5, 0.9, 0.99, 0.999]),
)
def test_the_number_is_the_binomial_quantile(hosts: int, per_host: int, rate: float, confidence: float) -> None:
    found = spares_needed(hosts, hosts * per_host, rate, SparePolicy(confidence=confidence))
    away = 1 - exp(-rate * per_host * 24)

    def at_most(count: int) -> float:
        return sum(comb(hosts, each) * away**each * (1 - away) ** (hosts - each) for each in range(count + 1))

    assert at_most(found) >= confidence - 1e-9
    assert found == 0 or at_most(found - 1) < confidence + 1e-9


def test_of_a_large_fleet_it_is_what_it_is() -> None:
    """12,500 hosts of 8, one failure in 50,000 GPU-hours, a day away: 47.9 on average, and 65 at P99."""
    assert spares_needed(12_500, 100_000, 1 / 50_000, P99) == 65


@pytest.mark.parametrize("policy", [SparePolicy(), P99])
def test_without_a_confidence_or_a_failure_none_is_kept(policy: SparePolicy) -> None:
    assert spares_needed(10, 80, 0.0, policy) == 0
    assert spares_needed(10, 80, 0.01, SparePolicy()) == 0


def decide(
    gpus: list[GpuView], queue: list[WaitingJob], attempts: tuple[RunningAttempt, ...] = (), policy: Policy = KEEPS
) -> Plan:
    held = hold(gpus, [uuid for attempt in attempts for uuid in attempt.gpus])
    return plan(held, queue, policy, Workload(NOW_MS, attempts, failures_per_gpu_hour=TWO_OF_SIX))


SIX = racks({"r0": [8, 8, 8], "r1": [8, 8, 8]})


def hosts_of(decided: Plan, name: str) -> list[str]:
    return [node for placed in decided.placements if placed.job_id == name for node, _ in placed.parts]


def test_a_job_that_no_rule_takes_back_leaves_them_alone_and_is_reported() -> None:
    decided = decide(SIX, [job("j", nodes=5, gpus=8), job("k", nodes=4, gpus=8, at=1)])
    assert hosts_of(decided, "k") == ["r0h0", "r0h1", "r1h0", "r1h1"], "one of each rack is kept"
    (waiting,) = decided.waiting
    assert any(reason.token is WaitReason.SPARE and reason.num_gpus == 16 for reason in waiting.verdict.reasons)
    assert "16 of the held GPUs are spares for gangs that lose hosts" in waiting.why


def test_without_the_policy_none_are_kept() -> None:
    assert len(hosts_of(decide(SIX, [job("j", nodes=6, gpus=8)], policy=DEFAULT_POLICY), "j")) == 6


def test_spot_runs_there_and_counts_as_a_spare() -> None:
    assert len(hosts_of(decide(SIX, [job("s", nodes=6, gpus=8, tier="spot")]), "s")) == 6
    lent = tuple(running(f"s{host}", of_host(host)) for host in ("r0h2", "r1h2"))
    assert len(hosts_of(decide(SIX, [job("j", nodes=4, gpus=8)], lent), "j")) == 4


LENT = ("r0h2", "r1h2")
FIRM = tuple(running(name, of_host(name), tier="on_demand") for name in ("r0h0", "r0h1", "r1h0", "r1h1"))


@pytest.mark.parametrize("backfill", ["easy", "conservative"])
@pytest.mark.parametrize("ends_minutes", [None, 1, 30])
@pytest.mark.parametrize("tier", ["on_demand", "reserved"])
def test_a_caller_that_may_not_have_spares_neither_reclaims_those_that_are_lent_nor_counts_on_their_end(
    tier: str, ends_minutes: float | None, backfill: str
) -> None:
    lent = tuple(running(f"s{name}", of_host(name), ends_minutes=ends_minutes) for name in LENT)
    policy = queueing(KEEPS, backfill=backfill)
    decided = decide(SIX, [job("j", gpus=8, tier=tier)], (*FIRM, *lent), policy)
    assert (decided.reclaims, decided.holds) == ((), ())
    (waiting,) = decided.waiting
    assert waiting.verdict.binding is WaitReason.SPARE
    assert "16 of the held GPUs are spares" in waiting.why


def test_of_more_lent_hosts_than_are_kept_the_others_are_reclaimed() -> None:
    lent = tuple(running(f"s{name}", of_host(name), saved_minutes=1) for name in (*LENT, "r1h1"))
    (reclaim,) = decide(SIX, [job("j", gpus=8)], (*FIRM[:3], *lent)).reclaims
    assert reclaim.victim == "sr1h1", "one of each rack is kept"
    promised = StandingReclaim(reclaim.victim, reclaim.beneficiary, NOW_MS + 1, reclaim.hold)
    gpus = hold(SIX, [uuid for attempt in (*FIRM[:3], *lent) for uuid in attempt.gpus])
    workload = Workload(NOW_MS, (*FIRM[:3], *lent), (promised,), failures_per_gpu_hour=TWO_OF_SIX)
    again = plan(gpus, [job("j", gpus=8), job("k", gpus=8, at=1)], KEEPS, workload)
    assert (again.reclaims, again.withdrawals) == ((), ()), "held GPUs are no spares, and the rest are"


def test_a_gang_that_lost_a_host_reclaims_a_lent_one_and_spot_may_wait_for_it() -> None:
    last: Parts = ((NodeId("r0h9"), tuple(GpuUuid(uuid) for uuid in of_host("r0h9"))),)
    lost = replace(job("lost", nodes=1, gpus=8, keep=last), interrupted_ms=NOW_MS)
    lent = tuple(running(f"s{name}", of_host(name), saved_minutes=1) for name in LENT)
    (reclaim,) = decide(SIX, [lost], (*FIRM, *lent)).reclaims
    assert reclaim.victim in {"sr0h2", "sr1h2"}
    (waiting,) = decide(SIX, [job("s", gpus=8, tier="spot")], (*FIRM, *lent)).waiting
    assert waiting.verdict.binding is WaitReason.IN_USE, "it might have them, if they were free"


def test_what_is_idle_of_a_lent_host_is_kept_with_it() -> None:
    lent = tuple(running(f"s{name}", of_host(name, 4), saved_minutes=1) for name in LENT)
    small = [job("od", gpus=4), job("spot", gpus=4, tier="spot", at=1)]
    decided = decide(SIX, small, (*FIRM, *lent))
    assert (hosts_of(decided, "od"), decided.reclaims) == ([], ())
    assert hosts_of(decided, "spot") != []


def test_a_gang_that_lost_a_host_has_one_at_once_and_the_next_job_does_not() -> None:
    last: Parts = tuple((NodeId(host), tuple(GpuUuid(uuid) for uuid in of_host(host))) for host in ("r0h0", "r0h1"))
    gpus = racks({"r0": [8, 0, 8], "r1": [8, 8, 8]})
    lost = replace(job("lost", nodes=2, gpus=8, required="rack", keep=last, at=1), interrupted_ms=NOW_MS)
    decided = decide(gpus, [lost, job("other", nodes=3, gpus=8), job("small", nodes=1, gpus=8, at=2)])
    assert hosts_of(decided, "lost") == ["r0h0", "r0h2"]
    assert hosts_of(decided, "other") == [], "three are left, of which one is a spare"
    assert hosts_of(decided, "small") != []


def test_what_has_what_is_kept_is_not_in_the_way_of_an_equal_request() -> None:
    """An on-demand job that may not have spares fails; one that was interrupted and asks for the same does not."""
    last: Parts = ((NodeId("r0h9"), tuple(GpuUuid(uuid) for uuid in of_host("r0h9"))),)
    lost = replace(job("lost", nodes=1, gpus=8, keep=last, at=9), interrupted_ms=NOW_MS)
    gpus = racks({"r0": [8, 8, 0], "r1": [0, 0, 0]})
    decided = decide(gpus, [job("first", gpus=8, tier="reserved"), lost])
    assert hosts_of(decided, "first") == []
    assert hosts_of(decided, "lost") != []


OLD, NEW = "driver_version=570|model=H100|vbios_version=1", "driver_version=570|model=H100|vbios_version=2"
OTHER_MODEL = "driver_version=570|model=H200|vbios_version=1"


def tiers(*, mixed: tuple[str, ...], spares: SparePolicy = P99) -> Policy:
    """Gangs of the tiers that are ``mixed`` may be of several VBIOS versions."""
    loose = {"homogeneity": ["driver_version", "model"]}
    return Policy.model_validate(
        {
            "tiers": {
                "reserved": {"priority": 300, **(loose if "reserved" in mixed else {})},
                "on_demand": {"priority": 200, **(loose if "on_demand" in mixed else {})},
                "spot": {"priority": 100, "notice_s": 120.0, **(loose if "spot" in mixed else {})},
            },
            "health": {"cohort": {"attributes": ["driver_version", "model", "vbios_version"]}},
            "recovery": {"spares": spares.model_dump(mode="json")},
        },
        strict=False,
    )


def kept_in(gpus: list[GpuView], policy: Policy, attempts: tuple[RunningAttempt, ...] = ()) -> set[str]:
    """The hosts of which every GPU is kept."""
    held = hold(gpus, [uuid for attempt in attempts for uuid in attempt.gpus])
    state = FleetState(held, policy, ("rack",))
    Spares(state, policy, Workload(NOW_MS, attempts, failures_per_gpu_hour=TWO_OF_SIX))
    by_host: dict[str, list[bool]] = {}
    for uuid, is_spare in zip(state.layout.uuids, state.is_spare.tolist(), strict=True):
        by_host.setdefault(uuid.rpartition("-")[0], []).append(is_spare)
    return {name for name, spare in by_host.items() if all(spare)}


def test_where_no_gang_requests_a_kind_fewer_hosts_of_each_kind_do() -> None:
    """Twelve cohorts of one host keep a host each; the one cohort of twelve keeps what fails at once of it."""
    gpus = [
        replace(gpu, cohort_key=f"driver_version=570|model=H100|vbios_version={number}")
        for number in range(12)
        for gpu in host(f"h{number}", 8, path=("r0",))
    ]
    assert len(kept_in(gpus, tiers(mixed=()))) == 12
    assert len(kept_in(gpus, tiers(mixed=("spot",)))) == 12, "spot is reclaimed, and is no protected tier"
    assert len(kept_in(gpus, tiers(mixed=("reserved", "on_demand")))) == spares_needed(12, 96, TWO_OF_SIX, P99) == 2
    assert len(kept_in(gpus, tiers(mixed=("on_demand",)))) == 12, "a reserved gang is still of one kind"


def test_a_host_of_two_kinds_is_whole_for_what_mixes_them_alone() -> None:
    halves = [replace(gpu, cohort_key=NEW if gpu.slot_index < 4 else OLD) for n in range(2) for gpu in host(f"h{n}", 8)]
    lent = (running("s", of_host("h0", 4)),)
    loose = kept_in(halves, tiers(mixed=("reserved", "on_demand")), lent)
    assert loose == {"h0"}, "of two hosts one is to be kept, and spot, which has half of it, would give that back"
    busy = (running("s", of_host("h0", 4), tier="on_demand"),)
    assert kept_in(halves, tiers(mixed=("reserved", "on_demand")), busy) == {"h1"}


@settings(max_examples=examples(100))
@given(
    kinds=st.lists(st.sampled_from([OLD, NEW, OTHER_MODEL]), min_size=1, max_size=9),
    busy=st.sets(st.integers(0, 8)),
    mixed=st.sets(st.sampled_from(["reserved", "on_demand", "spot"])),
    confidence=st.sampled_from([0.5, 0.9, 0.99]),
)
def test_each_protected_tier_has_what_its_own_cohorts_need_or_all_that_is_idle(
    kinds: list[str], busy: set[int], mixed: set[str], confidence: float
) -> None:
    policy = tiers(mixed=tuple(mixed), spares=SparePolicy(confidence=confidence))
    gpus = [gpu for number, kind in enumerate(kinds) for gpu in host(f"h{number}", 8, cohort=kind, path=("r0",))]
    attempts = tuple(running(f"a{n}", of_host(f"h{n}"), tier="on_demand") for n in sorted(busy) if n < len(kinds))
    kept = kept_in(gpus, policy, attempts)
    idle = {f"h{number}" for number in range(len(kinds)) if number not in busy}
    assert kept <= idle
    for tier in ("reserved", "on_demand"):
        alike = {kind: kind.rpartition("|")[0] if tier in mixed else kind for kind in kinds}
        for one in set(alike.values()):
            hosts = {f"h{number}" for number, kind in enumerate(kinds) if alike[kind] == one}
            needed = spares_needed(len(hosts), 8 * len(hosts), TWO_OF_SIX, policy.recovery.spares)
            assert len(kept & hosts) >= min(needed, len(idle & hosts))
