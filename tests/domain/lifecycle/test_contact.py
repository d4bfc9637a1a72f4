"""When a host beats next: near the interval, never alike for a whole fleet, always alike for one beat."""

from collections import Counter

import pytest
from pydantic import ValidationError

from muster.domain.lifecycle.contact import MAX_PAST_BOOTS, LastContact, accept_heartbeat, contact_after, next_beat_s
from muster.domain.policy.document import ContactPolicy
from muster.domain.states import Contact


def test_a_fleet_that_began_together_drifts_apart() -> None:
    beats = [next_beat_s(10.0, 0.1, f"node_{number}", 7) for number in range(10_000)]
    assert all(9.0 <= beat <= 11.0 for beat in beats)
    tenths = Counter(int((beat - 9.0) / 0.2) for beat in beats)
    assert len(tenths) == 10
    assert all(800 <= count <= 1200 for count in tenths.values()), "as even as ten thousand hosts can be"


def test_one_host_is_not_always_late() -> None:
    beats = [next_beat_s(10.0, 0.1, "node_1", seq) for seq in range(1_000)]
    assert sum(beats) / len(beats) == pytest.approx(10.0, abs=0.1)


def test_one_beat_is_always_answered_alike_and_without_jitter_at_the_interval() -> None:
    assert next_beat_s(10.0, 0.1, "node_1", 7) == next_beat_s(10.0, 0.1, "node_1", 7)
    assert next_beat_s(10.0, 0.0, "node_1", 7) == 10.0


def test_the_latest_beat_comes_before_the_silence() -> None:
    ContactPolicy(heartbeat_s=10.0, heartbeat_jitter_fraction=0.1, silent_after_s=12.0)
    with pytest.raises(ValidationError, match="heartbeat_jitter_fraction"):
        ContactPolicy(heartbeat_s=10.0, heartbeat_jitter_fraction=0.2, silent_after_s=12.0)


@pytest.mark.parametrize(
    ("silence_ms", "contact"),
    [(29_999, Contact.LIVE), (30_000, Contact.SILENT), (89_999, Contact.SILENT), (90_000, Contact.LOST)],
)
def test_a_limit_of_silence_is_reached_at_its_millisecond(silence_ms: int, contact: Contact) -> None:
    assert contact_after(silence_ms, silent_ms=30_000, lost_ms=90_000) is contact


def test_a_heartbeat_that_comes_again_is_stale_and_the_next_one_is_not() -> None:
    before = LastContact("boot", 0, 7)
    assert accept_heartbeat(before, "boot", 7, 10) is None
    assert accept_heartbeat(before, "boot", 8, 10) == LastContact("boot", 10, 8)


def test_so_many_past_boots_are_never_accepted_again() -> None:
    contact = LastContact("boot-0", 0)
    for number in range(1, MAX_PAST_BOOTS + 2):
        after = accept_heartbeat(contact, f"boot-{number}", 0, number)
        assert after is not None
        contact = after
    assert len(contact.past_boots) == MAX_PAST_BOOTS
    assert accept_heartbeat(contact, "boot-1", 99, 99) is None
    assert accept_heartbeat(contact, "boot-0", 99, 99) is not None, "it was forgotten as the oldest"
