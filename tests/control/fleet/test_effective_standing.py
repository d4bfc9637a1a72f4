"""One effective standing: each count and filter treats a GPU as the planner does, with cordons counted next to it."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import product

import pytest
from sqlalchemy import update

from control.core.paging import Part
from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import cohort_views, inventory, read, search
from control.fleet.fleet_map import fleet_map
from control.fleet.read import GpuFilter, ListedGpu
from control.hosts import read as nodes
from control.hosts.node_lists import NodeFilter, list_nodes
from control.placement.fleet_views import placed_views
from control.system.gauges import read_gauges
from health.standing.admission import Refusal, refusals_of
from health.standing.overrides import OVERRIDES
from muster.db.models import Cordon, Gpu, GpuOverride, Node
from muster.domain.gpu.effective_standing import effective_standing
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import STANDING_EDGES, Contact, Standing
from muster.identity import new_id
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, enrol_host

KINDS = tuple(product(Standing, (None, *OVERRIDES)))
"""Each own standing under each standing that a person may set; 8 GPUs a node hold one of each kind and some more."""
GPUS_A_NODE = 8
OTHER_REASONS = {
    Refusal.MIG_ENABLED,
    Refusal.NODE_CONTACT,
    Refusal.BURN_IN,
    Refusal.REPORTED,
    Refusal.ASSIGNED,
    Refusal.RECLAIMABLE_ONLY,
}
"""Reasons of the planner, besides the standing and a cordon, that keep a GPU from a tier."""


def _ways() -> dict[Standing, tuple[Standing, ...]]:
    """The edges from a new GPU to each standing: the database accepts no others (I21)."""
    found: dict[Standing, tuple[Standing, ...]] = {Standing.UNPROVEN: (Standing.UNPROVEN,)}
    while len(found) < len(Standing):
        for standing, way in list(found.items()):
            for after in sorted(STANDING_EDGES[standing] - found.keys()):
                found[after] = (*way, after)
    return found


WAYS = _ways()


@dataclass(frozen=True)
class Drawn:
    """A random fleet: its GPUs by their effective standing, and the cordoned ones, as they were drawn."""

    units: UnitOfWorkFactory
    effective: Mapping[GpuUuid, Standing]
    cordoned: frozenset[GpuUuid]

    def listed(self, wanted: GpuFilter) -> list[ListedGpu]:
        with self.units.begin(OPERATOR, inventory.READ) as unit:
            return list(read.list_gpus(unit, wanted, Part(1000)))

    def counts(self) -> Counter[Standing]:
        return Counter(self.effective.values())


@pytest.fixture(params=range(2))
def drawn(request: pytest.FixtureRequest, units: UnitOfWorkFactory, clock: SetClock) -> Drawn:
    rng = random.Random(request.param)  # noqa: S311  # a drawn fleet, no secret
    kinds = [*KINDS, *rng.choices(KINDS, k=-len(KINDS) % GPUS_A_NODE)]
    rng.shuffle(kinds)
    names = [f"host-{number}" for number in range(len(kinds) // GPUS_A_NODE)]
    node_ids = [enrol_host(units, name, num_gpus=GPUS_A_NODE, rack=rng.choice(("r1", "r2"))) for name in names]
    uuids = [GpuUuid(f"GPU-{name}-{index}") for name in names for index in range(GPUS_A_NODE)]
    clock.advance(60)
    cordoned: set[GpuUuid] = set()
    with units.begin(OPERATOR, inventory.OVERRIDE, quiet=True) as unit:
        session, now = unit.session, unit.now
        session.execute(update(GpuOverride).values(ended_at=now))
        for uuid, (standing, override) in zip(uuids, kinds, strict=True):
            is_mig = rng.random() < 0.1
            facts = {"standing_since": now, "is_mig_enabled": is_mig}
            for step in WAYS[standing]:
                session.execute(update(Gpu).where(Gpu.uuid == uuid).values(standing=step, **facts))
            session.add_all(_overrides(uuid, override, now, rng))
            if rng.random() < 0.2:
                session.add(_cordon(now, rng, is_in_force=True, gpu_uuid=uuid))
                cordoned.add(uuid)
            session.add(_cordon(now, rng, is_in_force=False, gpu_uuid=uuid))
        for place, node_id in enumerate(node_ids):
            session.execute(
                update(Node).where(Node.id == node_id).values(contact=rng.choice((*Contact, *[Contact.LIVE] * 3)))
            )
            session.add(_cordon(now, rng, is_in_force=False, node_id=node_id))
            if rng.random() < 0.3:
                session.add(_cordon(now, rng, is_in_force=True, node_id=node_id))
                cordoned.update(uuids[place * GPUS_A_NODE : (place + 1) * GPUS_A_NODE])
    effective = {uuid: effective_standing(*kind) for uuid, kind in zip(uuids, kinds, strict=True)}
    return Drawn(units, effective, frozenset(cordoned))


def _overrides(uuid: GpuUuid, standing: Standing | None, now: datetime, rng: random.Random) -> list[GpuOverride]:
    """The one in force, and others that were released, that expired, or that a newer one stands over."""
    hour = timedelta(hours=1)
    past = [(now - 2 * hour, now - hour, None), (now - 2 * hour, now + hour, now - hour)]
    if standing is not None:
        past.append((now - hour, now + hour, None))
    rows = [(rng.choice(OVERRIDES), *each) for each in past]
    if standing is not None:
        rows.append((standing, now - hour / 2, now + hour, None))
    return [
        GpuOverride(
            id=new_id("override"),
            gpu_uuid=uuid,
            standing=each,
            reason="drawn",
            actor="a person",
            created_at=created_at,
            until=until,
            ended_at=ended_at,
        )
        for each, created_at, until, ended_at in rows
    ]


def _cordon(
    now: datetime,
    rng: random.Random,
    *,
    is_in_force: bool,
    node_id: NodeId | None = None,
    gpu_uuid: GpuUuid | None = None,
) -> Cordon:
    hour = timedelta(hours=1)
    cordon = Cordon(
        id=new_id("cordon"),
        node_id=node_id,
        gpu_uuid=gpu_uuid,
        reason_code="by_person",
        reason="drawn",
        owner="a person",
        created_at=now - 2 * hour,
    )
    kind = rng.choice(("bare", "until", "begun")) if is_in_force else rng.choice(("released", "over", "to come"))
    cordon.until = {"until": now + hour, "over": now - hour}.get(kind)
    cordon.starts_at = {"begun": now - hour, "to come": now + hour}.get(kind)
    if kind == "released":
        cordon.released_at, cordon.released_by = now - hour, "a person"
    return cordon


def test_filters_name_the_gpus_that_the_definition_names(drawn: Drawn) -> None:
    for standing in Standing:
        expected = {uuid for uuid, each in drawn.effective.items() if each is standing}
        listed = drawn.listed(GpuFilter(standings=[standing]))
        assert {each.gpu.uuid for each in listed} == expected
        assert {each.effective_standing for each in listed} <= {standing}
    for is_cordoned in (True, False):
        listed = drawn.listed(GpuFilter(is_cordoned=is_cordoned))
        assert {each.gpu.uuid for each in listed} == {
            uuid for uuid in drawn.effective if (uuid in drawn.cordoned) is is_cordoned
        }
        assert {each.is_cordoned for each in listed} == {is_cordoned}


def test_all_counts_agree(drawn: Drawn) -> None:
    expected, num_cordoned = drawn.counts(), len(drawn.cordoned)
    fleet = fleet_map(drawn.units, OPERATOR)
    assert Counter(fleet.count()) == expected
    assert fleet.count_cordoned() == num_cordoned
    gauges = read_gauges(drawn.units)
    assert (Counter(gauges.gpus), gauges.num_cordoned_gpus) == (expected, num_cordoned)
    with drawn.units.begin(OPERATOR, nodes.READ) as unit:
        listed = list_nodes(unit, NodeFilter(), Part(100))
        details = [nodes.detail_of(unit, each.node.id).listed for each in listed]
        cohorts = cohort_views.list_cohorts(unit)
        found = {uuid: search.search(unit, uuid, limit=1)[0].state for uuid in drawn.effective}
    assert sum((Counter(each.effective_standings) for each in listed), Counter()) == expected
    assert [each.effective_standings for each in details] == [each.effective_standings for each in listed]
    assert sum((Counter(each.effective_standings) for each in cohorts), Counter()) == expected
    assert [each.num_cordoned for each in details] == [each.num_cordoned for each in listed]
    assert sum(each.num_cordoned for each in listed) == sum(each.num_cordoned for each in cohorts) == num_cordoned
    assert found == drawn.effective


def test_what_is_counted_as_placeable_is_what_the_planner_may_use_or_leaves_out_by_name(drawn: Drawn) -> None:
    with drawn.units.read() as session:
        views = placed_views(session, drawn.units.clock(), DEFAULT_POLICY)
    listed = {each.gpu.uuid: each for each in drawn.listed(GpuFilter())}
    assert {view.uuid for view in views} == listed.keys()
    num_usable = 0
    for name, tier in DEFAULT_POLICY.tiers.items():
        counted = {uuid for uuid, each in listed.items() if each.effective_standing in tier.standings}
        refusals = {view.uuid: set(refusals_of(view.facts, tier)) for view in views}
        assert {uuid for uuid, reasons in refusals.items() if Refusal.STANDING not in reasons} == counted, name
        assert {uuid for uuid, reasons in refusals.items() if Refusal.CORDONED in reasons} == drawn.cordoned
        placeable = {uuid for uuid in counted if not listed[uuid].is_cordoned}
        usable = {uuid for uuid, reasons in refusals.items() if not reasons}
        assert usable == {uuid for uuid in placeable if not refusals[uuid] & OTHER_REASONS}, name
        num_usable += len(usable)
    assert num_usable, "a fleet in which nothing may be used shows nothing"
