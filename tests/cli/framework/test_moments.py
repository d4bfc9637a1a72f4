"""Moments of options: a time, or a duration before now."""

from datetime import UTC, datetime, timedelta

import pytest
import typer

from muster.cli.framework.moments import moment_in


def test_a_time_or_a_duration_before_now_is_a_moment_in_utc() -> None:
    assert moment_in("2026-11-26T09:00:00+02:00", "--since") == "2026-11-26T07:00:00+00:00"
    before = datetime.now(UTC)
    assert before <= datetime.fromisoformat(moment_in("2d", "--since")) + timedelta(days=2) <= datetime.now(UTC)


@pytest.mark.parametrize("text", ["yesterday", "2 weeks", "", "0001-01-01T00:00:00+14:00"])
def test_another_text_is_refused_with_its_option(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no time: write"):
        moment_in(text, "--until")
