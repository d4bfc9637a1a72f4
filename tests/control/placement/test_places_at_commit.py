"""Labels and places of hosts are asked again at a placement's commit: they may have changed since the plan."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import update

from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import node_labels
from control.placement.placement import PLACE, PlacementLostError, place
from control.placement.scheduling import question
from control.policy.policies import active_policy
from control.tenants.guarantees import guarantees_now
from muster.db.models import Node
from muster.db.pipeline.pg_pipeline import Connection, Query
from muster.domain.ids import AttemptId, JobId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.placement import PlacementPolicy
from scheduler.model import Placement
from scheduler.planner import plan
from tests.control.conftest import SetClock
from tests.control.placement.test_placement_commit import lock_last_gpu
from tests.control.reclaim.stage import SCHEDULER, Stage, make_stage
from tests.fleet_factory import OPERATOR
from tests.lock_waits import wait_for_a_lock

TREE = PlacementPolicy.model_validate({"levels": ["site", "rack"]}, strict=False)
PAIR = {"nodes": 2, "gpus_per_node": 2}
NEW = {"node_labels": {"required": {"generation": ["new"]}}}
SITE = {"shape": PAIR, "topology": {"required": "site"}}
SPREAD = {"shape": PAIR, "topology": {"balance": "rack"}}
SLICES = {"shape": {"nodes": 4, "gpus_per_node": 2}, "topology": {"slices": [{"level": "rack", "ranks": 4}]}}


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Two racks of two hosts each in two sites, all of one generation."""
    stage = make_stage(units, clock, num_hosts=4)
    stage.set_policy(DEFAULT_POLICY.model_copy(update={"placement": TREE}))
    for number in range(4):
        move(stage, number, rack=f"r{number // 2}")
        label(stage, number, {"site": f"s{number // 2}", "generation": "new"})
    return stage


def label(stage: Stage, number: int, labels: Mapping[str, str], *remove: str) -> None:
    with stage.units.begin(OPERATOR, node_labels.LABEL) as unit:
        node_labels.set_labels(unit, stage.hosts[number].node_id, labels, remove=remove, reason="moved")


def move(stage: Stage, number: int, *, rack: str | None) -> None:
    with stage.units.begin(SCHEDULER, PLACE, quiet=True) as unit:
        unit.session.execute(update(Node).where(Node.id == stage.hosts[number].node_id).values(rack=rack))


def submit(stage: Stage, spec: Mapping[str, object]) -> JobId:
    return stage.submit("on_demand", by=None, **spec)


def planned(stage: Stage) -> Placement:
    with stage.units.read() as session:
        asked = question(session, stage.clock.now)
        assert asked is not None
        (placement,) = plan(asked.gpus, asked.queue, asked.policy, asked.workload).placements
    return placement


def commit(stage: Stage, placement: Placement) -> AttemptId:
    with stage.units.begin(SCHEDULER, PLACE) as unit:
        return place(unit, placement, active_policy(unit.session), planned_under=guarantees_now(unit.session))


def numbers_of(stage: Stage, placement: Placement) -> list[int]:
    number_of = {host.node_id: number for number, host in enumerate(stage.hosts)}
    return [number_of[node_id] for node_id, _ in placement.parts]


def loses_its_label(stage: Stage, on: Sequence[int]) -> None:
    label(stage, on[0], {"generation": "old"})


def loses_any_label(stage: Stage, on: Sequence[int]) -> None:
    label(stage, on[0], {}, "generation")


def goes_to_another_site(stage: Stage, on: Sequence[int]) -> None:
    label(stage, on[1], {"site": "s9"})


def goes_none_knows_where(stage: Stage, on: Sequence[int]) -> None:
    label(stage, on[1], {}, "site")


def leaves_every_rack(stage: Stage, on: Sequence[int]) -> None:
    move(stage, on[1], rack=None)


def goes_to_another_rack(stage: Stage, on: Sequence[int]) -> None:
    move(stage, on[3], rack="r9")


@pytest.mark.parametrize(
    ("spec", "change", "why"),
    [
        (NEW, loses_its_label, "the labels of 1 of its hosts exclude the job"),
        (NEW, loses_any_label, "the labels of 1 of its hosts exclude the job"),
        (SITE, goes_to_another_site, "share one site are in several"),
        (SITE, goes_none_knows_where, "the site of 1 of its hosts is unknown"),
        (SPREAD, leaves_every_rack, "the rack of 1 of its hosts is unknown"),
        (SLICES, goes_to_another_rack, "share one rack are in several"),
    ],
)
def test_a_place_that_has_changed_since_the_plan_is_none_and_the_next_cycle_finds_another_or_states_why(
    stage: Stage, spec: Mapping[str, object], change: object, why: str
) -> None:
    job_id = submit(stage, spec)
    placement = planned(stage)
    assert callable(change)
    change(stage, numbers_of(stage, placement))
    with pytest.raises(PlacementLostError, match=why):
        commit(stage, placement)
    assert stage.fleet.attempts(job_id) == []
    stage.cycle()
    assert bool(stage.fleet.attempts(job_id)) is (spec is not SLICES), "four hosts in whole racks are no more"


def test_what_changes_and_is_not_requested_loses_nothing(stage: Stage) -> None:
    submit(stage, {**SITE, **NEW})
    placement = planned(stage)
    on = numbers_of(stage, placement)
    label(stage, on[0], {"colour": "red"})
    move(stage, on[1], rack="r7")  # in the same site
    label(stage, 3 - on[0], {"generation": "old"})  # of another host
    assert commit(stage, placement)


def test_a_spread_that_others_could_have_more_evenly_by_now_loses_nothing(stage: Stage) -> None:
    """Only that each of its hosts stands in some rack is asked again."""
    submit(stage, {"shape": {"nodes": 4, "gpus_per_node": 2}, "topology": {"balance": "rack"}})
    placement = planned(stage)
    move(stage, numbers_of(stage, placement)[3], rack="r9")  # 2 and 2 hosts become 2, 1 and 1
    assert commit(stage, placement)


def test_a_change_that_is_under_way_is_waited_for_and_seen(stage: Stage) -> None:
    """It has the locks of the host's GPUs, so the commit comes before it or sees it."""
    job_id = submit(stage, NEW)
    placement = planned(stage)
    (node_id, _), *_ = placement.parts
    with ThreadPoolExecutor(1) as pool:
        with stage.units.begin(OPERATOR, node_labels.LABEL) as other:
            node_labels.set_labels(other, node_id, {"generation": "old"}, reason="moved")
            other.session.flush()
            committing = pool.submit(commit, stage, placement)
            wait_for_a_lock(stage.units)
        with pytest.raises(PlacementLostError, match="exclude the job"):
            committing.result()
    assert stage.fleet.attempts(job_id) == []


def test_a_change_waits_for_a_commit_that_has_the_gpus(stage: Stage) -> None:
    submit(stage, NEW)
    placement = planned(stage)
    on = numbers_of(stage, placement)
    with ThreadPoolExecutor(1) as pool:
        with stage.units.begin(SCHEDULER, PLACE, quiet=True) as other:
            lock_last_gpu(other, placement)
            changing = pool.submit(label, stage, on[0], {"generation": "old"})
            wait_for_a_lock(stage.units)
            assert not changing.done()
        changing.result()


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The round trips of what goes out together."""
    seen: list[int] = []
    exchange = Connection.exchange

    def counting(self: Connection, requested: Sequence[Query]) -> object:
        seen.append(len(requested))
        return exchange(self, requested)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "exchange", counting)
        yield seen


def test_only_a_job_that_requests_a_place_waits_once_more_for_the_database(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = []
    for spec in ({"shape": PAIR}, {"shape": PAIR, "topology": {"preferred": "rack"}}, SITE):
        job_id = submit(stage, spec)
        placement = planned(stage)
        with stage.units.read() as session:
            planned_under = guarantees_now(session)
        policy = DEFAULT_POLICY.model_copy(update={"placement": TREE})
        with counted(monkeypatch) as seen, stage.units.begin(SCHEDULER, PLACE) as unit:
            place(unit, placement, policy, planned_under=planned_under)
        trips.append(len(seen))
        stage.cancel(job_id)
        stage.reconcile()
    assert trips == [2, 2, 3]
