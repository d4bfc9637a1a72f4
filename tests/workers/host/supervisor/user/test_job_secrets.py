"""Secrets reach the program in memory alone and no log, and are removed when it ends."""

import base64
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.domain.exit.exits import classify, parse_exit_record
from muster.domain.states import Cause
from tests.workers.host.supervisor.attempt_case import Attempt, until
from workers.host import supervisor
from workers.host.supervisor.user import sealed_secrets
from workers.host.supervisor.user.job_secrets import JobSecrets, is_in_memory, sweep
from workers.host.supervisor.user.redaction import Redactor, StreamRedactor

VALUE = "s3cr3t-0f-acme-wandb"
OPENS = "import os; path = os.environ['MUSTER_SECRETS_DIR'] + '/wandb'; value = open(path).read().strip()\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets" / "acme"
    folder.mkdir(parents=True)
    (folder / "wandb").write_text(VALUE + "\n")
    (folder / "wandb").chmod(0o600)
    return folder


def named(source: Path | None, *names: str) -> dict[str, Any]:
    return {"secrets": {"source": None if source is None else str(source), "names": list(names)}}


def test_a_program_reads_its_secret_from_memory_and_nothing_is_left_of_it(attempt: Attempt, source: Path) -> None:
    tells = "print(len(value), oct(os.stat(path).st_mode), oct(os.stat(os.path.dirname(path)).st_mode), path)"
    attempt.start(OPENS + tells, **named(source, "wandb"))
    assert attempt.ended()["ranks"]["0"]["exit_code"] == 0, attempt.log()
    length, mode, folder_mode, path = attempt.log().split()
    assert (length, mode, folder_mode) == (str(len(VALUE)), "0o100400", "0o40700")
    assert path.startswith("/dev/shm/muster-secrets-")  # noqa: S108  # the kernel's name for it
    assert not Path(path).parent.exists()
    proof = attempt.read("clean.json")
    assert (proof["clean"], proof["secrets_removed"]) == (True, True)


def test_a_value_is_in_no_file_of_the_attempt_and_in_nobodys_arguments(attempt: Attempt, source: Path) -> None:
    says = (
        "import socket, sys, time, json\n"
        "sys.stdout.write('half ' + value[:7]); sys.stdout.flush(); time.sleep(0.3); print(value[7:], flush=True)\n"
        "own = socket.socket(socket.AF_UNIX); own.connect(os.environ['MUSTER_TRAIN_SOCKET'])\n"
        "own.sendall(json.dumps({'type': 'warned', 'code': 'x', 'message': 'key ' + value}).encode() + b'\\n')\n"
        "own.close()\n"
        "assert value not in open('/proc/self/environ').read() + open('/proc/self/cmdline').read()\n"
        "raise ValueError('refused: ' + value)\n"
    )
    attempt.start(OPENS + says, **named(source, "wandb"))
    record = attempt.ended()
    assert "half [secret]\n" in attempt.log()
    assert "ValueError: refused: [secret]" in record["ranks"]["0"]["error_excerpt"]
    assert "key [secret]" in (attempt.folder / "train.jsonl").read_text()
    kept = [path for path in attempt.folder.rglob("*") if path.is_file()]
    assert kept
    assert [path for path in kept if VALUE.encode() in path.read_bytes()] == []


def test_a_missing_secret_is_named_with_where_it_belongs(attempt: Attempt, source: Path) -> None:
    attempt.start("print('ran')", **named(source, "wandb", "hf-token"))
    record = attempt.ended()
    verdict = classify(parse_exit_record(record), None)
    assert verdict.cause is Cause.USER_ERROR
    assert verdict.proof.endswith(
        f"the secret hf-token is not on this host; its operator puts it in {source / 'hf-token'}"
    )
    assert attempt.log() == ""
    assert attempt.read("clean.json")["clean"]


def test_what_the_host_does_wrong_is_the_hosts_fault(make_attempt: Callable[[], Attempt], source: Path) -> None:
    (source / "open").write_text("x")
    (source / "open").chmod(0o644)
    (source / "large").write_bytes(b"x" * (64 << 10 | 1))
    (source / "large").chmod(0o600)
    (source / "link").symlink_to("/etc/shadow")
    for where, name, why in (
        (None, "wandb", "this host keeps no secrets (MUSTER_JOB_SECRETS_DIR is not set)"),
        (source, "open", "must be a file of mode 0600 or 0400"),
        (source, "large", "is larger than 64 KiB"),
        (source, "link", "Too many levels of symbolic links"),
    ):
        attempt = make_attempt()
        attempt.start("print('ran')", **named(where, name))
        record = attempt.ended()
        assert record["spawn_fault"] == "host"
        assert why in record["spawn_error"]


def test_a_name_that_leads_elsewhere_is_no_order(attempt: Attempt, source: Path) -> None:
    attempt.start("print('ran')", **named(source, "../other/wandb"))
    record = attempt.wait_for("exit.json")
    assert (record["spawn_fault"], "is no name of a secret" in record["spawn_error"]) == ("host", True)


def test_secrets_of_a_dead_supervisor_are_removed_by_what_buries_it(attempt: Attempt, source: Path) -> None:
    attempt.start(OPENS + "import time; print(path, flush=True); time.sleep(600)", **named(source, "wandb"))
    attempt.wait_for_log("wandb\n")
    place = Path(attempt.log().strip()).parent
    os.kill(attempt.supervisor_pid(), signal.SIGKILL)
    until(lambda: supervisor.adopt(attempt.folder).state == "vanished", "its supervisor's death")
    assert place.exists()
    supervisor.reap_vanished(attempt.folder)
    assert not place.exists()
    assert attempt.read("clean.json")["secrets_removed"]


def test_without_secrets_a_program_is_notified_of_no_folder(attempt: Attempt) -> None:
    attempt.start("import os; print('MUSTER_SECRETS_DIR' in os.environ)")
    attempt.ended()
    assert attempt.log() == "False\n"


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_a_value_is_struck_however_it_comes_apart(piece: int) -> None:
    text = b"a secret-on" + b"secret-one" + b" and sec\nline-two-x secret-o"
    stream = StreamRedactor(Redactor([b"secret-one\nline-two-x\n", b"short"]))
    kept = b"".join(stream.take(text[at : at + piece]) for at in range(0, len(text), piece)) + stream.rest()
    assert kept == b"a secret-on[secret] and sec\n[secret] secret-o"


def test_long_and_short_values() -> None:
    long = b"".join(b"%05d" % number for number in range(2_000))
    assert long[:64] not in Redactor([long]).strike(b"<" + long + b">")
    assert Redactor([b"yes", b"1234567"]).strike(b"yes 1234567") == b"yes 1234567"


def test_a_folder_is_in_memory_only_by_the_kernels_word(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("tmpfs /dev/shm tmpfs rw 0 0\n/dev/vda /data ext4 rw 0 0\n")
    assert is_in_memory(Path("/dev/shm"), mounts)  # noqa: S108  # the kernel's name for it
    assert not is_in_memory(Path("/data"), mounts)
    assert not is_in_memory(Path("/data"), tmp_path / "none")
    assert JobSecrets().remove(tmp_path)


LONG_AGO_S = 3600.0


def age(place: Path) -> Path:
    os.utime(place, (time.time() - LONG_AGO_S,) * 2)
    return place


def test_secrets_whose_supervisor_and_attempt_are_gone_are_swept_and_those_in_use_are_not(
    attempt: Attempt, source: Path
) -> None:
    """As after a machine's state was thrown away under a crash: no process knows the attempt any more."""
    attempt.start("import time; print('up', flush=True); time.sleep(600)", **named(source, "wandb"))
    attempt.wait_for_log("up")
    place = age(JobSecrets(source, ("wandb",)).place(attempt.folder))
    assert place not in sweep()
    assert (place / "wandb").exists()
    pids = [*attempt.processes(), attempt.read("supervisor.json")["pid"]]
    shutil.move(attempt.folder, attempt.folder.with_name("thrown-away"))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: age(place) in sweep(), "sweep of secrets that no attempt holds")
    assert not place.exists()


def test_what_is_not_ours_or_only_just_made_is_left(tmp_path: Path) -> None:
    own = f"muster-secrets-{os.getuid()}-"
    fresh, old = tmp_path / f"{own}00000001", tmp_path / f"{own}00000002"
    others, file = tmp_path / f"muster-secrets-{os.getuid() + 1}-00000003", tmp_path / f"{own}00000004"
    for folder in (fresh, old, others):
        folder.mkdir()
    file.touch()
    link = tmp_path / f"{own}00000005"
    link.symlink_to(others)
    for place in (old, others, file):
        age(place)
    assert sweep(tmp_path) == [old]
    assert {place.name for place in tmp_path.iterdir()} == {each.name for each in (fresh, others, file, link)}


def test_a_folder_that_another_process_holds_is_left(tmp_path: Path) -> None:
    place = tmp_path / f"muster-secrets-{os.getuid()}-00000001"
    place.mkdir()
    holds = f"import fcntl, os, time; d = os.open({str(place)!r}, os.O_RDONLY); fcntl.flock(d, 2); print(1, flush=True)"
    with subprocess.Popen([sys.executable, "-c", f"{holds}; time.sleep(600)"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert sweep(tmp_path) == []
        age(place)
        assert sweep(tmp_path) == []
        holder.kill()
    assert sweep(tmp_path) == [place]


def received(attempt: Attempt, **values: bytes) -> dict[str, Any]:
    """As the launcher lays them, of an order that names them."""
    attempt.folder.mkdir(parents=True, exist_ok=True)
    sealed_secrets.lay(attempt.folder, values)
    return {"secrets": {"names": list(values), "sealed": list(values), "source": None}}


def test_received_secrets_are_given_as_files_and_variables_and_removed(attempt: Attempt) -> None:
    order = received(attempt, wandb=VALUE.encode(), hf=b"another-value\r\n")
    order["secrets"]["variables"] = {"HF_TOKEN": "hf"}
    attempt.start(
        OPENS + "print(len(value), repr(os.environ['HF_TOKEN']), len(os.listdir(os.path.dirname(path))))", **order
    )
    assert attempt.ended()["ranks"]["0"]["exit_code"] == 0, attempt.log()
    assert attempt.log() == f"{len(VALUE)} '[secret]' 2\n"
    assert not sealed_secrets.place_of(attempt.folder).exists()
    assert attempt.read("clean.json")["secrets_removed"]


@pytest.mark.parametrize(
    ("laid", "fault", "words"),
    [
        ({"hf": b"a\x00b"}, "program", "has a byte 0, which no variable can have"),
        ({}, "program", "the secret hf was deleted, or limited to other jobs, after the submission"),
        (None, "host", "the secret hf is not in this host's memory any more"),
        ("the control plane refused", "host", "the secret hf was not received: the control plane refused"),
    ],
)
def test_what_was_not_received_is_named_and_blames_the_right_side(
    attempt: Attempt, laid: Any, fault: str, words: str
) -> None:
    attempt.folder.mkdir(parents=True, exist_ok=True)
    if isinstance(laid, dict):
        sealed_secrets.lay(attempt.folder, laid)
    elif laid is None:
        sealed_secrets.place_of(attempt.folder).mkdir(mode=0o700)
    else:
        sealed_secrets.lay(attempt.folder, {}, laid)
    names = {"names": ["hf"], "sealed": ["hf"], "source": None, "variables": {"HF": "hf"}}
    attempt.start("print('ran')", secrets=names)
    record = attempt.ended()
    assert (record["spawn_fault"], words in record["spawn_error"]) == (fault, True), record["spawn_error"]
    assert not sealed_secrets.place_of(attempt.folder).exists()


def test_a_half_laid_folder_counts_for_nothing_and_is_laid_again(tmp_path: Path) -> None:
    place = sealed_secrets.place_of(tmp_path)
    place.mkdir(mode=0o700)
    (place / "wandb").write_text("half")
    assert not sealed_secrets.is_whole(tmp_path)
    sealed_secrets.lay(tmp_path, {"wandb": b"whole"})
    assert sealed_secrets.is_whole(tmp_path)
    assert sealed_secrets.value_of(tmp_path, "wandb") == b"whole"
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o400}
    assert sealed_secrets.remove(tmp_path)
    assert not place.exists()


def test_what_a_program_wrote_is_withheld_once_its_secrets_are_lost(tmp_path: Path) -> None:
    """As after a reboot: which words are secret is not known any more."""
    secrets = JobSecrets(None, ("wandb",), ("wandb",))
    secrets.folder = tmp_path
    sealed_secrets.lay(tmp_path, {"wandb": VALUE.encode()})
    assert secrets.redactor().words(f"refused: {VALUE}") == "refused: [secret]"
    assert sealed_secrets.remove(tmp_path)
    assert secrets.redactor().words(f"refused: {VALUE}") == "[secret]"
    assert secrets.redactor().document({"a": [VALUE, 1]}) == {"[secret]": ["[secret]", 1]}


def test_received_secrets_are_swept_once_their_attempt_has_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "attempt"
    folder.mkdir()
    sealed_secrets.lay(folder, {"wandb": VALUE.encode()})
    place = age(sealed_secrets.place_of(folder))
    assert place not in sweep()  # its supervisor may fetch the bundle for longer, before it takes the lock
    assert sealed_secrets.value_of(folder, "wandb") == VALUE.encode()
    folder.rmdir()
    assert place in sweep()
    assert not place.exists()


def test_half_laid_secrets_without_their_attempts_path_are_swept(tmp_path: Path) -> None:
    place = sealed_secrets.place_of(tmp_path)
    place.mkdir(mode=0o700)
    (place / "wandb").write_text("half")
    assert place not in sweep()  # it may just be laid
    assert age(place) in sweep()


@pytest.mark.parametrize("size", [8, 9, 10, 11, 50])
def test_base64_and_hexadecimal_digits_of_a_value_are_struck_out(size: int) -> None:
    value = bytes(range(200, 200 + size))
    redactor = Redactor([value + b"\n"])
    plain, safe = base64.b64encode(value), base64.urlsafe_b64encode(value)
    text = b" ".join([plain, safe, value.hex().encode(), value.hex().upper().encode(), base64.b64encode(value + b"\n")])
    assert set(redactor.strike(text).replace(b"=", b"").split()) <= {b"[secret]", b"[secret]Cg"}
