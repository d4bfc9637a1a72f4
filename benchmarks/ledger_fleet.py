"""A made-up hour of a large fleet, as the services would have stored it: what the ledger's benchmarks count.

85 of 100 hosts train in gangs. Their rank 0 reports each step with its pace; some attempts end and are followed by
another one that trains steps again; some have a straggler, some hang. The rest is free, quarantined, cordoned, in
burn-in or without contact, while jobs wait.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine, text

GPUS_A_NODE: Final = 8
NODES_A_GANG: Final = 8
STEP_S: Final = 5
_FLEET: Final = """
INSERT INTO nodes (id, name, contact, address, num_gpus, is_simulated, rack, labels, past_boot_ids, heartbeat_seq,
    last_heartbeat_at, created_at, version)
SELECT 'node_' || n, 'h' || n, 'LIVE', '127.0.0.1', 8, true, 'rack-' || n / 16,
    jsonb_build_object('site', 's' || n % 3), '[]', 0,
    CAST(:hour AS timestamptz) + interval '2 hours', CAST(:hour AS timestamptz) - interval '9 days', 1
FROM generate_series(0, :nodes - 1) AS n;
INSERT INTO node_contact_changes (node_id, at, contact)
SELECT 'node_' || n, CAST(:hour AS timestamptz) - interval '9 days', 'LIVE' FROM generate_series(0, :nodes - 1) AS n;
INSERT INTO node_contact_changes (node_id, at, contact)
SELECT 'node_' || n, CAST(:hour AS timestamptz) + change * interval '7 minutes',
    CASE change WHEN 1 THEN 'SILENT' WHEN 2 THEN 'LOST' ELSE 'LIVE' END
FROM generate_series(0, :nodes - 1, 200) AS n, generate_series(1, 3) AS change;
INSERT INTO gpus (uuid, node_id, slot_index, model, memory_bytes, compute_capability, driver_version, standing,
    standing_since, is_mig_enabled, is_simulated, cohort_key, version)
SELECT 'GPU-' || n || '-' || slot || '-0000-4000-8000-000000000000', 'node_' || n, slot, 'NVIDIA H100', 85899345920,
    '9.0', '580', CASE WHEN n >= :used AND n % 9 = 0 THEN 'QUARANTINED' ELSE 'HEALTHY' END,
    CAST(:hour AS timestamptz) - interval '8 days', false, true, 'h100-' || n % 5, 1
FROM generate_series(0, :nodes - 1) AS n, generate_series(0, 7) AS slot;
INSERT INTO gpu_standing_changes (gpu_uuid, origin, target, at, reason, actor, move_reason, evidence_ids)
SELECT uuid, NULL, 'UNPROVEN', CAST(:hour AS timestamptz) - interval '9 days', 'enrolled', 'bench', NULL, '[]'
FROM gpus;
INSERT INTO gpu_standing_changes (gpu_uuid, origin, target, at, reason, actor, move_reason, evidence_ids)
SELECT uuid, 'UNPROVEN', standing, standing_since, 'passed', 'bench', 'burn_in_passed', '["ev_1"]' FROM gpus;
INSERT INTO cordons (id, node_id, reason_code, reason, owner, created_at)
SELECT 'cdn_' || n, 'node_' || n, CASE WHEN n % 2 = 0 THEN 'drain' ELSE 'maintenance' END, 'bench', 'bench',
    CAST(:hour AS timestamptz) + interval '10 minutes'
FROM generate_series(:used, :nodes - 1, 10) AS n;
INSERT INTO burn_ins (id, gpu_uuid, node_id, state, reason, ordered_by, ordered_at, tries, began_at, ended_at, reasons,
    open_bands, num_peers)
SELECT 'bi_' || uuid, uuid, node_id, 'ABANDONED', 'intake', 'bench', CAST(:hour AS timestamptz), 1,
    CAST(:hour AS timestamptz) + interval '5 minutes', CAST(:hour AS timestamptz) + interval '25 minutes', '[]', '[]', 0
FROM gpus WHERE substr(node_id, 6)::int >= :used AND substr(node_id, 6)::int % 11 = 3;
INSERT INTO gpu_hold_spans (gpu_uuid, job_id, began_at, ended_at)
SELECT uuid, 'job_0', CAST(:hour AS timestamptz), CAST(:hour AS timestamptz) + interval '9 minutes' FROM gpus
WHERE substr(node_id, 6)::int >= :used AND substr(node_id, 6)::int % 13 = 5
"""
_WORK: Final = """
INSERT INTO tenants (id, name, created_at, weight) SELECT 'ten_' || n, 't' || n, :hour, 1
FROM generate_series(0, 19) AS n;
INSERT INTO jobs (id, tenant_id, name, tier, state, state_reason, spec, submitted_by, created_at, updated_at,
    restarts_used, launch_failures, version)
SELECT 'job_' || n, 'ten_' || n % 20, 'train', 'on_demand', CASE WHEN n < :gangs THEN 'ACTIVE' ELSE 'QUEUED' END, '',
    '{}', 'bench', CAST(:hour AS timestamptz) - interval '2 hours', :hour, 0, 0, 1
FROM generate_series(0, :gangs + 999) AS n;
INSERT INTO job_wait_changes (job_id, at, binding)
SELECT 'job_' || n, CAST(:hour AS timestamptz) + change * interval '9 minutes',
    CASE change % 2 WHEN 0 THEN 'capacity' ELSE 'quota' END
FROM generate_series(:gangs, :gangs + 999) AS n, generate_series(0, 5) AS change;
CREATE TEMP TABLE tried AS
SELECT 'att_' || n || '_' || number AS id, n, number, n % 10 = 0 AND number = 1 AS is_over,
    CASE WHEN number = 1 THEN CAST(:hour AS timestamptz) - interval '50 minutes'
        ELSE CAST(:hour AS timestamptz) + interval '31 minutes' END AS placed_at,
    CASE WHEN n % 10 = 0 AND number = 1 THEN CAST(:hour AS timestamptz) + interval '30 minutes' END AS ended_at
FROM generate_series(0, :gangs - 1) AS n, generate_series(1, 2) AS number WHERE number = 1 OR n % 10 = 0;
INSERT INTO attempts (id, job_id, tenant_id, number, fence, state, cause, placed_at, claimed_at, running_at, ended_at,
    on_node_loss, rendezvous_address, rendezvous_port, num_nodes, version)
SELECT id, 'job_' || n, 'ten_' || n % 20, number, n * 2 + number, CASE WHEN is_over THEN 'ENDED' ELSE 'RUNNING' END,
    CASE WHEN is_over THEN 'node_lost' END, placed_at, placed_at + interval '3 s', placed_at + interval '40 s',
    ended_at, 'fenced', 'a', 1, 8, 1
FROM tried;
INSERT INTO allocations (id, attempt_id, job_id, tenant_id, tier, state, created_at, released_at, num_gpus)
SELECT 'all_' || id, id, 'job_' || n, 'ten_' || n % 20, 'on_demand', CASE WHEN is_over THEN 'RELEASED' ELSE 'HELD' END,
    placed_at, ended_at + interval '20 s', 64
FROM tried;
INSERT INTO attempt_hosts (attempt_id, node_id, node_rank, state, ring_count, is_past_lease, exited_at, clean_at)
SELECT id, 'node_' || n * 8 + rank, rank, CASE WHEN is_over THEN 'CLEAN' ELSE 'STARTED' END, 1, false, ended_at,
    ended_at + interval '20 s'
FROM tried, generate_series(0, 7) AS rank;
INSERT INTO allocation_gpus (allocation_id, gpu_uuid, node_id, node_rank, local_index, state)
SELECT 'all_' || id, gpus.uuid, gpus.node_id, rank, gpus.slot_index, CASE WHEN is_over THEN 'RELEASED' ELSE 'HELD' END
FROM tried, generate_series(0, 7) AS rank JOIN gpus ON true
WHERE gpus.node_id = 'node_' || n * 8 + rank;
INSERT INTO training_ranks (attempt_id, rank, tenant_id, node_id, step, updated_at)
SELECT id, rank, 'ten_' || n % 20, 'node_' || n * 8 + rank / 8, 1,
    coalesce(ended_at, CAST(:hour AS timestamptz) + interval '63 minutes')
FROM tried, generate_series(0, 63) AS rank;
INSERT INTO training_steps (attempt_id, step, job_id, tenant_id, loss, step_s, at, pace)
SELECT id, step, 'job_' || n, 'ten_' || n % 20, 1, :step_s, at,
    jsonb_build_object('num_steps', 1, 'data_s', 0.1, 'forward_s', 1.2, 'backward_s', 2.5, 'collective_s', 0.4,
        'optimizer_s', 0.3, 'other_s', 0.1, 'checkpoint_s', CASE WHEN step % 120 = 0 THEN 1.5 ELSE 0 END,
        'tokens_per_s', 13000, 'mfu', 0.41, 'memory_mib', 70000)
FROM tried, LATERAL (
    SELECT CASE WHEN number = 1 THEN k ELSE 1000 + k END AS step,
        placed_at + interval '2 minutes' + k * :step_s * interval '1 s' AS at FROM generate_series(1, 1400) AS k
) AS done
WHERE at < coalesce(ended_at, CAST(:hour AS timestamptz) + interval '63 minutes')
ORDER BY at;
INSERT INTO verdicts (id, attempt_id, job_id, tenant_id, kind, cause, ranks, gpu, phase, step, operation, evidence,
    sentence, reaction, state, created_at)
SELECT 'ver_' || id, id, 'job_' || n, 'ten_' || n % 20, 'straggler', 'slow_gpu', '[1]', '', '', 700, '', '[]', '',
    'none', 'standing', CAST(:hour AS timestamptz) + interval '20 minutes'
FROM tried WHERE n % 50 = 1;
ANALYZE
"""


@dataclass(frozen=True, slots=True)
class MadeHour:
    """The hour that was made up, and how much of it there is."""

    hour: datetime
    num_gpus: int
    num_attempts: int
    num_steps: int


def fill(engine: Engine, num_nodes: int, hour: datetime) -> MadeHour:
    """Store the hour that begins at ``hour``."""
    gangs = max(1, num_nodes * 85 // 100 // NODES_A_GANG)
    given = {"nodes": num_nodes, "used": gangs * NODES_A_GANG, "gangs": gangs, "hour": hour, "step_s": STEP_S}
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        for statement in (_FLEET + ";" + _WORK).split(";"):
            named = {name: value for name, value in given.items() if f":{name}" in statement}
            connection.execute(text(statement), named)
        steps = connection.scalar(
            text("SELECT count(*) FROM training_steps WHERE at > :since AND at < :until"),
            {"since": hour, "until": hour + timedelta(hours=1)},
        )
        tried = connection.scalar(text("SELECT count(*) FROM tried"))
    return MadeHour(hour, num_nodes * GPUS_A_NODE, int(tried or 0), int(steps or 0))
