"""The circuit breaker: what passes, what is proposed, and that I10 holds whatever comes."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.standing.breaker import (
    FLEET,
    FLEET_WINDOW,
    BreakerDecision,
    BreakerState,
    FleetCounts,
    GpuPlace,
    TakenOut,
    Taking,
    Way,
    admit,
    admit_takings,
    cap_of,
    close,
    num_counted,
)
from health.standing.gpu_case import Move, MoveReason
from muster.domain.ids import GpuUuid, TenantId
from muster.domain.states import Standing
from tests.health.case_factory import HOUR, MINUTE, NOW_MS, POLICY

BREAKER = POLICY.breaker
BIG = 1000


def uuid(number: int) -> GpuUuid:
    return GpuUuid(f"GPU-{number:04d}")


def quarantine(number: int, *, threatens_correctness: bool = False, at_ms: int = NOW_MS) -> Move:
    return Move(
        gpu_uuid=uuid(number),
        from_standing=Standing.HEALTHY,
        to_standing=Standing.QUARANTINED,
        at_ms=at_ms,
        reason=MoveReason.CONDEMNED,
        threatens_correctness=threatens_correctness,
    )


def recovery(number: int) -> Move:
    return Move(uuid(number), Standing.QUARANTINED, Standing.PROBATION, NOW_MS, MoveReason.BURN_IN_PASSED)


def fleet(size: int = BIG, **places: GpuPlace) -> FleetCounts:
    return FleetCounts(size, places={GpuUuid(name): place for name, place in places.items()})


def in_one(place: GpuPlace, numbers: range, counts: FleetCounts) -> FleetCounts:
    return replace(counts, places={uuid(number): place for number in numbers})


def ruled(
    moves: list[Move], counts: FleetCounts, state: BreakerState | None = None, now_ms: int = NOW_MS
) -> BreakerDecision:
    return admit(moves, state or BreakerState(), counts, POLICY, now_ms)


@pytest.mark.parametrize(
    ("scope", "size", "cap"),
    [
        (FLEET_WINDOW, 1000, 50),
        (FLEET_WINDOW, 39, 1),
        (FLEET_WINDOW, 2, 1),
        (FLEET, 1000, 200),
        (FLEET, 4, 2),
        ("rack:r", 72, 18),
        ("rack:r", 2, 1),
        ("cohort:c", 100, 10),
        ("cohort:c", 5, 1),
        ("tenant:t", 64, 6),
    ],
)
def test_caps_are_shares_with_a_floor_for_small_fleets(scope: str, size: int, cap: int) -> None:
    counts = FleetCounts(size, {"r": size}, {"c": size}, {TenantId("t"): size})
    assert cap_of(scope, counts, BREAKER) == cap


def test_five_percent_of_the_fleet_pass_in_a_window_and_the_rest_is_proposed() -> None:
    ruling = ruled([quarantine(n) for n in range(60)], fleet())
    assert (len(ruling.allowed), len(ruling.proposed)) == (50, 10)
    assert ruling.incident is not None
    assert ruling.incident.caps == {FLEET_WINDOW: 50}
    assert len(ruling.incident.gpu_uuids) == 10


def test_threats_to_correctness_go_first() -> None:
    moves = [quarantine(n) for n in range(60)]
    moves[59] = quarantine(59, threatens_correctness=True)
    assert uuid(59) in {move.gpu_uuid for move in ruled(moves, fleet()).allowed}


def test_an_open_scope_stays_open_after_its_window_until_a_person_closes_it() -> None:
    tripped = ruled([quarantine(n) for n in range(60)], fleet()).state
    later = NOW_MS + 24 * HOUR
    again = ruled([quarantine(99)], fleet(), tripped, later)
    assert again.allowed == ()
    assert again.incident is None
    closed = close(again.state, FLEET_WINDOW, later)
    assert len(ruled([quarantine(99)], fleet(), closed, later).allowed) == 1


def test_a_scope_that_is_not_open_cannot_be_closed() -> None:
    with pytest.raises(ValueError, match="is not open"):
        close(BreakerState(), FLEET, NOW_MS)


def test_twenty_percent_in_all_is_the_end_however_slow() -> None:
    state, num_allowed = BreakerState(), 0
    for number in range(300):
        ruling = ruled([quarantine(number)], fleet(), state, NOW_MS + number * 11 * MINUTE)
        state, num_allowed = ruling.state, num_allowed + len(ruling.allowed)
    assert num_allowed == 200
    assert set(state.open_since_ms) == {FLEET}


@pytest.mark.parametrize(
    ("place", "counts", "cap"),
    [
        (GpuPlace(rack="r"), FleetCounts(BIG, by_rack={"r": 16}), 4),
        (GpuPlace(cohort="c"), FleetCounts(BIG, by_cohort={"c": 70}), 7),
        (GpuPlace(tenant=TenantId("t")), FleetCounts(BIG, by_tenant={TenantId("t"): 32}), 3),
    ],
)
def test_each_rack_cohort_and_tenant_has_its_own_cap(place: GpuPlace, counts: FleetCounts, cap: int) -> None:
    counts = in_one(place, range(20), counts)
    ruling = ruled([quarantine(n) for n in range(20)], counts)
    assert len(ruling.allowed) == cap
    elsewhere = ruled([quarantine(500)], counts, ruling.state)
    assert len(elsewhere.allowed) == 1, "one scope's breaker does not hold up another's GPUs"


def test_recoveries_always_pass_and_free_their_place() -> None:
    counts = in_one(GpuPlace(rack="r"), range(8), FleetCounts(BIG, by_rack={"r": 8}))
    first = ruled([quarantine(0), quarantine(1)], counts)
    back = ruled([recovery(0)], counts, first.state, NOW_MS + HOUR)
    assert len(back.allowed) == 1
    assert len(ruled([quarantine(2)], counts, back.state, NOW_MS + HOUR).allowed) == 1
    assert ruled([quarantine(2)], counts, first.state, NOW_MS + HOUR).allowed == ()


def test_recoveries_pass_an_open_breaker() -> None:
    tripped = ruled([quarantine(n) for n in range(60)], fleet()).state
    assert len(ruled([recovery(n) for n in range(50)], fleet(), tripped).allowed) == 50


def test_a_flapping_gpu_counts_once() -> None:
    state = BreakerState()
    for number in range(20):
        out = ruled([quarantine(1)], fleet(20), state, NOW_MS + number)
        assert len(out.allowed) == 1
        state = ruled([recovery(1)], fleet(20), out.state, NOW_MS + number).state
    assert len(state.quarantined) == 1


def test_persons_and_returns_from_repair_are_not_delayed() -> None:
    tripped = ruled([quarantine(n) for n in range(60)], fleet()).state
    by_person = replace(quarantine(70), actor="operator:ann")
    from_repair = replace(quarantine(71), from_standing=Standing.REPAIR)
    assert set(ruled([by_person, from_repair], fleet(), tripped).allowed) == {by_person, from_repair}


def test_the_order_in_which_moves_come_decides_nothing() -> None:
    moves = [quarantine(n, at_ms=NOW_MS + n % 7, threatens_correctness=n % 3 == 0) for n in range(80)]
    assert ruled(moves, fleet()) == ruled(list(reversed(moves)), fleet())


@dataclass
class World:
    """A small fleet in which rules quarantine at will and GPUs come back."""

    counts: FleetCounts
    state: BreakerState = field(default_factory=BreakerState)
    now_ms: int = NOW_MS
    out: dict[GpuUuid, int] = field(default_factory=dict)
    """GPUs that are out, and all that went out within the window, with when."""

    def step(self, after_ms: int, numbers: list[int], back: list[int]) -> None:
        self.now_ms += after_ms
        in_quarantine = {each.gpu_uuid for each in self.state.quarantined if each.is_out}
        moves = [recovery(n) for n in set(back) if uuid(n) in in_quarantine]
        returning = {move.gpu_uuid for move in moves}
        moves += [quarantine(n) for n in set(numbers) if uuid(n) not in in_quarantine | returning]
        ruling = admit(moves, self.state, self.counts, POLICY, self.now_ms)
        assert sorted(ruling.allowed + ruling.proposed, key=repr) == sorted(moves, key=repr)
        self.state = ruling.state
        self.out |= {move.gpu_uuid: self.now_ms for move in ruling.allowed if move.to_standing is Standing.QUARANTINED}

    def check(self) -> None:
        still = {each.gpu_uuid for each in self.state.quarantined if each.is_out}
        recent = {gpu for gpu, at_ms in self.out.items() if at_ms > self.now_ms - 10 * MINUTE}
        assert len(recent) <= cap_of(FLEET_WINDOW, self.counts, BREAKER)
        assert len(still) <= cap_of(FLEET, self.counts, BREAKER)
        for rack, size in self.counts.by_rack.items():
            inside = {gpu for gpu in still | recent if self.counts.places[gpu].rack == rack}
            assert len(inside) <= max(1, size // 4)
        for cohort, size in self.counts.by_cohort.items():
            inside = {gpu for gpu in still | recent if self.counts.places[gpu].cohort == cohort}
            assert len(inside) <= max(1, size // 10)


NUMBERS = st.lists(st.integers(0, 39), max_size=12)


@given(st.lists(st.tuples(st.sampled_from([0, 1, 3 * MINUTE, 11 * MINUTE, 5 * HOUR]), NUMBERS, NUMBERS), max_size=20))
def test_rules_never_quarantine_more_than_the_breaker_allows(steps: list[tuple[int, list[int], list[int]]]) -> None:
    places = {uuid(n): GpuPlace(rack=f"r{n // 8}", cohort=f"c{n % 2}") for n in range(40)}
    racks, cohorts = {f"r{n}": 8 for n in range(5)}, {"c0": 20, "c1": 20}
    world = World(FleetCounts(40, racks, cohorts, places=places))
    for after_ms, numbers, back in steps:
        world.step(after_ms, numbers, back)
        world.check()


def test_the_window_ends_at_its_millisecond() -> None:
    window_ms = int(BREAKER.window_s * 1000)
    state = ruled([quarantine(1)], fleet()).state
    assert num_counted(state, FLEET_WINDOW, BREAKER, NOW_MS + window_ms - 1) == 1
    assert num_counted(state, FLEET_WINDOW, BREAKER, NOW_MS + window_ms) == 0
    assert num_counted(state, FLEET, BREAKER, NOW_MS + window_ms) == 1, "it is still out"


def test_what_is_back_leaves_the_account_with_the_window() -> None:
    out = ruled([quarantine(0)], fleet()).state
    back = ruled([recovery(0)], fleet(), out).state
    window_ms = int(BREAKER.window_s * 1000)
    later = (NOW_MS + window_ms - 1, NOW_MS + window_ms)
    kept = [len(ruled([], fleet(), back, now_ms).state.quarantined) for now_ms in later]
    assert kept == [1, 0]


def test_what_falls_at_the_moment_of_a_closing_was_accepted_with_it() -> None:
    tripped = ruled([quarantine(n) for n in range(60)], fleet()).state
    closed = close(tripped, FLEET_WINDOW, NOW_MS)
    assert num_counted(tripped, FLEET_WINDOW, BREAKER, NOW_MS) == 50
    assert num_counted(closed, FLEET_WINDOW, BREAKER, NOW_MS) == 0


def test_an_account_of_the_release_before_counts_by_standings_and_is_given_back() -> None:
    """Its entries have no ways."""
    old = BreakerState(tuple(TakenOut(uuid(n), NOW_MS - 24 * HOUR, (FLEET,)) for n in range(200)))
    full = ruled([quarantine(300)], fleet(), old)
    assert full.allowed == ()
    freed = ruled([recovery(0), quarantine(300)], fleet(), old)
    assert [move.gpu_uuid for move in freed.allowed] == [uuid(0), uuid(300)]
    admitted = admit_takings([Taking("node", (uuid(7),), Way.NODE_HOLD)], old, fleet(), POLICY, NOW_MS)
    assert len(admitted.allowed) == 1, "it is out already, so the hold of its node takes no more"
    (entry,) = [each for each in admitted.state.quarantined if each.gpu_uuid == uuid(7)]
    assert entry.out_by() == {Way.STANDING, Way.NODE_HOLD}


@pytest.mark.parametrize("comes_first", ["hold", "move"])
def test_what_a_person_accepted_counts_no_more_once_its_node_is_out_too(comes_first: str) -> None:
    """The judge of GPUs and the judge of nodes run side by side, so either may act first after the closing."""
    counts = in_one(GpuPlace(cohort="c"), range(4), FleetCounts(8, by_cohort={"c": 8}))
    state = ruled([quarantine(1)], counts).state
    state = ruled([quarantine(2)], counts, state).state
    for scope in tuple(state.open_since_ms):
        state = close(state, scope, NOW_MS + MINUTE)
    hold = Taking("node", tuple(map(uuid, range(4))), Way.NODE_HOLD)
    later_ms = NOW_MS + 2 * MINUTE
    for turn in ("hold", "move") if comes_first == "hold" else ("move", "hold"):
        if turn == "hold":
            admitted = admit_takings([hold], state, counts, POLICY, later_ms)
            assert admitted.allowed, admitted.incident
            state = admitted.state
        else:
            decision = ruled([quarantine(2)], counts, state, later_ms)
            assert decision.allowed, decision.incident
            state = decision.state
