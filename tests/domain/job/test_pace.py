"""A job's pace is reported for all its ranks, or not as a job's."""

import pytest

from muster.domain.job.pace import PARTS, own_s_of, pace_of, wait_s_of

IDLE = dict.fromkeys((f"{part}_s" for part in PARTS), 0.0)


def test_parts_are_the_mean_of_the_ranks_and_shares_of_the_whole() -> None:
    found = pace_of(
        [
            {**IDLE, "forward_s": 1.0, "collective_s": 3.0, "tokens_per_s": 10.0, "memory_mib": 5.0, "grad_norm": 0.5},
            {**IDLE, "forward_s": 3.0, "collective_s": 1.0, "tokens_per_s": 20.0, "memory_mib": 7.0, "mfu": 0.5},
        ]
    )
    assert found is not None
    assert found.parts == (("forward", 2.0, 0.5), ("collective", 2.0, 0.5))
    assert (found.tokens_per_s, found.memory_mib, found.grad_norm) == (30.0, 7.0, 0.5)
    assert found.mfu is None, "one rank alone knows its own"


def test_what_a_rank_could_not_distinguish_is_named() -> None:
    apart: dict[str, float | None] = {**IDLE, "forward_s": 1.0}
    within: dict[str, float | None] = {**IDLE, "forward_s": 3.0, "collective_s": None}
    found = [pace_of(told) for told in ([apart, apart], [apart, within], [within, within])]
    assert [pace.unseen for pace in found if pace] == [(), ("collective",), ("collective",)]
    assert found[2] is not None
    assert found[2].parts == (("forward", 3.0, 1.0),)


def test_a_rate_of_some_ranks_is_none_of_the_job() -> None:
    told = {**IDLE, "tokens_per_s": 10.0, "mfu": 0.4, "hfu": 0.5}
    some = pace_of([told, None])
    assert some is not None
    assert (some.tokens_per_s, some.mfu, some.parts) == (None, None, ())
    every = pace_of([told, told])
    assert every is not None
    assert [every.tokens_per_s, every.mfu, every.hfu] == pytest.approx([20.0, 0.4, 0.5])
    assert pace_of([None, None]) is None
    assert pace_of([]) is None


def test_own_compute_is_as_measured_or_the_parts_in_which_a_rank_works_for_itself() -> None:
    parts = {"data_s": 0.25, "forward_s": 0.5, "backward_s": 1.0, "optimizer_s": 0.25, "collective_s": 3.0}
    assert (own_s_of(parts), wait_s_of(parts)) == (2.0, 3.0)
    measured = {**parts, "own_s": 1.75, "wait_s": 0.0}
    assert (own_s_of(measured), wait_s_of(measured)) == (1.75, 0.0)
    within_passes = {**parts, "collective_s": None}
    assert wait_s_of(within_passes) is None
    assert (own_s_of({}), wait_s_of({})) == (None, None)
