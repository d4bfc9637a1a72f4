"""Every command of a tenant and an operator against the real stack, as they would type it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from control.attempts.attempts import lock_job, step_job
from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet.fleet_map import fleet_map
from control.incidents.keeping import KEEP
from control.policy.policies import active_policy
from muster.cli.framework.exits import Exit
from muster.client.rest import RestClient
from muster.domain.ids import JobId
from muster.domain.lifecycle.job import HoldRequested
from muster.domain.principals import system_principal
from muster.domain.states import Standing
from tests.fleet_factory import OPERATOR
from tests.stack.harness import Stack, own_folder, running_stack
from tests.waiting import wait_until
from tests.warm_python import WarmPython

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SLEEPS = "import time; print('up', flush=True); time.sleep(900)"


class Shell:
    """A folder with a local stack's profile in it, in which ``muster`` is typed."""

    def __init__(self, stack: Stack, warm: WarmPython) -> None:
        self.stack = stack
        self.warm = warm
        self.folder = stack.folder / "shell"
        (self.folder / ".muster").mkdir(parents=True)
        profile = {
            "api_url": f"http://127.0.0.1:{stack.port}",
            "key_file": str(stack.identities.tenant_key_file),
            "operator_key_file": str(stack.identities.operator_key_file),
        }
        (self.folder / ".muster" / "cli.json").write_text(json.dumps(profile))
        (self.folder / ".muster" / "database.url").write_text(stack.postgres.url())

    def start(
        self, *words: str, environment: dict[str, str] | None = None, python: Path | str = sys.executable
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [python, "-m", "muster", *words],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "COLUMNS": "80", **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def type(self, *words: str, code: Exit = Exit.OK, environment: dict[str, str] | None = None) -> str:
        """Return its output, on either stream; with exactly that exit code and never a trace."""
        process = self.start(*words, environment=environment, python=self.warm.path)
        said = "".join(process.communicate(timeout=180))
        assert "Traceback" not in said
        assert process.returncode == code, said
        return said

    def code(self, *words: str, environment: dict[str, str]) -> int:
        with self.start(*words, environment=environment, python=self.warm.path) as process:
            process.communicate(timeout=180)
        return process.returncode

    def submit(self, *words: str) -> str:
        return str(json.loads(self.type("job", "submit", "--json", *words))["id"])


@pytest.fixture(scope="module")
def shell(
    server_folder: Path, warm_muster: WarmPython, warm_stack: WarmPython, warm_python: WarmPython
) -> Iterator[Shell]:
    with running_stack(own_folder(server_folder, "walk"), warm_stack, warm_python) as stack:
        yield Shell(stack, warm_muster)


def test_a_submission_that_is_followed_prints_and_ends_with_its_job(shell: Shell) -> None:
    said = shell.type("job", "submit", "--follow", "--command", "--", sys.executable, "-c", "print('hello')")
    assert "hello" in said
    assert "SUCCEEDED" in said
    once = ("--max-restarts", "0", "--command", "--", sys.executable, "-c", "raise SystemExit(3)")
    failed = shell.type("job", "submit", "--follow", *once, code=Exit.JOB_FAILED)
    assert "FAILED" in failed
    assert "3" in failed


def test_a_script_that_is_missing_is_stated_in_the_timeline(shell: Shell) -> None:
    job_id = shell.submit("--max-restarts", "0", "--", "/nowhere/train.py")
    shell.type("job", "wait", job_id, code=Exit.JOB_FAILED)
    assert "/nowhere/train.py does not exist" in " ".join(shell.type("job", "show", job_id).split())


def test_a_dry_run_leaves_nothing(shell: Shell) -> None:
    before = json.loads(shell.type("job", "list", "--json"))
    shell.type("job", "submit", "--dry-run", "--command", "--", "true")
    assert json.loads(shell.type("job", "list", "--json")) == before


def test_logs_follow_a_job_until_another_cancels_it(shell: Shell) -> None:
    job_id = shell.submit("--grace", "1s", "--command", "--", sys.executable, "-c", SLEEPS)
    follower = shell.start("job", "logs", "-f", job_id)
    waiter = shell.start("job", "wait", job_id)
    wait_until(lambda: "up" in shell.type("job", "logs", job_id), timeout_s=240, pause_s=0.5)
    shell.type("job", "cancel", job_id, "--reason", "wrong data")
    assert "up" in follower.communicate(timeout=180)[0]
    assert follower.returncode == Exit.JOB_CANCELLED
    waiter.communicate(timeout=180)
    assert waiter.returncode == Exit.JOB_CANCELLED
    shown = shell.type("job", "show", job_id)
    assert "CANCELLED" in shown
    assert shell.type("job", "cancel", job_id)


def test_waiting_may_be_given_up(shell: Shell) -> None:
    job_id = shell.submit("--grace", "1s", "--command", "--", sys.executable, "-c", SLEEPS)
    shell.type("job", "wait", job_id, "--timeout", "1s", code=Exit.FAILED)
    follower = shell.start("job", "logs", "-f", job_id)
    assert follower.stdout is not None
    assert "up" in follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    said = "".join(follower.communicate(timeout=180))
    assert follower.returncode == Exit.INTERRUPTED
    assert "Traceback" not in said
    shell.type("job", "cancel", job_id)
    shell.type("job", "wait", job_id, code=Exit.JOB_CANCELLED)


def test_a_key_is_shown_once_works_and_is_revoked(shell: Shell, tmp_path: Path) -> None:
    tenant = shell.type("tenant", "create", "acme").split()[0]
    assert "acme" in shell.type("tenant", "list")
    shell.type("tenant", "create", "acme", code=Exit.CONFLICT)
    made = shell.type("key", "create", "--name", "ci", "--role", "tenant_member", "--tenant", tenant, "--expires", "1d")
    token, key_id = made.split()[:2]
    key_file = tmp_path / "ci.key"
    key_file.write_text(token)
    theirs = {"MUSTER_API_URL": f"http://127.0.0.1:{shell.stack.port}", "MUSTER_API_KEY_FILE": str(key_file)}
    assert "No jobs" in shell.type("job", "list", environment=theirs)
    own = shell.submit("--command", "--", "true")
    shell.type("job", "show", own, code=Exit.NOT_FOUND, environment=theirs)
    shell.type("key", "list", code=Exit.DENIED, environment=theirs)
    listed = shell.type("key", "list")
    assert "ci" in listed
    assert token not in listed
    assert "revoked" in shell.type("key", "revoke", key_id)
    revoked = asked = time.monotonic()
    while shell.code("job", "list", environment=theirs) != Exit.DENIED:
        assert asked - revoked < 6, "taken though it was asked so long after"
        asked = time.monotonic()
    shell.type("key", "create", "--name", "x", "--role", "emperor", code=Exit.INVALID)


def test_the_fleet_and_what_happened(shell: Shell) -> None:
    job_id = shell.submit("--command", "--", "true")
    shell.type("job", "wait", job_id)
    assert "HEALTHY" in shell.type("gpu", "list")
    gpu = json.loads(shell.type("gpu", "list", "--json"))[0]["uuid"]
    assert gpu in shell.type("gpu", "show", gpu)
    assert gpu[:17] in shell.type("gpu", "list", "--model", "H100")
    assert "No GPU is like that." in shell.type("gpu", "list", "--standing", "repair")
    shell.type("gpu", "list", "--standing", "fine", code=Exit.INVALID)
    assert isinstance(json.loads(shell.type("incident", "list", "--json")), list)
    shell.type("incident", "close", "inc_1", "--reason", "gone", code=Exit.NOT_FOUND)
    assert "fleet_window" in shell.type("breaker", "list")
    assert "local" in shell.type("node", "list")
    assert gpu in shell.type("node", "show", "local")
    assert "job.submit" in shell.type("audit", "list", "--wide")
    assert "1 node" in shell.type("cohort", "show", "H100")
    assert "heartbeat_s: 0.5" in shell.type("policy", "show")
    assert "messages to send" in shell.type("system")
    wait_until(lambda: job_id in shell.type("event", "list"), timeout_s=240, pause_s=0.5)
    events = [json.loads(line) for line in shell.type("event", "list", "--json").splitlines()]
    kinds = [event["kind"] for event in events if event["subject_id"] == job_id]
    assert kinds[0] == "job.queued"
    assert gpu in {event["subject_id"] for event in events}, "the operator sees the fleet's events too"
    assert [event["position"] for event in events] == sorted(event["position"] for event in events)
    lines = shell.type("doctor", environment={"COLUMNS": "200"}).splitlines()
    assert all(line.startswith(("ok", "warn")) for line in lines)
    assert {re.split(r"\s{2,}", line)[1] for line in lines} >= {"hosts", "GPUs", "incidents", "breaker", "outbox"}


def test_a_cordon_keeps_new_work_away_until_it_is_released(shell: Shell) -> None:
    node_id = json.loads(shell.type("node", "list", "--json"))[0]["id"]
    cordon_id = shell.type("cordon", "create", "--node", node_id, "--reason", "a fan", "--for", "1h").split()[0]
    assert "a fan" in shell.type("cordon", "list")
    job_id = shell.submit("--command", "--", "true")
    wait_until(lambda: "cordoned" in shell.type("job", "show", job_id), timeout_s=240, pause_s=0.5)
    shell.type("cordon", "release", cordon_id)
    shell.type("job", "wait", job_id)
    assert "No cordons" in shell.type("cordon", "list")
    assert "No checkpoint" in shell.type("job", "checkpoints", job_id)
    shell.type("cordon", "create", "--reason", "nowhere", code=Exit.INVALID)


def test_a_quarantine_by_hand_shows_wherever_gpus_are_counted(shell: Shell) -> None:
    wide = {"COLUMNS": "400"}
    gpus = json.loads(shell.type("gpu", "list", "--json"))
    gpu, num_healthy = gpus[0]["uuid"], len(gpus) - 1
    shell.type("gpu", "quarantine", gpu, "--reason", "it smells", "--for", "1h")
    counted = f"{num_healthy} HEALTHY, 1 QUARANTINED" if num_healthy else "1 QUARANTINED"
    assert counted in shell.type("node", "list", environment=wide)
    assert counted in shell.type("cohort", "list", environment=wide)
    assert f"1 of {len(gpus)} are not HEALTHY (1 QUARANTINED)" in shell.type("doctor", environment=wide)
    (listed,) = json.loads(shell.type("gpu", "list", "--standing", "quarantined", "--json"))
    assert (listed["uuid"], listed["effective_standing"]) == (gpu, "QUARANTINED")
    assert listed["standing"] != "QUARANTINED", "its own stays what the rules say"
    key = shell.stack.identities.operator_key_file.read_text().strip()
    with RestClient(f"http://127.0.0.1:{shell.stack.port}", key) as client:
        assert 'muster_gpus{standing="QUARANTINED"} 1.0' in client.figures()
    fleet = fleet_map(shell.stack.units, OPERATOR)
    assert fleet.count()[Standing.QUARANTINED] == 1, "the map and the tiles"
    shell.type("gpu", "release", gpu, "--reason", "it does not")
    assert "QUARANTINED" not in shell.type("node", "list", environment=wide)


def test_a_job_on_hold_is_named_by_doctor_and_list_until_it_is_released(shell: Shell) -> None:
    wide = {"COLUMNS": "400"}
    node_id = json.loads(shell.type("node", "list", "--json"))[0]["id"]
    cordon_id = shell.type("cordon", "create", "--node", node_id, "--reason", "a fan", "--for", "1h").split()[0]
    job_id = JobId(shell.submit("--command", "--", "true"))
    units = shell.stack.units
    with units.begin(system_principal("test"), KEEP) as unit:
        step_job(unit, lock_job(unit, job_id), HoldRequested("its image is not there"), active_policy(unit.session))
    wait_until(lambda: job_id in shell.type("incident", "list", "--wide", environment=wide), pause_s=0.2)
    for command in (("doctor",), ("incident", "list", "--wide")):
        said = shell.type(*command, environment=wide)
        assert "is HELD: its image is not there" in said
        assert f"muster job release {job_id}" in said
    shell.type("job", "release", job_id)
    wait_until(lambda: job_id not in shell.type("incident", "list", "--wide", environment=wide), pause_s=0.2)
    assert job_id not in shell.type("doctor", environment=wide)
    shell.type("cordon", "release", cordon_id)
    shell.type("job", "wait", job_id)


def test_a_past_that_was_touched_is_found(shell: Shell) -> None:
    assert "the chain holds" in shell.type("audit", "verify")
    units: UnitOfWorkFactory = shell.stack.units
    touch = "UPDATE audit_entries SET {} WHERE position = 3"
    with units.engine.begin() as connection:
        connection.execute(text("SET session_replication_role = replica"))  # as only the database's owner can
        before = connection.execute(text("SELECT action FROM audit_entries WHERE position = 3")).scalar_one()
        connection.execute(text(touch.format("action = 'nothing.happened'")))
    said = shell.type("audit", "verify", code=Exit.FAILED)
    assert "BROKEN at position 3" in said
    with units.engine.begin() as connection:
        connection.execute(text("SET session_replication_role = replica"))
        connection.execute(text(touch.format("action = :action")), {"action": before})
    assert "the chain holds" in shell.type("audit", "verify")


def test_the_doctor_states_what_is_wrong(shell: Shell) -> None:
    nowhere = {"MUSTER_API_URL": "http://127.0.0.1:1", "MUSTER_API_KEY_FILE": "/nowhere"}
    said = shell.type("doctor", code=Exit.FAILED, environment=nowhere)
    assert "fail  control plane" in said
