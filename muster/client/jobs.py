"""Jobs, their training and logs, reclaims and events: the calls."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from muster import documents
from muster.client.calls import (
    Call,
    Within,
    answered,
    change,
    etag,
    feed,
    followed,
    listed,
    pages,
    post_query,
    read,
    walked,
)


class JobConditions(TypedDict, total=False):
    """Other conditions on listed jobs, and their order.

    ``label``: ``name=value``, or ``name`` for any value. ``node``: the id of a host with a part of it now; ``rack``:
    its rack. ``since``, ``until``: RFC 3339, of the submission.
    """

    tier: str | None
    job_class: str | None
    label: Sequence[str] | None
    node: str | None
    rack: str | None
    since: str | None
    until: str | None
    order: Literal["newest", "oldest"] | None


class JobCalls:
    @answered
    def submit_job(
        self,
        spec: documents.JobSubmission | Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        dry_run: bool = False,
    ) -> Call[documents.ChangedJob]:
        """Submit a job. The same ``idempotency_key`` never makes two, not even from two processes."""
        return change("POST", "/v1/jobs", documents.ChangedJob, body=spec, dry_run=dry_run, key=idempotency_key)

    @answered
    def plan_job(self, question: documents.JobQuestion | Mapping[str, Any]) -> Call[documents.JobPlan]:
        """Return the effect of a job if it were submitted now. Nothing is stored."""
        return post_query("/v1/job-plans", documents.JobPlan, body=question)

    @answered
    def explain_job(self, job_id: str) -> Call[documents.JobPlan]:
        """Return why a job waits, the jobs ahead of it, when it may start, and the changes that would let it start."""
        return read("/v1/jobs/{job_id}/explanation", documents.JobPlan, {"job_id": job_id})

    @answered
    def fault_lines(self, job_id: str, *, attempt: int | None = None) -> Call[documents.FaultLines]:
        """Return what lines about faults of an attempt state, by default of the newest: the root first."""
        path = "/v1/jobs/{job_id}/fault-lines"
        return read(path, documents.FaultLines, {"job_id": job_id}, query={"attempt": attempt})

    @answered
    def job(self, job_id: str) -> Call[documents.JobDetail]:
        """Return the job with every attempt, its hosts, GPUs, cause and proof."""
        return read("/v1/jobs/{job_id}", documents.JobDetail, {"job_id": job_id})

    @walked
    def jobs(
        self,
        *,
        state: Sequence[str] | None = None,
        tenant_id: str | None = None,
        name: str | None = None,
        limit: int | None = None,
        **conditions: Unpack[JobConditions],
    ) -> Call[documents.Job]:
        """Every job that this key sees, the newest first. ``limit``: how many a page holds."""
        query = {"state": state, "tenant_id": tenant_id, "name": name, **conditions, "limit": limit, "cursor": None}
        return pages("/v1/jobs", documents.JobPage, documents.Job, query=query)

    @answered
    def job_findings(self, job_id: str) -> Call[documents.JobFindings]:
        """Show what slows a training down, with the gain that a repair would bring."""
        return read("/v1/jobs/{job_id}/findings", documents.JobFindings, {"job_id": job_id})

    @answered
    def cancel_job(
        self, job_id: str, reason: str | None = None, *, version: int | None = None, dry_run: bool = False
    ) -> Call[documents.ChangedJob]:
        """Cancel a job: at once while it waits, else when its programs have stopped."""
        return change(
            "POST",
            "/v1/jobs/{job_id}/cancel",
            documents.ChangedJob,
            {"job_id": job_id},
            body={"reason": reason},
            dry_run=dry_run,
            if_match=etag(version),
        )

    @answered
    def release_job(
        self, job_id: str, reason: str | None = None, *, dry_run: bool = False
    ) -> Call[documents.ChangedJob]:
        """Out of HELD, back into the queue."""
        path_values, body = {"job_id": job_id}, {"reason": reason}
        path = "/v1/jobs/{job_id}/release"
        return change("POST", path, documents.ChangedJob, path_values, body=body, dry_run=dry_run)

    @answered
    def hold_job(self, job_id: str, reason: str | None = None, *, dry_run: bool = False) -> Call[documents.ChangedJob]:
        """Into HELD, until it is released; only a job that waits for GPUs."""
        path_values, body = {"job_id": job_id}, {"reason": reason}
        return change("POST", "/v1/jobs/{job_id}/hold", documents.ChangedJob, path_values, body=body, dry_run=dry_run)

    @answered
    def resize_job(
        self,
        job_id: str,
        nodes: int,
        reason: str | None = None,
        *,
        version: int | None = None,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Call[documents.ChangedJob]:
        """Set the number of hosts of an elastic job from now on: it takes no more."""
        return change(
            "POST",
            "/v1/jobs/{job_id}/resize",
            documents.ChangedJob,
            {"job_id": job_id},
            body={"nodes": nodes, "reason": reason},
            dry_run=dry_run,
            if_match=etag(version),
            key=idempotency_key,
        )

    @walked
    def job_events(self, job_id: str, *, after: int = 0, limit: int | None = None) -> Call[documents.Event]:
        """List the events of the job itself, in order."""
        query = {"after": after, "limit": limit}
        path = "/v1/jobs/{job_id}/events"
        return pages(path, documents.EventStretch, documents.Event, {"job_id": job_id}, query=query)

    @listed
    def checkpoints(
        self,
        job_id: str,
        *,
        status: Sequence[str] | None = None,
        pinned: bool | None = None,
        limit: int | None = None,
        **within: Unpack[Within],
    ) -> Call[documents.Checkpoint]:
        """List generations with their status, the newest step first. ``pinned``: only pinned ones, or only others."""
        path, answer = "/v1/jobs/{job_id}/checkpoints", documents.CheckpointPage
        query = {"status": status, "pinned": pinned, "limit": limit, **within, "cursor": None}
        return pages(path, answer, documents.Checkpoint, {"job_id": job_id}, query=query)

    @answered
    def pin_checkpoint(
        self,
        job_id: str,
        checkpoint_id: str,
        reason: str | None = None,
        *,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Call[documents.ChangedCheckpoint]:
        """Retention never removes it from now on."""
        return change(
            "POST",
            "/v1/jobs/{job_id}/checkpoints/{checkpoint_id}/pin",
            documents.ChangedCheckpoint,
            {"job_id": job_id, "checkpoint_id": checkpoint_id},
            body={"reason": reason},
            dry_run=dry_run,
            key=idempotency_key,
        )

    @answered
    def unpin_checkpoint(
        self, job_id: str, checkpoint_id: str, *, dry_run: bool = False
    ) -> Call[documents.ChangedCheckpoint]:
        """Retention may remove it again."""
        path = "/v1/jobs/{job_id}/checkpoints/{checkpoint_id}/pin"
        path_values = {"job_id": job_id, "checkpoint_id": checkpoint_id}
        return change("DELETE", path, documents.ChangedCheckpoint, path_values, body=None, dry_run=dry_run)

    @answered
    def job_energy(self, job_id: str) -> Call[documents.JobEnergy]:
        """Return the energy of the job's attempts, by the counters of their GPUs."""
        return read("/v1/jobs/{job_id}/energy", documents.JobEnergy, {"job_id": job_id})

    @answered
    def job_environments(self, job_id: str) -> Call[documents.JobEnvironments]:
        """Return the environments that the job's hosts asked for, with the log of a failed build."""
        return read("/v1/jobs/{job_id}/environments", documents.JobEnvironments, {"job_id": job_id})

    @listed
    def ranks(self, job_id: str) -> Call[documents.Rank]:
        """List the progress of each rank of the newest attempt."""
        path = "/v1/jobs/{job_id}/training/ranks"
        return pages(path, documents.RankPage, documents.Rank, {"job_id": job_id})

    @walked
    def steps(self, job_id: str, *, after: int = -1) -> Call[documents.Step]:
        """List the loss curve after step ``after``, step by step."""
        path = "/v1/jobs/{job_id}/training/steps"
        return pages(path, documents.StepPage, documents.Step, {"job_id": job_id}, query={"after": after})

    @walked
    def logs(
        self,
        job_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        stream: str | None = None,
        attempt_id: str | None = None,
    ) -> Call[documents.LogPiece]:
        """List the output of the ranks so far. ``stream``: a global rank, or ``launcher``."""
        query = {"after": after, "limit": limit, "stream": stream, "attempt_id": attempt_id}
        path = "/v1/jobs/{job_id}/logs"
        return pages(path, documents.LogStretch, documents.LogPiece, {"job_id": job_id}, query=query)

    @walked
    def log_lines(
        self,
        job_id: str,
        *,
        contains: str,
        ignore_case: bool | None = None,
        stream: str | None = None,
        attempt_id: str | None = None,
        limit: int | None = None,
    ) -> Call[documents.LogLine]:
        """Lines that hold a text, by attempt, host and stream. ``limit``: how many a page holds."""
        query = {"contains": contains, "ignore_case": ignore_case, "stream": stream, "attempt_id": attempt_id}
        path = "/v1/jobs/{job_id}/logs/lines"
        given = {**query, "limit": limit, "cursor": None}
        return pages(path, documents.LogLinePage, documents.LogLine, {"job_id": job_id}, query=given)

    @followed
    def follow_logs(
        self, job_id: str, *, after: int | None = None, stream: str | None = None, attempt_id: str | None = None
    ) -> Call[documents.LogPiece]:
        """Pieces as they come, until the job has ended and all are delivered."""
        query = {"follow": True, "after": after, "stream": stream, "attempt_id": attempt_id}
        path = "/v1/jobs/{job_id}/logs"
        return feed(path, documents.LogPiece, {"job_id": job_id}, query=query, ends_with="end")

    @walked
    def events(self, *, after: int = 0, limit: int | None = None) -> Call[documents.Event]:
        """Everything that happened behind a position and that this key sees, in order."""
        query = {"after": after, "limit": limit}
        return pages("/v1/events", documents.EventStretch, documents.Event, query=query)

    @walked
    def newest_events(
        self,
        *,
        kind: str | None = None,
        subject_id: str | None = None,
        tenant_id: str | None = None,
        limit: int | None = None,
        **within: Unpack[Within],
    ) -> Call[documents.Event]:
        """List events, the newest first. ``kind``: the beginning of their kind."""
        conditions = {"kind": kind, "subject_id": subject_id, "tenant_id": tenant_id}
        query = {**conditions, "limit": limit, **within, "cursor": None}
        return pages("/v1/events/newest", documents.EventPage, documents.Event, query=query)

    @followed
    def follow_events(self, *, after: int | None = None) -> Call[documents.Event]:
        """Follow events as they happen, without end; from now on where ``after`` is None."""
        return feed("/v1/events/stream", documents.Event, query={"after": after})

    @walked
    def reclaims(
        self,
        *,
        state: Sequence[str] | None = None,
        job_id: str | None = None,
        tenant_id: str | None = None,
        tier: str | None = None,
        limit: int | None = None,
        **within: Unpack[Within],
    ) -> Call[documents.Reclaim]:
        """List reclaims that this key sees, the newest first. ``job_id``, ``tenant_id``, ``tier``: of either side."""
        conditions = {"state": state, "job_id": job_id, "tenant_id": tenant_id, "tier": tier}
        query = {**conditions, "limit": limit, **within, "cursor": None}
        return pages("/v1/reclaims", documents.ReclaimPage, documents.Reclaim, query=query)

    @answered
    def reclaim(self, reclaim_id: str) -> Call[documents.Reclaim]:
        """One reclaim with its deadline, reason and outcome."""
        return read("/v1/reclaims/{reclaim_id}", documents.Reclaim, {"reclaim_id": reclaim_id})
