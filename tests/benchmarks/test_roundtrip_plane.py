"""The control plane of the round trip gives each case a part of its own job."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import select

from benchmarks.roundtrip_plane import Plane
from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import jobs
from muster.content.manifest import VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.db.models import Attempt, Job
from muster.domain.ids import AttemptId, TenantId
from muster.domain.job.spec import JobSpec
from muster.domain.principals import Principal, Role
from muster.store.objects import ObjectStore
from tests.stored_bundles import store_bundle

MANIFEST = encode(Manifest(VERSION, (Entry("main.py", Kind.FILE, 7, (digest_of(b"print()"),)),)))
JOB = {"name": "left", "program": {"launcher": "command", "argv": ["python", "main.py"]}, "shape": {"gpus_per_node": 1}}


def member_of(tenant_id: TenantId) -> Principal:
    return Principal(name="member", role=Role.TENANT_MEMBER, tenant_id=tenant_id)


@pytest.fixture
def units(database_url: str) -> Iterator[UnitOfWorkFactory]:
    found = UnitOfWorkFactory.connected(database_url, application_name="plane", pool_size=2, max_overflow=1)
    yield found
    found.close()


def test_jobs_that_an_earlier_module_left_in_the_queue_get_no_host_of_a_later_one(
    units: UnitOfWorkFactory, tmp_path: Path
) -> None:
    """Their parts were claimed in place of the job's own: its outputs were stored for another tenant, and missed."""
    plane = Plane(tmp_path, "http://127.0.0.1:1", units, cast("ObjectStore", None), {})
    other, member = plane.new_member(), plane.new_member()
    for _ in range(4):
        with units.begin(member_of(other.tenant_id), jobs.SUBMIT) as unit:
            jobs.submit(unit, JobSpec.model_validate(JOB, strict=False))
    digest = store_bundle(units, member_of(member.tenant_id), MANIFEST)
    for _ in range(3):
        [part] = plane.parts(member, digest)
        with units.read() as session:
            query = select(Job.tenant_id).join(Attempt, Attempt.job_id == Job.id)
            assert session.scalar(query.where(Attempt.id == AttemptId(part.attempt_id))) == member.tenant_id
