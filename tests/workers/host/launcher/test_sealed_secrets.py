"""Secrets from the control plane reach the hosts of their job alone, in memory, and leave nothing behind."""

import base64
import json
import os
import signal
from pathlib import Path

import pytest
from sqlalchemy import select

from control.hosts import secret_delivery
from control.secrets import tenant_secrets
from control.secrets.tenant_secrets import SecretRecord
from muster.db.models import AttemptHost, AuditEntry, Event
from muster.domain.errors import StaleFenceError
from muster.domain.ids import AttemptId, JobId
from muster.domain.principals import Principal, Role
from muster.domain.states import Cause, JobState
from muster.wire.host import HOST_CAPABILITIES, PROTOCOL_VERSION, SecretsRequest
from muster.wire.sealed_secrets import NotSealedForThisError, QuestionKey, context_of, sealed_for
from tests.control.secrets.secret_case import admin_of, key_file, rotate_secret, set_secret
from tests.fleet_factory import enrol_host
from tests.host_case import HostCase
from tests.played_host import PlayedHost
from workers.host import secret_delivery as receiving
from workers.host.supervisor.user.sealed_secrets import place_of

VALUE = "s3cr3t-0f-acme-hf-token"
READS = "import os; folder = os.environ['MUSTER_SECRETS_DIR']; value = open(folder + '/hf-token').read()\n"
WAITS = "import signal; print('waits', flush=True); signal.pause()\n"


@pytest.fixture
def sealing(host: HostCase, tmp_path: Path) -> HostCase:
    """Return the host, of a control plane that has keys."""
    host.client.secret_keys = key_file(tmp_path / "keys", "k1")
    return host


def store(host: HostCase, name: str = "hf-token", value: str = VALUE) -> SecretRecord:
    assert host.client.secret_keys is not None
    return set_secret(host.fleet.units, host.client.secret_keys, host.fleet.tenant_id, name, value.encode())


def attempt_id_of(host: HostCase, job_id: JobId) -> AttemptId:
    return host.fleet.attempts(job_id)[-1].attempt.id


def folders_in_memory() -> list[str]:
    return sorted(path.name for path in Path("/dev/shm").glob(f"muster-*-{os.getuid()}-*"))  # noqa: S108  # the kernel's name


def reads(host: HostCase) -> list[dict[str, object]]:
    with host.fleet.units.read() as session:
        rows = session.scalars(select(AuditEntry).where(AuditEntry.action == "secret.read")).all()
    assert all(row.actor.startswith("node:") for row in rows)
    return [row.detail for row in rows]


def test_a_program_reads_a_file_and_a_variable_and_each_read_is_in_the_audit(sealing: HostCase) -> None:
    before = folders_in_memory()
    store(sealing)
    store(sealing, "wandb", "another-value-of-acme\n")
    tells = (
        "import base64\n"
        "key = os.environ['WANDB_API_KEY']\n"
        "print(oct(os.stat(folder + '/hf-token').st_mode), sorted(os.listdir(folder)), len(key))\n"
        "print(value, key, base64.b64encode(value.encode()).decode(), value.encode().hex())\n"
    )
    job_id = sealing.submit(READS + tells, secrets=["hf-token"], secret_env={"WANDB_API_KEY": "wandb"})
    assert sealing.run(job_id) is JobState.SUCCEEDED, sealing.log(job_id)
    sealing.run_until_clean()
    first, second = sealing.log(job_id).decode().splitlines()
    assert first == "0o100400 ['hf-token', 'wandb'] 21"
    assert second == "[secret] [secret] [secret]= [secret]"
    assert folders_in_memory() == before
    facts = {"node_id": sealing.fleet.node_id, "attempt_id": attempt_id_of(sealing, job_id), "job_id": job_id}
    assert reads(sealing) == [
        {"name": "hf-token", "version": 1, **facts},
        {"name": "wandb", "version": 1, **facts},
    ]
    with sealing.fleet.units.read() as session:
        part = session.scalars(select(AttemptHost)).one()
        assert len(session.scalars(select(Event).where(Event.kind == "secret.read")).all()) == 2
    assert (part.clean_proof or {})["secrets_removed"] is True


def test_an_attempt_keeps_the_value_of_its_placement_and_the_next_job_gets_the_new_one(sealing: HostCase) -> None:
    secret = store(sealing)
    first = sealing.submit(READS + "print(len(value))", secrets=["hf-token"])
    assert sealing.client.secret_keys is not None
    rotate_secret(sealing.fleet.units, sealing.client.secret_keys, secret, b"a new value")
    assert sealing.run(first) is JobState.SUCCEEDED
    second = sealing.submit(READS + "print(len(value))", secrets=["hf-token"])
    assert sealing.run(second) is JobState.SUCCEEDED
    sealing.run_until_clean()
    assert [int(sealing.log(job_id)) for job_id in (first, second)] == [len(VALUE), len("a new value")]
    assert [read["version"] for read in reads(sealing)] == [1, 2]


def test_a_secret_that_is_deleted_meanwhile_ends_the_job_with_its_name(sealing: HostCase) -> None:
    secret = store(sealing)
    job_id = sealing.submit("print('ran')", secrets=["hf-token"])
    with sealing.fleet.units.begin(admin_of(sealing.fleet.tenant_id), tenant_secrets.DELETE) as unit:
        tenant_secrets.delete(unit, secret.id)
    assert sealing.run(job_id) is JobState.FAILED
    attempt = sealing.fleet.attempts(job_id)[-1].attempt
    assert attempt.cause is Cause.USER_ERROR
    assert "the secret hf-token was deleted, or limited to other jobs, after the submission" in str(attempt.proof)
    assert reads(sealing) == []


def test_a_server_that_cannot_open_secrets_is_tried_again_also_by_the_next_launcher(
    sealing: HostCase, tmp_path: Path
) -> None:
    store(sealing)
    sealing.client.secret_keys = key_file(tmp_path / "others", "k2")
    job_id = sealing.submit(READS + "print(len(value))", secrets=["hf-token"])
    sealing.turn_until(lambda: len(reads(sealing)) >= 1)
    assert not (sealing.state_dir / "attempts" / attempt_id_of(sealing, job_id) / "supervisor.json").exists()
    sealing.restart()
    sealing.client.secret_keys = key_file(tmp_path / "keys", "k1")
    assert sealing.run(job_id) is JobState.SUCCEEDED, sealing.log(job_id)
    assert sealing.log(job_id) == f"{len(VALUE)}\n".encode()


def test_a_server_that_never_can_ends_the_attempt_with_its_reason(
    sealing: HostCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "GIVES_UP_AFTER_MS", 0)
    store(sealing)
    sealing.client.secret_keys = key_file(tmp_path / "others", "k2")
    job_id = sealing.submit("print('ran')", secrets=["hf-token"])
    sealing.turn_until(lambda: sealing.fleet.attempts(job_id)[0].attempt.ended_at is not None)
    ended = sealing.fleet.attempts(job_id)[0].attempt
    assert ended.cause in {Cause.LAUNCH_FAILED, Cause.PREFLIGHT_FAILED}
    assert "the secret hf-token was not received" in str(ended.proof)
    assert "the key k1 is needed" in str(ended.proof)
    sealing.turn_until(lambda: sealing.fleet.job(job_id).state is JobState.HELD)


def test_a_killed_supervisor_leaves_no_secret(sealing: HostCase) -> None:
    before = folders_in_memory()
    store(sealing)
    job_id = sealing.submit(READS + WAITS, secrets=["hf-token"])
    sealing.turn_until(lambda: b"waits" in sealing.log(job_id))
    folder = sealing.state_dir / "attempts" / attempt_id_of(sealing, job_id)
    assert len(folders_in_memory()) == len(before) + 2
    sealing.restart()  # its sweep leaves alone what a living supervisor holds
    assert (place_of(folder) / "hf-token").read_text() == VALUE
    os.kill(json.loads((folder / "supervisor.json").read_text())["pid"], signal.SIGKILL)
    sealing.fleet.cancel(job_id)
    sealing.run(job_id)
    sealing.run_until_clean()
    assert folders_in_memory() == before


def test_only_the_host_that_has_claimed_and_not_started_the_part_is_answered(sealing: HostCase) -> None:
    store(sealing)
    job_id = sealing.submit(READS + WAITS, secrets=["hf-token"])
    attempt_id, units = attempt_id_of(sealing, job_id), sealing.fleet.units
    fence = sealing.fleet.attempts(job_id)[-1].attempt.fence
    other = enrol_host(units, "other")
    PlayedHost(units, other).beat()

    def request_secrets(node_id: str = sealing.fleet.node_id, boot_id: str = "boot-1", fence: int = fence) -> None:
        node = Principal(name=f"node:{node_id}", role=Role.NODE, node_id=node_id)  # type: ignore[arg-type]  # an id as text
        request = SecretsRequest(
            protocol=PROTOCOL_VERSION, boot_id=boot_id, fence=fence, public_key=QuestionKey().public
        )
        with units.begin(node, secret_delivery.READ) as unit:
            secret_delivery.read_for_host(unit, attempt_id, request)

    with pytest.raises(StaleFenceError):
        request_secrets()  # it has not claimed it
    sealing.turn_until(lambda: bool(reads(sealing)))
    for more in ({"node_id": other}, {"boot_id": "boot-2"}, {"fence": fence + 1}):
        with pytest.raises(StaleFenceError):
            request_secrets(**more)
    sealing.run_until_started(job_id)
    with pytest.raises(StaleFenceError):
        request_secrets()
    sealing.fleet.cancel(job_id)
    sealing.run(job_id)
    with pytest.raises(StaleFenceError):
        request_secrets()
    assert len(reads(sealing)) == 1


def test_a_host_of_an_earlier_release_is_refused_and_never_searches_a_file(sealing: HostCase) -> None:
    store(sealing)
    job_id = sealing.submit("print('ran')", secrets=["hf-token"])
    attempt = sealing.fleet.attempts(job_id)[-1].attempt
    older = tuple(word for word in HOST_CAPABILITIES if word not in {"ready", "sealed_secrets"})
    played = PlayedHost(sealing.fleet.units, sealing.fleet.node_id)
    answer = played.claim(attempt.id, attempt.fence, capabilities=older)
    assert not answer.granted
    assert "does not know sealed_secrets" in str(answer.refusal)


def test_an_answer_opens_for_its_question_alone() -> None:
    key, context = QuestionKey(), context_of("node_a", "att_a", 7)
    public, sealed = sealed_for(key.public, {"hf-token": VALUE.encode()}, context)
    assert key.opened(public, sealed, context) == {"hf-token": VALUE.encode()}
    assert VALUE.encode() not in sealed
    assert base64.b64encode(VALUE.encode()) not in sealed
    elsewhere = (context_of("node_b", "att_a", 7), context_of("node_a", "att_b", 7), context_of("node_a", "att_a", 8))
    for other in elsewhere:
        with pytest.raises(NotSealedForThisError):
            key.opened(public, sealed, other)
    with pytest.raises(NotSealedForThisError):
        QuestionKey().opened(public, sealed, context)
    with pytest.raises(NotSealedForThisError):
        key.opened(public, sealed[:-1] + bytes([sealed[-1] ^ 1]), context)
    with pytest.raises(ValueError, match="shared key"):
        sealed_for(bytes(32), {}, context)
