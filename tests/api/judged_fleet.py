"""The API over two GPUs that are truly HEALTHY, their own faults, and what a test asks by REST."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from control.health.judge import judge_once
from control.policy.policies import ACTIVATE
from muster.db.models import (
    Gpu,
    GpuStandingChange,
)
from muster.domain.ids import GpuUuid
from muster.domain.principals import system_principal
from muster.domain.states import Standing
from tests.api.conftest import Api
from tests.stored_signals import add_signal

GPU, OTHER = GpuUuid("GPU-alpha-0"), GpuUuid("GPU-alpha-1")
JUDGE = system_principal("judge")


@pytest.fixture
def api(api: Api) -> Api:
    """Its two GPUs truly HEALTHY."""
    with api.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        for standing in (Standing.PROBATION, Standing.HEALTHY):
            for gpu in unit.session.scalars(select(Gpu)):
                at = unit.now - timedelta(days=1)
                gpu.standing = standing
                unit.session.add(
                    GpuStandingChange(gpu_uuid=gpu.uuid, target=standing, at=at, reason="test", actor="test")
                )
            unit.session.flush()
    return api


def fault(api: Api, *, uuid: GpuUuid = GPU, code: int = 95, kind: str = "xid") -> None:
    """An event of this GPU's driver, judged."""
    with api.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        add_signal(unit, uuid, kind=kind, code=code if kind == "xid" else None)
    judge_once(api.units, JUDGE)


def show(api: Api, uuid: GpuUuid = GPU) -> dict[str, Any]:
    answer = api.client.get(f"/v1/gpus/{uuid}", headers=api.headers("operator"))
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def act(api: Api, path: str, status: int = 200, *, uuid: GpuUuid = GPU, query: str = "", **body: Any) -> dict[str, Any]:
    headers = {**api.headers("operator"), **body.pop("headers", {})}
    answer = api.client.post(f"/v1/gpus/{uuid}/{path}{query}", json={"reason": "because", **body}, headers=headers)
    assert answer.status_code == status, answer.text
    document: dict[str, Any] = answer.json()
    return document


def rows(api: Api, table: type[Any]) -> list[Any]:
    with api.units.read() as session:
        return list(session.scalars(select(table).order_by(*table.__table__.primary_key.columns)))


def trip(api: Api) -> None:
    for uuid in (GPU, OTHER):
        fault(api, uuid=uuid)
