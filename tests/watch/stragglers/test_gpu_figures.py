"""Ranks that utilisation, power and MFU show to be slow: one that computes or idles is named, never one that waits."""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from muster.domain.spread import Figure
from tests.scaled import examples
from tests.watch.stragglers.worlds import RULES
from watch.stragglers.causes import CLOCK, THROTTLE, StragglerCause
from watch.stragglers.findings import Judgement, Straggler
from watch.stragglers.judge import judge
from watch.stragglers.sentences import RankName, verdict_of
from watch.stragglers.windows import Folding, RankWindows, Window

USUAL: Mapping[str, float] = {
    "own_s": 0.2,
    "wait_s": 0.05,
    "plain": 1.0,
    "utilisation": 99.0,
    "power_w": 600.0,
    "mfu": 0.4,
}
BEFORE, SINCE = 8, 5


def rank(number: int, now: Mapping[str, float] | None = None, **more: Any) -> RankWindows:
    """Return a rank with eight usual windows, then five with other figures."""
    means = [dict(USUAL)] * BEFORE + [{**USUAL, **(now or {})}] * SINCE
    return of_means(number, means, **more)


def of_means(number: int, means: list[dict[str, float]], **more: Any) -> RankWindows:
    return RankWindows(number, 64, windows=tuple(Window(64 * n, 64, each) for n, each in enumerate(means)), **more)


def gang(odd: Mapping[str, float], others: Mapping[str, float] | None = None, **more: Any) -> list[RankWindows]:
    """Return six ranks of which rank 2 has other figures at last."""
    return [rank(number, odd if number == 2 else others, **(more if number == 2 else {})) for number in range(6)]


def only(found: Judgement) -> Straggler:
    (straggler,) = found.stragglers
    assert straggler.rank == 2
    return straggler


def test_a_gpu_that_idles_while_its_peers_spin_is_named_with_its_cause() -> None:
    found = only(judge(gang({"utilisation": 60.0, "power_w": 350.0, "data_s": 0.11}, {"data_s": 0.01}), RULES))
    assert found.figure is not None
    assert (found.figure.figure, found.cause, found.num_slow, found.num_peers) == (
        Figure.UTILISATION,
        StragglerCause.DATA,
        5,
        5,
    )
    sentence = verdict_of(found, RankName("alpha", "GPU-1")).sentence
    assert sentence == (
        "Rank 2 (host alpha, GPU GPU-1) stands apart from the 5 ranks of its place: GPU utilisation 60 %, usual 99 %, "
        "in 5 of 5 windows. Its GPU waits for its host, while theirs are kept busy by collectives that wait for it. "
        "Cause: it waits for its data."
    )
    assert found.slowdown == 0, "no time is measured, so no host is swapped"


def test_of_ranks_that_wait_in_a_hidden_collective_the_one_with_the_higher_power_is_named() -> None:
    slower = {"own_s": 0.3, "power_w": 400.0}
    found = only(judge(gang({"own_s": 0.3, "power_w": 600.0}, slower), RULES))
    assert found.figure is not None
    assert (found.figure.figure, found.figure.is_low) == (Figure.POWER, False)
    assert "its GPU computes while theirs wait for it" in verdict_of(found, RankName()).sentence


def test_a_rank_with_low_power_at_full_utilisation_waits_and_is_not_named() -> None:
    found = judge(gang({"power_w": 350.0}), RULES)
    assert (found.stragglers, found.low_power, found.slow_in) == ((), (2,), {})


@pytest.mark.parametrize("own", [{CLOCK: 1200.0}, {CLOCK: 1900.0, THROTTLE: 1.0}])
def test_low_power_of_a_gpu_that_slows_itself_down_names_it(own: dict[str, float]) -> None:
    ranks = gang({"power_w": 350.0})
    usual = {CLOCK: 1950.0, THROTTLE: 0.0}
    readings = [RankWindows(r.rank, 64, "", r.windows, own if r.rank == 2 else usual) for r in ranks]
    found = only(judge(readings, RULES))
    assert (found.cause, found.figure is not None and found.figure.is_low) == (StragglerCause.GPU, True)


def test_a_low_mfu_names_the_rank_whose_steps_take_longer_and_not_one_with_fewer_tokens() -> None:
    found = only(judge(gang({"own_s": 0.3, "mfu": 0.3}), RULES))
    assert found.figure is not None
    assert found.figure.figure is Figure.MFU
    assert "MFU 30.0%, usual 40.0%" in verdict_of(found, RankName()).sentence
    assert judge(gang({"mfu": 0.3}), RULES).stragglers == (), "at equal steps it has less work"
    fewer = judge(gang({"own_s": 0.3, "mfu": 0.3, "work": 700.0}, {"work": 1000.0}), RULES)
    assert fewer.stragglers == ()


@pytest.mark.parametrize(
    ("odd", "others"),
    [
        ({"utilisation": 60.0}, {"utilisation": 60.0}),  # all are equally low
        ({"utilisation": 60.0, "plain": 0.9}, None),  # it evaluates or saves
        ({"utilisation": 60.0, "wait_s": 0.2}, None),  # it waits for others, on its processor
        ({"utilisation": 60.0, "work": 900.0}, {"work": 1000.0}),  # it has less work
        ({"own_s": 0.3, "power_w": 700.0, "wait_s": 0.2}, {"own_s": 0.3, "power_w": 400.0}),
        ({"power_w": 700.0}, {"power_w": 400.0}),  # steps take no longer
        ({"own_s": 0.3, "power_w": 600.0, "utilisation": 70.0}, {"own_s": 0.3, "power_w": 400.0, "utilisation": 70.0}),
        ({"utilisation": 95.0}, None),
    ],
)
def test_what_shows_no_slow_rank_names_none(odd: dict[str, float], others: dict[str, float] | None) -> None:
    assert judge(gang(odd, others), RULES).stragglers == ()


def test_a_missing_reading_is_never_a_verdict() -> None:
    without = {name: value for name, value in USUAL.items() if name not in {"utilisation", "power_w", "mfu"}}
    assert judge([of_means(number, [without] * 13) for number in range(6)], RULES).stragglers == ()
    ranks = [of_means(0, [without] * 13), rank(1, {"utilisation": 10.0}), rank(2), rank(3)]
    assert judge(ranks, RULES).stragglers == (), "two peers with a reading are too few"
    no_utilisation = {name: value for name, value in USUAL.items() if name != "utilisation"}
    owns = [(600.0 if number == 2 else 400.0) for number in range(6)]
    powers = [[no_utilisation] * 8 + [{**no_utilisation, "own_s": 0.3, "power_w": watts}] * 5 for watts in owns]
    assert judge([of_means(number, each) for number, each in enumerate(powers)], RULES).stragglers == ()


@pytest.mark.parametrize("num_odd", range(6))
def test_a_rank_is_named_from_three_windows_of_five_on(num_odd: int) -> None:
    low = {**USUAL, "utilisation": 60.0}
    means = [dict(USUAL)] * (13 - num_odd) + [low] * num_odd
    found = judge([of_means(2, means), *(rank(number) for number in (0, 1, 3, 4))], RULES)
    assert len(found.stragglers) == (num_odd >= RULES.num_slow)


def test_a_rank_that_was_apart_from_its_first_windows_on_is_named_only_with_a_reading_of_its_host() -> None:
    def apart(**more: float) -> list[RankWindows]:
        low = {**USUAL, "utilisation": 60.0, **more}
        usual = {**USUAL, **dict.fromkeys(more, 0.0)}
        return [of_means(number, [low if number == 2 else usual] * 13) for number in range(6)]

    assert judge(apart(), RULES).stragglers == (), "logs on one rank leave its GPU idle"
    assert only(judge(apart(cpu_wait_s=0.1), RULES)).cause is StragglerCause.HOST
    assert only(judge(apart(), RULES, named=[2])).cause is StragglerCause.COMPUTE, "it was named before"


def test_gpus_of_another_model_are_no_peers() -> None:
    ranks = [
        rank(number, {"utilisation": 60.0} if number == 2 else None, model="B" if number < 3 else "A")
        for number in range(6)
    ]
    assert judge(ranks, RULES).stragglers == ()


def test_figures_are_evidence_on_a_rank_that_its_own_compute_names() -> None:
    slow = {"own_s": 0.3, "wait_s": 0.01, "utilisation": 70.0, "cpu_wait_s": 0.09}
    found = only(judge(gang(slow, {"wait_s": 0.11, "cpu_wait_s": 0.0}), RULES))
    assert (found.figure, found.cause) == (None, StragglerCause.HOST)
    assert "GPU utilisation 70 %, usual 99 %" in found.evidence


@pytest.mark.parametrize("seed", range(examples(40, quick=4)))
def test_noise_alone_names_no_rank_and_a_gpu_that_idles_is_named_in_noise(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # noise
    num_ranks = rng.choice([4, 8, 40])

    def window(number: int, *, is_idle: bool) -> dict[str, float]:
        leak = 1 + 0.05 * ((number * 7) % 5 - 2) / 2  # GPUs of one model differ by a few percent
        utilisation = rng.uniform(94, 100) * (0.6 if is_idle else 1)
        noise = {"power_w": 600 * leak * rng.gauss(1, 0.04), "mfu": 0.4 * rng.gauss(1, 0.02)}
        return {**USUAL, **noise, "own_s": 0.2 * rng.gauss(1, 0.02), "utilisation": utilisation}

    def world(idle: int | None) -> list[RankWindows]:
        return [
            of_means(each, [window(each, is_idle=each == idle and at >= BEFORE) for at in range(BEFORE + SINCE)])
            for each in range(num_ranks)
        ]

    assert judge(world(None), RULES).stragglers == ()
    assert [each.rank for each in judge(world(1), RULES).stragglers] == [1]


def test_a_window_with_a_step_that_was_left_out_is_not_plain() -> None:
    def closed(own_steps: int) -> Window:
        state, steps, window = Folding(), 4, None
        for step in (4, 8, 12):
            pace = {"own_s": 3.0, "wait_s": 0.1, "num_steps": steps, "own_steps": own_steps, "mfu": 0.4}
            state, window = state.with_pace(step, {**pace, "utilisation": 1.0, "power_w": 1.0}, 10.0)
        assert window is not None
        return window

    assert (closed(4).is_plain, closed(3).is_plain) == (True, False)
    assert closed(4).get("mfu") == 0.4
    assert (closed(4).get("utilisation"), closed(4).get("power_w")) == (None, None), "a program reports no reading"
    assert RankWindows.of_document(1, RankWindows(1, 4, model="H100").document()).model == "H100"
