"""``muster job checkpoints``: the list of a job's checkpoints, with their pins."""

from pathlib import Path

from tests.cli.command import Command
from tests.recorded_server import Answer, serving

CHECKPOINT = {"step": 1, "status": "GOOD", "generation": "gen-1", "committed_at": None, "reason": None, "bytes": 0}


def test_a_requested_pin_is_distinguished_from_an_applied_one(tmp_path: Path) -> None:
    at = "2026-01-01T00:00:00Z"
    requested = {"pinned_at": at, "pin_applied_at": None}
    found = [CHECKPOINT | requested, CHECKPOINT | requested | {"step": 2, "pin_applied_at": at}]
    with serving(lambda _asked, _number: Answer(200, {"items": found, "next_cursor": None})) as server:
        shown = Command(tmp_path).run("job", "checkpoints", "job_1", url=server.url)
    assert shown.returncode == 0, shown.stderr
    rows = [" ".join(line.split()) for line in shown.stdout.splitlines()[1:]]
    assert rows == ["1 GOOD, pin requested gen-1 –", "2 GOOD, pinned gen-1 –"]
