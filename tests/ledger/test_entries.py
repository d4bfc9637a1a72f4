"""Corrections: signed differences between what was closed and what is known since."""

import pytest
from hypothesis import given

from ledger.accounts import Account
from ledger.books import book_of
from ledger.entries import Entry, Heading, UnbalancedError, corrections, in_old_places, total
from ledger.facts import Facts, Gpu
from tests.ledger import strategies

HEADING = Heading("node_a", Account.FREE, "", "", (), "h100", "c1")


def with_gpus_of(facts: Facts, other: Facts) -> Facts:
    """Return other facts about GPUs that were enrolled for the same times: late reports change no enrolment."""
    kept = {one.gpu_uuid: one for one in facts.gpus}
    changed = {one.gpu_uuid: one for one in other.gpus}
    gpus = tuple(_enrolled_as(one, changed.get(uuid, one)) for uuid, one in kept.items())
    return Facts(facts.start_ms, facts.end_ms, gpus, other.nodes, other.attempts, other.waits)


def _enrolled_as(one: Gpu, changed: Gpu) -> Gpu:
    return Gpu(
        one.gpu_uuid,
        changed.node_id,
        changed.model,
        changed.cohort_key,
        one.from_ms,
        one.until_ms,
        changed.moves,
        uses=changed.uses,
    )


@given(strategies.facts, strategies.facts, strategies.facts)
def test_corrections_are_zero_for_each_gpu_and_lead_to_the_new_entries(one: Facts, two: Facts, three: Facts) -> None:
    first = with_gpus_of(one, one)
    books = [book_of(facts).entries for facts in (first, with_gpus_of(first, two), with_gpus_of(first, three))]
    stored: list[Entry] = list(books[0])
    for book in books[1:]:
        changed = corrections(stored, book)
        assert corrections(reversed(stored), reversed(book)) == changed
        of_gpu: dict[str, int] = {}
        for entry in changed:
            for uuid, num_ms in zip(entry.gpus, entry.gpu_ms, strict=True):
                of_gpu[uuid] = of_gpu.get(uuid, 0) + num_ms
        assert set(of_gpu.values()) <= {0}
        stored.extend(changed)
        assert total(stored) == total(book)
        assert not corrections(stored, book), "the same report again changes nothing"


def test_a_correction_names_what_had_the_time_and_what_has_it_now() -> None:
    lost = HEADING._replace(account=Account.LOST, attempt_id="attempt_a", evidence=("verdict_1",))
    old = [Entry(HEADING, ("GPU-0", "GPU-1"), (100, 100))]
    new = [Entry(HEADING, ("GPU-0", "GPU-1"), (100, 40)), Entry(lost, ("GPU-1",), (60,))]
    assert corrections(old, new) == [Entry(HEADING, ("GPU-1",), (-60,)), Entry(lost, ("GPU-1",), (60,))]


def test_a_correction_that_would_change_a_gpus_time_is_refused() -> None:
    old, new = [Entry(HEADING, ("GPU-0",), (100,))], [Entry(HEADING, ("GPU-0",), (99,))]
    with pytest.raises(UnbalancedError, match="GPU-0 by -1 ms"):
        corrections(old, new)


def test_a_corrected_hour_keeps_the_places_of_its_gpus() -> None:
    here, there = HEADING._replace(rack="r1"), HEADING._replace(node_id="node_b", rack="r2", cohort_key="c2")
    lost = there._replace(account=Account.LOST)
    old = [Entry(here, ("GPU-0", "GPU-1"), (100, 100))]
    new = [Entry(there, ("GPU-0", "GPU-1", "GPU-2"), (100, 40, 7)), Entry(lost, ("GPU-1",), (60,))]
    assert in_old_places(old, new) == [
        Entry(here, ("GPU-0", "GPU-1"), (100, 40)),
        Entry(there, ("GPU-2",), (7,)),
        Entry(here._replace(account=Account.LOST), ("GPU-1",), (60,)),
    ]
