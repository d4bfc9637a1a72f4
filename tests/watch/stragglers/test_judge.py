"""The judge of stragglers: the slow rank is named with its cause, and no other rank is."""

import math
import random
from dataclasses import replace

import pytest

from muster.domain.policy.node_detectors import PairProbePolicy
from muster.domain.policy.stragglers import StragglerPolicy
from tests.scaled import examples
from tests.watch.stragglers.worlds import CAUSES, RULES, Gang
from watch.stragglers.causes import CLOCK, THROTTLE, StragglerCause
from watch.stragglers.findings import Judgement
from watch.stragglers.judge import MOST_FOUND, judge
from watch.stragglers.network import Link
from watch.stragglers.sentences import RankName, network_verdict, verdict_of, words_of
from watch.stragglers.windows import RankWindows, Window

SEEDS = range(examples(40, quick=4))


def changed(rank: int, before_s: float, own_s: float, **more: float) -> RankWindows:
    """Return a rank whose own compute changed after eight windows."""
    owns = [before_s] * 8 + [own_s] * 5
    means = [{"own_s": each, "wait_s": 1.0 - each, **more} for each in owns]
    return RankWindows(rank, 4, windows=tuple(Window(4 * number, 4, each) for number, each in enumerate(means)))


@pytest.mark.parametrize("kind", list(CAUSES))
@pytest.mark.parametrize("num_ranks", [3, 6])
def test_a_rank_slowed_by_a_fifth_is_named_within_five_windows_with_its_cause(kind: str, num_ranks: int) -> None:
    num_named = right = 0
    for seed in SEEDS:
        gang = Gang(num_ranks, seed)
        list(gang.judgements(6))
        slow = seed % num_ranks
        gang.slow[slow] = (kind, 0.2)
        found = [each for judgement in gang.judgements(5) for each in judgement.stragglers]
        assert {each.rank for each in found} <= {slow}, (seed, found)
        num_named += bool(found)
        right += bool(found) and found[-1].cause == CAUSES[kind]
    assert num_named >= 0.95 * len(SEEDS)
    assert right >= 0.9 * len(SEEDS)


@pytest.mark.parametrize("kind", ["compute", "data", "cpu"])
def test_of_two_ranks_the_slow_one_is_named_within_five_windows(kind: str) -> None:
    num_right = 0
    for seed in SEEDS:
        gang = Gang(2, seed)
        list(gang.judgements(6))
        gang.slow[1] = (kind, 0.3)
        found = [each for judgement in gang.judgements(5) for each in judgement.stragglers]
        assert {each.rank for each in found} <= {1}, seed
        num_right += [each.cause for each in found[-1:]] == [CAUSES[kind]]
    assert num_right >= 0.9 * len(SEEDS)


@pytest.mark.parametrize(
    ("num_ranks", "noise", "own_s"),
    [(2, 0.05, 0.5), (3, 0.08, 0.5), (4, 0.1, 0.5), (8, 0.05, 0.5), (2, 0.05, 1.2), (4, 0.03, 1.2)],
)
def test_a_thousand_clean_windows_name_no_rank(num_ranks: int, noise: float, own_s: float) -> None:
    """Also of long steps, of which a window has eight: one pause of a host makes such a window slow."""
    gang = Gang(num_ranks, num_ranks, own_s=own_s, noise=noise, rules=StragglerPolicy(window_s=5))
    alarms = [found for found in gang.judgements(examples(4000, quick=250)) if found.stragglers or found.network]
    assert alarms == []


@pytest.mark.parametrize("num_paused", [3, 4, 5])
def test_a_rank_that_pauses_in_each_window_is_named_and_one_with_a_pause_in_some_is_not(num_paused: int) -> None:
    def windows(rank: int, paused: int) -> RankWindows:
        plain = {"own_s": 0.2, "wait_s": 0.1, "longest_own_s": 0.21, "longest_steps": 1.0}
        pause = {"own_s": 0.25, "wait_s": 0.05, "longest_own_s": 0.6, "longest_steps": 1.0}
        means = [plain] * (13 - paused) + [pause] * paused
        return RankWindows(rank, 8, windows=tuple(Window(8 * number, 8, each) for number, each in enumerate(means)))

    found = judge([windows(0, num_paused), *(windows(rank, 0) for rank in (1, 2, 3))], RULES)
    assert dict(found.slow_in) == {0: num_paused}
    assert [each.rank for each in found.stragglers] == ([0] if num_paused == 5 else [])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_with_more_work_is_no_straggler_but_an_imbalance(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # a seeded world
    work = dict.fromkeys(range(4), 1000.0) | {2: rng.uniform(1250, 3000), 3: rng.uniform(300, 1000)}
    gang = Gang(4, seed, work=work, is_eventful=False)
    for found in gang.judgements(8):
        assert found.stragglers == ()
    assert [each.rank for each in found.imbalances] == [2]
    assert "more work" in words_of(found.imbalances[0])


def test_a_rank_with_more_memory_and_no_reported_work_is_an_imbalance() -> None:
    def windows(rank: int, own_s: float, memory: float) -> RankWindows:
        return changed(rank, 0.2, own_s, memory_mib=memory)

    ranks = [windows(0, 0.2, 1000), windows(1, 0.2, 1010), windows(2, 0.25, 1400)]
    found = judge(ranks, RULES)
    assert found.stragglers == ()
    (uneven,) = found.imbalances
    assert (uneven.rank, uneven.work_ratio) == (2, None)
    assert uneven.memory_ratio == pytest.approx(1400 / 1005)
    assert judge([*ranks[:2], windows(2, 0.25, 1000)], RULES).stragglers[0].rank == 2


def test_a_stage_with_longer_work_is_no_straggler_and_a_slow_rank_in_it_is() -> None:
    places = {rank: f"data ranks of {4 * (rank // 4)}" for rank in range(8)}
    work = {rank: 1000.0 if rank < 4 else 1800.0 for rank in range(8)}
    gang = Gang(8, 1, work=work, places=places, is_eventful=False)
    for found in gang.judgements(6):
        assert (found.stragglers, found.imbalances) == ((), ())
    gang.slow[5] = ("compute", 0.5)
    *_, found = gang.judgements(5)
    assert [each.rank for each in found.stragglers] == [5]
    assert found.stragglers[0].num_peers == 3


def test_a_rank_alone_is_compared_with_its_own_past() -> None:
    gang = Gang(1, 3, work={0: 1000.0}, is_eventful=False)
    list(gang.judgements(12))
    gang.slow[0] = ("compute", 0.4)
    *_, found = gang.judgements(5)
    (straggler,) = found.stragglers
    assert (straggler.rank, straggler.num_peers, straggler.cause) == (0, 0, "compute")
    assert "longer than before" in verdict_of(straggler, RankName()).sentence


def test_a_rank_alone_whose_program_changed_its_work_is_not_accused() -> None:
    gang = Gang(1, 3, is_eventful=False)  # it reports no tokens: nothing shows that its work is as before
    list(gang.judgements(12))
    gang.slow[0] = ("compute", 0.4)
    assert all(found.stragglers == () for found in gang.judgements(5))
    gang.slow[0] = ("cpu", 0.4)
    *_, found = gang.judgements(5)
    assert [each.cause for each in found.stragglers] == ["host"]


def test_a_rank_alone_without_a_past_is_compared_with_earlier_attempts() -> None:
    gang = Gang(1, 3, is_eventful=False)
    gang.slow[0] = ("cpu", 0.4)
    list(gang.judgements(3))
    ranks = list(gang.ranks.values())
    assert judge(ranks, RULES).stragglers == ()
    assert [each.rank for each in judge(ranks, RULES, usual_s={0: 0.2}).stragglers] == [0]


def test_a_throttled_gpu_and_a_lower_clock_are_the_cause() -> None:
    """Also of a rank that is slow since its first windows."""
    gang = Gang(4, 5)
    gang.slow[1] = ("compute", 0.25)
    list(gang.judgements(4))

    def judged(**of_slow: float) -> list[StragglerCause]:
        usual = {CLOCK: 1980.0, THROTTLE: 0.0}
        ranks = [
            replace(each, readings={**usual, **(of_slow if each.rank == 1 else {})}) for each in gang.ranks.values()
        ]
        return [found.cause for found in judge(ranks, RULES).stragglers]

    assert judged() == []
    assert judged(**{CLOCK: 1600.0}) == [StragglerCause.GPU]
    assert judged(**{THROTTLE: 1.0}) == [StragglerCause.GPU]


@pytest.mark.parametrize("kind", ["compute", "threads", "gc"])
@pytest.mark.parametrize("num_ranks", [2, 3, 6])
def test_constant_additional_work_on_one_rank_is_reported_as_such_and_accuses_none(kind: str, num_ranks: int) -> None:
    """Logs, metrics or a thread of the program on rank 0, from its first step on."""
    for seed in SEEDS:
        gang = Gang(num_ranks, seed, is_eventful=False)
        gang.slow[0] = (kind, 0.3)
        found = list(gang.judgements(30))
        assert all(each.stragglers == () for each in found), seed
        (uneven,) = found[-1].imbalances
        assert (uneven.rank, uneven.work_ratio, uneven.memory_ratio) == (0, None, None)
        assert "it counts as additional work of the program" in words_of(uneven)


@pytest.mark.parametrize("kind", ["cpu", "disk"])
def test_a_rank_that_is_slow_from_its_first_step_is_named_where_a_reading_shows_why(kind: str) -> None:
    for seed in SEEDS:
        gang = Gang(4, seed, is_eventful=False)
        gang.slow[2] = (kind, 0.25)
        *_, found = gang.judgements(6)
        assert [(each.rank, each.cause, each.is_of_process) for each in found.stragglers] == [(2, CAUSES[kind], False)]


@pytest.mark.parametrize("kind", ["threads", "gc"])
def test_a_rank_that_its_own_process_slows_is_marked_so(kind: str) -> None:
    gang = Gang(4, 1)
    list(gang.judgements(5))
    gang.slow[2] = (kind, 0.3)
    *_, found = gang.judgements(6)
    assert [(each.rank, each.cause, each.is_of_process) for each in found.stragglers] == [(2, "host", True)]


def test_additional_work_stays_what_it_is_where_the_common_work_changes() -> None:
    def worlds(own_s: tuple[float, float], more: tuple[float, float]) -> list[RankWindows]:
        return [changed(0, own_s[0] + more[0], own_s[1] + more[1]), *(changed(rank, *own_s) for rank in (1, 2))]

    shorter = judge(worlds((0.6, 0.2), (0.06, 0.06)), RULES)
    longer = judge(worlds((0.1, 0.4), (0.02, 0.08)), RULES)
    for found in (shorter, longer):
        assert (found.stragglers, [each.rank for each in found.imbalances]) == ((), [0])
    both = judge(worlds((0.2, 0.2), (0.03, 0.08)), RULES)
    assert [each.rank for each in both.stragglers] == [0], "and a GPU that slows besides is found"


def test_additional_work_in_each_second_window_accuses_none() -> None:
    means = [{"own_s": own_s, "wait_s": 0.5 - own_s} for own_s in (0.2, 0.28)]
    uneven = RankWindows(0, 4, windows=tuple(Window(4 * number, 4, means[number % 2 == 0]) for number in range(15)))
    others = [RankWindows(rank, 4, windows=tuple(Window(4 * at, 4, means[0]) for at in range(15))) for rank in (1, 2)]
    found = judge([uneven, *others], RULES)
    assert (found.stragglers, dict(found.slow_in)) == ((), {0: 3})


def test_a_rank_that_was_named_is_named_while_it_is_slow() -> None:
    gang = Gang(4, 2)
    list(gang.judgements(5))
    gang.slow[1] = ("compute", 0.3)
    *_, found = gang.judgements(40)
    assert found.stragglers == ()
    again = judge(list(gang.ranks.values()), RULES, named={1})
    assert [(each.rank, each.cause) for each in again.stragglers] == [(1, "compute")]
    assert again.imbalances == ()


def test_a_rank_that_slows_so_much_that_windows_change_their_size_is_named() -> None:
    gang = Gang(4, 2, is_eventful=False)
    list(gang.judgements(6))
    size = gang.ranks[0].size
    gang.slow[1] = ("compute", 12.0)
    found = [each for judgement in gang.judgements(20) for each in judgement.stragglers]
    assert gang.ranks[0].size < size
    assert {each.rank for each in found} == {1}
    assert found[-1].cause == "compute"
    kept = gang.ranks[1]
    assert kept.earlier_s is not None
    assert RankWindows.of_document(1, kept.document()).earlier_s == kept.earlier_s


@pytest.mark.parametrize("num_ranks", [2, 3, 6])
@pytest.mark.parametrize("times", [6, 12])
def test_a_rank_that_slows_so_much_is_named_while_others_still_have_larger_windows(num_ranks: int, times: int) -> None:
    """Each size alone has fewer than three slow windows by then."""
    for seed in SEEDS:
        gang = Gang(num_ranks, seed)
        list(gang.judgements(6))
        size, onset, slow = gang.ranks[0].size, gang.step, seed % num_ranks
        gang.slow[slow] = ("compute", times)
        while not gang.folded.judgement().stragglers:
            assert gang.step <= onset + 3.5 * size, seed
            gang.second()
        assert [each.rank for each in gang.folded.judgement().stragglers] == [slow]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 6])
def test_one_pause_that_changes_the_size_of_windows_names_no_rank(num_ranks: int) -> None:
    for seed in SEEDS:
        gang = Gang(num_ranks, seed)
        list(gang.judgements(seed % 7 + 1))
        gang.slow[0] = ("cpu", gang.rng.uniform(50, 2000))
        gang.second()
        gang.slow.clear()
        alarms = [found for found in gang.judgements(8) if found.stragglers or found.network]
        assert (alarms, seed) == ([], seed)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 6])
def test_common_work_that_changes_the_size_of_windows_names_no_rank(num_ranks: int) -> None:
    for seed in SEEDS:
        gang = Gang(num_ranks, seed, noise=0.05)
        for times in (1.0, 12.0, 0.3, 5.0, 1.0):
            gang.own_s = 0.2 * times
            alarms = [found for found in gang.judgements(8) if found.stragglers or found.network]
            assert (alarms, seed) == ([], seed), times


def test_a_pause_does_not_explain_why_other_work_of_a_rank_alone_takes_longer() -> None:
    """Other work changes the size of its windows, so its windows before are of no use."""
    rank, begin = RankWindows(0, 0), 0
    owns = [(16, 0.2, 0.0)] * 8 + [(4, 1.6, 0.0), (4, 1.6, 0.0), (4, 40.0, 38.4), (4, 1.6, 0.0), (4, 1.6, 0.0)]
    for size, own_s, delayed_s in owns:
        rank = rank.with_window(size, "", Window(begin, size, {"own_s": own_s, "cpu_wait_s": delayed_s}))
        begin += size
        assert judge([rank], RULES).stragglers == ()
    assert judge([rank], RULES).slow_in == {}


LIMITS = PairProbePolicy()


def link(rank: int, other: int, lost: float = 0.0, p99_us: float | None = 300.0) -> Link:
    return Link((rank, other), (f"gpu-{rank}", f"gpu-{other}"), 300.0, lost, p99_us)


def with_long_waits(work: dict[int, float] | None) -> Judgement:
    gang = Gang(4, 9, work=work, is_eventful=False)
    list(gang.judgements(12))
    gang.transfer_s = 0.12
    *_, found = gang.judgements(5)
    return found


def test_a_slow_network_accuses_no_rank_and_names_the_slow_link_of_probes() -> None:
    found = with_long_waits(dict.fromkeys(range(4), 1000.0))
    assert found.stragglers == ()
    assert found.network is not None
    assert found.network.pair == ()
    whole = [link(0, 1), link(1, 2), link(0, 3)]
    assert found.with_links(whole, LIMITS).network == found.network
    slow = found.with_links([*whole, link(2, 3, 0.12)], LIMITS).network
    assert slow is not None
    verdict = network_verdict(slow, RankName("gpu-2"))
    assert (verdict.ranks, verdict.cause, verdict.node) == ((2, 3), "network", ""), "either end may be the cause"
    words = "12.0% of 300 messages between host gpu-2 and host gpu-3 were lost"
    assert f"Ranks 2 and 3: {words}." in verdict.sentence
    assert verdict.evidence == (words,)


def test_a_host_at_the_end_of_several_slow_links_is_named() -> None:
    found = with_long_waits(dict.fromkeys(range(4), 1000.0))
    slow = found.with_links([link(0, 3, 0.05), link(3, 0, 0.05), link(1, 3, p99_us=9000.0), link(0, 1)], LIMITS).network
    assert slow is not None
    assert (slow.pair, slow.host) == ((3, 0), "gpu-3")
    assert len(slow.evidence) == 3
    assert "messages between host gpu-1 and host gpu-3 take 9.0 ms there and back (p99)" in slow.evidence
    verdict = network_verdict(slow, RankName("gpu-3"))
    assert verdict.node == "gpu-3"
    assert "Host gpu-3 is an end of each of several slow links." in verdict.sentence


def test_without_reported_work_long_waits_are_the_networks_only_with_a_slow_link() -> None:
    found = with_long_waits(None)
    assert found.network is None
    assert found.with_links([link(0, 1), link(2, 3, 0.005)], LIMITS).network is None
    lossy = found.with_links([link(0, 1), link(2, 3, 0.02)], LIMITS).network
    assert lossy is not None
    assert lossy.pair == (2, 3)
    few = replace(link(2, 3, 0.5), sent=20.0)
    assert found.with_links([few], LIMITS).network is None, "too few messages to report a share"


@pytest.mark.parametrize("work", [None, dict.fromkeys(range(4), 1000.0)])
def test_longer_waits_of_a_program_that_may_have_more_to_exchange_accuse_no_network(
    work: dict[int, float] | None,
) -> None:
    gang = Gang(4, 9, work=work, is_eventful=False)
    list(gang.judgements(12))
    gang.transfer_s = 0.12
    if work is not None:
        gang.work = dict.fromkeys(work, 1500.0)
    *_, found = gang.judgements(5)
    assert (found.stragglers, found.network) == ((), None)


def test_a_rank_alone_with_longer_steps_and_no_reported_work_accuses_no_host() -> None:
    def windows(first: int) -> Window:
        means = {"own_s": 0.2, "cpu_wait_s": 0.0} if first < 48 else {"own_s": 0.25, "cpu_wait_s": 0.03}
        return Window(first, 4, means)

    rank = RankWindows(0, 4, windows=tuple(windows(first) for first in range(0, 68, 4)))
    assert judge([rank], RULES).stragglers == ()
    same = tuple(replace(each, means={**each.means, "work": 1000.0}) for each in rank.windows)
    (slow,) = judge([replace(rank, windows=same)], RULES).stragglers
    assert slow.cause is StragglerCause.HOST


def test_ranks_without_own_compute_are_judged_without_a_fault() -> None:
    def windows(rank: int, own_s: float) -> RankWindows:
        means = {"own_s": own_s, "wait_s": 0.6 - own_s}
        return RankWindows(rank, 4, windows=tuple(Window(first, 4, means) for first in range(0, 48, 4)))

    found = judge([windows(0, 0.0), windows(1, 0.0), windows(2, 0.0), windows(3, 0.5)], RULES)
    assert (found.stragglers, found.imbalances) == ((), ())


def test_a_straggler_that_is_fast_again_is_slow_in_no_window_any_more() -> None:
    gang = Gang(4, 2)
    gang.slow[1] = ("compute", 0.3)
    *_, found = gang.judgements(5)
    assert found.slow_in == {1: 5}
    gang.slow.clear()
    *_, found = gang.judgements(5)
    assert (found.stragglers, dict(found.slow_in)) == ((), {})


def test_a_rank_that_computes_longer_while_none_waits_for_it_is_no_straggler() -> None:
    def windows(rank: int, own_s: float, wait_s: float) -> RankWindows:
        means = {"own_s": own_s, "wait_s": wait_s}
        return RankWindows(rank, 4, windows=tuple(Window(first, 4, means) for first in range(0, 20, 4)))

    assert judge([windows(0, 0.2, 0.05), windows(1, 0.2, 0.05), windows(2, 0.3, 0.05)], RULES).stragglers == ()


def test_many_slow_ranks_are_bounded_and_the_slowest_come_first() -> None:
    ranks = [changed(rank, 0.2, 0.2 if rank < 120 else 0.25 + rank / 1000) for rank in range(200)]
    found = judge(ranks, RULES).stragglers
    assert [each.rank for each in found] == list(range(199, 199 - MOST_FOUND, -1))


@pytest.mark.parametrize("own_s", [math.nan, math.inf, -1.0, 1e300, True, "0.2", None])
def test_a_report_that_is_no_figure_changes_nothing(own_s: object) -> None:
    gang = Gang(2, 1)
    gang.step = 10
    before = dict(gang.open)
    assert gang.take(0, {"own_s": own_s, "wait_s": 0.1, "own_steps": 5, "num_steps": 5}) is False
    assert gang.open == before


def test_windows_of_nonsense_sizes_end_without_a_judgement() -> None:
    means = {"own_s": 0.2, "wait_s": 0.1}
    sane = [RankWindows(rank, 4, windows=tuple(Window(at, 4, means) for at in range(0, 40, 4))) for rank in range(3)]
    odd = RankWindows(3, 1 << 24, windows=(Window(0, 4, means),))
    assert judge([*sane, odd], RULES).first_step is None
    assert judge([], RULES).first_step is None
