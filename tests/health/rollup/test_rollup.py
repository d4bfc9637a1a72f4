"""The roll-up of a group: what its score shows and hides, as a GPU changes and as groups join."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.rollup.rollup import Alike, GpuKind, Rollup, Use, kind_of, merged, rollup_of, rollups_by
from health.standing.admission import AdmissionFacts
from muster.domain.ids import NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import Contact, Standing

TIERS = tuple(DEFAULT_POLICY.tiers.values())
SOUND = AdmissionFacts(Standing.HEALTHY, Contact.LIVE)
FACTS = st.builds(
    AdmissionFacts,
    standing=st.sampled_from([each for each in Standing if each is not Standing.RETIRED]),
    contact=st.sampled_from(Contact),
    is_cordoned=st.booleans(),
    is_assigned=st.booleans(),
    is_burning_in=st.booleans(),
    is_reported=st.booleans(),
    is_reclaimable_only=st.booleans(),
    override=st.none() | st.sampled_from([Standing.HEALTHY, Standing.QUARANTINED]),
)
SCORES = st.none() | st.integers(0, 100)
GPUS = st.lists(st.tuples(st.integers(0, 4), FACTS, SCORES, st.booleans()), min_size=1, max_size=40)
Gpus = list[tuple[int, AdmissionFacts, int | None, bool]]


def kind(score: int | None = 100, facts: AdmissionFacts = SOUND, *, has_hold: bool = False) -> GpuKind:
    return kind_of(facts, score, TIERS, has_hold=has_hold)


def node(name: str, *scores: int) -> list[Alike]:
    return [Alike(NodeId(name), kind(score), 1) for score in scores]


def rolled(gpus: Gpus) -> Rollup:
    return rollup_of(
        Alike(NodeId(f"n{at}"), kind(score, facts, has_hold=has_hold), 1) for at, facts, score, has_hold in gpus
    )


def figures(found: Rollup) -> tuple[int, ...]:
    return found.score_tenths, found.mean_tenths, found.worst, found.p10, found.num_healthy, found.num_admitted


def test_a_node_is_as_good_as_its_worst_gpu_because_a_gang_takes_it_whole() -> None:
    found = rollup_of(node("a", *[100] * 7, 0))
    assert (found.score_tenths, found.mean_tenths, found.worst, found.p10) == (0, 875, 0, 0)
    assert rollup_of(node("b", *[90] * 8)).score_tenths == 900, "evenly worn is better than one dead"


def test_one_dead_node_and_a_dead_gpu_on_each_node_have_one_mean_and_scores_apart() -> None:
    dead_node = rollup_of([*node("n0", *[0] * 8), *(each for at in range(1, 8) for each in node(f"n{at}", *[100] * 8))])
    dead_gpus = rollup_of(each for at in range(8) for each in node(f"n{at}", 0, *[100] * 7))
    assert dead_node.mean_tenths == dead_gpus.mean_tenths == 875
    assert (dead_node.score_tenths, dead_gpus.score_tenths) == (875, 0)


def test_one_bad_gpu_of_a_hundred_thousand_never_shows_as_a_full_score() -> None:
    fleet = [Alike(NodeId(f"n{at}"), kind(), 8) for at in range(12_499)]
    found = rollup_of([*fleet, Alike(NodeId("last"), kind(), 7), Alike(NodeId("last"), kind(99), 1)])
    assert (found.num_gpus, found.score_tenths, found.worst, found.p10) == (100_000, 999, 99, 100)


@pytest.mark.parametrize("standing", [Standing.UNPROVEN, Standing.QUARANTINED, Standing.REPAIR])
def test_a_gpu_out_of_service_counts_as_nothing_though_its_own_score_has_risen_again(standing: Standing) -> None:
    assert kind(100, replace(SOUND, standing=standing)).counted == 0


@pytest.mark.parametrize("contact", [Contact.SILENT, Contact.LOST])
def test_a_gpu_without_contact_counts_as_nothing_and_is_out(contact: Contact) -> None:
    found = kind(100, replace(SOUND, contact=contact))
    assert (found.counted, found.use, found.is_admitted) == (0, Use.OUT, False)


def test_a_suspect_gpu_keeps_its_score_and_is_out_of_new_work() -> None:
    found = kind(65, replace(SOUND, standing=Standing.SUSPECT))
    assert (found.counted, found.use, found.is_healthy) == (65, Use.OUT, False)


def test_a_persons_standing_counts_where_it_counts_for_admission() -> None:
    proven = replace(SOUND, standing=Standing.UNPROVEN, override=Standing.HEALTHY)
    assert kind(None, proven) == (100, Standing.HEALTHY, Use.FREE, True, True)
    kept_out = replace(SOUND, standing=Standing.QUARANTINED, override=Standing.HEALTHY)
    assert kind(100, kept_out)[:3] == (0, Standing.QUARANTINED, Use.OUT)


def test_a_cordon_takes_capacity_and_no_health() -> None:
    found = kind(100, replace(SOUND, is_cordoned=True))
    assert (found.counted, found.use, found.is_healthy) == (100, Use.OUT, False)


def test_probation_is_admitted_by_some_tiers_and_so_not_healthy() -> None:
    found = kind(100, replace(SOUND, standing=Standing.PROBATION))
    assert (found.is_healthy, found.is_admitted, found.use) == (False, True, Use.FREE)


def test_work_on_a_gpu_is_no_reason_against_its_health_and_a_hold_counts_only_while_it_is_free() -> None:
    assert kind(100, replace(SOUND, is_assigned=True), has_hold=True) == (100, Standing.HEALTHY, Use.IN_USE, True, True)
    assert kind(100, has_hold=True).use is Use.RESERVED
    assert kind(0, replace(SOUND, standing=Standing.REPAIR), has_hold=True).use is Use.OUT, "none can start there"


def test_where_the_policy_has_no_tier_nothing_is_admitted() -> None:
    assert kind_of(SOUND, 100, (), has_hold=False)[2:] == (Use.OUT, False, False)


def test_a_group_of_nothing_and_a_retired_gpu_are_refused() -> None:
    with pytest.raises(ValueError, match="without a GPU"):
        rollup_of(())
    with pytest.raises(ValueError, match="retired"):
        kind(100, replace(SOUND, standing=Standing.RETIRED))


def test_the_tenth_percentile_is_a_score_that_a_tenth_does_not_exceed() -> None:
    for num_gpus, num_bad, p10 in ((10, 1, 20), (11, 1, 100), (11, 2, 20), (1, 1, 20), (20, 2, 20), (20, 1, 100)):
        found = rollup_of(node("a", *[20] * num_bad, *[100] * (num_gpus - num_bad)))
        assert found.p10 == p10, (num_gpus, num_bad)


def test_gpus_without_a_group_are_in_none() -> None:
    fleet = [("r1", each) for each in node("a", 100, 50)] + [(None, each) for each in node("b", 0)]
    found = rollups_by(fleet)
    assert {key: each.score_tenths for key, each in found.items()} == {"r1": 500}


@given(GPUS, st.data())
def test_a_gpu_that_becomes_worse_raises_no_figure_of_its_group(gpus: Gpus, data: st.DataObject) -> None:
    before = rolled(gpus)
    at = data.draw(st.integers(0, len(gpus) - 1))
    place, facts, score, has_hold = gpus[at]
    lower = data.draw(st.integers(0, 100 if score is None else score))
    change = data.draw(st.sampled_from(["score", "standing", "contact", "cordon", "report"]))
    if change == "standing":
        bad = data.draw(st.sampled_from([Standing.QUARANTINED, Standing.REPAIR]))
        facts = replace(facts, standing=bad)
    elif change == "contact":
        facts = replace(facts, contact=Contact.LOST)
    elif change == "cordon":
        facts = replace(facts, is_cordoned=True)
    elif change == "report":
        facts = replace(facts, is_reported=True)
    after = rolled([*gpus[:at], (place, facts, lower if change == "score" else score, has_hold), *gpus[at + 1 :]])
    assert all(new <= old for new, old in zip(figures(after), figures(before), strict=True))


@given(GPUS, st.randoms(use_true_random=False))
def test_the_order_of_gpus_and_how_they_are_counted_together_do_not_matter(gpus: Gpus, shuffled: random.Random) -> None:
    again = list(gpus)
    shuffled.shuffle(again)
    assert rolled(again) == rolled(gpus)
    counted = Counter((NodeId(f"n{at}"), kind(score, facts, has_hold=hold)) for at, facts, score, hold in gpus)
    assert rollup_of(Alike(*key, count) for key, count in counted.items()) == rolled(gpus)


@given(GPUS, st.integers(0, 5))
def test_groups_without_a_common_node_merge_into_the_roll_up_of_their_union(gpus: Gpus, border: int) -> None:
    parts = [[gpu for gpu in gpus if gpu[0] < border], [gpu for gpu in gpus if gpu[0] >= border]]
    if all(parts):
        assert merged(rolled(parts[0]), rolled(parts[1])) == rolled(gpus)


@given(GPUS)
def test_figures_stay_in_order_and_each_gpu_has_one_use(gpus: Gpus) -> None:
    found = rolled(gpus)
    assert 10 * found.worst <= found.score_tenths <= found.mean_tenths <= 1000
    assert found.num_healthy <= found.num_admitted <= found.num_gpus
    assert sum(found.uses.values()) == sum(found.standings.values()) == found.num_gpus == len(gpus)
    assert found.num_nodes == len({gpu[0] for gpu in gpus})
    assert found.worst <= found.p10 <= max(found.counted)


def test_every_use_is_reached() -> None:
    facts = (SOUND, replace(SOUND, is_assigned=True), replace(SOUND, is_cordoned=True))
    uses = {kind(100, each, has_hold=hold).use for each, hold in itertools.product(facts, (False, True))}
    assert uses == set(Use)
