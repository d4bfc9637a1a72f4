"""Outputs of a gang on two hosts that share no folder: one tree at the client, and what is missing by its host."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import Engine

from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import keys
from muster.client.rest import RestClient
from muster.domain.ids import JobId
from muster.domain.principals import Role
from muster.domain.states import JobState
from tests.cli.command import Command
from tests.fleet_factory import OPERATOR, Fleet, enrol_host
from tests.host_case import HostCase
from workers.host.content.places import SET_ASIDE

from .collected import collect, waiting_in
from .stores import bundles_host

pytestmark = pytest.mark.timeout(400)
WRITES = """
import os, pathlib
out, rank = pathlib.Path(os.environ["MUSTER_OUTPUT_DIR"]), os.environ["MUSTER_NODE_RANK"]
(out / "shards").mkdir()
(out / "shards" / "model.pt").write_bytes(os.urandom(5_000_000))
(out / "log.txt").write_text("of host " + rank)
"""


@dataclass
class Gang:
    """Two hosts with state folders of their own, and the command of their tenant."""

    hosts: tuple[HostCase, HostCase]
    command: Command
    url: str

    @property
    def fleet(self) -> Fleet:
        return self.hosts[0].fleet

    def run(self, code: str = WRITES) -> JobId:
        """Run a job to its end on both; their outputs wait there."""
        program = {"launcher": "command", "argv": [sys.executable, "-c", code]}
        job_id = self.fleet.submit(program=program, shape={"nodes": 2, "gpus_per_node": 1})
        self.fleet.cycle()
        self.turn_until_over(job_id)
        assert self.fleet.job(job_id).state is JobState.SUCCEEDED, self.fleet.job(job_id).state_reason
        return job_id

    def turn_until_over(self, job_id: JobId) -> None:
        first, second = self.hosts

        def is_over() -> bool:
            second.launcher.turn(woken=True)
            return self.fleet.job(job_id).finished_at is not None and not self.fleet.num_taken_gpus()

        first.turn_until(is_over)

    def at(self, rank: int, job_id: JobId) -> HostCase:
        """The host of a node rank."""
        part = next(each.part for each in self.fleet.attempts(job_id)[-1].hosts if each.part.node_rank == rank)
        return next(host for host in self.hosts if host.fleet.node_id == part.node_id)

    def states(self, job_id: JobId) -> list[str]:
        with RestClient(self.url, self.command.key_file.read_text()) as client:
            return [one["state"] for one in client.output_hosts(job_id)]

    def get(self, job_id: JobId, *words: str) -> subprocess.CompletedProcess[str]:
        return self.command.run("job", "get", job_id, *words, url=self.url)

    def set_aside_of(self, host: HostCase, job_id: JobId) -> dict[str, bytes]:
        place = host.state_dir / SET_ASIDE / self.fleet.attempts(job_id)[-1].attempt.id / "output"
        return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.fixture
def gang(fleet: Fleet, api_url: str, tmp_path: Path) -> Iterator[Gang]:
    second = replace(fleet, node_id=enrol_host(fleet.units, "beta"))
    hosts = []
    for one, name in ((fleet, "first"), (second, "second")):
        state_dir = tmp_path / name / "state"
        bundles = bundles_host(fleet.units, one.node_id, state_dir, api_url)
        hosts.append(HostCase(one, state_dir, bundles=bundles))
    (tmp_path / "client").mkdir()
    command = Command(tmp_path / "client")
    with fleet.units.begin(OPERATOR, keys.CREATE) as unit:
        made = keys.create(unit, name="reader", role=Role.TENANT_MEMBER, tenant_id=fleet.tenant_id)
    command.key_file.write_text(made.token.text)
    yield Gang((hosts[0], hosts[1]), command, api_url)
    for host in hosts:
        host.close()


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_of_both_hosts_come_as_one_tree_without_collision(gang: Gang) -> None:
    job_id = gang.run()
    written = {rank: gang.set_aside_of(gang.at(rank, job_id), job_id) for rank in (0, 1)}
    assert written[0].keys() == written[1].keys() == {"log.txt", "shards/model.pt"}
    assert gang.states(job_id) == ["waiting", "waiting"]
    for host in gang.hosts:
        collect(host)
    assert gang.states(job_id) == ["complete", "complete"]
    got = gang.get(job_id, "-o", "results")
    assert got.returncode == 0, got.stderr
    expected = {f"node-{rank}/{path}": content for rank, files in written.items() for path, content in files.items()}
    found = files_in(gang.command.folder / "results")
    assert {path: sha256(text).hexdigest() for path, text in found.items()} == {
        path: sha256(text).hexdigest() for path, text in expected.items()
    }
    listed = gang.command.run("job", "files", job_id, "--json", url=gang.url)
    assert [(one["node_rank"], one["path"]) for one in json.loads(listed.stdout)] == [
        (rank, path) for rank in (0, 1) for path in ("log.txt", "shards/model.pt")
    ]


def test_a_host_that_dies_before_its_upload_is_named_and_its_files_come_when_it_is_back(
    gang: Gang, engine: Engine
) -> None:
    job_id = gang.run()
    alive, dead = gang.at(0, job_id), gang.at(1, job_id)
    collect(alive)
    name = next(each.node_name for each in gang.fleet.attempts(job_id)[-1].hosts if each.part.node_rank == 1)
    early = gang.get(job_id, "-o", "results")
    assert early.returncode == 1
    assert f"host 1 ({name})" in early.stderr
    assert "begins to upload them" in " ".join(early.stderr.split())
    # The other one was killed between the two, and no heartbeat of it comes any more.
    dead.close()
    later = gang.fleet.units.clock() + timedelta(hours=1)
    replace(gang.fleet, units=UnitOfWorkFactory(engine, clock=lambda: later)).reconcile()
    assert gang.states(job_id) == ["complete", "lost"]
    lost = gang.get(job_id, "-o", "results")
    assert lost.returncode == 1
    assert f"Missing: the outputs of host 1 ({name}) at the end of attempt 1: contact to it is lost" in " ".join(
        lost.stderr.split()
    )
    assert "stored at each checkpoint too" in " ".join(lost.stderr.split())
    assert gang.get(job_id, "-o", "results", "--partial").returncode == 0
    assert gang.get(job_id, "-o", "one", "--node", "0").returncode == 0, "of that host nothing is missing"
    folder = gang.command.folder / "results"
    assert {path.name for path in folder.iterdir()} == {"node-0"}, "where it stays when the others come"
    assert f"host 1 ({name})" in gang.command.run("job", "files", job_id, url=gang.url).stdout
    assert waiting_in(dead) != []
    collect(dead)
    assert gang.get(job_id, "-o", "results").returncode == 0
    assert files_in(folder).keys() == {
        f"node-{rank}/{path}" for rank in (0, 1) for path in ("log.txt", "shards/model.pt")
    }


def test_a_host_that_left_nothing_misses_nothing(gang: Gang) -> None:
    job_id = gang.run(
        "import os, pathlib\n"
        "if os.environ['MUSTER_NODE_RANK'] == '0':\n"
        "    pathlib.Path(os.environ['MUSTER_OUTPUT_DIR'], 'model').write_text('all')"
    )
    assert gang.states(job_id) == ["waiting", "nothing"]
    collect(gang.at(0, job_id))
    assert gang.get(job_id, "-o", "results").returncode == 0
    assert files_in(gang.command.folder / "results") == {"model": b"all"}
