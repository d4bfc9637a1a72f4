"""The console's page of a GPU says which remedy is due, and its dialog of a repair begins with it."""

import re

import pytest
from sqlalchemy import select, update

from control.health.judge import judge_once
from control.policy.policies import ACTIVATE
from muster.db.models import Gpu, Node, Repair
from muster.domain.evidence.repairs import RepairVerb
from muster.domain.ids import GpuUuid
from muster.domain.principals import system_principal
from tests.console.conftest import Console
from tests.stored_signals import add_signal

JUDGE = system_principal("judge")


@pytest.fixture
def gpu(seen: Console) -> GpuUuid:
    """Quarantined, on a host whose agent may reset it."""
    with seen.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        uuid = unit.session.scalars(select(Gpu.uuid).order_by(Gpu.uuid)).all()[0]
        unit.session.execute(update(Node).values(repair_verbs=["gpu_reset"]))
        unit.session.execute(update(Gpu).where(Gpu.uuid == uuid).values(standing="PROBATION"))
        add_signal(unit, uuid, code=95)
    while judge_once(seen.units, JUDGE):
        pass
    return uuid


def test_the_page_states_what_is_due_and_the_dialog_has_it_chosen(seen: Console, gpu: GpuUuid) -> None:
    said = seen.text(f"/console/gpus/{gpu}")
    assert "Remedy due reset by its agent (gpu_reset): XID 95" in said
    assert "Attempt 1 of 3 for memory, then reboot, field diagnosis, swap." in said
    page = seen.get(f"/console/gpus/{gpu}").text
    chosen = re.findall(r'<option value="(\w+)" selected', page)
    assert chosen == ["reset", "agent"]


def test_a_repair_by_the_agent_is_started_from_the_dialog(seen: Console, gpu: GpuUuid) -> None:
    path = f"/console/gpus/{gpu}/repair"
    refused = seen.post(path, action="reset", by="nobody", reason="as due", step="do")
    assert refused.status_code == 422
    assert "person, agent" in refused.text
    seen.post(path, action="reset", by="agent", reason="as due", step="do")
    with seen.units.read() as session:
        (row,) = session.scalars(select(Repair)).all()
    assert (row.gpu_uuid, row.verb) == (gpu, RepairVerb.GPU_RESET)


def test_a_repair_by_a_person_needs_no_word_of_what(seen: Console, gpu: GpuUuid) -> None:
    seen.post(f"/console/gpus/{gpu}/repair", action="swap", reason="ticket 7", step="do")
    with seen.units.read() as session:
        (row,) = session.scalars(select(Repair)).all()
    assert (row.verb, row.action) == (None, "swap")
