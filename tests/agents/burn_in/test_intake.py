"""A real agent, as its own process, against the real API: GPUs it has never proved become PROBATION or go out."""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agents.probes.faults import Fault, write_fault
from agents.probes.simulated import simulated_uuids
from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import inventory as fleet
from control.tenants import keys
from local.children import Child, child_environment
from muster.db.engine import make_engine
from muster.db.models import BurnIn
from muster.domain.ids import GpuUuid
from muster.domain.principals import Role
from muster.domain.states import BurnInOutcome, BurnInState, Standing
from muster.ports import free_port
from muster.settings import make_secret_key_file
from tests.control.burn_in_case import newest, standing
from tests.fleet_factory import OPERATOR
from tests.readiness import is_ready
from tests.waiting import wait_until
from tests.warm_python import WarmPython
from workers.control.main import burn_in_once

pytestmark = pytest.mark.timeout(1000)
GPUS = simulated_uuids(3)


@dataclass
class Place:
    """One host with three UNPROVEN simulated GPUs, and the API."""

    units: UnitOfWorkFactory
    url: str
    folder: Path

    @property
    def faults(self) -> Path:
        return self.folder / "faults.json"

    def agent(self, **variables: Path | str) -> Child:
        words = ["agent", "run", "--simulated", "h100", "--gpus", "3", "--faults", str(self.faults)]
        environment = child_environment(
            api_url=self.url,
            api_key_file=self.folder / "node.key",
            state_dir=self.folder / "agent",
            **variables,
        )
        return Child("agent", words, environment, self.folder / "agent.log")

    def is_so(self, gpu: GpuUuid, state: BurnInState) -> bool:
        burn_in_once(self.units)
        with self.units.read() as session:
            return session.query(BurnIn).filter_by(gpu_uuid=gpu, state=state).first() is not None


@pytest.fixture
def place(database_url: str, short_folder: Path, warm_stack: WarmPython) -> Iterator[Place]:
    engine = make_engine(database_url)
    units = UnitOfWorkFactory(engine)
    port = free_port()
    inventory = [
        fleet.GpuInventory(
            uuid=uuid,
            slot_index=index,
            model="NVIDIA H100 80GB HBM3",
            memory_bytes=80 << 30,
            compute_capability="9.0",
            driver_version="580",
            is_simulated=True,
        )
        for index, uuid in enumerate(GPUS)
    ]
    with units.begin(OPERATOR, fleet.ENROL) as unit:
        node_id = fleet.enrol_node(unit, "alpha", inventory, address="127.0.0.1", is_simulated=True)
    with units.begin(OPERATOR, keys.CREATE) as unit:
        token = keys.create(unit, name="node", role=Role.NODE, node_id=node_id).token.text
    (short_folder / "node.key").write_text(token)
    (short_folder / "faults.json").write_text('{"faults": []}')
    make_secret_key_file(short_folder / "secret.key")
    variables = child_environment(database_url=database_url, secret_key_file=short_folder / "secret.key", api_port=port)
    child = Child("api", ["api"], variables, short_folder / "api.log", str(warm_stack.daemon))
    child.start()
    try:
        wait_until(lambda: is_ready(f"http://127.0.0.1:{port}"), timeout_s=120)
        yield Place(units, f"http://127.0.0.1:{port}", short_folder)
    finally:
        child.stop()
        engine.dispose()


def test_gpus_that_compute_right_are_proved_and_the_one_that_does_not_goes_out(
    place: Place, warm_python: WarmPython
) -> None:
    write_fault(place.faults, Fault(gpu=GPUS[1], kind="wrong_result"))
    agent = place.agent(job_python=warm_python.path)
    agent.start()
    try:
        for gpu in GPUS:
            wait_until(lambda gpu=gpu: place.is_so(gpu, BurnInState.JUDGED), timeout_s=300)  # type: ignore[misc]  # bound at once
    finally:
        agent.stop()
    assert [standing(place.units, gpu) for gpu in GPUS] == [
        Standing.PROBATION,
        Standing.QUARANTINED,
        Standing.PROBATION,
    ]
    wrong, right = newest(place.units, GPUS[1]), newest(place.units, GPUS[0])
    assert (wrong.outcome, right.outcome, right.reasons) == (BurnInOutcome.FAILED, BurnInOutcome.PASSED, [])
    assert "exactly" in wrong.reasons[0]
    assert right.figures is not None
    assert (right.figures["is_simulated"], right.figures["counter_deltas"]["nvlink_replays"]) == (True, 0.0)
    assert right.figures["rates"]["gemm_bf16_sustained_tflops"] > 600


def test_an_agent_killed_in_the_middle_is_given_its_order_again_when_it_lives_again(place: Place) -> None:
    hanging = place.folder / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    first = place.agent(job_python=hanging)
    first.start()
    try:
        wait_until(lambda: place.is_so(GPUS[0], BurnInState.RUNNING), timeout_s=120)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
    finally:
        first.stop()
    assert newest(place.units, GPUS[0]).state is BurnInState.RUNNING
    second = place.agent(job_python=sys.executable)
    second.start()
    try:
        wait_until(lambda: place.is_so(GPUS[0], BurnInState.JUDGED), timeout_s=300)
    finally:
        second.stop()
    row = newest(place.units, GPUS[0])
    assert (row.outcome, row.tries) == (BurnInOutcome.PASSED, 2)
    assert row.last_fault == "its agent asked again without a report"
    assert standing(place.units, GPUS[0]) is Standing.PROBATION


def test_a_host_without_torch_reports_it_and_proves_nothing(place: Place) -> None:
    bare = place.folder / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    agent = place.agent(job_python=bare)
    agent.start()
    try:
        wait_until(lambda: place.is_so(GPUS[0], BurnInState.ABANDONED), timeout_s=300)
    finally:
        agent.stop()
    row = newest(place.units, GPUS[0])
    assert (row.tries, row.figures) == (3, None)
    assert "torch cannot be imported" in (row.last_fault or "")
    assert standing(place.units, GPUS[0]) is Standing.UNPROVEN
