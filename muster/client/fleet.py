"""Nodes, cordons, incidents, verdicts, join tokens and the server's own figures: the calls."""

from collections.abc import Sequence
from typing import Unpack

from muster import documents
from muster.client.calls import Call, Holder, Within, answered, change, change_once, listed, pages, read, walked


def _given(despite_budget: str | None) -> dict[str, str]:
    """Return the member if it is given: a server of the release before does not know it."""
    return {} if despite_budget is None else {"despite_budget": despite_budget}


class NodeConditions(Holder, total=False):
    """Conditions on nodes.

    ``name``: a part of it. ``cordoned``: only nodes with a cordon of their own, or without one. ``label``:
    ``name=value``, or ``name`` for any value. ``tenant_id``, ``tier``: of a job that has GPUs there now.
    """

    contact: Sequence[str] | None
    name: str | None
    rack: str | None
    cordoned: bool | None
    label: Sequence[str] | None


class FleetCalls:
    @listed
    def nodes(
        self, *, order: str | None = None, limit: int | None = None, **where: Unpack[NodeConditions]
    ) -> Call[documents.Node]:
        """List nodes by name. ``order``: name, rack, or silent: the longest silent first."""
        query = {**where, "order": order, "limit": limit, "cursor": None}
        return pages("/v1/nodes", documents.NodePage, documents.Node, query=query)

    @listed
    def rack_pairs(self, *, hours: int | None = None, limit: int | None = None) -> Call[documents.RackPair]:
        """Latency and loss by pair of racks, of the last ``hours`` (1); the greatest loss first, so many (200)."""
        query = {"hours": hours, "limit": limit}
        return pages("/v1/rack-pairs", documents.RackPairPage, documents.RackPair, query=query)

    @answered
    def node(self, node_id: str) -> Call[documents.NodeDetail]:
        """One node, by its id or its name: place, contact, agent, GPUs, cordons, and the jobs that have GPUs there."""
        return read("/v1/nodes/{node_id}", documents.NodeDetail, {"node_id": node_id})

    @walked
    def node_export(self, node_id: str, *, from_: str | None = None, until: str | None = None) -> Call[documents.Json]:
        """Export a node's reports and the actions on it as records for `muster health replay`; by default of a week."""
        path, query = "/v1/nodes/{node_id}/export", {"from": from_, "until": until, "cursor": None}
        return pages(path, documents.NodeExportPage, documents.Json, {"node_id": node_id}, query=query)

    @answered
    def drain_node(
        self,
        node_id: str,
        reason: str,
        *,
        until: str | None = None,
        deadline_s: float | None = None,
        despite_budget: str | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
    ) -> Call[documents.ChangedNode]:
        """Cordon a node and ask every job there to leave. ``deadline_s``: how long programs may take to save."""
        path, path_values = "/v1/nodes/{node_id}/drain", {"node_id": node_id}
        body = {"reason": reason, "until": until, "deadline_s": deadline_s}
        body |= _given(despite_budget)
        answer = documents.ChangedNode
        return change("POST", path, answer, path_values, body=body, dry_run=dry_run, key=idempotency_key)

    @answered
    def maintain_node(
        self,
        node_id: str,
        reason: str,
        until: str,
        *,
        starts_at: str | None = None,
        evacuate_lead_s: float | None = None,
        despite_budget: str | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
    ) -> Call[documents.ChangedCordon]:
        """Declare a window in which the node gets no new work and findings about it do not weigh.

        It begins now by default.

        ``until`` and ``starts_at`` are times (RFC 3339); ``evacuate_lead_s``: how long before its start jobs are asked
        to leave.
        """
        path, path_values = "/v1/nodes/{node_id}/maintenance", {"node_id": node_id}
        body = {"reason": reason, "until": until, "starts_at": starts_at, "evacuate_lead_s": evacuate_lead_s}
        body |= _given(despite_budget)
        answer = documents.ChangedCordon
        return change("POST", path, answer, path_values, body=body, dry_run=dry_run, key=idempotency_key)

    @answered
    def label_node(
        self, node_id: str, wanted: documents.LabelChange, *, idempotency_key: str | None = None, dry_run: bool = False
    ) -> Call[documents.ChangedNode]:
        """Set labels of a node, by its id or its name, and remove others."""
        path, path_values = "/v1/nodes/{node_id}/labels", {"node_id": node_id}
        answer = documents.ChangedNode
        return change("POST", path, answer, path_values, body=wanted, dry_run=dry_run, key=idempotency_key)

    @answered
    def create_cordon(
        self, wanted: documents.NewCordon, *, idempotency_key: str | None = None, dry_run: bool = False
    ) -> Call[documents.ChangedCordon]:
        """Keep a node or a GPU out of new placements; programs that run there continue."""
        answer = documents.ChangedCordon
        return change("POST", "/v1/cordons", answer, body=wanted, dry_run=dry_run, key=idempotency_key)

    @answered
    def release_cordon(
        self, cordon_id: str, reason: str | None = None, *, dry_run: bool = False
    ) -> Call[documents.ChangedCordon]:
        """Release a cordon. A second release has no effect."""
        path, body = "/v1/cordons/{cordon_id}/release", {"reason": reason}
        return change("POST", path, documents.ChangedCordon, {"cordon_id": cordon_id}, body=body, dry_run=dry_run)

    @listed
    def cordons(
        self,
        *,
        node: str | None = None,
        rack: str | None = None,
        label: Sequence[str] | None = None,
        owner: str | None = None,
        reason_code: str | None = None,
        limit: int | None = None,
        **within: Unpack[Within],
    ) -> Call[documents.Cordon]:
        """List the cordons in force and to come. ``node``, ``rack``, ``label``: of the node, or of the GPU's."""
        where = {"node": node, "rack": rack, "label": label, "owner": owner, "reason_code": reason_code}
        query = {**where, "limit": limit, **within, "cursor": None}
        return pages("/v1/cordons", documents.CordonPage, documents.Cordon, query=query)

    @walked
    def incidents(
        self,
        *,
        state: str | None = None,
        kind: Sequence[str] | None = None,
        subject: str | None = None,
        limit: int | None = None,
        **within: Unpack[Within],
    ) -> Call[documents.Incident]:
        """List incidents, the newest first. ``subject``: the id of the object that it is about."""
        query = {"state": state, "kind": kind, "subject": subject, "limit": limit, **within, "cursor": None}
        return pages("/v1/incidents", documents.IncidentPage, documents.Incident, query=query)

    @answered
    def incident(self, incident_id: str) -> Call[documents.Incident]:
        """One with all that its kind says of it."""
        return read("/v1/incidents/{incident_id}", documents.Incident, {"incident_id": incident_id})

    @answered
    def close_incident(
        self, incident_id: str, reason: str, *, dry_run: bool = False
    ) -> Call[documents.ChangedIncident]:
        """Close an incident that an operator has resolved."""
        path, path_values = "/v1/incidents/{incident_id}/close", {"incident_id": incident_id}
        return change("POST", path, documents.ChangedIncident, path_values, body={"reason": reason}, dry_run=dry_run)

    @walked
    def verdicts(
        self,
        *,
        job: str | None = None,
        node: str | None = None,
        kind: Sequence[str] | None = None,
        state: str | None = None,
        tenant_id: str | None = None,
        limit: int | None = None,
        **within: Unpack[Within],
    ) -> Call[documents.Verdict]:
        """List verdicts on running jobs, the newest first. ``job``, ``node``: ids."""
        where = {"job": job, "node": node, "kind": kind, "state": state, "tenant_id": tenant_id}
        query = {**where, "limit": limit, **within, "cursor": None}
        return pages("/v1/verdicts", documents.VerdictPage, documents.Verdict, query=query)

    @answered
    def verdict_rules(self, *, job: str | None = None) -> Call[documents.VerdictRules]:
        """Return how often each rule gave a verdict and was dismissed. ``job``: an id."""
        return read("/v1/verdicts/rules", documents.VerdictRules, query={"job": job})

    @answered
    def verdict(self, verdict_id: str) -> Call[documents.Verdict]:
        """One verdict with its evidence."""
        return read("/v1/verdicts/{verdict_id}", documents.Verdict, {"verdict_id": verdict_id})

    @answered
    def dismiss_verdict(self, verdict_id: str, reason: str, *, dry_run: bool = False) -> Call[documents.ChangedVerdict]:
        """Dismiss a verdict that was a false alarm."""
        path, path_values = "/v1/verdicts/{verdict_id}/dismiss", {"verdict_id": verdict_id}
        return change("POST", path, documents.ChangedVerdict, path_values, body={"reason": reason}, dry_run=dry_run)

    @answered
    def reset_verdict_rules(
        self, job_id: str, reason: str, *, dry_run: bool = False
    ) -> Call[documents.ChangedVerdictRules]:
        """Let earlier dismissals mute no rule of a job any more."""
        path, path_values = "/v1/jobs/{job_id}/verdict-rules/reset", {"job_id": job_id}
        return change(
            "POST", path, documents.ChangedVerdictRules, path_values, body={"reason": reason}, dry_run=dry_run
        )

    @answered
    def create_join_token(self, wanted: documents.NewJoinToken, *, dry_run: bool = False) -> Call[documents.JoinToken]:
        """Create a token for one host and one use. ``token`` is in this answer alone, so the call is never repeated."""
        return change_once("/v1/join-tokens", documents.JoinToken, body=wanted, dry_run=dry_run)

    @answered
    def figures(self) -> Call[str]:
        """Return the server's gauges and counters in Prometheus' text format."""
        return read("/metrics", str)
