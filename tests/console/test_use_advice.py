"""Advice about running jobs that use their GPUs little: by samples, by the ledger, and by a notice of idleness."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, update

from console.use_advice import advice_about
from control.core.unit_of_work import utc_now
from control.fleet import inventory
from control.ledger import low_use
from control.ledger.low_use import LowUse
from control.telemetry.node_readings import pack_readings
from ledger.accounts import Account
from muster.db.models import AllocationGpu, Attempt, NodeLatest
from muster.domain.gpu.metrics import INDEX, NUM_METRICS
from tests.console.conftest import Console
from tests.console.played_job import PlayedJob, played_job
from tests.control.ledger.test_charges import MS, add, add_hours
from tests.fleet_factory import OPERATOR


def running(seen: Console, *percents: float) -> PlayedJob:
    """Return a job that runs, with the newest utilisation of each of its GPUs."""
    job = played_job(seen)
    job.start()
    with seen.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        gpus = unit.session.scalars(select(AllocationGpu.gpu_uuid).order_by(AllocationGpu.local_index)).all()
        values = np.full((len(gpus), NUM_METRICS), np.nan)
        values[:, INDEX["utilisation_percent"]] = percents
        node_id = job.host.node_id
        latest = unit.session.get(NodeLatest, node_id) or NodeLatest(node_id=node_id, boot_id="boot-1")
        latest.at = latest.received_at = unit.now
        latest.gpu_readings = pack_readings(gpus, values, [False] * len(gpus))
        unit.session.add(latest)
    return job


def test_a_gpu_that_does_nothing_and_idle_time_have_advice(seen: Console) -> None:
    job = running(seen, 97.0, 1.0)
    hour = utc_now().replace(minute=0, second=0, microsecond=0)
    add_hours(seen.units, hour)
    for account in (Account.PRODUCTIVE, Account.IDLE):
        add(seen.units, seen.fleet, hour, account, 2 * MS, job_id=job.job_id)
    page = seen.text("/console/utilisation", "tenant_member")
    assert "2 49 % 1 2.00 50%" in page, page
    assert "1 of 2 GPUs do nothing now" in page
    assert "50% of its time in the last day was neither steps nor saves" in page
    written = seen.get("/console/utilisation.csv?table=advice").text
    assert f"{job.job_id},2,49.0,1,2.000000,," in written
    assert job.job_id not in seen.get("/console/utilisation.csv?table=advice", "other_tenant").text
    assert "None Samples and the ledger show none among the 200 largest attempts" in seen.text(
        "/console/utilisation", "other_tenant"
    )


def test_advice_of_one_job_is_not_cut_off_by_those_of_others(seen: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    job = running(seen, 97.0, 95.0)
    newer = replace(job, job_id=seen.fleet.submit(name="newer", shape={"gpus_per_node": 2}))
    newer.start()
    with seen.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        for hours, each in ((2, job), (1, newer)):
            rows = update(Attempt).where(Attempt.job_id == each.job_id)
            unit.session.execute(rows.values(idle_since=unit.now - timedelta(hours=hours)))
    monkeypatch.setattr(low_use, "EXAMINED", 1)
    assert f"muster job cancel {newer.job_id}" not in seen.text("/console/utilisation")
    assert f"muster job cancel {newer.job_id}" in seen.text(f"/console/utilisation?job={newer.job_id}")
    unknown = seen.text(f"/console/utilisation?job={newer.job_id[:-3]}000")
    assert "None Samples and the ledger show none among its attempts that run." in unknown


def test_a_job_that_works_has_none_and_one_with_a_notice_has(seen: Console) -> None:
    job = running(seen, 97.0, 95.0)
    assert "None Samples and the ledger show none among the 200 largest attempts" in seen.text("/console/utilisation")
    with seen.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        since = unit.now - timedelta(hours=2)
        unit.session.execute(update(Attempt).values(idle_since=since, idle_stop_at=since + timedelta(hours=3)))
    page = seen.text("/console/utilisation")
    assert f"Its GPUs have done nothing since {since:%Y-%m-%d %H:%M} UTC. Unless they work before" in page
    assert f"muster job cancel {job.job_id}" in page


def test_advice_names_what_to_check() -> None:
    given: dict[str, Any] = {"job_id": "job_a", "job_name": "a", "num_gpus": 8, "idle_since": None, "stops_at": None}
    low = LowUse(**given, num_read=8, num_unused=0, mean_percent=20.0, idle_ms=0, assigned_ms=0)
    assert advice_about(low) == "See whether it waits for data or saves: `muster job explain job_a`."
    assert low.idle_share is None
    unknown = LowUse(**given, num_read=0, num_unused=0, mean_percent=None, idle_ms=MS - 1, assigned_ms=MS)
    assert not unknown.is_low
    assert not unknown.is_often_idle, "less than an hour of one GPU"
