"""Every way out of service is capped in the replay as in production: SUSPECT, and holds of nodes, in one account."""

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from health.replay.replay import Replay
from health.replay.stream import BreakerClosed, Fleet, Input, Moved, Opened, Output, Passed, Placed, RuleCordon, Sampled
from health.standing.breaker import FLEET_WINDOW
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.states import Standing
from tests.health.case_factory import HOUR, MINUTE, NOW_MS, POLICY, SECOND, sample, signal

HARDWARE_HEAT = 64.0
PER_NODE = 8


def node(number: int) -> NodeId:
    return NodeId(f"node_{number:02}")


def gpus_of(number: int) -> list[GpuUuid]:
    return [GpuUuid(f"GPU-{number:02}-{slot}") for slot in range(PER_NODE)]


def hall(num_nodes: int, *, nodes_a_rack: int = 4) -> Iterator[Input]:
    """A hall of healthy GPUs, in racks of ``nodes_a_rack``."""
    racks = {f"r{number // nodes_a_rack}": nodes_a_rack * PER_NODE for number in range(num_nodes)}
    yield Fleet(NOW_MS, num_nodes * PER_NODE, racks)
    for number in range(num_nodes):
        for uuid in gpus_of(number):
            yield Placed(NOW_MS, uuid, node(number), Standing.HEALTHY, rack=f"r{number // nodes_a_rack}")


def link_downed(number: int, port: int, at_ms: int) -> Input:
    found = signal(
        EventKind.PORT_RATES,
        gpu=None,
        at_ms=at_ms,
        source=Source.HOST,
        text=f"mlx5_{port}/1",
        link_downed=1.0,
        window_s=60.0,
    )
    return replace(found, node_id=node(number), signal_id=f"{number}/{port}")


def hot(number: int, at_ms: int) -> Iterator[Input]:
    for uuid in gpus_of(number):
        found = sample(at_ms, clock_event_reasons=HARDWARE_HEAT)
        yield Sampled(node(number), replace(found, gpu_uuid=uuid))


def played(world: Replay, given: Iterator[Input] | list[Input]) -> list[Output]:
    return [each for one in given for each in world.take(one)]


def cordoned_nodes(found: list[Output]) -> set[NodeId]:
    """Nodes that the outputs leave held."""
    nodes = set[NodeId]()
    for each in found:
        if isinstance(each, RuleCordon):
            (nodes.add if each.by and not each.is_proposed else nodes.discard)(each.node_id)
    return nodes


def test_a_switch_that_restarts_holds_no_more_nodes_than_the_breaker_allows() -> None:
    """One link_downed on each port of 16 nodes (health case 13): at most 3 are held, and the rest is proposed."""
    world = Replay(POLICY)
    blip = [link_downed(number, port, NOW_MS + SECOND + port) for port in range(8) for number in range(16)]
    found = played(world, [*hall(16), *blip])
    assert cordoned_nodes(found) == {node(0)}
    proposed = {each.node_id for each in found if isinstance(each, RuleCordon) and each.is_proposed}
    assert proposed == {node(number) for number in range(1, 16)}
    (opened,) = [each.incident for each in found if isinstance(each, Opened)]
    assert (opened.caps, set(opened.gpu_uuids)) == ({FLEET_WINDOW: 6, "rack:r0": 8}, set(gpus_of(1)))
    over = played(world, [Passed(NOW_MS + HOUR)])
    assert {each.node_id for each in over if isinstance(each, RuleCordon) and not each.by} == {*proposed, node(0)}


def test_closing_the_scopes_lets_the_next_hold_begin() -> None:
    world = Replay(POLICY)
    blip = [link_downed(number, 0, NOW_MS + SECOND) for number in range(3)]
    found = played(world, [*hall(3), *blip])
    assert cordoned_nodes(found) == {node(0)}
    for scope in (FLEET_WINDOW, "rack:r0", "fleet"):
        found += played(world, [BreakerClosed(NOW_MS + MINUTE, scope)])
    assert cordoned_nodes(found) == {node(0), node(1)}, "a whole unit beyond what is out now, and no more"


def test_a_hold_where_results_may_be_wrong_passes_the_cap_and_counts() -> None:
    """As in production (``tests/control/health/test_capped_ways.py``): the GPUs of the other nodes alone wait."""
    world = Replay(POLICY)
    wrong = replace(signal(code=95, at_ms=NOW_MS + 2 * SECOND, gpu=None), node_id=node(1), signal_id="wrong")
    found = played(
        world,
        [*hall(3), link_downed(0, 0, NOW_MS + SECOND), wrong, link_downed(2, 0, NOW_MS + 3 * SECOND)],
    )
    assert cordoned_nodes(found) == {node(0), node(1)}
    opened = [(set(each.incident.caps), each.incident.gpu_uuids) for each in found if isinstance(each, Opened)]
    assert opened == [({FLEET_WINDOW, "rack:r0", "fleet"}, ())]
    proposed = {each.node_id for each in found if isinstance(each, RuleCordon) and each.is_proposed}
    assert proposed == {node(2)}


def test_hot_clocks_in_a_hall_take_out_the_breakers_share_and_open_one_incident() -> None:
    """512 GPUs at 64 nodes for two minutes: 5 % within the window become SUSPECT, the others are proposed once."""
    world, num_nodes = Replay(POLICY), 64
    heat = [each for at in range(12) for number in range(num_nodes) for each in hot(number, NOW_MS + at * 10 * SECOND)]
    found = played(world, [*hall(num_nodes, nodes_a_rack=num_nodes), *heat])
    moves = [each for each in found if isinstance(each, Moved)]
    made = [each.move for each in moves if not each.is_proposed]
    assert [move.to_standing for move in made] == [Standing.SUSPECT] * 25
    assert {each.move.to_standing for each in moves} == {Standing.SUSPECT}
    assert len(moves) == num_nodes * PER_NODE
    assert [each.incident.caps for each in found if isinstance(each, Opened)] == [{FLEET_WINDOW: 25}]
    standings = [case.standing for case in world.gpus().values()]
    assert standings.count(Standing.HEALTHY) == num_nodes * PER_NODE - 25, "the other GPUs stay in service"


STEPS = st.lists(
    st.tuples(st.sampled_from(["hot", "link"]), st.integers(0, 11), st.integers(0, 3), st.integers(1, 20)), max_size=25
)


@given(STEPS)
def test_no_storm_takes_out_more_than_the_caps_and_all_come_back(steps: list[tuple[str, int, int, int]]) -> None:
    """Whatever findings come that threaten no correctness, the GPUs out together are within each scope's cap."""
    world, now_ms, holding, out = Replay(POLICY), NOW_MS + SECOND, set[NodeId](), set[GpuUuid]()
    played(world, hall(12))

    def take(given_: list[Input]) -> None:
        for one in given_:
            for each in world.take(one):
                if isinstance(each, RuleCordon):
                    (holding.add if each.by and not each.is_proposed else holding.discard)(each.node_id)
                check()

    def check() -> None:
        suspects = {
            uuid
            for uuid, case in world.gpus().items()
            if case.standing in {Standing.SUSPECT, Standing.QUARANTINED, Standing.REPAIR}
        }
        kept = {uuid for number in range(12) if node(number) in holding for uuid in gpus_of(number)}
        out.clear()
        out.update(suspects | kept)
        racks = [{uuid for number in range(rack, rack + 4) for uuid in gpus_of(number)} for rack in (0, 4, 8)]
        for members, cap in [(out, 19), *((out & rack, 8) for rack in racks)]:
            units = {str(uuid)[:6] for uuid in members}
            assert len(members) <= cap or len(units) == 1, (sorted(members), cap)

    for what, number, port, minutes in steps:
        now_ms += minutes * MINUTE
        if what == "link":
            take([link_downed(number, port, now_ms)])
        else:
            take([each for at in range(6) for each in hot(number, now_ms + at * 10 * SECOND)])
            now_ms += MINUTE
    take([Passed(now_ms + 24 * HOUR)])
    assert not holding, "an end of a hold waits for nothing"
