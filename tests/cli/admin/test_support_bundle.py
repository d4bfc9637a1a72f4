"""``muster support-bundle``: all that helps, and no secret, wherever one has got to."""

import base64
import json
import zipfile
from pathlib import Path
from urllib.parse import quote

import pytest

from muster.cli.framework.exits import Exit
from muster.cli.framework.redaction import Redaction
from tests.cli.command import Command
from tests.recorded_server import Answer, Requested, problem, serving

pytestmark = pytest.mark.timeout(600)  # several processes each, on a machine that does ten things at once

PASSWORD = "pa55/wörd+of%the-database"
DSN = f"postgresql://muster:{quote(PASSWORD, safe='')}@db.example/muster"
SECRET_KEY = "0f" * 32
JOIN_TOKEN = "join-4-the-host-that-is-to-come"
SESSION = "9d8c7b6a5f4e3d2c1b0a"
OPERATOR_KEY = "mst_Operator0Operator0Operator0"
OTHERS_KEY = "mst_Another0Another0Another0"
PEM_LINE = "MIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSkAgEAAoIBAQC7"
SECRETS = {PASSWORD, quote(PASSWORD, safe=""), SECRET_KEY, JOIN_TOKEN, OPERATOR_KEY, OTHERS_KEY, PEM_LINE, SESSION}
SECRETS |= {base64.b64encode(SECRET_KEY.encode()).decode().rstrip("="), "Zm9vOmJhcmJhcmJhcg"}
LOG = f"""\
{{"event": "connected", "dsn": "{DSN}", "host": "db.example"}}
Authorization: Bearer {OTHERS_KEY}
retrying with Basic Zm9vOmJhcmJhcmJhcg==
password={PASSWORD!r} secret_key={SECRET_KEY}
session_token: {SESSION}
key file /etc/muster/key_file=/etc/muster/api.key
a line that says what happened
-----BEGIN PRIVATE KEY-----
{PEM_LINE}
-----END PRIVATE KEY-----
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A local stack's state folder as `muster up` leaves it, with secrets where careless programs put them."""
    folder = tmp_path / ".muster"
    for name in ("keys", "logs", "hosts/h100-1/agent"):
        (folder / name).mkdir(parents=True)
    (folder / "keys" / "operator.key").write_text(OPERATOR_KEY)
    (folder / "secret.key").write_text(SECRET_KEY + "\n")
    (folder / "database.url").write_text(DSN)
    (folder / "hosts" / "h100-1" / "join.token").write_text(JOIN_TOKEN)
    (folder / "hosts" / "h100-1" / "agent" / "node_key").write_text(f"-----BEGIN PRIVATE KEY-----\n{PEM_LINE}\n")
    (folder / "logs" / "api.log").write_text(LOG + f"enrolled by {JOIN_TOKEN}\n")
    (folder / "logs" / "long.log").write_text(f"secret={OTHERS_KEY}\n" * 20_000 + "the end\n")
    return folder


def careless(requested: Requested, _number: int) -> Answer:
    if requested.path == "/readyz":
        return Answer(200, {"status": "ready", "version": "1"})
    if requested.path == "/metrics":
        return Answer(raw=b'muster_nodes{contact="LIVE"} 4.0\n')
    if requested.path.startswith("/v1/events"):
        payload = {
            "reason": f"env {OTHERS_KEY}",
            "api_key": SESSION,
            "note": base64.b64encode(SECRET_KEY.encode()).decode(),
        }
        return Answer(200, {"items": [{"position": 7, "kind": "job.queued", "payload": payload}], "next_cursor": None})
    if requested.path.startswith("/v1/reclaims"):
        return problem(403, "forbidden")
    return Answer(200, {"items": [], "next_cursor": None, "name": "ann", "role": "operator"})


def made(muster: Command, state: Path) -> tuple[zipfile.ZipFile, str]:
    with serving(careless) as server:
        document = {"api_url": server.url, "key_file": str(state / "keys" / "operator.key")}
        (state / "cli.json").write_text(json.dumps(document))
        answer = muster.run("support-bundle", "-o", "b.zip", MUSTER_DATABASE_URL=DSN, MUSTER_SECRET_KEY=SECRET_KEY)
        assert answer.returncode == 0, answer.stderr
        return zipfile.ZipFile(muster.folder / "b.zip"), answer.stdout + answer.stderr


def test_no_secret_of_the_machine_is_in_it_by_whatever_way_it_came(tmp_path: Path, state: Path) -> None:
    bundle, said = made(Command(tmp_path), state)
    for name in bundle.namelist():
        text = bundle.read(name).decode()
        for secret in SECRETS:
            assert secret not in text, f"{name} holds {secret}"
    assert not any(secret in said for secret in SECRETS)
    assert (tmp_path / "b.zip").stat().st_mode & 0o077 == 0


def test_what_helps_is_in_it_and_what_could_not_be_had_is_stated(tmp_path: Path, state: Path) -> None:
    bundle, said = made(Command(tmp_path), state)
    names = set(bundle.namelist())
    assert names >= {"versions.json", "settings.json", "doctor.json", "nodes.json", "events.json", "figures.txt"}
    assert "a line that says what happened" in bundle.read("logs/api.log").decode()
    assert "key_file=/etc/muster/api.key" in bundle.read("logs/api.log").decode(), "a path is no secret"
    assert "db.example" in bundle.read("settings.json").decode(), "where it goes stays, the password does not"
    tail = bundle.read("logs/long.log").decode()
    assert tail.endswith("the end\n")
    assert json.loads(bundle.read("versions.json"))["packages"]["httpx"] != "not installed"
    assert "forbidden" in json.loads(bundle.read("missing.json"))["reclaims.json"]
    assert "not in it: reclaims.json" in said
    assert json.loads(bundle.read("events.json"))[0]["kind"] == "job.queued"


def test_a_file_that_is_there_is_not_written_over_and_no_control_plane_is_no_hindrance(tmp_path: Path) -> None:
    muster = Command(tmp_path)
    assert muster.run("support-bundle", "-o", "b.zip").returncode == 0
    assert "doctor.json" in zipfile.ZipFile(tmp_path / "b.zip").namelist()
    again = muster.run("support-bundle", "-o", "b.zip")
    assert again.returncode == Exit.USAGE
    assert "is there already" in again.stderr
    assert {path.name for path in tmp_path.glob("b.zip*")} == {"b.zip"}


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("MUSTER_API_KEY_FILE=/etc/key", "MUSTER_API_KEY_FILE=/etc/key"),
        ('{"token": "abc"}', '{"token": [struck out]}'),
        ("redis://:hunter2@cache:6379/0", "redis://:[struck out]@cache:6379/0"),
        ("nothing of the kind", "nothing of the kind"),
    ],
)
def test_secrets_are_known_by_their_shape(words: str, left: str) -> None:
    assert Redaction().text(words) == left


def test_members_named_like_secrets_have_no_value() -> None:
    document = {
        "password": "x",
        "nested": [{"api_key": {"a": 1}}],
        "key_id": "key_1",
        "secret_key_file": "/etc/k",
        "token": None,
    }
    assert Redaction().document(document) == {
        "password": "[struck out]",
        "nested": [{"api_key": "[struck out]"}],
        "key_id": "key_1",
        "secret_key_file": "/etc/k",
        "token": None,
    }
