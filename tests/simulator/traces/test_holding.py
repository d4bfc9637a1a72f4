"""A hold: its nodes, its time, and the jobs that run on them or next to them meanwhile."""

from simulator.traces.cluster import Cluster
from simulator.traces.holding import first_room
from simulator.traces.jobs import TraceJob
from simulator.traces.nodes import Nodes
from simulator.traces.playing import play
from simulator.traces.rules import QUEUE_RULES


def job(submit_s: float, nodes: int, duration_s: float, gpus_per_node: int = 8) -> TraceJob:
    return TraceJob(submit_s, duration_s, nodes * gpus_per_node, nodes, gpus_per_node)


def starts(jobs: list[TraceJob], estimates_s: list[float] | None = None, *, num_nodes: int) -> list[float]:
    exact = [one.duration_s for one in jobs]
    return list(play(jobs, estimates_s or exact, QUEUE_RULES["muster"], num_nodes=num_nodes, gpus_per_node=8).started_s)


def test_the_first_room_is_when_enough_nodes_have_enough_and_names_all_that_have() -> None:
    jobs = [job(0, 1, 50, 6), job(0, 1, 30, 6), job(0, 2, 90), job(0, 1, 10, 2)]
    cluster = Cluster(jobs, [one.duration_s for one in jobs], Nodes(4, 8))
    for number in range(4):
        cluster.submit(number)
        cluster.start(number)
    assert first_room(cluster, 1, 3) == (30, 0b0010), "the fourth shares the first's node"
    assert first_room(cluster, 2, 6) == (50, 0b0011)
    assert first_room(cluster, 3, 8) == (90, 0b1111)


def test_a_small_job_runs_on_next_to_the_place_on_a_node_that_is_in_use_until_then() -> None:
    """The gang waits for two of the three nodes; a job that outlasts the hold may use any part of the third."""
    jobs = [job(0, 1, 1_000, 4), job(0, 1, 100), job(1, 2, 50), job(2, 1, 900, 4)]
    assert starts(jobs, num_nodes=3) == [0, 0, 100, 2]


def test_on_the_place_runs_what_is_gone_by_then_and_no_other() -> None:
    jobs = [job(0, 1, 100), job(1, 2, 50), job(2, 1, 90, 4), job(3, 1, 99, 4)]
    assert starts(jobs, num_nodes=2) == [0, 100, 2, 150]


def test_of_the_nodes_that_come_free_those_are_on_hold_that_are_idle_least() -> None:
    """Both have room for the third at 100; until then two GPUs of one are idle, and three of the other."""
    jobs = [job(0, 2, 100, 5), job(0, 1, 100, 1), job(1, 1, 50, 7), job(2, 1, 500, 3)]
    assert starts(jobs, num_nodes=2) == [0, 0, 100, 2]


def test_what_outlasts_its_estimate_is_expected_again_so_that_the_place_does_not_stand_idle() -> None:
    """The first was expected to end at 100: from then on at 160, then at 240. Jobs that end by then may run."""
    jobs = [job(0, 1, 230), job(1, 2, 50), job(120, 1, 30), job(200, 1, 50)]
    assert starts(jobs, [100, 50, 30, 50], num_nodes=2) == [0, 230, 120, 280]
    assert starts(jobs, [100, 50, 41, 40], num_nodes=2) == [0, 250, 300, 200]
