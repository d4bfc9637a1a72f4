"""A host worker without a configured node uses the identity with which its host's agent enrolled, once it has."""

import threading
from pathlib import Path

from muster.settings import Settings
from tests.waiting import wait_until
from workers.host.identity import HostIdentity, host_identity


def settings(folder: Path, **values: object) -> Settings:
    return Settings.model_validate({"api_url": "http://127.0.0.1:1", "state_dir": folder, **values}, strict=False)


def test_it_waits_for_the_agents_enrolment_and_its_first_token(tmp_path: Path) -> None:
    found: list[HostIdentity | None] = []
    waiting = threading.Thread(
        target=lambda: found.append(host_identity(settings(tmp_path), None, threading.Event())), daemon=True
    )
    waiting.start()
    agent = tmp_path / "agent"
    agent.mkdir()
    (agent / "identity.json").write_text('{"node_id": "node_1"}', encoding="utf-8")
    waiting.join(0.6)
    assert found == [], "no token yet"
    (agent / "node.token").write_text("mst_token", encoding="ascii")
    wait_until(lambda: found != [])
    assert found == [HostIdentity("node_1", agent / "node.token")]


def test_what_it_is_reported_needs_no_agent(tmp_path: Path) -> None:
    told = settings(tmp_path, api_key_file=tmp_path / "node.key")
    assert host_identity(told, "node_2", threading.Event()) == HostIdentity("node_2", tmp_path / "node.key")


def test_half_an_identity_is_none_and_a_stop_ends_the_wait(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "identity.json").write_text('{"node', encoding="utf-8")
    (tmp_path / "agent" / "node.token").touch()
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    assert host_identity(settings(tmp_path), None, stop) is None
