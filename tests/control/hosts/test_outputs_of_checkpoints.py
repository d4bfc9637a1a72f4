"""Outputs that hosts collect at a checkpoint belong to it: in its lineage, by its manifest, and as long as its pin."""

from datetime import timedelta
from typing import Any

from control.checkpoints.types import CheckpointRecord
from control.core.paging import Part
from control.jobs import jobs, outputs, pins, training_views
from control.jobs.outputs import OutputsFilter, OutputsFound
from muster.domain.ids import AttemptId, JobId
from muster.domain.times import to_ms
from tests.control.conftest import SetClock
from tests.control.hosts.test_folder_uploads import (
    claimed,
    digests,
    end,
    fleet,
    host_of,
    keep,
    manifest,
    stored,
    upload,
)
from tests.fleet_factory import Fleet

__all__ = ["fleet"]
SHA256 = "5" * 64


def saved(fleet: Fleet, attempt_id: AttemptId, fence: int, step: int, offset: int = 0, **more: Any) -> int:
    name = f"step-{step:08d}/gen-{fence}"
    at_ms = to_ms(fleet.units.clock())
    reported = {
        "type": "checkpoint",
        "step": step,
        "generation": name,
        "status": "verified",
        "manifest_sha256": SHA256,
        "at_unix_ms": at_ms,
        **more,
    }
    return host_of(fleet).report_words(attempt_id, fence, reported, at_ms=at_ms, offset=offset).offset


def checkpoints(fleet: Fleet, job_id: JobId) -> list[CheckpointRecord]:
    with fleet.units.begin(fleet.tenant, jobs.READ) as unit:
        return list(training_views.checkpoints_of(unit, job_id))


def found(fleet: Fleet, job_id: JobId) -> list[OutputsFound]:
    with fleet.units.begin(fleet.tenant, outputs.READ) as unit:
        return outputs.outputs_of(unit, job_id, OutputsFilter(), Part(None))


def test_outputs_of_a_step_name_its_checkpoint_and_stand_in_its_lineage(fleet: Fleet) -> None:
    job_id, attempt_id, fence = claimed(fleet)
    offset = saved(fleet, attempt_id, fence, 100, lineage={"code_sha256": "c" * 64})
    saved(fleet, attempt_id, fence, 200, offset)
    one, last = manifest(b"one"), manifest(b"last")
    upload(fleet, attempt_id, fence, one, "step-100")
    upload(fleet, attempt_id, fence, one, "step-200")  # the same files, which are stored already
    upload(fleet, attempt_id, fence, last)
    lineages = {row.step: row.manifest["lineage"] for row in checkpoints(fleet, job_id)}
    assert lineages[100]["outputs"] == lineages[200]["outputs"] == [one.digest]
    assert (lineages[100]["code_sha256"], lineages[200]["code_sha256"]) == ("c" * 64, None)
    named = {each.step: each.checkpoint for each in found(fleet, job_id)}
    assert named[None] is None
    assert named[100] is not None
    assert (named[100].generation, named[100].sha256) == (f"step-{100:08d}/gen-{fence}", SHA256)


def test_outputs_of_a_step_that_was_never_reported_name_no_checkpoint(fleet: Fleet) -> None:
    job_id, attempt_id, fence = claimed(fleet)
    upload(fleet, attempt_id, fence, manifest(b"one"), "step-7")
    assert [each.checkpoint for each in found(fleet, job_id)] == [None]


def test_a_step_that_is_saved_again_after_a_rollback_is_another_one(fleet: Fleet) -> None:
    job_id, attempt_id, fence = claimed(fleet)
    offset = saved(fleet, attempt_id, fence, 100)
    upload(fleet, attempt_id, fence, manifest(b"one"), "step-100")
    name = f"step-{100:08d}/gen-{fence}"
    at_ms = to_ms(fleet.units.clock())
    expired: dict[str, object] = {"type": "checkpoint_expired", "generation": name}
    offset = host_of(fleet).report_words(attempt_id, fence, expired, at_ms=at_ms, offset=offset).offset
    offset = saved(fleet, attempt_id, fence, 100, offset, status="writing")
    saved(fleet, attempt_id, fence, 100, offset)
    [again] = checkpoints(fleet, job_id)
    assert not (again.manifest["lineage"] or {}).get("outputs")
    assert [each.checkpoint for each in found(fleet, job_id)] == [None]


def test_outputs_of_a_pinned_checkpoint_stay_as_long_as_its_pin(fleet: Fleet, clock: SetClock) -> None:
    job_id, attempt_id, fence = claimed(fleet)
    offset = saved(fleet, attempt_id, fence, 100)
    saved(fleet, attempt_id, fence, 200, offset)
    one, two = manifest(b"one"), manifest(b"two")
    upload(fleet, attempt_id, fence, one, "step-100")
    upload(fleet, attempt_id, fence, two, "step-200")
    pinned = next(row.id for row in checkpoints(fleet, job_id) if row.step == 100)
    with fleet.units.begin(fleet.tenant, pins.PIN) as unit:
        pins.pin(unit, job_id, pinned)
    end(fleet, attempt_id, fence)
    clock.advance(timedelta(days=400).total_seconds())
    keep(fleet)
    assert digests(fleet) == {one.digest}
    with fleet.units.begin(fleet.tenant, pins.UNPIN) as unit:
        pins.unpin(unit, job_id, pinned)
    keep(fleet)
    assert (stored(fleet), digests(fleet)) == ([], set())
    lineage = next(row.manifest["lineage"] for row in checkpoints(fleet, job_id) if row.step == 100)
    assert lineage["outputs"] == [one.digest], "what they were stays known"
