"""Agents' own code against the real API: enrol, ask for tokens, and two copies of one disk that find each other out."""

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from agents.identity import EnrolmentClient, enrol, stored_identity
from agents.probes.interface import GpuIdentity, HostInventory
from agents.tokens import NodeIdentity, NoTokenError, TokenKeeper
from muster.client.transport import Problem
from muster.domain.ids import GpuUuid
from tests.api.conftest import Api


def _inventory(*uuids: str) -> HostInventory:
    gpus = tuple(
        GpuIdentity(uuid=GpuUuid(uuid), index=index, model="H100", memory_bytes=80 << 30)
        for index, uuid in enumerate(uuids)
    )
    return HostInventory(driver_version="570", gpus=gpus)


def _client(api: Api) -> EnrolmentClient:
    client = EnrolmentClient("http://127.0.0.1")
    client.close()
    client._http = api.client
    return client


def _join_token(api: Api, host_name: str) -> str:
    answer = api.client.post("/v1/join-tokens", json={"host_name": host_name}, headers=api.headers("operator"))
    return str(answer.json()["token"])


def _keeper(client: EnrolmentClient, identity: NodeIdentity | None, boot_id: str, clock: list[int]) -> TokenKeeper:
    assert identity is not None
    return TokenKeeper(
        identity,
        client.ask_token,
        boot_id,
        monotonic_ms=lambda: clock[0],
        wall_ms=lambda: time.time_ns() // 1_000_000,
        rng=random.Random(1),  # noqa: S311  # a test that repeats
    )


def _whoami(api: Api, token: str) -> Any:
    return api.client.get("/v1/whoami", headers={"Authorization": f"Bearer {token}"})


def test_a_server_names_the_field_that_it_does_not_know(api: Api) -> None:
    """An agent of a later release reads it there, and enrols without."""
    whole = {"protocol": 1, "token": "mst_j", "host_name": "h", "public_key": "a" * 43 + "="}
    answer = api.client.post("/v1/enrol", json={**whole, "of_tomorrow": []})
    assert (answer.status_code, answer.json()["detail"]) == (422, "Object contains unknown field `of_tomorrow`")


def test_an_agent_enrols_and_its_token_represents_its_node_alone(api: Api, tmp_path: Path) -> None:
    client = _client(api)
    join_token = _join_token(api, "gpu-9")
    identity = enrol(tmp_path, client, join_token=join_token, host_name="gpu-9", inventory=_inventory("GPU-1"))
    token = _keeper(client, stored_identity(tmp_path), "boot-1", [0]).token()
    assert _whoami(api, token).json()["node_id"] == identity.node_id
    assert api.client.get("/v1/nodes", headers={"Authorization": f"Bearer {token}"}).status_code == 403


def test_a_claimed_gpu_of_another_node_is_refused_with_its_name(api: Api, tmp_path: Path) -> None:
    join_token = _join_token(api, "gpu-9")
    with pytest.raises(Problem, match="GPU-alpha-0 belongs to node alpha"):
        enrol(tmp_path, _client(api), join_token=join_token, host_name="gpu-9", inventory=_inventory("GPU-alpha-0"))


def test_two_agents_with_one_copied_disk_are_both_refused_within_two_reports(api: Api, tmp_path: Path) -> None:
    client, disk, copy = _client(api), tmp_path / "disk", tmp_path / "copy"
    enrol(disk, client, join_token=_join_token(api, "gpu-9"), host_name="gpu-9", inventory=_inventory("GPU-1"))
    shutil.copytree(disk, copy)
    clock = [0]
    original = _keeper(client, stored_identity(disk), "boot-1", clock)
    first = original.token()
    clone = _keeper(client, stored_identity(copy), "boot-2", clock)
    taken = clone.token()
    assert _whoami(api, first).status_code == 401, "the original's next report is turned away"
    original.invalidate(first)
    with pytest.raises(NoTokenError, match="cloned"):
        original.token()
    assert _whoami(api, taken).status_code == 401
    clone.invalidate(taken)
    with pytest.raises(NoTokenError, match="cloned"):
        clone.token()
