"""A change of one source module reaches few tests: otherwise no choice of tests is quick, or says where a fault is."""

from pathlib import Path

from tools.import_graph import read_graph
from tools.reach_share import count_tests, empty_modules, reach_share
from tools.reachable_tests import graph_with_tests

ROOT = Path(__file__).resolve().parents[2]
MOST = 0.05


def test_the_median_change_reaches_a_twentieth_of_the_tests_at_most() -> None:
    graph = graph_with_tests(ROOT, read_graph(ROOT))
    share = reach_share(graph, count_tests(ROOT, graph.modules), empty_modules(ROOT, graph))
    assert share.median <= MOST, (
        f"a change of one source module reaches {share.median:.1%} of the tests (median), {MOST:.1%} are allowed:"
        " `python -m tools.reach_share` lists the modules that most tests import"
    )
