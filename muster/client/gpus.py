"""GPUs, burn-ins and the circuit breaker: the calls."""

from collections.abc import Sequence
from typing import Unpack

from muster import documents
from muster.client.calls import Call, Holder, Within, answered, change, etag, listed, pages, read, walked


class GpuConditions(Holder, total=False):
    """Conditions on GPUs.

    ``standing``: effective ones. ``model``: a part of its name. ``below``: only scores under this. ``uuid``: its
    beginning, its end, or both with ``..`` between. ``cordoned``: by a cordon of its own or of its node, or not.
    ``label``: of the host, ``name=value``, or ``name`` for any value. ``job_id``: the job that has it now.
    """

    standing: Sequence[str] | None
    node: str | None
    model: str | None
    below: float | None
    uuid: str | None
    cordoned: bool | None
    rack: str | None
    label: Sequence[str] | None
    job_id: str | None


class GpuCalls:
    @listed
    def gpus(
        self, *, order: str | None = None, limit: int | None = None, **where: Unpack[GpuConditions]
    ) -> Call[documents.Gpu]:
        """List GPUs by node and slot. ``order``: place, score or moved."""
        query = {**where, "order": order, "limit": limit, "cursor": None}
        return pages("/v1/gpus", documents.GpuPage, documents.Gpu, query=query)

    @answered
    def gpu(self, uuid: str) -> Call[documents.GpuDetail]:
        """One GPU in full: score, evidence, what would bring it back, cordons, its holder, repairs, moves."""
        return read("/v1/gpus/{uuid}", documents.GpuDetail, {"uuid": uuid})

    @answered
    def gpu_health(self, uuid: str) -> Call[documents.GpuHealth]:
        """Return the reasons for a GPU's standing.

        They are the score with its shares, the admission to each tier with the conditions that would restore it, and
        the transitions.
        """
        return read("/v1/gpus/{uuid}/health", documents.GpuHealth, {"uuid": uuid})

    @answered
    def latest(self, uuid: str) -> Call[documents.Latest]:
        """Its newest readings."""
        return read("/v1/gpus/{uuid}/latest", documents.Latest, {"uuid": uuid})

    @answered
    def history(
        self,
        uuid: str,
        *,
        metric: Sequence[str] | None = None,
        since: str | None = None,
        until: str | None = None,
        step: float | None = None,
    ) -> Call[documents.History]:
        """Its readings over time, a point a ``step`` (seconds), and what its agent counted as lost. Times: RFC 3339."""
        query = {"metric": metric, "from": since, "until": until, "step": step}
        return read("/v1/gpus/{uuid}/history", documents.History, {"uuid": uuid}, query=query)

    @walked
    def evidence(
        self,
        uuid: str,
        *,
        state: Sequence[str] | None = None,
        detector: str | None = None,
        limit: int | None = None,
        **within: Unpack[Within],
    ) -> Call[documents.Evidence]:
        """All that was ever found about it, the newest first. ``detector``: what its name begins with."""
        query = {"state": state, "detector": detector, "limit": limit, **within, "cursor": None}
        path = "/v1/gpus/{uuid}/evidence"
        return pages(path, documents.EvidencePage, documents.Evidence, {"uuid": uuid}, query=query)

    @answered
    def dismiss_evidence(
        self, uuid: str, evidence_id: str, reason: str, *, version: int | None = None, dry_run: bool = False
    ) -> Call[documents.ChangedGpu]:
        """Take evidence out of the judgement; a quarantine that stood on it alone ends."""
        return change(
            "POST",
            "/v1/gpus/{uuid}/evidence/{evidence_id}/dismiss",
            documents.ChangedGpu,
            {"uuid": uuid, "evidence_id": evidence_id},
            body={"reason": reason},
            dry_run=dry_run,
            if_match=etag(version),
        )

    @answered
    def start_repair(
        self,
        uuid: str,
        reason: str,
        *,
        action: str | None = None,
        fault_group: str | None = None,
        by: str = "person",
        version: int | None = None,
        dry_run: bool = False,
    ) -> Call[documents.ChangedGpu]:
        """Begin a repair of a quarantined GPU. ``fault_group``: what it is for; by its evidence where none is named.

        ``action``: None: the remedy that is due. ``by``: person, or agent: its host's agent does the action and
        reports how it ended.
        """
        named = {} if action is None else {"action": action}
        body = {"reason": reason, **named, "fault_group": fault_group, "by": by}
        path = "/v1/gpus/{uuid}/repair"
        return change(
            "POST", path, documents.ChangedGpu, {"uuid": uuid}, body=body, dry_run=dry_run, if_match=etag(version)
        )

    @answered
    def finish_repair(
        self, uuid: str, reason: str, *, version: int | None = None, dry_run: bool = False
    ) -> Call[documents.ChangedGpu]:
        """Report that the repair is done: the GPU becomes UNPROVEN, and its burn-in follows."""
        return _changed("/v1/gpus/{uuid}/repair/finish", uuid, reason, version=version, dry_run=dry_run)

    @answered
    def fail_repair(
        self, uuid: str, reason: str, *, version: int | None = None, dry_run: bool = False
    ) -> Call[documents.ChangedGpu]:
        """Report that the repair failed: the GPU returns to QUARANTINED."""
        return _changed("/v1/gpus/{uuid}/repair/fail", uuid, reason, version=version, dry_run=dry_run)

    @answered
    def retire_gpu(
        self, uuid: str, reason: str, *, version: int | None = None, dry_run: bool = False
    ) -> Call[documents.ChangedGpu]:
        """Take it out of service, from any standing; a job that runs on it is evacuated."""
        return _changed("/v1/gpus/{uuid}/retire", uuid, reason, version=version, dry_run=dry_run)

    @answered
    def reinstate_gpu(
        self, uuid: str, reason: str, *, version: int | None = None, dry_run: bool = False
    ) -> Call[documents.ChangedGpu]:
        """Return a retired GPU to UNPROVEN: its burn-in follows."""
        return _changed("/v1/gpus/{uuid}/reinstate", uuid, reason, version=version, dry_run=dry_run)

    @answered
    def override_gpu(
        self,
        uuid: str,
        standing: str,
        until: str,
        reason: str,
        *,
        version: int | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
    ) -> Call[documents.ChangedGpu]:
        """Set a standing over the GPU's own until a time (RFC 3339). The evidence continues to be judged."""
        return change(
            "POST",
            "/v1/gpus/{uuid}/override",
            documents.ChangedGpu,
            {"uuid": uuid},
            body={"standing": standing, "until": until, "reason": reason},
            dry_run=dry_run,
            if_match=etag(version),
            key=idempotency_key,
        )

    @answered
    def release_override(
        self, uuid: str, reason: str, *, version: int | None = None, dry_run: bool = False
    ) -> Call[documents.ChangedGpu]:
        """End the override: the GPU's own standing counts again."""
        return _changed("/v1/gpus/{uuid}/override/release", uuid, reason, version=version, dry_run=dry_run)

    @answered
    def order_burn_in(
        self, uuid: str, reason: str, *, idempotency_key: str | None = None, dry_run: bool = False
    ) -> Call[documents.OrderedBurnIn]:
        """Order a burn-in, which runs as soon as the GPU is free."""
        path, path_values, body = "/v1/gpus/{uuid}/burn-in", {"uuid": uuid}, {"reason": reason}
        return change(
            "POST", path, documents.OrderedBurnIn, path_values, body=body, dry_run=dry_run, key=idempotency_key
        )

    @listed
    def burn_ins(
        self,
        *,
        gpu: str | None = None,
        node: str | None = None,
        state: Sequence[str] | None = None,
        outcome: Sequence[str] | None = None,
        limit: int | None = None,
        **within: Unpack[Within],
    ) -> Call[documents.BurnIn]:
        """List burn-ins without figures, the newest order first."""
        where = {"gpu": gpu, "node": node, "state": state, "outcome": outcome}
        query = {**where, "limit": limit, **within, "cursor": None}
        return pages("/v1/burn-ins", documents.BurnInPage, documents.BurnIn, query=query)

    @answered
    def burn_in(self, burn_in_id: str) -> Call[documents.BurnInDetail]:
        """One with all that it measured."""
        return read("/v1/burn-ins/{burn_in_id}", documents.BurnInDetail, {"burn_in_id": burn_in_id})

    @listed
    def breakers(self) -> Call[documents.Breaker]:
        """Each with its scopes: open ones first, then the fullest."""
        return pages("/v1/breakers", documents.BreakerPage, documents.Breaker)

    @answered
    def close_breaker(
        self, name: str, scope: str, reason: str, *, dry_run: bool = False
    ) -> Call[documents.ChangedBreaker]:
        """Let rules act in a scope again."""
        path, body = "/v1/breakers/{name}/close", {"scope": scope, "reason": reason}
        return change("POST", path, documents.ChangedBreaker, {"name": name}, body=body, dry_run=dry_run)


def _changed(path: str, uuid: str, reason: str, *, version: int | None, dry_run: bool) -> Call[documents.ChangedGpu]:
    body = {"reason": reason}
    return change(
        "POST", path, documents.ChangedGpu, {"uuid": uuid}, body=body, dry_run=dry_run, if_match=etag(version)
    )
