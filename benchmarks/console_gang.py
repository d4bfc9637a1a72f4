"""One running job over a whole made-up fleet: an attempt, its hosts and GPUs, and a full report of each rank."""

from typing import Final

from sqlalchemy import Engine, text

from benchmarks.console_stage import GPUS_A_NODE, analyse
from benchmarks.unlimited import without_limits
from muster.domain.ids import JobId
from muster.domain.job.spec import JobSpec
from muster.identity import new_id

STEPS_KEPT: Final = 128
STEPS: Final = 2_000
_LOG_BYTES: Final = 400
_WORK: Final = (
    """
    INSERT INTO jobs (id, tenant_id, name, tier, state, state_reason, spec, submitted_by, created_at, updated_at,
        restarts_used, launch_failures, version)
    VALUES (:job, (SELECT min(id) FROM tenants), 'wide', 'on_demand', 'ACTIVE', '', CAST(:spec AS jsonb), 'key:demo',
        now() - interval '2 hours', now(), 1, 0, 1)
    """,
    """
    INSERT INTO attempts (id, job_id, tenant_id, number, fence, state, cause, placed_at, claimed_at, running_at,
        ended_at, on_node_loss, rendezvous_address, rendezvous_port, num_nodes, version)
    SELECT id, :job, (SELECT min(id) FROM tenants), number,
        number + (SELECT coalesce(max(fence), 0) FROM attempts), state, cause, began_at, began_at, began_at,
        ended_at, 'fenced', 'a', 1, :nodes, 1
    FROM (VALUES (:before, 1, 'ENDED', 'node_lost', now() - interval '2 hours', now() - interval '1 hour'),
        (:attempt, 2, 'RUNNING', NULL, now() - interval '1 hour', NULL)
    ) AS tried (id, number, state, cause, began_at, ended_at)
    """,
    """
    INSERT INTO allocations (id, attempt_id, job_id, tenant_id, tier, state, created_at, released_at, num_gpus)
    SELECT 'alc' || substr(id, 4), id, job_id, tenant_id, 'on_demand',
        CASE WHEN ended_at IS NULL THEN 'HELD' ELSE 'RELEASED' END, placed_at, ended_at, CAST(:nodes AS int) * :gpus
    FROM attempts WHERE job_id = :job
    """,
    """
    INSERT INTO attempt_hosts (attempt_id, node_id, node_rank, state, ring_count, is_past_lease, exited_at, clean_at)
    SELECT attempts.id, nodes.id, row_number() OVER (PARTITION BY attempts.id ORDER BY nodes.id) - 1,
        CASE WHEN ended_at IS NULL THEN 'STARTED' ELSE 'CLEAN' END, 1, false, ended_at, ended_at
    FROM attempts, nodes WHERE job_id = :job
    """,
    """
    INSERT INTO allocation_gpus (allocation_id, gpu_uuid, node_id, node_rank, local_index, state)
    SELECT allocations.id, gpus.uuid, gpus.node_id, part.node_rank, gpus.slot_index, allocations.state
    FROM allocations JOIN attempt_hosts AS part USING (attempt_id) JOIN gpus USING (node_id)
    WHERE allocations.job_id = :job
    """,
    "UPDATE gpus SET standing = CASE WHEN hashtext(uuid) % 2000 = 0 THEN 'SUSPECT' ELSE 'HEALTHY' END",
    # Each 1,000th rank computes longer, each 20,000th has not reported a pace yet, each 5,000th is silent.
    """
    INSERT INTO training_ranks (attempt_id, rank, tenant_id, node_id, world_size, step, loss, step_s, updated_at, pace,
        history, windows, open_window, windows_at)
    SELECT :attempt, rank, (SELECT min(id) FROM tenants), node_id, CAST(:nodes AS int) * :gpus, :steps, 1.25, 0.76,
        now() - CASE rank % 5000 WHEN 99 THEN 600 ELSE rank % 100 * 0.01 END * interval '1 s',
        CASE WHEN rank % 20000 = 19999 THEN NULL ELSE jsonb_build_object(
            'num_steps', 13, 'own_steps', 13, 'data_s', 0.02 + noise * 0.004, 'forward_s', 0.15 + noise * 0.01,
            'backward_s', 0.3 + noise * 0.02, 'collective_s', 0.1 + noise * 0.03, 'optimizer_s', 0.03 + noise * 0.001,
            'other_s', 0.01, 'checkpoint_s', 0.0, 'tokens_per_s', 12000 + noise * 400, 'grad_norm', 1.25,
            'memory_mib', 61440 + noise * 4096, 'mfu', 0.4 + noise * 0.02, 'hfu', NULL, 'samples', 123456 + rank,
            'samples_per_step', 8.0, 'tokens_per_step', 9100 + noise * 10, 'padding', 0.0, 'epochs', 0.25,
            'skipped_steps', NULL, 'own_s', (0.5 + noise * 0.04) * CASE WHEN rank % 1000 = 7 THEN 1.5 ELSE 1 END,
            'wait_s', 0.2 - noise * 0.04, 'place', NULL, 'cpu_wait_s', noise * 0.001, 'gc_s', 0.0, 'threads_s', 0.01,
            'io_wait_s', 0.0, 'steal_share', 0.0, 'switches_per_s', 900 * noise, 'read_bytes_per_s', 1e6 * noise) END,
        jsonb_build_object('stride', 16, 'points', (
            SELECT jsonb_agg(jsonb_build_array(16 * point, round((3 - noise)::numeric, 6),
                round((0.76 + (point * 7919 + rank) % 97 * 0.001)::numeric, 6))) FROM generate_series(1, :kept) AS point
        )), kept.windows, jsonb_build_object('size', 16, 'place', '', 'window', NULL), now()
    FROM (
        SELECT part.node_id, part.node_rank * :gpus + local AS rank, random() AS noise
        FROM attempt_hosts AS part, generate_series(0, :gpus - 1) AS local WHERE part.attempt_id = :attempt
    ) AS made, LATERAL (
        SELECT jsonb_build_object('size', 16, 'place', '', 'model', 'NVIDIA H100', 'windows', jsonb_agg(
            jsonb_build_object('first', 16 * part, 'steps', 16, 'own_s', round((0.5 + noise * 0.04)::numeric, 6),
                'wait_s', round((0.2 - noise * 0.04)::numeric, 6), 'collective_s', 0.1, 'data_s', 0.02,
                'utilisation_percent', round((noise * 100)::numeric, 3), 'power_w', round((600 * noise)::numeric, 3))
        )) AS windows FROM generate_series(1, 20) AS part
    ) AS kept
    """,
    """
    INSERT INTO training_ranks (attempt_id, rank, tenant_id, node_id, world_size, step, step_s, updated_at, pace,
        history, windows)
    SELECT :before, rank, tenant_id, node_id, world_size, step, step_s, updated_at, pace, history, windows
    FROM training_ranks WHERE attempt_id = :attempt AND rank % 8 = 0
    """,
    """
    INSERT INTO training_steps (attempt_id, step, job_id, tenant_id, loss, step_s, at, pace)
    SELECT attempt_id, made.step, :job, tenant_id, 3 - 0.001 * made.step, 0.76 + made.step % 97 * 0.001,
        now() - (:steps - made.step) * interval '1 s', pace
    FROM training_ranks, generate_series(1, :steps) AS made (step) WHERE attempt_id = :attempt AND rank = 0
    """,
    """
    INSERT INTO log_chunks (attempt_id, node_id, stream, byte_offset, tenant_id, job_id, content, received_at)
    SELECT attempt_id, node_id, rank::text, piece * :log_bytes, tenant_id, :job,
        convert_to(repeat('step 12 loss 1.25' || chr(10), :log_bytes / 18), 'UTF8'), now()
    FROM training_ranks, generate_series(0, 3) AS piece WHERE attempt_id = :attempt
    """,
)


def fill(engine: Engine, num_gpus: int) -> JobId:
    """Store the job, which has every GPU of the fleet for the second time. Return its id."""
    job_id, shape = JobId(new_id("job")), {"nodes": num_gpus // GPUS_A_NODE, "gpus_per_node": GPUS_A_NODE}
    spec = JobSpec.model_validate({"name": "wide", "program": {"script": "/srv/train.py"}, "shape": shape})
    given = {"job": job_id, "spec": spec.model_dump_json(), "nodes": shape["nodes"], "gpus": GPUS_A_NODE}
    given |= {"before": new_id("attempt"), "attempt": new_id("attempt"), "steps": STEPS, "kept": STEPS_KEPT}
    with without_limits(engine) as unlimited, unlimited.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        for statement in _WORK:
            connection.execute(text(statement), {**given, "log_bytes": _LOG_BYTES})
    analyse(engine)
    return job_id
