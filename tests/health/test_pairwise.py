"""The pairwise check decides from groups' results alone: nobody is accused wrongly, and one bad host is found soon."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.pairwise import Assessment, Group, GroupResult, Host, PairwiseLimits, Round, assess

FAST = 1e9
Answer = Callable[[int, Group], GroupResult]
ENDLESS = PairwiseLimits(rounds_max=1000)


def names(number: int) -> list[Host]:
    return [f"gpu-{index:02}" for index in range(number)]


def check(
    hosts: Sequence[Host], answer: Answer, limits: PairwiseLimits | None = None
) -> tuple[Assessment, list[Round]]:
    """All rounds that it asks for; each of disjoint groups of two or three hosts that are there."""
    limits = limits or PairwiseLimits()
    rounds: list[Round] = []
    while (found := assess(hosts, rounds, limits)).next_groups:
        members = [host for group in found.next_groups for host in group]
        assert len(members) == len(set(members))
        assert set(members) <= set(hosts) - found.bad.keys()
        assert {len(group) for group in found.next_groups} <= {2, 3}
        rounds.append(tuple(answer(len(rounds) + 1, group) for group in found.next_groups))
    assert len(rounds) <= limits.rounds_max
    assert sorted([*found.cleared, *found.bad, *found.undecided]) == sorted(hosts)
    return found, rounds


def failing(*bad: Host) -> Answer:
    def answer(_: int, group: Group) -> GroupResult:
        return GroupResult(group, None, "no answer") if set(bad) & set(group) else GroupResult(group, FAST)

    return answer


def slow(*bad: Host, rate: float = FAST / 10) -> Answer:
    def answer(_: int, group: Group) -> GroupResult:
        return GroupResult(group, rate if set(bad) & set(group) else FAST)

    return answer


@pytest.mark.parametrize("fault", [failing, slow])
@pytest.mark.parametrize("bad", names(7))
def test_one_bad_host_of_seven_is_named_within_four_rounds(bad: Host, fault: Callable[[Host], Answer]) -> None:
    found, rounds = check(names(7), fault(bad))
    assert list(found.bad) == [bad]
    assert not found.undecided
    assert len(rounds) <= 4
    assert [len(group.hosts) for group in rounds[0]] == [2, 2, 3]


@pytest.mark.parametrize("bad", names(3))
def test_one_of_three_that_fails_is_named_within_four_rounds(bad: Host) -> None:
    found, _ = check(names(3), failing(bad))
    assert list(found.bad) == [bad]


def test_a_gang_that_works_takes_one_round() -> None:
    found, rounds = check(names(8), failing())
    assert (len(rounds), len(found.cleared), found.is_speed_compared) == (1, 8, True)


def test_of_two_that_fail_together_nobody_knows_which() -> None:
    found, rounds = check(names(2), failing("gpu-00"))
    assert not found.bad
    assert list(found.undecided) == names(2)
    assert "round 1 with gpu-01: no answer" in found.undecided["gpu-00"]
    assert len(rounds) == 1


def test_one_host_meets_nobody() -> None:
    found, _ = check(names(1), failing())
    assert found.undecided == {"gpu-00": "there is no other host to meet"}


def test_three_hosts_are_one_group_and_no_speed_is_compared() -> None:
    found, _ = check(names(3), slow("gpu-01"))
    assert not found.bad
    assert not found.is_speed_compared


def test_where_all_are_slow_alike_none_is_accused() -> None:
    found, rounds = check(names(8), slow(*names(8), rate=1.0))
    assert (len(found.cleared), len(rounds)) == (8, 1)


def test_a_silent_host_is_named_at_once_and_its_partner_is_tried_again() -> None:
    def answer(number: int, group: Group) -> GroupResult:
        return GroupResult(group, silent=frozenset({"gpu-02"})) if "gpu-02" in group else GroupResult(group, FAST)

    found, rounds = check(names(7), answer)
    assert found.bad == {"gpu-02": "was not heard in round 1"}
    assert len(found.cleared) == 6
    assert len(rounds) == 2


def test_a_bad_path_is_no_hosts_fault_and_is_told() -> None:
    pair = {"gpu-00", "gpu-01"}

    def answer(_: int, group: Group) -> GroupResult:
        return GroupResult(group, None, "timed out") if pair <= set(group) else GroupResult(group, FAST)

    found, _ = check(names(8), answer)
    assert not found.bad
    assert found.paths == (("gpu-00", "gpu-01"),)


def test_a_noisy_moment_accuses_nobody() -> None:
    def answer(number: int, group: Group) -> GroupResult:
        return GroupResult(group, FAST / 100 if number == 1 and "gpu-05" in group else FAST)

    found, _ = check(names(8), answer)
    assert len(found.cleared) == 8
    assert not found.paths


def test_the_proof_names_rounds_partners_and_figures() -> None:
    found, _ = check(names(6), slow("gpu-03"))
    assert "round 1 with gpu-02: slow: 100 MB/s, where the others' median is 1e+03 MB/s" in found.bad["gpu-03"]
    assert "; round 2 with " in found.bad["gpu-03"]


def test_a_host_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="named twice"):
        assess(["a", "a"], [], PairwiseLimits())


@st.composite
def gangs(draw: st.DrawFn) -> tuple[list[Host], frozenset[Host]]:
    hosts = names(draw(st.integers(1, 40)))
    return hosts, frozenset(draw(st.lists(st.sampled_from(hosts), unique=True)))


@given(gangs(), st.integers(0, 8))
def test_whatever_fails_no_good_host_is_accused_and_no_bad_one_cleared(
    gang: tuple[list[Host], frozenset[Host]], rounds_max: int
) -> None:
    hosts, bad = gang
    found, _ = check(hosts, failing(*bad), PairwiseLimits(rounds_max=rounds_max))
    assert set(found.bad) <= bad
    assert not set(found.cleared) & bad


@given(gangs())
def test_with_rounds_enough_every_bad_host_is_named_where_two_are_good(
    gang: tuple[list[Host], frozenset[Host]],
) -> None:
    """Two that pass together are the proof against all others; with fewer, every host is said to be undecided."""
    hosts, bad = gang
    found, _ = check(hosts, failing(*bad), ENDLESS)
    num_good = len(hosts) - len(bad)
    if num_good >= 2:
        assert set(found.bad) == bad
        assert set(found.cleared) == set(hosts) - bad
    else:
        assert set(found.undecided) == set(hosts)


@given(st.integers(4, 60), st.data())
def test_one_bad_host_of_any_number_is_named_within_four_rounds(number: int, data: st.DataObject) -> None:
    hosts = names(number)
    bad = data.draw(st.sampled_from(hosts))
    for answer in (failing(bad), slow(bad)):
        found, _ = check(hosts, answer)
        assert list(found.bad) == [bad]
        assert len(found.cleared) == number - 1


@given(st.integers(10, 60), st.data())
def test_a_few_slow_hosts_are_named_among_rates_that_scatter(number: int, data: st.DataObject) -> None:
    hosts = names(number)
    bad = frozenset(data.draw(st.lists(st.sampled_from(hosts), unique=True, max_size=number // 5)))
    scatter = data.draw(st.randoms(use_true_random=False))

    def answer(_: int, group: Group) -> GroupResult:
        return GroupResult(group, scatter.uniform(0.8, 1.2) * (FAST / 10 if bad & set(group) else FAST))

    found, _ = check(hosts, answer, ENDLESS)
    assert set(found.bad) == bad
    assert not found.paths


@given(st.lists(st.sampled_from(["pass", "fail", "slow", "silent"]), max_size=60), st.integers(1, 12))
def test_whatever_groups_say_it_ends_and_never_both_clears_and_accuses(said: list[str], number: int) -> None:
    words = iter(said)

    def answer(_: int, group: Group) -> GroupResult:
        word = next(words, "pass")
        if word == "silent":
            return GroupResult(group, silent=frozenset(group[:1]))
        return GroupResult(group, {"pass": FAST, "slow": FAST / 10}.get(word))

    found, _ = check(names(number), answer, PairwiseLimits(rounds_max=100))
    assert not set(found.cleared) & set(found.bad)
