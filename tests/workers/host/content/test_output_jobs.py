"""Jobs whose outputs are collected: real supervisors and collecting processes, a real store, the real API."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from control.policy.policies import ACTIVATE, store_policy
from muster.client.host import HostClient
from muster.client.key_file import KeyFile
from muster.domain.ids import JobId
from muster.domain.policy.content import ContentPolicy
from muster.domain.policy.document import Policy
from muster.domain.states import JobState
from tests.fleet_factory import OPERATOR
from tests.host_case import HostCase
from tests.waiting import wait_until
from workers.host.content.keeping import BundleKeeper
from workers.host.content.places import OUTPUTS, SET_ASIDE, WORK
from workers.host.outputs.keeper import OutputKeeper

from .bundle_case import write_folder
from .collected import collect, keeper_of, waiting_in
from .stored_outputs import outputs_of, reports_of
from .stores import S3

WRITES = b"""
import os, pathlib, sys
out = pathlib.Path(os.environ["MUSTER_OUTPUT_DIR"])
(out / "sub").mkdir()
(out / "model.pt").write_text("weights")
(out / "sub" / "tool").write_text("#!/bin/sh")
(out / "newest").symlink_to("model.pt")
(out / "of-the-host").symlink_to("/etc/passwd")
os.mkfifo(out / "pipe")
(out / "two\\nlines").write_text("x")
logs = pathlib.Path("logs"); logs.mkdir()
(logs / "a.csv").write_text("1,2")
(logs / "b.txt").write_text("not named")
pathlib.Path("scratch").write_text("x" * 1000)
sys.exit(int(sys.argv[1]))
"""
STORED = {"model.pt": b"weights", "sub/tool": b"#!/bin/sh", "newest": b"model.pt", "logs/a.csv": b"1,2"}


@pytest.fixture
def digest(host: HostCase, s3: S3, tmp_path: Path) -> str:
    return s3.put(host.fleet, write_folder(tmp_path / "own", **{"main.py": WRITES}, data__words=b"of the data"))


def submit(host: HostCase, digest: str, *words: str, **spec: Any) -> JobId:
    program = {"launcher": "command", "argv": [sys.executable, "main.py", *words], "bundle": digest}
    job_id = host.fleet.submit(program=program, **{"outputs": ["logs/*.csv"], **spec})
    host.fleet.cycle()
    return job_id


def only(found: dict[tuple[str, int | None], dict[str, bytes]]) -> dict[str, bytes]:
    [files] = found.values()
    return files


@pytest.mark.parametrize("code", [0, 3])
def test_outputs_are_stored_after_any_end_and_nothing_waits_for_them(
    host: HostCase, s3: S3, digest: str, code: int
) -> None:
    job_id = submit(host, digest, str(code), restart={"max_restarts": 0})
    assert host.run(job_id) is (JobState.FAILED if code else JobState.SUCCEEDED), host.log(job_id)
    host.run_until_clean()
    [attempt] = host.fleet.attempts(job_id)
    assert waiting_in(host) == [attempt.attempt.id]
    assert list((host.state_dir / WORK).iterdir()) == []
    assert list((host.state_dir / OUTPUTS).iterdir()) == []
    assert outputs_of(host.fleet, s3, job_id) == {}, "GPUs are free and the folder removed before any upload"
    collect(host)
    assert only(outputs_of(host.fleet, s3, job_id)) == STORED
    [report] = reports_of(host.fleet, job_id)
    assert (report["found"], report["num_paths"], report["step"]) == ("left_out", 3, None)
    assert sorted(report["paths"]) == ["of-the-host", "pipe", "two\\nlines"]


def test_a_cancelled_job_leaves_what_it_has(host: HostCase, s3: S3) -> None:
    code = (
        "import os, pathlib, signal\n"
        "out = pathlib.Path(os.environ['MUSTER_OUTPUT_DIR']); (out / 'part').write_text('so far')\n"
        "signal.pause()"
    )
    job_id = host.submit(code)
    host.run_until_started(job_id)
    wait_until(lambda: any((host.state_dir / OUTPUTS).glob("*/part")))
    host.fleet.cancel(job_id)
    host.run_until_clean()
    collect(host)
    assert only(outputs_of(host.fleet, s3, job_id)) == {"part": b"so far"}


def test_a_job_without_outputs_leaves_nothing(host: HostCase, s3: S3) -> None:
    job_id = host.submit("import os; print(os.listdir(os.environ['MUSTER_OUTPUT_DIR']))")
    assert host.run(job_id) is JobState.SUCCEEDED, host.log(job_id)
    host.run_until_clean()
    assert waiting_in(host) == []
    assert host.bundles is not None
    with closing(HostClient(host.bundles.api_url, KeyFile(host.bundles.key_file))) as client:
        BundleKeeper(host.state_dir, client).turn()
    assert list((host.state_dir / OUTPUTS).iterdir()) == []


def test_patterns_count_from_the_tenants_own_folder(host: HostCase, s3: S3, tmp_path: Path) -> None:
    own = write_folder(tmp_path / "tenant", models__a=b"1", data__b=b"2")
    code = "import pathlib; pathlib.Path('models/c').write_text('3')"
    program = {"launcher": "command", "argv": [sys.executable, "-c", code], "working_dir": str(own)}
    job_id = host.fleet.submit(program=program, outputs=["models/**", "missing/*"])
    host.fleet.cycle()
    assert host.run(job_id) is JobState.SUCCEEDED, host.log(job_id)
    host.run_until_clean()
    collect(host)
    assert only(outputs_of(host.fleet, s3, job_id)) == {"models/a": b"1", "models/c": b"3"}
    [report] = reports_of(host.fleet, job_id)
    assert report["words"] == "missing/*: no file of the working folder fits this pattern"
    assert (own / "data" / "b").exists()


def test_patterns_without_a_folder_are_reported(host: HostCase) -> None:
    job_id = host.submit("print(1)", outputs=["*.pt"])
    assert host.run(job_id) is JobState.SUCCEEDED, host.log(job_id)
    host.run_until_clean()
    collect(host)
    [report] = reports_of(host.fleet, job_id)
    assert "write to MUSTER_OUTPUT_DIR" in report["words"]


def test_the_policy_bounds_what_is_collected(host: HostCase, s3: S3, digest: str) -> None:
    with host.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(content=ContentPolicy(outputs_bytes=15)), reason="a test")
    job_id = submit(host, digest, "0")
    assert host.run(job_id) is JobState.SUCCEEDED, host.log(job_id)
    host.run_until_clean()
    collect(host)
    assert set(only(outputs_of(host.fleet, s3, job_id))) == STORED.keys() - {"sub/tool"}
    [report] = reports_of(host.fleet, job_id)
    assert "sub/tool" in report["paths"]


def processes_of(keeper: OutputKeeper) -> list[psutil.Process]:
    return [psutil.Process(one.pid) for one in keeper._running.values()]


def test_a_killed_collection_is_done_again_and_ends_with_its_keeper(host: HostCase, s3: S3, digest: str) -> None:
    job_id = submit(host, digest, "0")
    host.run(job_id)
    host.run_until_clean()
    with keeper_of(host) as keeper:
        keeper.turn()
        [process] = processes_of(keeper)
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE)
        keeper.turn()
        assert processes_of(keeper) == [], "after a failure it pauses"
    with keeper_of(host) as keeper:
        keeper.turn()
        [running] = keeper._running.values()
        assert running.stdin is not None
        running.stdin.close()
        assert running.wait(30) != 0
    collect(host)
    assert only(outputs_of(host.fleet, s3, job_id)) == STORED
    assert len(reports_of(host.fleet, job_id)) == 1, "a report that comes again has no effect"


def test_what_waits_too_long_is_dropped_for_the_disk(host: HostCase, s3: S3, digest: str) -> None:
    job_ids = [submit(host, digest, "0"), submit(host, digest, "0")]
    for job_id in job_ids:
        host.run(job_id)
    host.run_until_clean()
    for name in waiting_in(host):
        (host.state_dir / SET_ASIDE / name / "num_bytes").write_text("600")
    collect(host, most_bytes=1000)
    found = [outputs_of(host.fleet, s3, job_id) for job_id in job_ids]
    assert sorted(len(files) for files in found) == [0, 1]
    dropped = job_ids[[len(files) for files in found].index(0)]
    [report] = reports_of(host.fleet, dropped)
    assert report["found"] == "failed"
    assert "more outputs wait on this host" in report["words"]


CHECKPOINTS = """
import json, os, pathlib, socket
channel = socket.socket(socket.AF_UNIX); channel.connect(os.environ["MUSTER_TRAIN_SOCKET"])
def say(**message): channel.sendall(json.dumps(message).encode() + b"\\n")
fence = os.environ["MUSTER_FENCE"]
say(type="hello", rank=0, world_size=1, pid=os.getpid())
def commit(step):
    say(type="checkpoint", step=step, generation=f"step-{step:08d}/gen-{fence}", status="committed", bytes=10,
        at_unix_ms=1_800_000_000_000)
for name in ("one", "two", "three"):
    os.mkfifo(name)
def wait_for(name):
    pathlib.Path(name).read_bytes()
model = pathlib.Path("model.pt")
model.write_text("of step 1"); commit(1); wait_for("one")
model.write_text("of step 2"); commit(2); wait_for("two")
model.write_text("of step 3"); commit(3); commit(4); wait_for("three")
model.write_text("of the end")
pathlib.Path(os.environ["MUSTER_OUTPUT_DIR"], "report").write_text("done")
"""


def let_go(gate: Path) -> None:
    """Let a program continue that waits at the pipe, or will."""
    os.close(os.open(gate, os.O_WRONLY))


def test_a_checkpoint_has_the_files_of_its_step(host: HostCase, s3: S3, tmp_path: Path) -> None:
    digest = s3.put(host.fleet, write_folder(tmp_path / "own", **{"main.py": CHECKPOINTS.encode()}))
    job_id = submit(host, digest, outputs=["model.pt"])
    host.run_until_started(job_id)
    attempt_id = host.fleet.attempts(job_id)[0].attempt.id
    work = host.state_dir / WORK / attempt_id

    def stored(*steps: int | None) -> bool:
        found = {step for _, step in outputs_of(host.fleet, s3, job_id)}
        return not found.isdisjoint(steps) and waiting_in(host) == []

    with keeper_of(host) as keeper:

        def turn_until(is_so: Callable[[], bool]) -> None:
            def turned() -> bool:
                keeper.turn()
                return is_so()

            host.turn_until(turned)

        turn_until(lambda: stored(1))
        let_go(work / "one")
        turn_until(lambda: stored(2))
        let_go(work / "two")
        turn_until(lambda: stored(3, 4))
        let_go(work / "three")
        turn_until(lambda: stored(None))
    found = outputs_of(host.fleet, s3, job_id)
    [skipped] = {1, 2, 3, 4, None} - {step for _, step in found}
    models = {step: files["model.pt"] for (_, step), files in found.items()}
    assert models == {
        step: words
        for step, words in {
            1: b"of step 1",
            2: b"of step 2",
            3: b"of step 3",
            4: b"of step 3",
            None: b"of the end",
        }.items()
        if step != skipped
    }
    assert found[attempt_id, None]["report"] == b"done"
    [report] = reports_of(host.fleet, job_id)
    assert (report["found"], report["step"]) == ("skipped", skipped)


def test_a_copy_that_was_broken_off_is_not_used(host: HostCase, s3: S3, tmp_path: Path) -> None:
    digest = s3.put(host.fleet, write_folder(tmp_path / "own", **{"main.py": CHECKPOINTS.encode()}))
    job_id = submit(host, digest, outputs=["model.pt"])
    host.run_until_started(job_id)
    attempt_id = host.fleet.attempts(job_id)[0].attempt.id
    host.turn_until((host.state_dir / "attempts" / attempt_id / "checkpoints.jsonl").exists)
    with keeper_of(host) as keeper:
        keeper.turn()
        assert waiting_in(host) == [f"{attempt_id}.step-1"]
        for process in processes_of(keeper):
            process.kill()
    with keeper_of(host) as keeper:
        keeper.turn()
        assert waiting_in(host) == []
    host.fleet.cancel(job_id)
    host.run_until_clean()
    collect(host)
    assert outputs_of(host.fleet, s3, job_id).keys() == {(attempt_id, None)}
