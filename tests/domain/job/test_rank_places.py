"""Places of ranks: ranks of one pipeline stage and tensor index have equal work."""

from muster.domain.job.rank_places import places_of


def test_tp_varies_fastest_and_pp_slowest() -> None:
    layout = {"pp": 2, "dp": 1, "fsdp": 2, "tp": 2, "allow_tp_across_nodes": False}
    found = places_of(dict.fromkeys(range(8)), layout)
    assert found == {0: "0/0", 1: "0/1", 2: "0/0", 3: "0/1", 4: "1/0", 5: "1/1", 6: "1/0", 7: "1/1"}


def test_a_degree_that_is_missing_is_one_and_without_a_layout_all_are_alike() -> None:
    assert places_of(dict.fromkeys(range(3)), {"fsdp": 3, "tp": None}) == {0: "0/0", 1: "0/0", 2: "0/0"}
    assert places_of(dict.fromkeys(range(2)), None) == {0: "", 1: ""}


def test_the_place_that_a_rank_reports_comes_before_the_layout() -> None:
    assert places_of({0: "data ranks of 0", 1: None}, {"pp": 2}) == {0: "data ranks of 0", 1: "1/0"}
