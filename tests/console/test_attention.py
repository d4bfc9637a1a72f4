"""What needs a person is in one list: the API, the pages, the command and the doctor name it, until its state ends.

An operator's quarantine likewise: each count of GPUs shows it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from control.attempts.attempts import lock_job, step_job
from control.core.unit_of_work import UnitOfWork
from control.fleet import cordons, overrides
from control.health import breakers, interventions
from control.health.breaker_incidents import BREAKER
from control.health.judge import judge_once
from control.health.rule_repairs import start_repairs_once
from control.jobs import jobs
from control.policy.policies import ACTIVATE, active_policy, store_policy
from control.system.attention import keep_attention_once
from muster.db.models import Gpu, GpuStandingChange, Node
from muster.domain.ids import GpuUuid
from muster.domain.lifecycle.job import HoldRequested
from muster.domain.policy.document import Policy
from muster.domain.principals import system_principal
from muster.domain.states import Contact, Standing
from tests.cli.command import Command
from tests.console.conftest import Console
from tests.fleet_factory import OPERATOR
from tests.recorded_server import Answer, Requested, serving
from tests.stored_signals import add_signal
from tests.warm_python import WarmPython

JUDGE = system_principal("judge")
GPU, OTHER = GpuUuid("GPU-alpha-0"), GpuUuid("GPU-alpha-1")
AT_ONCE = {"remedy_due_after_s": 0, "job_on_hold_after_s": 0, "node_lost_after_s": 0}
UNLIMITED = {"fleet_window_floor": 100, "fleet_floor": 100, "rack_floor": 100, "cohort_floor": 100}


@dataclass
class Desk:
    """A console, and the command of an operator, with the same API."""

    seen: Console
    command: Command
    url: str

    def change(self, action: str, work: Callable[[UnitOfWork], object]) -> None:
        with self.seen.units.begin(OPERATOR, action, quiet=True) as unit:
            work(unit)

    def policy(self, *, remedy_due_after_s: float = 0, **health: object) -> None:
        document = {"attention": {**AT_ONCE, "remedy_due_after_s": remedy_due_after_s}, "health": health}
        self.change(ACTIVATE, lambda unit: store_policy(unit, Policy.model_validate(document), reason="test"))

    def keep(self) -> None:
        """A round of each keeper of incidents."""
        start_repairs_once(self.seen.units, JUDGE)
        keep_attention_once(self.seen.units, system_principal("reconciler"))

    def type(self, *words: str) -> str:
        answer = self.command.run(*words, url=self.url, COLUMNS="1000")
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def api(self, path: str) -> dict[str, object]:
        token = self.seen.made_keys["operator"].token.text
        answer = self.seen.client.get(path, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200, answer.text
        found: dict[str, object] = answer.json()
        return found

    def everywhere(self, page: str) -> dict[str, str]:
        """What each reader shows, by its name; ``page``: of the subject."""
        return {
            "API": repr(self.api("/v1/incidents?state=open")),
            "Incidents page": self.seen.text("/console/incidents?state=open"),
            "page": self.seen.text(page),
            "incident list": self.type("incident", "list", "--wide"),
            "doctor": self.type("doctor"),
        }


@pytest.fixture
def desk(seen: Console, tmp_path: Path, warm_muster: WarmPython) -> Iterator[Desk]:
    """The host is LIVE, and both GPUs are HEALTHY by themselves. The command asks the console's API over a socket."""
    headers = {"Authorization": f"Bearer {seen.made_keys['operator'].token.text}"}

    def answered(requested: Requested, _number: int) -> Answer:
        answer = seen.client.get(requested.path, headers=headers)
        return Answer(answer.status_code, raw=answer.content, headers={"Content-Type": answer.headers["content-type"]})

    with serving(answered) as server:
        found = Desk(seen, Command(tmp_path, str(warm_muster.path)), server.url)
        found.change(ACTIVATE, _stand_healthy)
        found.policy(breaker=UNLIMITED)
        seen.fleet.beat()
        yield found


def _stand_healthy(unit: UnitOfWork) -> None:
    for standing in (Standing.PROBATION, Standing.HEALTHY):
        for gpu in unit.session.scalars(select(Gpu)):
            at = unit.now - timedelta(days=1)
            gpu.standing = standing
            unit.session.add(GpuStandingChange(gpu_uuid=gpu.uuid, target=standing, at=at, reason="test", actor="test"))
        unit.session.flush()


def _fault(desk: Desk, *gpus: GpuUuid) -> None:
    for uuid in gpus:
        desk.change(ACTIVATE, lambda unit, uuid=uuid: add_signal(unit, uuid, code=95))  # type: ignore[misc]  # bound at once
    while judge_once(desk.seen.units, JUDGE):
        pass


def _assert_named(desk: Desk, page: str, *words: str) -> None:
    desk.keep()
    desk.keep()
    assert len(list(desk.api("/v1/incidents?state=open")["items"])) == 1, "one state, one incident"  # type: ignore[call-overload]  # a list
    for reader, text in desk.everywhere(page).items():
        for word in words:
            assert word in text, reader


def _assert_gone(desk: Desk, page: str, *words: str) -> None:
    desk.keep()
    assert desk.api("/v1/incidents?state=open")["items"] == []
    for reader, text in desk.everywhere(page).items():
        for word in words:
            assert word not in text, reader
    assert "incidents      none is open" in desk.type("doctor")


def test_a_remedy_that_is_due_and_that_is_not_begun(desk: Desk) -> None:
    _fault(desk, GPU)
    page, words = f"/console/gpus/{GPU}", f"{GPU} needs a person for its reset: "
    _assert_named(desk, page, words, f"muster gpu repair {GPU} start")
    assert words in desk.type("gpu", "show", GPU)
    assert words in desk.seen.text(f"/console/nodes/{desk.seen.fleet.node_id}")
    desk.change(
        interventions.START_REPAIR,
        lambda unit: interventions.start_repair(unit, GPU, action=None, reason="as it says"),
    )
    _assert_gone(desk, page, words)


def test_a_job_on_hold(desk: Desk) -> None:
    assert "None has been closed yet" in desk.seen.text("/console/incidents?state=closed")
    job_id = desk.seen.fleet.submit()
    hold = HoldRequested("its image is not there")
    desk.change(jobs.CANCEL, lambda unit: step_job(unit, lock_job(unit, job_id), hold, active_policy(unit.session)))
    page, words = f"/console/jobs/{job_id}", "is HELD: its image is not there"
    _assert_named(desk, page, words, f"muster job release {job_id}")
    desk.change(jobs.RELEASE, lambda unit: jobs.release(unit, job_id, reason="it is there"))
    _assert_gone(desk, page, words)


@pytest.mark.parametrize("end", ["heartbeat", "cordon"])
def test_a_node_that_stays_lost(desk: Desk, end: str) -> None:
    node_id = desk.seen.fleet.node_id

    def lose(unit: UnitOfWork) -> None:
        unit.session.execute(update(Node).values(contact=Contact.LOST, last_heartbeat_at=unit.now - timedelta(hours=1)))

    desk.change(ACTIVATE, lose)
    page, words = f"/console/nodes/{node_id}", "node alpha is LOST, with its 2 GPUs"
    _assert_named(desk, page, words, "muster cordon create --node alpha")
    assert words in desk.type("node", "show", "alpha")
    assert words in desk.seen.text(f"/console/gpus/{GPU}"), "its GPUs are away with it"
    if end == "heartbeat":
        desk.seen.fleet.beat()
    else:
        desk.change(cordons.CREATE, lambda unit: cordons.create(unit, node_id=node_id, reason="its board is away"))
    _assert_gone(desk, page, words)


def test_a_breaker_that_is_open(desk: Desk) -> None:
    desk.policy(remedy_due_after_s=86_400, breaker={**UNLIMITED, "fleet_window_floor": 1, "fleet_window_share": 0.01})
    _fault(desk, OTHER)
    desk.keep()
    _fault(desk, GPU)
    page, words = f"/console/gpus/{GPU}", "the circuit breaker opened: fleet_window (cap 1)"
    _assert_named(desk, page, words, "muster breaker close")
    assert words not in desk.seen.text(f"/console/gpus/{OTHER}"), "it holds back nothing of that one"
    desk.change(breakers.CLOSE, lambda unit: breakers.close_scope(unit, BREAKER, "fleet_window", reason="one board"))
    desk.keep()
    assert words not in " ".join(desk.everywhere(page).values())


def test_a_tenant_sees_no_incident_on_its_job(desk: Desk) -> None:
    job_id = desk.seen.fleet.submit()
    hold = HoldRequested("its image is not there")
    desk.change(jobs.CANCEL, lambda unit: step_job(unit, lock_job(unit, job_id), hold, active_policy(unit.session)))
    desk.keep()
    assert "Needs attention" in desk.seen.text(f"/console/jobs/{job_id}")
    assert "Needs attention" not in desk.seen.text(f"/console/jobs/{job_id}", "tenant_member")


def test_a_quarantine_by_hand_shows_in_each_count_and_filter(desk: Desk) -> None:
    desk.change(overrides.RELEASE, lambda unit: overrides.release(unit, OTHER, reason="test"))
    desk.change(
        overrides.OVERRIDE,
        lambda unit: overrides.override(
            unit, GPU, Standing.QUARANTINED, until=unit.now + timedelta(days=1), reason="it smells"
        ),
    )
    desk.change(cordons.CREATE, lambda unit: cordons.create(unit, gpu_uuid=OTHER, reason="a fan"))
    tiles = desk.seen.get("/console").text
    assert re.search(r'data-count="QUARANTINED">1<', tiles)
    assert re.search(r'data-count="HEALTHY">1<', tiles)
    assert re.search(r"data-count-cordoned>1<", tiles)
    filtered = desk.seen.text("/console/gpus?standing=QUARANTINED")
    assert "its own: HEALTHY" in filtered
    assert str(OTHER) not in desk.seen.get("/console/gpus?standing=QUARANTINED").text
    assert str(GPU) not in desk.seen.get("/console/gpus?cordoned=yes").text
    assert "1 HEALTHY, 1 QUARANTINED; 1 cordoned" in desk.type("node", "list")
    assert "1 HEALTHY, 1 QUARANTINED; 1 cordoned" in desk.type("cohort", "list")
    assert "1 of 2 are not HEALTHY (1 QUARANTINED)" in desk.type("doctor")
    assert "QUARANTINED (own: HEALTHY)" in desk.type("gpu", "list", "--standing", "quarantined")
    assert OTHER in desk.type("gpu", "list", "--cordoned", "--wide")
    figures = desk.seen.client.get(
        "/metrics", headers={"Authorization": f"Bearer {desk.seen.made_keys['operator'].token.text}"}
    ).text
    assert 'muster_gpus{standing="QUARANTINED"} 1.0' in figures
    assert "muster_gpus_cordoned 1.0" in figures
    assert "QUARANTINED" in desk.seen.text("/console/cohorts")
    listed: Any = desk.api("/v1/nodes")
    (node,) = listed["items"]
    assert node["standings"] == {"HEALTHY": 2}, "as a client of the release before reads it"
    assert (node["effective_standings"], node["num_cordoned_gpus"]) == ({"HEALTHY": 1, "QUARANTINED": 1}, 1)
