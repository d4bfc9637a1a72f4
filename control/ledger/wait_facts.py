"""Facts of pending jobs in a window: from when to when any waits for GPUs, and by which binding reason."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple

from sqlalchemy.orm import Session

from control.ledger.reading import Rows, Window, in_ms
from ledger.facts import Wait
from muster.db.queries.residency import residencies
from muster.db.stored_values import member_of
from muster.domain.ids import TenantId
from muster.domain.job.placement_spec import NodeLabelRule
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.residency import ANY, SITE_LABEL, Residency
from scheduler.solve.job_rules import labels_of
from scheduler.solve.placement_rule import LabelRule

NOT_CONSIDERED: Final = "not_considered"
"""Reason of a job that no cycle has considered yet."""
_WAITS: Final = f"""
WITH pending AS (
    SELECT id, created_at, least(finished_at, :until) AS over_at, tenant_id,
        coalesce(request, spec) AS request FROM jobs
    WHERE created_at < :until AND (state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED') OR finished_at > :since)
), dated AS (
    SELECT pending.id, moment.at, moment.number, moment.binding, pending.over_at, jsonb_build_object(
            'labels', pending.request -> 'node_labels', 'gpus', pending.request -> 'shape' -> 'gpus_per_node',
            'tenant', CASE WHEN pending.tenant_id = ANY(:bound) THEN pending.tenant_id END
        )::text AS demand
    FROM pending CROSS JOIN LATERAL (
        SELECT pending.created_at AS at, 0::bigint AS number, ''::text AS binding
        UNION ALL (
            SELECT at, id, binding FROM job_wait_changes WHERE job_id = pending.id AND at > :since AND at < :until
        ) UNION ALL (
            SELECT at, id, binding FROM job_wait_changes WHERE job_id = pending.id AND at <= :since
            ORDER BY at DESC, id DESC LIMIT 1
        ) UNION ALL
            SELECT placed_at, 9223372036854775807, NULL FROM attempts
            WHERE attempts.job_id = pending.id AND placed_at < :until
    ) AS moment
), spans AS (
    SELECT binding, demand, at, coalesce(lead(at) OVER (PARTITION BY id ORDER BY at, number), over_at) AS next_at
    FROM dated
)
SELECT {in_ms("at")}, {in_ms("next_at")}, binding, demand FROM spans
WHERE binding IS NOT NULL AND next_at > greatest(at, :since) ORDER BY 1, 2, 3
"""  # noqa: S608  # words of ours
_HOSTS: Final = """
SELECT nodes.id, nodes.labels, count(gpus.uuid) FROM nodes LEFT JOIN gpus ON gpus.node_id = nodes.id
    AND NOT (gpus.standing = 'RETIRED' AND gpus.standing_since <= :since)
GROUP BY nodes.id
"""
_Span = tuple[int, int, str]
"""Begin and end in milliseconds, and the binding reason."""


@dataclass(frozen=True, slots=True)
class Waits:
    """``waits``: disjoint for each group of hosts. ``groups``: of each host; empty: each job could use any host."""

    waits: tuple[Wait, ...]
    groups: Mapping[str, str]


def waits_of(window: Window, session: Session) -> Waits:
    """Return disjoint waits: of several jobs that wait at one moment the one counts whose wait began first.

    This is what ``ledger.claims.settle`` would choose; made here once, it is not made for each GPU. A job could use
    hosts with its labels, of its tenant's sites, and with enough GPUs; the hosts' labels of now count.
    """
    sites = residencies(session)
    by_demand: dict[str, list[_Span]] = {}
    for start_ms, end_ms, binding, demand in window.rows(_WAITS, {"bound": sorted(sites)}):
        by_demand.setdefault(demand, []).append((start_ms, end_ms, _reason(binding)))
    demands = {demand: _Demand.read(json.loads(demand), sites) for demand in by_demand}
    counted = {demand: [span for span, _ in _disjoint(spans)] for demand, spans in by_demand.items()}
    suiting = _suiting(window.rows(_HOSTS), demands)
    names = {texts: str(number) for number, texts in enumerate(sorted(set(suiting.values())), start=1)}
    if all(len(texts) == len(demands) for texts in names):
        names = dict.fromkeys(names, "")
    found = [
        Wait(from_ms, end_ms, reason, group)
        for texts, group in (names or {tuple(demands): ""}).items()
        for (_, end_ms, reason), from_ms in _disjoint(sorted(chain.from_iterable(counted[text] for text in texts)))
    ]
    return Waits(tuple(found), {node_id: names[texts] for node_id, texts in suiting.items() if names[texts]})


class _Demand(NamedTuple):
    """What a job asks of a host."""

    rule: LabelRule
    num_gpus: int

    @property
    def label_names(self) -> tuple[str, ...]:
        return (*self.rule.names, *(() if self.rule.sites is None else (SITE_LABEL,)))

    @classmethod
    def read(cls, stored: Mapping[str, Any], sites: Mapping[TenantId, Residency]) -> "_Demand":
        labels = NodeLabelRule.model_validate(stored["labels"] or {}, strict=False)
        return cls(labels_of(labels, sites.get(stored["tenant"], ANY).sites), stored["gpus"] or 1)

    def suits(self, labels: Mapping[str, str], num_gpus: int) -> bool:
        return self.num_gpus <= num_gpus and (not self.rule or self.rule.admits(labels.items()))


def _suiting(hosts: Rows, demands: Mapping[str, _Demand]) -> dict[str, tuple[str, ...]]:
    """Return the demands that each host suits. Each is tried once for all hosts that are alike in what it names.

    Demands that name the same labels are tried together: a job that names its host divides the hosts for no other job.
    """
    by_names: dict[tuple[str, ...], dict[str, _Demand]] = {}
    for text, demand in demands.items():
        by_names.setdefault(demand.label_names, {})[text] = demand
    parts: dict[str, list[tuple[str, ...]]] = {node_id: [] for node_id, _, _ in hosts}
    known: dict[tuple[str, ...], tuple[str, ...]] = {}
    for names, own in by_names.items():
        kinds: dict[tuple[Any, ...], tuple[str, ...]] = {}
        for node_id, labels, num_gpus in hosts:
            kind = num_gpus, *map(labels.get, names)
            if (suited := kinds.get(kind)) is None:
                suited = tuple(text for text, demand in own.items() if demand.suits(labels, num_gpus))
                suited = kinds[kind] = known.setdefault(suited, suited)
            parts[node_id].append(suited)
    joined: dict[tuple[int, ...], tuple[str, ...]] = {}
    return {
        node_id: joined.setdefault(tuple(map(id, of_host)), tuple(chain.from_iterable(of_host)))
        for node_id, of_host in parts.items()
    }


def _disjoint(spans: Iterable[_Span]) -> Iterable[tuple[_Span, int]]:
    """Yield the spans, in the order of their begin, that no earlier ones cover, and from when each counts."""
    covered_ms: int | None = None
    for span in spans:
        from_ms = span[0] if covered_ms is None else max(span[0], covered_ms)
        if span[1] > from_ms:
            yield span, from_ms
            covered_ms = span[1]


def _reason(binding: str) -> str:
    """Return the reason's present value. One that only another release knows is kept as it is."""
    if not binding:
        return NOT_CONSIDERED
    try:
        return member_of(WaitReason, binding).value
    except ValueError:
        return binding
