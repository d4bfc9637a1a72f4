from watch.forensics.newest import newest_of
from watch.forensics.sequences import join, wait_graph
from watch.phases import Phase
from watch.reports import NCCL, Collective, RankReport


def entries(group: str, *, stuck: int, last: int, source: str = NCCL) -> list[Collective]:
    return [
        Collective(group, number, "all_reduce", state="completed" if number < stuck else "scheduled", ranks=(0, 1),
                   source=source)
        for number in range(1, last + 1)
    ]  # fmt: skip


def test_the_stuck_and_the_newest_entry_of_each_group_are_kept_in_their_order() -> None:
    found = newest_of([*entries("tp", stuck=9, last=8), *entries("0", stuck=40, last=900)], 16)
    assert len(found) == 16
    assert [(each.group, each.sequence) for each in found if each.group == "tp"] == [("tp", 8)]
    of_world = [each.sequence for each in found if each.group == "0"]
    assert of_world == [*range(33, 47), 900]
    assert [each.sequence for each in found if each.ranks] == [8, 900], "members once a group"


def test_a_short_list_is_kept_whole_and_an_empty_one_is_none() -> None:
    few = entries("0", stuck=3, last=4)
    assert [each.sequence for each in newest_of(few, 64)] == [1, 2, 3, 4]
    assert newest_of([], 64) == ()


def test_entries_of_another_recorder_are_not_compared_with_nccl() -> None:
    """A group may have two backends. Rank 1 gave no dump: what it entered over gloo is no place in NCCL's sequence."""
    waits = RankReport(0, Phase.STEP, collectives=tuple(entries("0", stuck=81, last=81)))
    over_gloo = tuple(entries("0", stuck=5, last=4, source="flight_recorder"))
    joined = join([waits, RankReport(1, Phase.STEP, collectives=over_gloo)])
    assert joined.of["0"].keys() == {0}
    (wait,) = wait_graph(joined, lambda _: False).waits
    assert (wait.sequence, wait.missing) == (81, ())
    both = RankReport(1, Phase.STEP, collectives=(*over_gloo, *entries("0", stuck=81, last=80)))
    (wait,) = wait_graph(join([waits, both]), lambda _: False).waits
    assert (wait.sequence, wait.missing) == (81, (1,))
