"""Conditions that return a GPU: the shown sets do it by the production rules, and no smaller one does."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from health.standing.admission import refusal_of
from health.standing.counterfactual import RecoveryPath, recovery_paths
from health.standing.gpu_case import BurnInResult, GpuCase
from health.standing.what_if import (
    Condition,
    Cordon,
    Kind,
    SetStanding,
    Situation,
    after,
    faults_that_stand,
    without_the_past,
)
from muster.domain.evidence.findings import Evidence, Severity
from muster.domain.ids import EvidenceId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.tiers import TierPolicy
from muster.domain.states import Contact, Standing
from tests.health.case_factory import (
    DAY,
    HOUR,
    MINUTE,
    NOW_MS,
    POLICY,
    as_fault,
    case,
    condemning,
    degraded,
    evidence,
    quarantine,
)
from tests.health.strategies import any_evidence, named
from tests.scaled import examples

RESERVED = DEFAULT_POLICY.tier("reserved")
SPOT = DEFAULT_POLICY.tier("spot")


def replace_tier(tier: TierPolicy, **changes: object) -> TierPolicy:
    return tier.model_copy(update=changes)


def reported(situation: Situation, tier: TierPolicy = RESERVED) -> tuple[RecoveryPath, ...]:
    return recovery_paths(situation, tier, NOW_MS, POLICY)


def kinds(way: RecoveryPath) -> list[str]:
    return [each.kind.value for each in way.conditions]


def quarantined(*found: Evidence, origin: Standing = Standing.HEALTHY) -> GpuCase:
    move = quarantine(NOW_MS - HOUR, origin, *(each.id for each in found))
    gpu = case(Standing.QUARANTINED, *found, since_ms=NOW_MS - HOUR, origin=origin)
    return replace(gpu, moves=(move,))


def test_a_gpu_that_is_admitted_needs_nothing() -> None:
    assert reported(Situation(case(Standing.HEALTHY))) == ()


def test_a_condemned_gpu_comes_back_by_a_dismissal_or_a_burn_in_and_a_probation() -> None:
    bad = condemning("ecc", NOW_MS - 2 * HOUR)
    first, second = reported(Situation(quarantined(bad)))
    assert (kinds(first), first.conditions[0].subject_id, first.at_ms) == (["dismissal"], bad.id, None)
    assert kinds(second) == ["burn_in", "time"]
    assert second.conditions[1].at_ms == NOW_MS + 28 * DAY
    assert [kinds(way) for way in reported(Situation(quarantined(bad)), SPOT)] == [["burn_in"], ["dismissal"]]


def test_a_suspect_gpu_outlives_what_lowers_its_score_by_a_date() -> None:
    gpu = case(Standing.SUSPECT, degraded("slow", NOW_MS - HOUR), since_ms=NOW_MS - HOUR, origin=Standing.HEALTHY)
    ways = reported(Situation(gpu))
    assert [kinds(way) for way in ways] == [["time"], ["burn_in"], ["dismissal"]]
    until_ms = ways[0].at_ms
    assert until_ms is not None
    assert NOW_MS + 12 * HOUR < until_ms < NOW_MS + 24 * HOUR, "35 points are 15 after about 15 hours"


def test_probation_ends_in_time_alone() -> None:
    gpu = case(Standing.PROBATION, evidence("xid", at_ms=NOW_MS - DAY), since_ms=NOW_MS - 10 * DAY)
    (way,) = reported(Situation(gpu))
    assert (kinds(way), way.at_ms) == (["time"], NOW_MS + 27 * DAY)


def test_the_first_part_of_a_probation_is_waited_for_by_a_tier_that_no_rule_reclaims_from() -> None:
    takes = replace_tier(RESERVED, standings=("HEALTHY", "PROBATION"))
    gpu = case(Standing.PROBATION, since_ms=NOW_MS - HOUR)
    young = Situation(gpu, is_reclaimable_only=True)
    (way,) = reported(young, takes)
    assert (kinds(way), way.at_ms) == (["time"], NOW_MS + 71 * HOUR)
    assert reported(young, SPOT) == ()


def test_all_that_is_around_the_gpu_must_end() -> None:
    situation = Situation(
        case(Standing.HEALTHY),
        contact=Contact.LOST,
        cordons=(Cordon("cdn_1", "fan", NOW_MS + HOUR), Cordon("cdn_2", "moved")),
        override=SetStanding("ovr_1", Standing.QUARANTINED, NOW_MS + DAY),
        is_mig_enabled=True,
    )
    (way,) = reported(situation)
    assert kinds(way) == ["contact", "cordon", "cordon", "mig", "override"]
    assert way.at_ms is None
    (dated,) = reported(Situation(case(Standing.HEALTHY), cordons=situation.cordons[:1]))
    assert dated.at_ms == NOW_MS + HOUR


def test_a_fault_that_its_agent_still_reports_of_is_to_be_repaired_before_a_burn_in_proves_anything() -> None:
    lost = evidence("lost", Severity.CONDEMNING, at_ms=NOW_MS - MINUTE, detector="gpu_lost", fault="gpu_lost")
    ways = reported(Situation(quarantined(lost)), SPOT)
    assert [kinds(way) for way in ways] == [["dismissal"], ["burn_in", "repair"]]
    assert "lost" in ways[1].conditions[1].text


def test_a_gpu_in_repair_needs_the_repair_and_its_burn_in() -> None:
    gpu = case(Standing.REPAIR, condemning("ecc", NOW_MS - DAY), since_ms=NOW_MS - MINUTE)
    (way,) = reported(Situation(gpu), SPOT)
    assert kinds(way) == ["burn_in", "repair"]


def test_a_retired_gpu_is_reinstated_and_burnt_in() -> None:
    (way,) = reported(Situation(case(Standing.RETIRED)), SPOT)
    assert kinds(way) == ["burn_in", "reinstatement"]


def test_a_burn_in_under_way_is_waited_for() -> None:
    (way,) = reported(Situation(case(Standing.HEALTHY), is_burning_in=True))
    assert kinds(way) == ["burn_in"]
    assert way.conditions[0].text.startswith("its burn-in passes, if nothing condemning was found since it began")


def test_of_much_evidence_the_heaviest_is_dismissed_first() -> None:
    found = [evidence(str(number), at_ms=NOW_MS - MINUTE, fault=f"xid:{number}") for number in range(4)]
    found += [degraded(f"d{number}", NOW_MS - MINUTE) for number in range(2)]
    gpu = case(Standing.SUSPECT, *found, since_ms=NOW_MS - HOUR, origin=Standing.HEALTHY)
    by_dismissal = [way for way in reported(Situation(gpu)) if set(kinds(way)) == {"dismissal"}]
    assert [{each.subject_id for each in way.conditions} for way in by_dismissal] == [
        {"ev_d0", "ev_d1", *(f"ev_{number}" for number in range(3))}
    ]


def test_of_a_burst_all_is_dismissed_since_the_next_of_it_takes_over() -> None:
    for num in (2, 5):
        burst = [degraded(str(at), NOW_MS - (at + 1) * MINUTE // 2, fault="xid:46") for at in range(num)]
        gpu = case(Standing.SUSPECT, *burst, since_ms=NOW_MS - HOUR, origin=Standing.HEALTHY)
        by_dismissal = [way for way in reported(Situation(gpu)) if set(kinds(way)) == {"dismissal"}]
        assert [{each.subject_id for each in way.conditions} for way in by_dismissal] == [{each.id for each in burst}]
        assert "time" in [kind for way in reported(Situation(gpu)) for kind in kinds(way)]


def test_what_no_rule_checks_any_more_is_left_out_and_changes_nothing() -> None:
    live = [evidence(str(number), at_ms=NOW_MS - number * MINUTE) for number in range(20)]
    past = [evidence(f"old{number}", at_ms=NOW_MS - 40 * DAY - number) for number in range(200)]
    past += [replace(each, id=EvidenceId(f"{each.id}_dismissed"), is_dismissed=True) for each in live[1:]]
    gpu = case(Standing.SUSPECT, *live, since_ms=NOW_MS - HOUR, origin=Standing.HEALTHY)
    burdened = Situation(replace(gpu, evidence=(*live, *past)))
    assert len(without_the_past(burdened, NOW_MS, POLICY).gpu.evidence) == len(live)
    assert reported(burdened) == reported(Situation(gpu))


@settings(max_examples=examples(80))
@given(st.sampled_from(Standing), st.lists(any_evidence(), max_size=4))
def test_what_is_left_out_changes_no_way_back(standing: Standing, found: list[Evidence]) -> None:
    whole = Situation(case(standing, *named(found), since_ms=NOW_MS - DAY, origin=Standing.HEALTHY))
    left = without_the_past(whole, NOW_MS, POLICY)
    for kind in (Kind.BURN_IN, Kind.REPAIR, Kind.REINSTATEMENT):
        done = (Condition(kind, ""), Condition(Kind.TIME, "", NOW_MS + 390 * DAY))
        assert after(left, done, NOW_MS, POLICY).facts == after(whole, done, NOW_MS, POLICY).facts


# The shown sets, against every set there is.


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    standing = draw(st.sampled_from(Standing))
    found: list[Evidence] = list(draw(st.lists(any_evidence(), max_size=3)))
    is_lost: bool = draw(st.booleans())
    if found and is_lost:
        found[0] = as_fault(found[0], "gpu_lost", "gpu_lost")
    if found and standing is Standing.QUARANTINED:  # one whose reasons were all dismissed is out by then
        found[0] = replace(found[0], is_dismissed=False)
    given_evidence = named(found)
    origins = (Standing.UNPROVEN, Standing.PROBATION, Standing.HEALTHY)
    origin = draw(st.sampled_from(origins[1:] if standing is Standing.SUSPECT else origins))
    since_ms = NOW_MS - draw(st.integers(0, 40 * DAY))
    gpu = case(standing, *given_evidence, since_ms=since_ms, origin=origin)
    if standing is Standing.QUARANTINED:
        gpu = replace(gpu, moves=(quarantine(since_ms, origin, *(each.id for each in given_evidence[:1])),))
    had_burn_in: bool = draw(st.booleans())
    if had_burn_in:
        began_ms = NOW_MS - draw(st.integers(HOUR, 40 * DAY))
        gpu = replace(gpu, burn_ins=(BurnInResult(began_ms, began_ms + MINUTE, draw(st.booleans())),))
    contact = draw(st.sampled_from((Contact.LIVE, Contact.LIVE, Contact.LOST)))
    override = draw(st.sampled_from((None, None, Standing.SUSPECT, Standing.PROBATION, Standing.HEALTHY)))
    return Situation(
        replace(gpu, has_contact=contact is Contact.LIVE),
        contact=contact,
        cordons=draw(st.sampled_from(((), (Cordon("cdn_1", "fan"),)))),
        override=None if override is None else SetStanding("ovr_1", override, NOW_MS + HOUR),
        is_burning_in=draw(st.booleans()),
    )


def every_condition(situation: Situation) -> list[Condition]:
    """All that can be done about it but to wait; ``test_counterfactual`` names them without the code under test."""
    found = [Condition(kind, "") for kind in (Kind.BURN_IN, Kind.REPAIR, Kind.REINSTATEMENT, Kind.CONTACT, Kind.MIG)]
    # No evidence is dismissed twice.
    found += [
        Condition(Kind.DISMISSAL, "", subject_id=each.id) for each in situation.gpu.evidence if not each.is_dismissed
    ]
    found += [Condition(Kind.CORDON, "", subject_id=each.id) for each in situation.cordons]
    if situation.override is not None:
        found.append(Condition(Kind.OVERRIDE, "", subject_id=situation.override.id))
    return found


def smaller_sets(situation: Situation, size: int) -> Iterator[tuple[Condition, ...]]:
    conditions = every_condition(situation)
    waiting = Condition(Kind.TIME, "", NOW_MS + 390 * DAY)
    for fewer in range(size):
        yield from combinations(conditions, fewer)
        if fewer:
            yield from ((*some, waiting) for some in combinations(conditions, fewer - 1))


def is_back(situation: Situation, conditions: tuple[Condition, ...], tier: TierPolicy) -> bool:
    return refusal_of(after(situation, conditions, NOW_MS, POLICY).facts, tier) is None


@settings(max_examples=examples(150))
@given(situations(), st.sampled_from((RESERVED, SPOT)))
def test_each_way_brings_it_back_and_no_smaller_set_does(situation: Situation, tier: TierPolicy) -> None:
    ways = reported(situation, tier)
    is_in = refusal_of(situation.facts, tier) is None
    for way in ways:
        assert is_back(situation, way.conditions, tier), kinds(way)
        for one in way.conditions:
            without = tuple(each for each in way.conditions if each is not one)
            assert is_in or not without or not is_back(situation, without, tier), f"{kinds(way)} without {one.kind}"
    fewest = len(ways[0].conditions) if ways else 4
    if not is_in:
        doing = (some for some in smaller_sets(situation, fewest) if some)
        assert not [some for some in doing if is_back(situation, some, tier)]


@settings(max_examples=examples(60))
@given(situations())
def test_no_sooner_than_at_the_date_that_is_reported(situation: Situation) -> None:
    for way in reported(situation, SPOT):
        waits = [each for each in way.conditions if each.kind is Kind.TIME]
        for one in waits:
            assert one.at_ms is not None
            sooner = tuple(replace(each, at_ms=one.at_ms - 1) if each is one else each for each in way.conditions)
            assert not is_back(situation, sooner, SPOT)


def test_what_stands_is_open_counted_and_of_a_detector_that_states_it_again() -> None:
    open_fault = evidence("lost", detector="gpu_lost")
    closed = replace(open_fault, closed_at_ms=1)
    gpu = case(Standing.HEALTHY, open_fault, closed, replace(open_fault, is_dismissed=True), evidence("xid"))
    assert faults_that_stand(gpu, POLICY) == (open_fault,)
