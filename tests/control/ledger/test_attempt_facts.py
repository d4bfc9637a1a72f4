"""What programs report of themselves becomes time of their attempts: the reading of a checkpoint."""

from typing import Any

import pytest

from muster.domain.times import to_ms
from tests.control.ledger.played_hour import PlayedHour


def resumed(played: PlayedHour, **more: Any) -> None:
    """The newest attempt reports that it continues, from now on."""
    word: dict[str, object] = {"type": "resumed", "step": 40, "generation": "step-00000040/gen-1", **more}
    at_ms = to_ms(played.clock.now)
    played.offset = played.host.report_words(*played.attempts[-1], word, at_ms=at_ms, offset=played.offset).offset


def continued(played: PlayedHour, **more: Any) -> dict[str, float]:
    """Place at 4:10, report the resume at 4:14 and a step from 4:15 on. Return the seconds of the hour."""
    played.at(10)
    played.start()
    played.at(14)
    resumed(played, **more)
    played.at(25)
    played.step(41, 600.0)
    played.at(30)
    played.end()
    played.at(66)
    played.host.beat()
    assert played.keep() == 1
    return played.seconds()


def test_the_reading_of_a_checkpoint_is_time_of_its_own(played: PlayedHour) -> None:
    found = continued(played, restore_s=120.0)
    assert (found["restoring"], found["starting"], found["productive"]) == (120.0, 180.0, 600.0)
    assert sum(found.values()) == 7200


@pytest.mark.parametrize("more", [{}, {"restore_s": None}])
def test_an_older_program_reads_within_its_start(played: PlayedHour, more: dict[str, Any]) -> None:
    found = continued(played, **more)
    assert "restoring" not in found
    assert found["starting"] == 300.0


def test_a_reading_of_any_length_begins_with_its_attempt(played: PlayedHour) -> None:
    found = continued(played, restore_s=1e300)
    assert (found["restoring"], found["starting"]) == (240.0, 60.0)
    assert sum(found.values()) == 7200
