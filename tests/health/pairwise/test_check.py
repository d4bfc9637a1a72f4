"""The pairwise check decides from groups' results alone: no host is accused wrongly, and one bad host is found soon."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from health.pairwise.check import Assessment, GroupResult, PairwiseLimits, Round, assess
from health.pairwise.proof import Group, Host
from tests.scaled import examples

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


def test_of_two_that_fail_together_is_unknown_which() -> None:
    found, rounds = check(names(2), failing("gpu-00"))
    assert not found.bad
    assert list(found.undecided) == names(2)
    assert "round 1 with gpu-01: no answer" in found.undecided["gpu-00"]
    assert len(rounds) == 1


def test_one_host_meets_none() -> None:
    found, _ = check(names(1), failing())
    assert found.undecided == {"gpu-00": "there is no other host to check it with"}


def test_three_hosts_are_one_group_and_no_speed_is_compared() -> None:
    found, _ = check(names(3), slow("gpu-01"))
    assert not found.bad
    assert not found.is_speed_compared


def test_where_all_are_slow_alike_none_is_accused() -> None:
    found, rounds = check(names(8), slow(*names(8), rate=1.0))
    assert (len(found.cleared), len(rounds)) == (8, 1)


def silent_in(rounds: set[int], host: Host) -> Answer:
    def answer(number: int, group: Group) -> GroupResult:
        if host in group and number in rounds:
            return GroupResult(group, silent=frozenset({host}))
        return GroupResult(group, FAST)

    return answer


def test_a_silent_host_is_queried_again_and_then_named_and_its_partner_is_not() -> None:
    found, rounds = check(names(7), silent_in({1, 2, 3, 4}, "gpu-02"))
    assert found.bad == {"gpu-02": "was silent in rounds 1, 2"}
    assert len(found.cleared) == 6
    assert len(rounds) == 2
    again = next(group.hosts for group in rounds[1] if "gpu-02" in group.hosts)
    assert again[1] == "gpu-02", "the group's store is with one that answered"


def test_a_host_that_was_not_received_once_is_cleared_when_it_answers() -> None:
    found, rounds = check(names(7), silent_in({1}, "gpu-02"))
    assert (len(found.cleared), len(rounds)) == (7, 2)


def test_a_silent_host_is_undecided_where_there_was_one_round() -> None:
    found, _ = check(names(6), silent_in({1}, "gpu-02"), PairwiseLimits(rounds_max=1))
    assert found.undecided["gpu-02"] == "was silent in round 1"


def test_where_none_is_received_none_is_accused() -> None:
    found, rounds = check(names(6), lambda _, group: GroupResult(group, silent=frozenset(group)), ENDLESS)
    assert list(found.undecided) == names(6)
    assert len(rounds) == 2


def test_a_bad_path_is_no_hosts_fault_and_is_reported() -> None:
    pair = {"gpu-00", "gpu-01"}

    def answer(_: int, group: Group) -> GroupResult:
        return GroupResult(group, None, "timed out") if pair <= set(group) else GroupResult(group, FAST)

    found, _ = check(names(8), answer)
    assert not found.bad
    assert found.paths == (("gpu-00", "gpu-01"),)


def test_a_noisy_moment_accuses_none() -> None:
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
    """Two that pass together are the proof against all others; with fewer, every host is undecided."""
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
    """A slow one of six or more: of fewer it may as well be the one host in a rack of its own."""
    hosts = names(number)
    bad = data.draw(st.sampled_from(hosts))
    for answer in (failing(bad), slow(bad, rate=FAST / 5))[: 2 if number >= 6 else 1]:
        found, _ = check(hosts, answer)
        assert list(found.bad) == [bad]
        assert len(found.cleared) == number - 1


@dataclass(frozen=True, slots=True)
class Racks:
    """Hosts in racks, neighbours next to each other; ``between``: bandwidth between racks relative to that inside one.

    ``speeds``: of the hosts that are not at full speed; 0.0: dead.
    """

    sizes: tuple[int, ...]
    between: float
    speeds: Mapping[Host, float]

    @property
    def rack_of(self) -> dict[Host, int]:
        racks = [rack for rack, size in enumerate(self.sizes) for _ in range(size)]
        return dict(zip(names(len(racks)), racks, strict=True))

    def answer(self, _: int, group: Group) -> GroupResult:
        speed = min(self.speeds.get(host, 1.0) for host in group)
        if not speed:
            return GroupResult(group, None, "no answer")
        is_inside = len({self.rack_of[host] for host in group}) == 1
        return GroupResult(group, FAST * speed * (1.0 if is_inside else self.between))


@st.composite
def racks(draw: st.DrawFn) -> Racks:
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=10)))
    hosts = names(sum(sizes))
    ill = draw(st.lists(st.sampled_from(hosts), unique=True))
    speeds = {host: draw(st.sampled_from([0.0, 0.05, 0.2, 0.4])) for host in ill}
    return Racks(sizes, draw(st.floats(0.2, 1.0)), speeds)


def test_a_host_whose_rack_mate_is_dead_is_not_accused_of_the_links_between_racks() -> None:
    world = Racks((2, 2, 2, 2), 0.4, {"gpu-01": 0.0})
    found, _ = check(names(8), world.answer)
    assert list(found.bad) == ["gpu-01"]
    assert "gpu-00" in found.cleared


@settings(max_examples=examples(400))
@given(racks(), st.sampled_from([4, 1000]))
def test_no_healthy_host_is_accused_whatever_the_racks_and_whoever_is_ill(world: Racks, rounds_max: int) -> None:
    found, _ = check(list(world.rack_of), world.answer, PairwiseLimits(rounds_max=rounds_max))
    assert set(found.bad) <= world.speeds.keys()


@pytest.mark.parametrize("number", range(6, 41))
def test_a_host_five_times_slower_is_named_within_four_rounds_wherever_it_stands(number: int) -> None:
    for bad in names(number):
        found, _ = check(names(number), slow(bad, rate=FAST / 5))
        assert list(found.bad) == [bad]
        assert not found.undecided


def test_a_slow_host_that_may_be_alone_in_its_rack_is_undecided_and_why_is_stated() -> None:
    found, _ = check(names(4), slow("gpu-00"), ENDLESS)
    assert "so racks may be the cause" in found.undecided["gpu-00"]
    assert not found.paths


@given(st.integers(10, 60), st.data())
def test_a_few_slow_hosts_are_named_among_rates_that_scatter(number: int, data: st.DataObject) -> None:
    hosts = names(number)
    bad = frozenset(data.draw(st.lists(st.sampled_from(hosts), unique=True, max_size=number // 5)))
    scatter = data.draw(st.randoms(use_true_random=False))

    def answer(_: int, group: Group) -> GroupResult:
        return GroupResult(group, scatter.uniform(0.8, 1.2) * (FAST / 10 if bad & set(group) else FAST))

    found, _ = check(hosts, answer, ENDLESS)
    assert set(found.bad) <= bad
    places = sorted(hosts.index(each) for each in bad)
    stand_apart = all(after - before > 2 for before, after in itertools.pairwise(places))
    if stand_apart:  # several neighbours that are alike slow may be one rack, whose link would be to blame
        assert set(found.bad) == bad
        assert not found.paths


@given(st.lists(st.sampled_from(["pass", "fail", "slow", "silent"]), max_size=60), st.integers(1, 12))
def test_whatever_groups_state_it_ends_and_never_both_clears_and_accuses(reported: list[str], number: int) -> None:
    words = iter(reported)

    def answer(_: int, group: Group) -> GroupResult:
        word = next(words, "pass")
        if word == "silent":
            return GroupResult(group, silent=frozenset(group[:1]))
        return GroupResult(group, {"pass": FAST, "slow": FAST / 10}.get(word))

    found, _ = check(names(number), answer, PairwiseLimits(rounds_max=100))
    assert not set(found.cleared) & set(found.bad)
