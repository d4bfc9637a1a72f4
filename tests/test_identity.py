"""Ids: of one form, sortable by birth, never the same twice."""

import re
from concurrent.futures import ThreadPoolExecutor

from muster.identity import new_id


def test_an_id_names_its_noun_its_birth_and_its_random() -> None:
    assert re.fullmatch(r"job_[0-9a-hjkmnp-tv-z]{26}", new_id("job"))
    assert new_id("job", now_ms=0)[4:14] == "0000000000"
    assert new_id("job", now_ms=(1 << 48) - 1)[4:14] == "7zzzzzzzzz"
    assert new_id("job", now_ms=1_795_000_000_123)[4:14] == "01m7q5cqkv"


def test_ids_sort_by_the_millisecond_of_their_birth() -> None:
    moments = [0, 31, 32, 1_023, 1_024, 1_795_000_000_123, 1_795_000_000_124, (1 << 48) - 1]
    ids = [new_id("event", now_ms=moment) for moment in moments]
    assert ids == sorted(ids)


def test_no_two_are_the_same_whichever_thread_requests() -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda _: new_id("job", now_ms=1), range(20_000)))
    assert len(set(ids)) == len(ids)
    assert {letter for one in ids for letter in one[14:]} == set("0123456789abcdefghjkmnpqrstvwxyz")
