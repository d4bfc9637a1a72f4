"""Ctrl-C ends a list of events: as asked for where it follows, else as any command."""

import pytest

from muster.cli.fleet import events
from muster.cli.framework.exits import Exit


def interrupted(**_: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_ends_what_follows_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "open_client", interrupted)
    assert events.list_events(follow=True) == Exit.OK


def test_ctrl_c_interrupts_a_list_that_does_not_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "open_client", interrupted)
    with pytest.raises(KeyboardInterrupt):
        events.list_events()
