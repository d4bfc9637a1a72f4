"""Facts of GPUs and hosts in a window: standings, overrides, cordons, burn-ins, repairs, holds, uses and silences.

Each kind is one statement for the whole fleet. Most GPUs have nothing of them but a standing and a use, so these two
come as one row for a GPU and one for a host's part of an attempt.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from control.ledger.reading import Window, in_ms
from ledger.facts import Cordon, Gpu, Node, Override, Period, StandingMove, Use
from muster.domain.states import Standing

T = TypeVar("T")
DRAIN: Final = "drain"
"""Reason code of the cordon that a drain makes (``control.hosts.drains``)."""
SITE: Final = "site"
"""Label of a host that names its site."""
_GPUS: Final = """
SELECT uuid, node_id, model, cohort_key, CASE WHEN standing_since <= :since THEN standing END FROM gpus
ORDER BY node_id, uuid
"""
_MOVES: Final = f"""
WITH others AS (
    SELECT uuid FROM gpus WHERE standing_since IS NULL OR standing_since > :since
        OR standing NOT IN ('HEALTHY', 'PROBATION')
)
SELECT moved.gpu_uuid, moved.id, {in_ms("greatest(moved.at, :since)")}, moved.target, coalesce(moved.move_reason, ''),
    moved.evidence_ids
FROM others CROSS JOIN LATERAL (
    (SELECT * FROM gpu_standing_changes WHERE gpu_uuid = others.uuid AND at > :since AND at < :until)
    UNION ALL
    (SELECT * FROM gpu_standing_changes WHERE gpu_uuid = others.uuid AND at <= :since ORDER BY id DESC LIMIT 1)
) AS moved
ORDER BY moved.id
"""  # noqa: S608  # words of ours
_OVERRIDES: Final = f"""
SELECT gpu_uuid, {in_ms("created_at")}, {in_ms("least(coalesce(ended_at, until), until)")}, standing, id
FROM gpu_overrides WHERE created_at < :until AND least(coalesce(ended_at, until), until) > :since
"""  # noqa: S608  # words of ours
_CORDONS: Final = f"""
SELECT node_id, gpu_uuid, {in_ms("coalesce(starts_at, created_at)")}, {in_ms("least(released_at, until)")}, reason_code,
    id
FROM cordons
WHERE coalesce(starts_at, created_at) < :until AND coalesce(least(released_at, until), 'infinity') > :since
    AND coalesce(least(released_at, until), 'infinity') > coalesce(starts_at, created_at)
"""  # noqa: S608  # words of ours
_BURN_INS: Final = f"""
WITH known AS (
    SELECT * FROM burn_ins
    WHERE state IN ('ORDERED', 'RUNNING', 'MEASURED') OR ordered_at BETWEEN :since - interval '7 days' AND :until
), tries AS (
    SELECT gpu_uuid, began_at, ended_at, reason, id FROM known WHERE state <> 'ORDERED'
    UNION ALL
    SELECT gpu_uuid, CAST(earlier ->> 0 AS timestamptz), CAST(earlier ->> 1 AS timestamptz), reason, id
    FROM known CROSS JOIN LATERAL jsonb_array_elements(earlier_tries) AS earlier
)
SELECT gpu_uuid, {in_ms("began_at")}, {in_ms("ended_at")}, reason, id FROM tries
WHERE began_at < :until AND coalesce(ended_at, 'infinity') > :since
"""  # noqa: S608  # words of ours
_REPAIRS: Final = f"""
SELECT gpu_uuid, {in_ms("began_at")}, {in_ms("ended_at")}, action, id FROM repairs
WHERE began_at < :until AND coalesce(ended_at, 'infinity') > :since
"""  # noqa: S608  # words of ours
_HOLDS: Final = f"""
SELECT held.gpu_uuid, {in_ms("held.began_at")}, {in_ms("held.ended_at")},
    CASE WHEN EXISTS (
        SELECT FROM reclaims WHERE beneficiary_job_id = held.job_id AND notified_at <= held.began_at
            AND coalesce(hold_ended_at, 'infinity') >= held.began_at
    ) THEN 'reclaim' WHEN EXISTS (
        SELECT FROM attempts WHERE attempts.job_id = held.job_id AND ended_at = held.began_at
    ) THEN 'resume' ELSE 'resize' END,
    held.job_id
FROM (
    SELECT gpu_uuid, job_id, created_at AS began_at, NULL::timestamptz AS ended_at FROM gpu_holds
    WHERE created_at < :until
    UNION ALL
    SELECT gpu_uuid, job_id, began_at, ended_at FROM gpu_hold_spans WHERE ended_at > :since AND began_at < :until
) AS held
"""  # noqa: S608  # words of ours
_SPARES: Final = f"""
SELECT gpu_uuid, {in_ms("began_at")}, {in_ms("ended_at")} FROM gpu_spares
WHERE began_at < :until AND (ended_at IS NULL OR ended_at > :since)
"""  # noqa: S608  # words of ours
_USES: Final = f"""
SELECT placed.attempt_id, {in_ms("placed.created_at")}, {in_ms("part.exited_at")},
    {in_ms("coalesce(part.clean_at, placed.released_at)")}, string_agg(own.gpu_uuid, ' ')
FROM allocations AS placed
JOIN allocation_gpus AS own ON own.allocation_id = placed.id
JOIN attempt_hosts AS part ON part.attempt_id = placed.attempt_id AND part.node_id = own.node_id
WHERE placed.created_at < :until AND (placed.state <> 'RELEASED' OR placed.released_at > :since)
    AND coalesce(part.clean_at, placed.released_at, 'infinity') > :since
GROUP BY placed.id, part.attempt_id, part.node_id
"""  # noqa: S608  # words of ours
_NODES: Final = "SELECT id, rack, labels ->> 'site' FROM nodes"
_SILENCES: Final = f"""
WITH known AS (
    SELECT node_id, at, id, contact FROM node_contact_changes WHERE at > :since AND at < :until
    UNION ALL
    SELECT nodes.id, newest.at, newest.id, newest.contact FROM nodes CROSS JOIN LATERAL (
        SELECT * FROM node_contact_changes WHERE node_id = nodes.id AND at <= :since ORDER BY at DESC, id DESC LIMIT 1
    ) AS newest
), dated AS (
    SELECT node_id, contact, at, lead(at) OVER (PARTITION BY node_id ORDER BY at, id) AS next_at FROM known
)
SELECT node_id, {in_ms("at")}, {in_ms("next_at")}, lower(contact) FROM dated WHERE contact <> 'LIVE'
"""  # noqa: S608  # words of ours


def nodes_of(window: Window, groups: Mapping[str, str]) -> dict[str, Node]:
    """Return the hosts. ``groups``: of hosts that the same pending jobs could use (``wait_facts``)."""
    cordons = _grouped((row[0], _cordon(row)) for row in window.rows(_CORDONS) if row[0] is not None)
    silences = _grouped((node_id, Period(*rest)) for node_id, *rest in window.rows(_SILENCES))
    return {
        node_id: Node(
            node_id,
            rack,
            site,
            tuple(cordons.get(node_id, ())),
            tuple(silences.get(node_id, ())),
            groups.get(node_id, ""),
        )
        for node_id, rack, site in window.rows(_NODES)
    }


def gpus_of(window: Window) -> tuple[Gpu, ...]:
    """Return the GPUs that were enrolled in the window. A GPU never moves to another host."""
    since = window.start_ms
    moves = _moves_of(window)
    settled = {each.value: (StandingMove(since, each),) for each in Standing}
    more = _more_of(window)
    uses = _uses_of(window)
    found = []
    for uuid, node_id, model, cohort_key, standing in window.rows(_GPUS):
        own = moves.get(uuid) or (settled[standing] if standing is not None else ())
        if not own:
            continue
        rest = more.get(uuid)
        said: dict[str, Any] = {} if rest is None else {name: tuple(values) for name, values in rest.items()}
        found.append(Gpu(uuid, node_id, model, cohort_key, own[0].at_ms, moves=own, uses=uses.get(uuid, ()), **said))
    return tuple(found)


def _moves_of(window: Window) -> dict[str, tuple[StandingMove, ...]]:
    found = _grouped(
        (uuid, StandingMove(at_ms, Standing(standing), cause, tuple(evidence), number))
        for uuid, number, at_ms, standing, cause, evidence in window.rows(_MOVES)
    )
    return {uuid: tuple(sorted(own, key=_moved)) for uuid, own in found.items()}


def _moved(move: StandingMove) -> tuple[int, int]:
    return move.at_ms, move.number


def _more_of(window: Window) -> Mapping[str, Mapping[str, list[Any]]]:
    """Return what few GPUs have, by the fields' names."""
    found: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for uuid, start_ms, end_ms, standing, override_id in window.rows(_OVERRIDES):
        found[uuid]["overrides"].append(Override(start_ms, end_ms, Standing(standing), override_id))
    for row in window.rows(_CORDONS):
        if row[1] is not None:
            found[row[1]]["cordons"].append(_cordon(row))
    for name, statement in (("burn_ins", _BURN_INS), ("repairs", _REPAIRS), ("holds", _HOLDS)):
        for uuid, start_ms, end_ms, cause, evidence in window.rows(statement):
            found[uuid][name].append(Period(start_ms, end_ms, cause, (evidence,)))
    for uuid, start_ms, end_ms in window.rows(_SPARES):
        found[uuid]["spares"].append(Period(start_ms, end_ms))
    return found


def _cordon(row: Any) -> Cordon:
    _, _, start_ms, end_ms, reason_code, cordon_id = row
    return Cordon(start_ms, end_ms, reason_code, cordon_id, is_drain=reason_code == DRAIN)


def _uses_of(window: Window) -> dict[str, tuple[Use, ...]]:
    found: dict[str, tuple[Use, ...]] = {}
    for attempt_id, placed_ms, exited_ms, clean_ms, uuids in window.rows(_USES):
        own = (Use(attempt_id, placed_ms, exited_ms, clean_ms),)
        for uuid in uuids.split(" "):
            before = found.get(uuid)
            found[uuid] = own if before is None else (*before, *own)
    return found


def _grouped(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
