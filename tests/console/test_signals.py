"""The page of a GPU, `muster gpu show` and the API say alike how old each group of its signals is."""

import pytest
from sqlalchemy import select

from api.gpu_views import gpu_detail_view
from control.health.gpu_details import detail_of
from control.policy.policies import ACTIVATE
from muster.cli.gpu.gpu_texts import gpu_lines
from muster.db.models import Gpu, NodeLatest
from muster.domain.ids import GpuUuid
from muster.domain.times import to_ms
from tests.console.conftest import Console
from tests.fleet_factory import OPERATOR


@pytest.fixture
def gpu(seen: Console) -> GpuUuid:
    """Late in four samples, inspected a minute ago, on a host whose kernel log is not read for an hour."""
    with seen.units.begin(OPERATOR, ACTIVATE, quiet=True) as unit:
        found = unit.session.scalars(select(Gpu).order_by(Gpu.uuid)).all()[0]
        now_ms = to_ms(unit.now)
        unit.session.merge(
            NodeLatest(
                node_id=found.node_id,
                received_at=unit.now,
                freshness={
                    "gpus": {found.uuid: [now_ms - 40_000, now_ms - 60_000, 2000.5, now_ms - 30_000, 4, 0]},
                    "groups": {"kernel_log": now_ms - 3_600_000},
                    "stated": {},
                },
            )
        )
        return found.uuid


def test_each_group_has_its_age_and_what_is_overdue_is_marked(seen: Console, gpu: GpuUuid) -> None:
    with seen.units.begin(OPERATOR, ACTIVATE, quiet=True) as unit:
        document = gpu_detail_view(detail_of(unit, gpu))
    assert [(each["group"], each["late_samples"], each["is_overdue"]) for each in document["signals"]] == [
        ("readings", 4, True),
        ("states", 0, False),
        ("kernel_log", 0, True),
        ("agent", 0, False),
    ]
    lines = list(gpu_lines({**document}))
    shown = [line.strip() for line in lines[lines.index("signals:") + 1 :]]
    assert shown[0].startswith("readings: ")
    assert shown[0].endswith(" ago, 4 samples late in a row, overdue after 600 s")
    assert shown[2].endswith(" ago, overdue after 60 s")
    assert shown[4] == "the driver took 2000.5 ms for its newest sample"
    older = {name: value for name, value in document.items() if name not in {"signals", "driver_latency_ms"}}
    assert "signals:" not in list(gpu_lines(older)), "a server of the release before sends none"
    page = seen.text(f"/console/gpus/{gpu}")
    assert "4 samples late in a row overdue" in page
    assert "driver's answer 2,000.5 ms" in page or "driver's answer 2000.5 ms" in page


def test_a_host_whose_agent_states_no_ages_has_none(seen: Console) -> None:
    with seen.units.begin(OPERATOR, ACTIVATE, quiet=True) as unit:
        uuid = unit.session.scalars(select(Gpu.uuid).order_by(Gpu.uuid)).all()[0]
        assert gpu_detail_view(detail_of(unit, uuid))["signals"] == []
    assert "driver's answer" not in seen.text(f"/console/gpus/{uuid}")
