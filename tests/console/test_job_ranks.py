"""Ranks as cells of a grid and as rows of a table: what they show, of few ranks, of thousands, and of odd figures."""

from console.job_ranks import FEW, MOST_CELLS, duration, grid_of
from console.job_spread import named, spread_rows
from control.jobs.rank_views import GpuNow, RankTimes, figures_of_gpus, figures_of_ranks
from muster.domain.ids import NodeId
from muster.domain.spread import Figure, odd_ranks, spread


def rank(number: int, own_s: float | None = 0.2, wait_s: float | None = 0.1) -> RankTimes:
    return RankTimes(number, NodeId("n"), 0.3, own_s, wait_s, wait_s, None, None)


def slow_third() -> list[RankTimes]:
    return [rank(number, 0.375 if number == 3 else 0.25, 0.001 if number == 3 else 0.1) for number in range(8)]


def test_a_slow_rank_is_dark_above_light_below_and_marked() -> None:
    times = slow_third()
    odd = odd_ranks(spread(figures_of_ranks(times)))
    assert odd[3] == (Figure.OWN, Figure.COLLECTIVE)
    grid = grid_of(times, odd)
    assert grid is not None
    assert grid.has_numbers
    usual, slow = grid.cells[0], grid.cells[3]
    assert (usual.own_level, usual.wait_level, usual.is_odd) == (1, 4, False)
    assert (slow.own_level, slow.wait_level, slow.is_odd) == (5, 0, True)
    assert slow.words == "rank 3: own compute 375 ms, 1.50 times the median; wait 1 ms, 0% of both; stands out"
    assert grid.words == (
        "Own compute of 8 ranks: from 250 ms (rank 0) to 375 ms (rank 3). "
        "Wait: from 1 ms (rank 3) to 100 ms (rank 7). Stands out: rank 3."
    )


def test_a_job_without_pace_or_of_one_rank_has_no_grid() -> None:
    assert grid_of([]) is None
    assert grid_of([rank(0)]) is None
    assert grid_of([rank(number, None, None) for number in range(8)]) is None


def test_a_wait_that_is_not_known_has_no_colour() -> None:
    grid = grid_of([rank(0, wait_s=None), rank(1, wait_s=None)])
    assert grid is not None
    assert [cell.wait_level for cell in grid.cells] == [None, None]
    assert "Wait" not in grid.words


def test_of_many_ranks_a_cell_shows_the_odd_or_slowest_of_its_neighbours() -> None:
    times = [rank(number, 0.2 + (number == 5) * 0.01) for number in range(2 * MOST_CELLS + 1)]
    grid = grid_of(times, odd={1000})
    assert grid is not None
    assert (grid.fold, grid.num_ranks) == (3, 2 * MOST_CELLS + 1)
    assert len(grid.cells) <= MOST_CELLS
    assert not grid.has_numbers
    assert grid.cells[1].rank == 5
    assert [cell.rank for cell in grid.cells if cell.is_odd] == [1000]
    assert FEW < MOST_CELLS


def test_figures_that_no_rank_can_have_are_left_out_and_texts_stay_short() -> None:
    hostile = [rank(0, 1e300, 1e300), *(rank(number) for number in range(1, 4))]
    grid = grid_of(hostile)
    assert grid is not None
    assert [cell.rank for cell in grid.cells] == [1, 2, 3]
    zero = grid_of([rank(0, 0.0, 0.0), rank(1, 0.0, 0.0)])
    assert zero is not None
    assert (zero.cells[0].own_level, zero.cells[0].wait_level) == (1, 0)
    assert duration(0.9999) == "1 s"
    assert duration(1e15) == "1e+15 s"


def test_a_row_names_least_median_and_most_of_ranks_and_of_gpus() -> None:
    gpus = [GpuNow(n, True, "h1", n, {"power_w": 300.0 + n, "sm_clock_mhz": 1980.0 - 600 * (n == 2)}) for n in range(4)]
    found = (*spread(figures_of_ranks(slow_third())), *spread(figures_of_gpus(gpus)))
    rows = {row.name: row for row in spread_rows(found, gpus)}
    assert list(rows) == ["Step time", "Own compute", "Collective time", "GPU power", "SM clock"]
    own = rows["Own compute"]
    assert (own.least, own.usual, own.most) == (("250 ms", "rank 0"), "250 ms", ("375 ms", "rank 3"))
    assert own.odd == "rank 3, 1.50 times its peers'"
    assert rows["Step time"].odd == ""
    assert rows["GPU power"].most == ("303 W", "rank 3 (h1, GPU 3)")
    assert rows["SM clock"].odd == "rank 2 (h1, GPU 2), 0.70 times its peers'"
    assert named((Figure.OWN, Figure.MFU, Figure.CLOCK)) == "own compute, MFU, SM clock"


def test_many_odd_ranks_are_counted_and_gpus_without_ranks_are_named_by_place() -> None:
    times = [rank(number, 0.2 if number < 20 else 0.5) for number in range(26)]
    own = next(row for row in spread_rows(spread(figures_of_ranks(times)), ()) if row.name == "Own compute")
    assert own.odd.endswith("2 more")
    gpus = [GpuNow(n, False, "h1", n, {"power_w": 300.0}) for n in range(2)]
    (row,) = spread_rows(spread(figures_of_gpus(gpus)), gpus)
    assert row.least == ("300 W", "h1, GPU 0")
