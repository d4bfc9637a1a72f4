"""``muster incident`` as an operator reads it."""

import json
from typing import Any

import pytest

from muster.cli.framework.exits import Exit
from tests.cli.command import Command
from tests.recorded_server import Answer, Requested, problem, serving

INCIDENT: dict[str, Any] = {
    "id": "inc_01k00000000000000000000001",
    "kind": "quota_below_holdings",
    "state": "open",
    "subject_type": "gpu",
    "subject_id": "GPU-51300000-0000-4000-8000-000000000001",
    "summary": "GPU-51300000-0000-4000-8000-000000000001 could not be burnt in, tried 3 times: " + "no torch " * 20,
    "details": {"tries": 3},
    "closes": None,
    "opened_at": "2026-01-01T00:00:00Z",
    "closed_at": None,
    "closed_by": None,
    "close_reason": None,
}
CLOSED = INCIDENT | {
    "state": "closed",
    "closed_at": "2026-01-02T00:00:00Z",
    "closed_by": "ann",
    "close_reason": "fixed",
}
RULED = INCIDENT | {"closes": "Close its scopes with `muster breaker close`."}


def answered(requested: Requested, _number: int) -> Answer:
    if requested.method == "POST":
        return Answer(200, CLOSED)
    if requested.path.endswith("000000001"):
        return Answer(200, INCIDENT)
    return Answer(200, {"items": [INCIDENT, CLOSED], "next_cursor": None})


def test_a_list_fits_80_columns_and_requests_what_was_wanted(muster: Command) -> None:
    with serving(answered) as server:
        shown = muster.run("incident", "list", url=server.url, COLUMNS="80")
        told = muster.run(
            "incident", "list", "--state", "all", "--kind", "judge_failed", "--about", "job_1", "--json", url=server.url
        )
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert len(lines) == 3, "a header and two rows, none of them broken"
    assert max(len(line.rstrip()) for line in lines) <= 80
    for word in (INCIDENT["id"], "quota_below_holdings", "GPU-51300000..0001", "closed"):
        assert word in shown.stdout
    assert json.loads(told.stdout) == [INCIDENT, CLOSED]
    assert [asked.path for asked in server.requested] == [
        "/v1/incidents?state=open&limit=20",
        "/v1/incidents?kind=judge_failed&subject=job_1&limit=20",
    ]


def test_no_incident_is_stated_in_words(muster: Command) -> None:
    with serving(lambda _asked, _number: Answer(200, {"items": [], "next_cursor": None})) as server:
        assert muster.run("incident", "list", url=server.url).stdout == "No incident is open.\n"


@pytest.mark.parametrize(
    ("document", "words"),
    [(INCIDENT, "muster incident close inc_"), (RULED, "muster breaker close"), (CLOSED, "closed by ann")],
)
def test_one_is_shown_with_the_way_to_close_it(muster: Command, document: dict[str, Any], words: str) -> None:
    with serving(lambda _asked, _number: Answer(200, document)) as server:
        shown = muster.run("incident", "show", INCIDENT["id"], url=server.url)
    assert words in shown.stdout
    assert INCIDENT["subject_id"] in shown.stdout
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80


def test_one_is_closed_with_a_reason_or_refused_with_the_way(muster: Command) -> None:
    with serving(answered) as server:
        closed = muster.run("incident", "close", INCIDENT["id"], "--reason", "fixed", url=server.url)
    assert closed.stdout == f"{INCIDENT['id']} is closed\n"
    assert json.loads(server.requested[-1].body) == {"reason": "fixed"}
    with serving(lambda _asked, _number: problem(409, "conflict", suggestion="Close its scopes.")) as server:
        refused = muster.run("incident", "close", INCIDENT["id"], "--reason", "fixed", url=server.url)
    assert (refused.returncode, "Close its scopes." in refused.stderr) == (Exit.CONFLICT, True)
    assert muster.run("incident", "close", INCIDENT["id"]).returncode == Exit.USAGE
