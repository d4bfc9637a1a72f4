"""The lines of a dry run: the command and the console show the same ones, without a word of the event log."""

from typing import Any

from muster.cli.framework.output import Done, Format
from muster.documents.effect_lines import MAX_NAMED, Part, effect_parts

LEAVING: dict[str, Any] = {
    "effect": "leaves",
    "job_id": "job_1",
    "name": "bert",
    "tenant_id": "ten_1",
    "tenant": "vision",
    "tier": "on_demand",
    "num_gpus": 8,
    "why": "maintenance",
    "requested_at": None,
    "deadline_at": "2026-01-01T00:02:00Z",
    "deadline_s": 120.0,
    "saved_at": "2025-12-31T23:50:00Z",
    "lost_gpu_s": 4800.0,
    "onward": {"outcome": "starts", "hosts": ["b1", "b2"], "num_gpus": 8, "starts_at": None, "why": None},
}
TIER = {"tier": "reserved", "before": 16, "after": 8, "idle": 2}


def effect(**fields: Any) -> dict[str, Any]:
    return {"at": "2026-01-01T00:00:00Z", "jobs": [], "tiers": [], "changes": [], **fields}


def test_a_job_that_leaves_is_reported_with_deadline_loss_and_next_hosts() -> None:
    jobs, tiers = effect_parts(effect(jobs=[LEAVING], tiers=[TIER]))
    assert jobs.lines == (
        "bert (job_1) of vision, on_demand, 8 GPUs: has to leave: its node is needed empty",
        "  deadline in 2 min (2026-01-01T00:02:00Z)",
        "  work since its checkpoint of 2025-12-31T23:50:00Z: 1.3 GPU-hours, lost if it saves none before the deadline",
        "  continues at once on b1, b2, 8 GPUs",
    )
    assert tiers.lines == ("reserved: 16 now, 8 then, of them 2 without a job",)


def test_a_job_that_would_wait_is_reported_why_and_one_that_ends_goes_nowhere() -> None:
    onward = {"outcome": "waits", "hosts": [], "num_gpus": 0, "starts_at": None, "why": "needs 8 GPUs on a host"}
    waiting = {**LEAVING, "onward": onward, "saved_at": None, "lost_gpu_s": 0.0}
    ended = {**LEAVING, "effect": "ends", "why": "cancel", "onward": None, "deadline_s": None}
    (jobs,) = effect_parts(effect(jobs=[waiting, ended]))
    assert jobs.lines[2:] == (
        "  no work is lost",
        "  then it would wait: needs 8 GPUs on a host",
        "bert (job_1) of vision, on_demand, 8 GPUs: ends permanently",
    )


def test_a_change_of_nothing_is_named_so_and_one_without_jobs_names_none() -> None:
    assert effect_parts(effect()) == [Part("Changes", ("none: this is already the case",))]
    found = effect_parts(effect(tiers=[TIER], changes=["a1 takes no new job"]))
    assert [part.title for part in found] == ["Jobs", "GPUs that each tier admits", "Changes"]
    assert found[0].lines == ("none: no job has to leave, ends, or starts because of it",)


def test_the_command_prints_these_lines_and_no_event() -> None:
    consequences = [{"type": "event", "kind": "node.draining", "subject_id": "node_1"}]
    document = {"dry_run": True, "effect": effect(changes=["node a1 is drained"]), "consequences": consequences}
    lines = "\n".join(Done(document, "drained").lines(Format()))
    assert lines == "dry run: nothing was changed.\nChanges\n  node a1 is drained"


def test_of_a_server_of_release_0_1_0_the_command_names_the_release() -> None:
    lines = "\n".join(Done({"dry_run": True, "consequences": []}, "drained").lines(Format()))
    assert "earlier release" in lines


def test_of_many_jobs_and_changes_the_first_are_named() -> None:
    ends = {**LEAVING, "effect": "ends", "deadline_s": None, "onward": None}
    jobs, changes = effect_parts(effect(jobs=[ends] * 53, changes=[f"change {number}" for number in range(51)]))
    assert (len(jobs.lines), jobs.lines[-1]) == (MAX_NAMED + 1, "and 3 more")
    assert (len(changes.lines), changes.lines[-1]) == (MAX_NAMED + 1, "and 1 more")
