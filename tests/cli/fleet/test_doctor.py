"""What ``muster doctor`` says of a fleet: short lines, and none that changes the exit code."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from local.servants import STORE_KEY, STORE_URL
from muster.cli.framework.exits import Exit
from tests.cli.command import Command
from tests.recorded_server import Answer, Requested, problem, serving
from tests.store.stores import our_store, ours

WELL = """\
muster_nodes{contact="LIVE"} 4.0
muster_gpus{standing="HEALTHY"} 30.0
muster_gpus{standing="PROBATION"} 2.0
muster_outbox_pending 1.0
muster_outbox_oldest_seconds 0.4
"""
ILL = """\
muster_nodes{contact="LIVE"} 3.0
muster_nodes{contact="LOST"} 1.0
muster_gpus{standing="HEALTHY"} 29.0
muster_gpus{standing="QUARANTINED"} 2.0
muster_gpus{standing="UNPROVEN"} 1.0
muster_incidents_open{kind="judge_failed"} 2.0
muster_incidents_open{kind="breaker_open"} 1.0
muster_outbox_pending 3.0
muster_outbox_oldest_seconds 75.0
"""


INCIDENTS = [
    {
        "kind": "job_on_hold",
        "summary": "job job_1 is HELD: no image",
        "to_do": "`muster job release job_1`.",
        "closes": "",
    },
    {"kind": "judge_failed", "summary": "GPU-1 cannot be judged", "closes": "It is judged again."},
    {"kind": "storage", "summary": "/ckpt is full", "closes": None},
]
"""As this release sends one, and as 0.1.0 does."""


def loop(name: str, age_s: float | None, *, is_stalled: bool = False) -> dict[str, object]:
    return {"name": name, "started_by": f"muster {name}", "age_s": age_s, "is_stalled": is_stalled}


def reported(
    folder: Path,
    figures: Answer,
    *,
    is_open: bool = False,
    loops: Sequence[object] = (),
    code: Exit = Exit.OK,
) -> dict[str, str]:
    """Name → verdict and words of a doctor that ends with ``code``."""

    def answered(requested: Requested, _number: int) -> Answer:
        if requested.path == "/readyz":
            return Answer(200, {"status": "ready", "version": "1"})
        if requested.path == "/metrics":
            return figures
        if requested.path == "/v1/system" and loops:
            return Answer(200, {"loops": list(loops)})
        if requested.path.startswith("/v1/incidents"):
            return Answer(200, {"items": INCIDENTS if is_open else [], "next_cursor": None})
        scope = {"scope": "fleet_window", "is_open": is_open}
        breakers = {"items": [{"name": "quarantine", "scopes": [scope]}], "next_cursor": None}
        return Answer(200, {"name": "ann", "role": "operator"} if requested.path == "/v1/whoami" else breakers)

    with serving(answered) as server:
        answer = Command(folder).run("doctor", url=server.url, COLUMNS="200")
    assert answer.returncode == code, answer.stdout
    lines = [line.split(maxsplit=1) for line in answer.stdout.splitlines()]
    return {words[:14].strip(): f"{verdict} {words[14:].strip()}" for verdict, words in lines}


def test_a_fleet_that_is_well_is_stated_to_be(tmp_path: Path) -> None:
    lines = reported(tmp_path, Answer(raw=WELL.encode()))
    assert lines["hosts"] == "ok 4, all LIVE"
    assert lines["GPUs"] == "ok 2 of 32 are not HEALTHY (2 PROBATION)"
    assert (lines["incidents"], lines["breaker"]) == ("ok none is open", "ok closed")
    assert lines["outbox"] == "ok 1 messages wait, the oldest for 0 s"


def test_a_setting_that_cannot_be_read_is_a_finding_and_not_the_end(tmp_path: Path) -> None:
    answer = Command(tmp_path).run("doctor", MUSTER_NO_SUCH_SETTING="1", COLUMNS="200")
    assert answer.returncode == Exit.FAILED
    assert "fail  settings" in answer.stdout
    assert "torch" in answer.stdout


def test_what_wants_a_person_is_a_warning_with_where_to_check(tmp_path: Path) -> None:
    lines = reported(tmp_path, Answer(raw=ILL.encode()), is_open=True)
    assert lines["hosts"] == "warn 1 of 4 are not LIVE (1 LOST); see `muster node list`"
    assert lines["GPUs"] == "warn 3 of 32 are not HEALTHY (2 QUARANTINED, 1 UNPROVEN); see `muster gpu list`"
    assert lines["incidents"] == "warn 3 open (1 breaker_open, 2 judge_failed); see `muster incident list`"
    assert lines["job on hold"] == "warn job job_1 is HELD: no image. `muster job release job_1`."
    assert lines["judge failed"] == "warn GPU-1 cannot be judged. It is judged again."
    assert lines["storage"] == "warn /ckpt is full. Close it once it is handled."
    assert lines["breaker"] == "warn open in fleet_window; see `muster breaker list`"
    assert lines["outbox"] == "warn 3 messages wait, the oldest for 75 s"


def test_a_loop_that_stands_still_is_a_failure(tmp_path: Path) -> None:
    seen = reported(tmp_path, Answer(raw=b""), loops=[loop("api", 0.2), loop("scheduler", 0.0)])
    assert seen["loops"] == "ok each advances"
    unseen = reported(tmp_path, Answer(raw=b""), loops=[loop("api", 0.2), loop("scheduler", None)])
    assert unseen["loops"] == "warn never reported: scheduler; start: `muster scheduler`"
    loops = [loop("scheduler", 61.2, is_stalled=True), loop("api", 0.2)]
    stalled = reported(tmp_path, Answer(raw=b""), loops=loops, code=Exit.FAILED)
    assert stalled["loops"] == "fail not advanced: scheduler for 61 s; start again: `muster scheduler`"
    assert reported(tmp_path, Answer(raw=b""))["loops"] == "ok this server reports none"


def line_of(what: str, folder: Path, code: Exit, **variables: object) -> str:
    """What a doctor without a control plane says of one thing."""
    given = {name: str(value) for name, value in variables.items()}
    answer = Command(folder).run("doctor", COLUMNS="300", **given)
    assert answer.returncode == code, answer.stdout
    return "".join(line for line in answer.stdout.splitlines() if what in line)


def content_store(folder: Path, code: Exit, **variables: object) -> str:
    return line_of("content store", folder, code, **variables)


def test_a_host_shows_where_the_packages_of_environments_come_from(tmp_path: Path) -> None:
    assert line_of("packages", tmp_path, Exit.OK) == ""
    index = {"MUSTER_PACKAGE_INDEX": "https://pypi.example/simple"}
    assert "environments are built from https://pypi.example/simple" in line_of("packages", tmp_path, Exit.OK, **index)
    wheels = {"MUSTER_WHEELHOUSE": tmp_path / "wheels"}
    missing = line_of("packages", tmp_path, Exit.FAILED, **index, **wheels)
    assert f"the wheelhouse {tmp_path}/wheels is no folder that can be read" in missing
    (tmp_path / "wheels").mkdir()
    both = line_of("packages", tmp_path, Exit.OK, **index, **wheels)
    assert f"https://pypi.example/simple and the wheels in {tmp_path}/wheels" in both
    certificates = {"MUSTER_PACKAGE_INDEX_CA": tmp_path / "ca.pem"}
    assert "of the package index are no file" in line_of("packages", tmp_path, Exit.FAILED, **index, **certificates)


def test_the_content_store_is_checked_where_this_is_the_control_plane(tmp_path: Path) -> None:
    assert content_store(tmp_path, Exit.OK) == ""
    database = {"MUSTER_DATABASE_URL": "postgresql://127.0.0.1/muster"}
    assert "no content store is configured" in content_store(tmp_path, Exit.OK, **database)
    with ours(tmp_path / "store") as store:
        given = {"MUSTER_STORE_URL": store.url, "MUSTER_STORE_KEY_FILE": store.key_file}
        assert f"{store.url}, bucket muster" in content_store(tmp_path, Exit.OK, **given)
        assert "NoSuchBucket" in content_store(tmp_path, Exit.FAILED, **given, MUSTER_STORE_BUCKET="other")
        other = our_store(tmp_path / "other").key_file
        wrong = content_store(tmp_path, Exit.FAILED, **{**given, "MUSTER_STORE_KEY_FILE": other})
        assert "InvalidAccessKeyId" in wrong
        assert "compares MUSTER_STORE_KEY_FILE" in wrong
        partly = content_store(tmp_path, Exit.FAILED, MUSTER_STORE_URL=store.url)
        assert "come together" in partly
        (tmp_path / ".muster").mkdir()
        (tmp_path / ".muster" / STORE_URL).write_text(store.url)
        (tmp_path / ".muster" / STORE_KEY).symlink_to(store.key_file)
        assert f"{store.url}, bucket muster" in content_store(tmp_path, Exit.OK)
        store.stop()
        store.start(MUSTER_STORE_RESERVE_BYTES=str(1 << 60))
        assert "uploads are refused" in content_store(tmp_path, Exit.FAILED, **given)
    assert "does not answer" in content_store(tmp_path, Exit.FAILED, **given)


def test_an_empty_fleet_is_no_fault(tmp_path: Path) -> None:
    lines = reported(tmp_path, Answer(raw=b""))
    assert (lines["hosts"], lines["GPUs"]) == ("ok none are enrolled", "ok none are enrolled")
    assert lines["outbox"] == "ok no message waits"


@pytest.mark.parametrize(
    ("figures", "is_reported"), [(problem(403, "forbidden"), False), (Answer(raw=b"<html>"), True)]
)
def test_a_key_that_may_not_check_is_reported_nothing_and_what_cannot_be_read_is_stated(
    tmp_path: Path, figures: Answer, *, is_reported: bool
) -> None:
    lines = reported(tmp_path, figures)
    assert "hosts" not in lines
    assert ("fleet" in lines) == is_reported
