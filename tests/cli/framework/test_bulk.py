"""Changes by options: shown first, then made with the number that was shown, request by request."""

import json
from pathlib import Path
from typing import Any

import pytest

from muster.cli.framework.exits import Exit
from tests.cli.command import Command
from tests.recorded_server import Answer, Requested, serving


def item(name: str, why: str | None = None) -> dict[str, Any]:
    outcome, code = ("changed", None) if why is None else ("refused", "conflict")
    return {"id": f"node_{name}", "name": name, "outcome": outcome, "code": code, "why": why}


def answer(*items: dict[str, Any], left: int = 0, **more: Any) -> Answer:
    num_refused = sum(each["outcome"] == "refused" for each in items)
    return Answer(
        200,
        {
            "num_matched": len(items) + left,
            "num_changed": len(items) - num_refused,
            "num_refused": num_refused,
            "num_unchanged": 1,
            "num_left": left,
            "next_after": items[-1]["id"] if left else None,
            "items": list(items),
            **more,
        },
    )


CORDON = ("node", "cordon", "--rack", "r12", "--label", "zone=north", "--reason", "new switch")


def test_a_dry_run_shows_each_and_the_number_to_type(tmp_path: Path) -> None:
    with serving(lambda _requested, _number: answer(item("a"), item("b"), dry_run=True)) as server:
        said = Command(tmp_path).run(*CORDON, "--dry-run", url=server.url)
    assert said.returncode == 0, said.stderr
    (requested,) = server.requested
    assert requested.path == "/v1/nodes/cordon?dry_run=true"
    selector = {"rack": "r12", "label": ["zone=north"]}
    assert json.loads(requested.body) == {"selector": selector, "until": None, "reason": "new switch"}
    words = " ".join(said.stdout.split())
    assert "2 match and are to be cordoned; 1 more match and need no change." in words
    assert "node_a" in words
    assert "--expect 2" in words


def test_the_number_is_sent_and_the_next_request_continues(tmp_path: Path) -> None:
    def in_two(_requested: Requested, number: int) -> Answer:
        return answer(item("a"), left=1) if number == 0 else answer(item("b", why="it is being drained already"))

    with serving(in_two) as server:
        said = Command(tmp_path).run(*CORDON, "--expect", "2", url=server.url)
    first, second = (json.loads(requested.body) for requested in server.requested)
    assert (first["expected"], first["after"]) == (2, None)
    assert (second["expected"], second["after"]) == (1, "node_a")
    assert said.returncode == Exit.CONFLICT
    assert "1 are cordoned, 1 are refused and stay as they are." in said.stdout
    assert "it is being drained already" in " ".join(said.stdout.split())


def test_a_later_request_that_is_refused_leaves_the_number_that_was_changed(tmp_path: Path) -> None:
    def then_refused(_requested: Requested, number: int) -> Answer:
        refused = {"status": 409, "code": "conflict", "detail": "3 match now, and 1 were expected"}
        return answer(item("a"), left=1) if number == 0 else Answer(409, refused)

    with serving(then_refused) as server:
        said = Command(tmp_path).run(*CORDON, "--expect", "2", url=server.url)
    assert said.returncode == Exit.CONFLICT
    assert "1 are cordoned; then: 3 match now, and 1 were expected" in " ".join(said.stderr.split())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (CORDON, "--expect"),
        (("node", "drain", "--reason", "fans", "--expect", "1"), "NODE"),
        (("node", "drain", "node_a", "--rack", "r1", "--reason", "fans"), "NODE"),
        (("node", "drain", "--rack", "r1", "--wait", "--reason", "fans", "--expect", "1"), "--wait"),
        (("job", "cancel"), "JOB"),
        (("job", "cancel", "--tier", "spot", "--expect", "1"), "--reason"),
        (("job", "cancel", "--since", "yesterday", "--reason", "x", "--expect", "1"), "--since"),
    ],
)
def test_what_is_missing_or_too_much_is_named_and_nothing_is_sent(
    tmp_path: Path, words: tuple[str, ...], named: str
) -> None:
    with serving(lambda _requested, _number: answer()) as server:
        said = Command(tmp_path).run(*words, url=server.url)
    assert said.returncode == Exit.USAGE
    assert named in said.stderr
    assert server.requested == []


@pytest.mark.parametrize("verb", ["hold", "retry"])
def test_jobs_are_put_on_hold_and_tried_again_by_their_conditions(tmp_path: Path, verb: str) -> None:
    conditions = ("--label", "sweep=7", "--reason", "the file server is down")
    with serving(lambda _requested, _number: answer(item("a"), dry_run=True)) as server:
        said = Command(tmp_path).run("job", verb, *conditions, "--dry-run", url=server.url)
    assert said.returncode == 0, said.stderr
    (requested,) = server.requested
    assert requested.path == f"/v1/jobs/{verb}?dry_run=true"
    assert json.loads(requested.body)["selector"] == {"label": ["sweep=7"]}
    assert "--expect 1" in said.stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("job_1", "--expect", "1"), "--expect"),
        (("job_1", "--reason", "again"), "--reason"),
        (("--state", "failed", "--follow"), "--follow"),
        (("--state", "failed", "--wait"), "--wait"),
        ((), "JOB"),
    ],
)
def test_a_retry_is_of_one_job_or_of_a_selection(tmp_path: Path, words: tuple[str, ...], named: str) -> None:
    with serving(lambda _requested, _number: answer()) as server:
        said = Command(tmp_path).run("job", "retry", *words, url=server.url)
    assert (said.returncode, f"'{named}'" in said.stderr, server.requested) == (Exit.USAGE, True, [])


def test_jobs_are_selected_by_their_conditions(tmp_path: Path) -> None:
    conditions = ("--state", "held", "--tier", "spot", "--rack", "r1", "--name", "sweep", "--reason", "repaired")
    with serving(lambda _requested, _number: answer(item("a"))) as server:
        said = Command(tmp_path).run("job", "release", *conditions, "--expect", "1", url=server.url)
    assert said.returncode == 0, said.stderr
    (requested,) = server.requested
    assert requested.path == "/v1/jobs/release"
    assert json.loads(requested.body)["selector"] == {"state": ["HELD"], "name": "sweep", "tier": "spot", "rack": "r1"}
