"""The judge names what differs first and its cause, from records that are written by hand."""

import json
from collections.abc import Iterable, Mapping

import pytest

from watch.reproducibility.causes import Cause
from watch.reproducibility.judge import Judgement, Runs, judge
from watch.reproducibility.records import Attempt, RecordError, parse_attempt
from watch.reproducibility.table import rows

Values = Mapping[str, str | None]
Spoilt = Mapping[tuple[str, int, int], Values]
"""By moment, step and rank, the values that differ from the undisturbed run; None: there is none."""
STEPS, SAVE_AT = 4, 2


def state(moment: str, step: int, rank: int) -> dict[str, str]:
    """Return the state of an undisturbed run."""
    values = {"parameter w": f"w{step}", "optimizer w": f"o{step}", "rng torch": f"r{step} of {rank}"}
    if moment == "begin":
        return {**values, "variable module main.average": f"a{step}", "number main.turn": str(step), "gradient w": "g"}
    return {**values, "input 0": f"i{step}", "loss": f"0.{step}"} if moment == "end" else values


def attempt(first: int, last: int, spoilt: Spoilt | None = None, *, num_ranks: int = 1) -> Attempt:
    """Return an attempt from the state behind step ``first`` to the end of step ``last``."""
    moments = [("start", first)]
    for step in range(first, last):
        moments += [("begin", step), ("end", step + 1)]
    return parse_attempt({rank: "".join(lines(moments, spoilt or {}, rank, num_ranks)) for rank in range(num_ranks)})


def lines(moments: Iterable[tuple[str, int]], spoilt: Spoilt, rank: int, num_ranks: int) -> Iterable[str]:
    before: dict[str, str] = {}
    for moment, step in moments:
        values: dict[str, str | None] = {**state(moment, step, rank), **spoilt.get((moment, step, rank), {})}
        now = {key: value for key, value in values.items() if value is not None}
        changed = {key: now.get(key) for key in now.keys() | before.keys() if now.get(key) != before.get(key)}
        before = now
        yield json.dumps({"at": moment, "step": step, "world_size": num_ranks, "values": changed}) + "\n"


def judged(spoilt: Spoilt, *, num_ranks: int = 1, ignored: frozenset[str] = frozenset()) -> Judgement:
    """Judge a resumed run with these differences."""
    whole = attempt(0, STEPS, num_ranks=num_ranks)
    killed = attempt(0, SAVE_AT + 1, num_ranks=num_ranks)
    return judge(Runs(whole, killed, attempt(SAVE_AT, STEPS, spoilt, num_ranks=num_ranks)), ignored)


def test_a_resumed_run_that_equals_the_undisturbed_one_is_the_same() -> None:
    assert judged({}) == Judgement(is_same=True, num_steps=STEPS)


@pytest.mark.parametrize(
    ("spoilt", "cause", "step", "tensor", "words"),
    [
        ({("begin", 2, 0): {"optimizer w": None}}, Cause.OPTIMIZER, 3, "optimizer w", "state of `w`"),
        ({("begin", 2, 0): {"rng torch": "r0 of 0"}}, Cause.RANDOM_NUMBERS, 3, "rng torch", "seeds or draws"),
        (
            {("begin", 2, 0): {"rng torch": "new"}, ("end", 3, 0): {"input 0": "new", "rng torch": "new"}},
            Cause.SAMPLES,
            3,
            "rng torch",
            "drawn from the global random numbers",
        ),
        ({("end", 3, 0): {"input 0": "i1", "loss": "9"}}, Cause.SAMPLES, 3, "input 0", "the data of step 1, as if"),
        ({("end", 3, 0): {"parameter w": "x"}, ("begin", 2, 0): {"gradient w": None}}, Cause.ACCUMULATION, 3, "", ""),
        ({("end", 4, 0): {"loss": "9", "parameter w": "x"}}, Cause.UNKNOWN, 4, "loss", "computes something else"),
    ],
)
def test_the_cause_follows_from_what_differs_first(
    spoilt: Spoilt, cause: Cause, step: int, tensor: str, words: str
) -> None:
    found = judged(spoilt)
    assert (found.is_same, found.cause, found.step) == (False, cause, step)
    assert found.tensor.startswith(tensor)
    assert words in found.why


def test_a_rank_with_another_ranks_random_numbers_is_named() -> None:
    found = judged({("begin", 2, 1): {"rng torch": "r2 of 0"}}, num_ranks=2)
    assert (found.cause, found.ranks) == (Cause.RANDOM_NUMBERS, (1,))
    assert "rank 1 has another rank's random numbers" in found.why


def test_copies_of_a_parameter_that_part_are_a_replica() -> None:
    found = judged({("begin", 2, 1): {"parameter w": "x"}}, num_ranks=2)
    assert (found.cause, found.tensor, found.ranks) == (Cause.REPLICA, "parameter w", (1,))


def test_two_fresh_runs_that_differ_are_no_fault_of_the_resume() -> None:
    whole, resumed = attempt(0, STEPS), attempt(SAVE_AT, STEPS, {("end", 3, 0): {"loss": "9"}})
    early = judge(Runs(whole, attempt(0, 3, {("end", 1, 0): {"input 0": "new"}}), resumed))
    late = judge(Runs(whole, attempt(0, 3), resumed, again=attempt(0, STEPS, {("end", 4, 0): {"loss": "8"}})))
    assert [(each.cause, each.step) for each in (early, late)] == [
        (Cause.NONDETERMINISTIC, 1),
        (Cause.NONDETERMINISTIC, 4),
    ]


def test_the_end_of_a_step_is_before_the_begin_of_the_next_which_has_its_number() -> None:
    killed, again = (
        attempt(0, STEPS, {("begin", 4, 0): {"rng": "x"}}),
        attempt(0, STEPS, {("end", 4, 0): {"loss": "8"}}),
    )
    found = judge(Runs(attempt(0, STEPS), killed, attempt(SAVE_AT, STEPS), again=again))
    assert (found.cause, found.tensor) == (Cause.NONDETERMINISTIC, "loss")


def test_another_gpu_with_other_bits_is_named_where_the_resume_is_exact() -> None:
    elsewhere = attempt(0, STEPS, {("end", 2, 0): {"loss": "8"}})
    found = judge(Runs(attempt(0, STEPS), attempt(0, 3), attempt(SAVE_AT, STEPS), elsewhere=elsewhere))
    assert (found.cause, found.step, found.tensor) == (Cause.OTHER_GPU, 2, "loss")


def test_a_variable_that_decides_nothing_is_ignored_by_either_name_and_one_of_the_loop_counts_nothing() -> None:
    spoilt = {("begin", 2, 0): {"variable module main.average": "x", "variable tensor main.rows": "y"}}
    assert judged(spoilt).cause is Cause.COPY
    for name in ("average", "main.average"):
        assert judged(spoilt, ignored=frozenset({name})).is_same
    assert not judged(spoilt, ignored=frozenset({"rows"})).is_same


def test_the_table_has_a_row_for_each_step_behind_the_resume() -> None:
    resumed = attempt(SAVE_AT, STEPS, {("end", 4, 0): {"loss": "9", "parameter w": "x"}})
    table = [
        (row.step, row.loss, row.resumed_loss, row.differs) for row in rows(Runs(attempt(0, STEPS), resumed, resumed))
    ]
    assert table == [(3, "0.3", "0.3", ()), (4, "0.4", "9", ("loss", "parameter w"))]


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"at": "noon", "step": 1, "values": {}}', '{"at": "end", "step": "1", "values": {}}']
)
def test_a_line_of_another_form_is_named_and_a_last_line_that_a_kill_cut_is_left_out(line: str) -> None:
    with pytest.raises(RecordError, match="line 1 of rank 3's record"):
        parse_attempt({3: line + "\n"})
    assert parse_attempt({3: line}).ranks == {3: ()}
