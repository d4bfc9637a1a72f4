"""A canary: a value that a real job uses, looked for wherever it must not be, also in base64 and hexadecimal digits."""

import base64
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import text

from tests.cli.command import Command
from tests.fleet_factory import ENDS_AT_ITS_FAULT
from tests.stack.harness import Stack, own_folder, running_stack
from tests.warm_python import WarmPython

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CANARY: Final = "canary-5b1f0c2d9e8a4f7cb3-of-no-user"
"""Its length is a multiple of three, so its base64 is the same whatever follows it."""
USES: Final = """
import array, base64, fcntl, os, sys, termios
def read_by_the_host():
    unread = array.array("i", [1])
    while unread[0]:
        fcntl.ioctl(1, termios.FIONREAD, unread)
        os.sched_yield()
value = open(os.environ["MUSTER_SECRETS_DIR"] + "/canary").read()
assert value == os.environ["CANARY"]
print("uses", value, base64.b64encode(value.encode()).decode(), value.encode().hex(), flush=True)
print("half", value[:9], end="", flush=True); read_by_the_host(); print(value[9:], flush=True)
print("ready", flush=True)
open(sys.argv[1]).read()
raise ValueError("refused: " + value)
"""


@pytest.fixture(scope="module")
def stack(server_folder: Path, warm_stack: WarmPython, warm_python: WarmPython) -> Iterator[Stack]:
    with running_stack(own_folder(server_folder, "canary"), warm_stack, warm_python, num_gpus=2) as stack:
        yield stack


def forms() -> set[bytes]:
    value = CANARY.encode()
    encoded = base64.b64encode(value)
    assert not encoded.endswith(b"=")
    return {value, encoded, base64.urlsafe_b64encode(value), value.hex().encode(), value.hex().upper().encode()}


def holds(content: bytes) -> bool:
    return any(form in content for form in forms())


def files_with_it(*folders: Path) -> list[str]:
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert found
    return [str(path) for path in found if holds(_content_of(path))]


def _content_of(path: Path) -> bytes:
    """Return a file's content; of one that the running stack has removed since it was listed, nothing."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def rows_with_it(stack: Stack) -> list[str]:
    """Tables a row of which holds it, as text: what a dump of the database would show."""
    found, num_rows = [], 0
    with stack.engine.connect() as connection:
        tables = connection.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).all()
        for table in tables:
            rows = [row[0] for row in connection.execute(text(f'SELECT t::text FROM "{table}" AS t'))]  # noqa: S608  # its own names
            num_rows += len(rows)
            # A column of bytes is hexadecimal digits as text: the value's own digits are among the forms, and base64's.
            content = "\n".join(rows).encode()
            is_in_bytes = any(form.hex().encode() in content for form in forms())
            found += [table] if holds(content) or is_in_bytes else []
    assert num_rows > 50
    return found


def processes_with_it(except_of: str) -> list[str]:
    """Processes whose arguments or environment hold it, except for the attempt's own."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment, arguments = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        is_the_jobs = f"MUSTER_ATTEMPT_ID={except_of}".encode() in environment
        if holds(arguments) or (holds(environment) and not is_the_jobs):
            found.append(f"{entry.name}: {arguments[:200]!r}")
    return found


def in_memory() -> list[Path]:
    return sorted(Path("/dev/shm").glob(f"muster-*-{os.getuid()}-*"))  # noqa: S108  # the kernel's name for it


def submit(stack: Stack, name: str) -> tuple[str, Path]:
    """Return the job's id and the pipe that lets it end."""
    go_on = stack.folder / f"{name}.go"
    os.mkfifo(go_on)
    program = {"launcher": "command", "argv": [sys.executable, "-c", USES, str(go_on)]}
    body: dict[str, Any] = {"name": name, "program": program, **ENDS_AT_ITS_FAULT}
    body |= {"secrets": ["canary"], "secret_env": {"CANARY": "canary"}}
    job_id = stack.client.submit_job(body)["id"]
    stack.wait(lambda: "ready" in log_of(stack, job_id) or stack.client.job(job_id)["finished_at"] is not None)
    assert "ready" in log_of(stack, job_id), log_of(stack, job_id)
    return job_id, go_on


def log_of(stack: Stack, job_id: str) -> str:
    return "".join(piece["text"] for piece in stack.client.logs(job_id))


def test_a_value_is_nowhere_but_in_the_program_that_uses_it(stack: Stack, tmp_path: Path) -> None:
    before = in_memory()
    stack.client.create_secret({"name": "canary", "value": CANARY})
    job_id, go_on = submit(stack, "canary")
    attempt_id = stack.client.job(job_id)["attempts"][-1]["id"]
    assert [path for place in in_memory() for path in place.iterdir() if holds(path.read_bytes())], "it is used"
    assert processes_with_it(attempt_id) == []
    assert files_with_it(stack.folder) == []
    go_on.write_text("")
    job = stack.wait_for(job_id, "FAILED")
    proof = str(job["attempts"][0]["proof"])
    assert "ValueError: refused: [secret]" in proof
    stack.require_order()
    words = log_of(stack, job_id)
    assert "uses [secret] [secret] [secret]\nhalf [secret]\n" in words
    stack.wait(lambda: in_memory() == before)
    _require_nowhere(stack, tmp_path, attempt_id, json.dumps([words, job]))


def test_a_killed_supervisor_leaves_it_nowhere(stack: Stack, tmp_path: Path) -> None:
    before = in_memory()
    if not stack.client.secrets():
        stack.client.create_secret({"name": "canary", "value": CANARY})
    job_id, _ = submit(stack, "killed")
    attempt_id = stack.client.job(job_id)["attempts"][-1]["id"]
    stack.kill_supervisor(job_id)
    stack.client.cancel_job(job_id, reason="the test has seen enough")
    stack.wait_for(job_id, "CANCELLED")
    stack.require_order()
    stack.wait(lambda: in_memory() == before)
    _require_nowhere(stack, tmp_path, attempt_id, log_of(stack, job_id))


def _require_nowhere(stack: Stack, tmp_path: Path, attempt_id: str, answers: str) -> None:
    assert not holds(answers.encode())
    assert rows_with_it(stack) == []
    assert files_with_it(stack.folder) == []  # the database's and the broker's files, logs, attempts
    assert processes_with_it(attempt_id) == []
    command = Command(tmp_path)
    command.key_file.write_text(stack.identities.operator_key_file.read_text())
    bundle = tmp_path / "bundle.zip"
    said = command.run(
        *("support-bundle", "--output", str(bundle), "--state-dir", str(stack.folder)),
        url=f"http://127.0.0.1:{stack.port}",
    )
    assert said.returncode == 0, said.stderr
    unpacked = tmp_path / "bundle"
    shutil.unpack_archive(bundle, unpacked)
    assert files_with_it(unpacked) == []
    assert "secret.read" in (unpacked / "events.json").read_text()


def test_the_search_itself_finds_what_is_there(stack: Stack, tmp_path: Path) -> None:
    """What looks for a canary and finds none proves nothing unless it finds one that was put there."""
    (tmp_path / "kept.txt").write_text(f"token={base64.b64encode(CANARY.encode() + b'more').decode()}")
    assert files_with_it(tmp_path) == [str(tmp_path / "kept.txt")]
    with stack.engine.begin() as connection:
        connection.execute(text("CREATE TABLE planted (kept bytea)"))
        connection.execute(text("INSERT INTO planted VALUES (:kept)"), {"kept": b"x" + CANARY.encode()})
    try:
        assert rows_with_it(stack) == ["planted"]
    finally:
        with stack.engine.begin() as connection:
            connection.execute(text("DROP TABLE planted"))
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", "import signal; signal.pause()", CANARY], os.environ)
    try:
        assert [each for each in processes_with_it("none") if each.startswith(f"{child}: ")]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
