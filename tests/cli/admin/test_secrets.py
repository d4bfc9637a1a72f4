"""``muster secret`` takes values from a file, standard input or a prompt, and shows none."""

import base64
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.cli.framework.exits import Exit
from tests.cli.command import Command
from tests.recorded_server import Answer, Requested, problem, serving

VALUE = "s3cr3t-0f-acme"
SECRET = {
    "id": "sec_00000000000000000000000001",
    "tenant_id": "ten_1",
    "name": "hf-token",
    "jobs": [],
    "version": 1,
    "created_at": "2026-01-01T00:00:00Z",
    "created_by": "key:ci",
    "rotated_at": None,
}


def answered(requested: Requested, _number: int) -> Answer:
    if requested.method == "GET":
        return Answer(200, {"items": [SECRET], "next_cursor": None})
    return Answer(201 if requested.path == "/v1/secrets" else 200, SECRET)


def sent(server: Any) -> bytes:
    body = json.loads(server.requested[-1].body)
    assert body["encoding"] == "base64"
    return base64.b64decode(body["value"])


def test_a_value_comes_from_a_file_or_standard_input_as_it_is(muster: Command, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\x00\xff\n")
    with serving(answered) as server:
        said = muster.run("secret", "set", "hf-token", "--file", "token", "--job", "train", url=server.url)
        assert said.returncode == 0, said.stderr
        assert sent(server) == b"\x00\xff\n"
        assert json.loads(server.requested[-1].body)["jobs"] == ["train"]
        assert "Idempotency-Key".lower() not in server.requested[-1].headers
        piped = subprocess.run(
            [sys.executable, "-m", "muster", "secret", "rotate", "hf-token", "--file", "-"],
            input=VALUE.encode(),
            env={
                **os.environ,
                "HOME": str(tmp_path),
                "MUSTER_API_URL": server.url,
                "MUSTER_API_KEY_FILE": str(muster.key_file),
            },
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        assert piped.returncode == 0, piped.stderr
        assert server.requested[-1].path == f"/v1/secrets/{SECRET['id']}/rotate"
        assert sent(server) == VALUE.encode()
    assert VALUE.encode() not in piped.stdout + piped.stderr
    assert "hf-token is set. A job names it: muster job submit --secret hf-token" in said.stdout


def test_a_value_on_the_command_line_is_refused_with_the_reason(muster: Command) -> None:
    with serving(answered) as server:
        for verb in ("set", "rotate"):
            said = muster.run("secret", verb, "hf-token", VALUE, url=server.url)
            assert said.returncode == Exit.USAGE
            assert "shells keep it in a history, and `ps` shows it" in " ".join(said.stderr.split())
            assert VALUE not in said.stdout + said.stderr
    assert server.requested == []


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "the value is empty"), (b"x" * (1 << 20), "the value has more than 65,536 bytes")],
)
def test_a_value_that_no_secret_may_have_is_not_sent(
    muster: Command, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "value").write_bytes(content)
    with serving(answered) as server:
        said = muster.run("secret", "set", "hf-token", "--file", "value", url=server.url)
        missing = muster.run("secret", "set", "hf-token", "--file", "nowhere", url=server.url)
    assert (said.returncode, missing.returncode) == (Exit.USAGE, Exit.USAGE)
    assert words in said.stderr
    assert "nowhere cannot be read: No such file or directory" in missing.stderr
    assert server.requested == []


def test_at_a_terminal_it_is_typed_twice_and_not_shown(muster: Command, tmp_path: Path) -> None:
    with serving(answered) as server:
        variables = {"MUSTER_API_URL": server.url, "MUSTER_API_KEY_FILE": str(muster.key_file), "HOME": str(tmp_path)}
        terminal, its_end = pty.openpty()
        words = [sys.executable, "-m", "muster", "secret", "set", "hf-token"]
        process = subprocess.Popen(
            words,
            stdin=its_end,
            stdout=its_end,
            stderr=its_end,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        os.close(its_end)
        shown = b""
        for prompt in (b"value (not shown):", b"again:"):
            while prompt not in shown:
                shown += os.read(terminal, 4096)
            os.write(terminal, VALUE.encode() + b"\n")
        while b"is set" not in shown:
            shown += os.read(terminal, 4096)
        assert process.wait(60) == 0
        os.close(terminal)
        assert sent(server) == VALUE.encode()
    assert VALUE.encode() not in shown


def test_an_unknown_name_is_answered_with_the_names_there_are(muster: Command) -> None:
    with serving(answered) as server:
        said = muster.run("secret", "delete", "hf-tokne", url=server.url)
    assert said.returncode == Exit.NOT_FOUND
    assert "there is no secret hf-tokne; there is: hf-token" in said.stderr
    assert [each.method for each in server.requested] == ["GET"]


def batch(num_rewrapped: int, num_left: int, num_unusable: int = 0, *needed_keys: str) -> Answer:
    done = {"key_id": "2026", "num_rewrapped": num_rewrapped, "num_left": num_left}
    return Answer(200, {**done, "num_unusable": num_unusable, "needed_keys": list(needed_keys)})


def test_rewrap_states_what_cannot_be_opened_and_which_keys_that_needs(muster: Command) -> None:
    batches = [batch(100, 9), batch(6, 3, 1, "2024"), batch(0, 3, 3, "2024", "2025")]
    with serving(lambda _requested, number: batches[number]) as server:
        said = muster.run("secret", "rewrap", url=server.url)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("106 values were brought under the key 2026; 3 have another one still")
    assert "3 cannot be opened, by the key 2024, 2025" in " ".join(said.stdout.split())


def test_a_name_may_begin_as_an_id_does(muster: Command) -> None:
    odd = {**SECRET, "name": "sec_of-us"}

    def answer(requested: Requested, _number: int) -> Answer:
        return Answer(200, {"items": [odd], "next_cursor": None} if requested.method == "GET" else odd)

    with serving(answer) as server:
        by_name = muster.run("secret", "delete", "sec_of-us", url=server.url)
        assert by_name.returncode == 0, by_name.stderr
        assert server.requested[-1].path == f"/v1/secrets/{SECRET['id']}"
        muster.run("secret", "delete", "sec_00000000000000000000000009", url=server.url)
        assert server.requested[-1].path == "/v1/secrets/sec_00000000000000000000000009"


def test_a_name_on_a_later_page_is_found(muster: Command) -> None:
    other = {**SECRET, "id": "sec_00000000000000000000000002", "name": "another"}

    def answer(requested: Requested, _number: int) -> Answer:
        if requested.method != "GET":
            return Answer(200, SECRET)
        is_last = "cursor=next" in requested.path
        return Answer(200, {"items": [SECRET if is_last else other], "next_cursor": None if is_last else "next"})

    with serving(answer) as server:
        said = muster.run("secret", "delete", "hf-token", url=server.url)
        assert said.returncode == 0, said.stderr
        assert server.requested[-1].path == f"/v1/secrets/{SECRET['id']}"


def test_rewrap_goes_on_until_nothing_is_left(muster: Command) -> None:
    def batches(_requested: Requested, number: int) -> Answer:
        return batch([100, 100, 7][number], [107, 7, 0][number])

    with serving(batches) as server:
        said = muster.run("secret", "rewrap", url=server.url)
    assert said.returncode == 0, said.stderr
    assert len(server.requested) == 3
    assert said.stdout == "207 values were brought under the key 2026, and no value has another one\n"


def test_a_key_that_is_missing_is_reported_in_words(muster: Command) -> None:
    fault = problem(
        503, "secret_key_unusable", detail="the key 2025 is needed, and /etc/muster/secrets.key has only 2026"
    )
    with serving(lambda _requested, _number: fault) as server:
        said = muster.run("secret", "rewrap", url=server.url)
    assert said.returncode == Exit.SERVER_FAULT
    assert "the key 2025 is needed" in " ".join(said.stderr.split())


def test_a_job_names_secrets_as_files_and_as_variables(muster: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    secrets = ("--secret", "wandb", "--secret", "HF_TOKEN=hf-token")
    words = ("job", "submit", "--no-bundle", *secrets, "--dry-run", "--", "train.py")
    with serving(lambda _requested, _number: problem(422, "validation_failed")) as server:
        muster.run(*words, url=server.url)
        body = json.loads(server.requested[-1].body)
        assert (body["secrets"], body["secret_env"]) == (["wandb"], {"HF_TOKEN": "hf-token"})
        unfit = muster.run("job", "submit", "--secret", "=hf-token", "--", "train.py", url=server.url)
    assert unfit.returncode == Exit.USAGE
    assert "is neither NAME nor VARIABLE=NAME" in " ".join(unfit.stderr.replace("│", " ").split())
