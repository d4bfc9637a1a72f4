"""Counting of figures in SQL: each statement counts some figures of one hour, and stores their facts.

Each observes figure, part, tenant, tier, class, site, number, total, and the value that a sketch counts, NULL for none.
These are parts of an INSERT, so no row leaves the database.
"""

from string import Template
from typing import Final

from sqlalchemy import TextClause, text

from ledger.figures.sketch import LEAST, LOG_GAMMA, ZERO

KEY: Final = "figure, part, tenant_id, tier, job_class, site"
_CLASS: Final = "coalesce(j.job_class, '') AS job_class"
_GROUP: Final = f"{_CLASS}, coalesce(n.labels ->> 'site', '') AS site"
_PLACE: Final = """
    LEFT JOIN attempt_hosts h ON h.attempt_id = a.id AND h.node_rank = 0 LEFT JOIN nodes n ON n.id = h.node_id
"""
_LIVED: Final = "a.placed_at < :ends AND (a.ended_at IS NULL OR a.ended_at >= :begins)"
"""The attempt was there in the hour: by the index of ends, where an open one is NULL."""

_MOST_S: Final = 1e7
"""A longer step or save is no time: programs report it, and one wrong value must not spoil the sums of all tenants."""
MOST_RATE: Final = 1e15
"""No program has more tokens a second, or samples or reported steps at once."""

_FILLED_IN: Final = {
    "key": KEY,
    "class": _CLASS,
    "group": _GROUP,
    "place": _PLACE,
    "lived": _LIVED,
    "log_gamma": repr(LOG_GAMMA),
    "least_value": repr(LEAST),
    "zero": str(ZERO),
    "most_s": repr(_MOST_S),
    "most_rate": repr(MOST_RATE),
}


def _statement(words: str, common: str = "") -> TextClause:
    """Return the statement of these words, with what is common to them filled in. None of it comes from outside."""
    return text(Template(words.replace("$common", common)).substitute(_FILLED_IN))


_JOBS: Final = """
    ended AS (
        SELECT j.tenant_id, j.tier, $group, j.state, a.cause, j.finished_at, whole.placed_at, whole.is_reclaimed
        FROM jobs j
        LEFT JOIN LATERAL (
            SELECT id, cause FROM attempts WHERE job_id = j.id AND state = 'ENDED' ORDER BY number DESC LIMIT 1
        ) a ON true
        LEFT JOIN LATERAL (
            SELECT min(placed_at) AS placed_at, bool_or(cause = 'reclaimed') AS is_reclaimed
            FROM attempts WHERE job_id = j.id
        ) whole ON true
        $place
        WHERE j.finished_at >= :begins AND j.finished_at < :ends
    ),
    observed AS (
        SELECT 'job_success' AS figure,
            CASE WHEN state = 'SUCCEEDED' THEN 'succeeded' WHEN state = 'CANCELLED' THEN 'cancelled'
                WHEN cause IS NULL THEN 'unstarted' WHEN cause = ANY(:limit) THEN 'limit'
                WHEN cause = ANY(:infrastructure) OR cause = ANY(:moved) THEN 'infrastructure' ELSE 'own' END AS part,
            tenant_id, tier, job_class, site, 1 AS num, 1.0 AS total, CAST(NULL AS float8) AS value
        FROM ended
        UNION ALL
        SELECT 'time_to_complete', CASE WHEN is_reclaimed THEN 'reclaimed' ELSE 'undisturbed' END,
            tenant_id, tier, job_class, site, 1, seconds, seconds
        FROM (SELECT *, greatest(extract(epoch FROM finished_at - placed_at), 0) AS seconds FROM ended) e
        WHERE state = 'SUCCEEDED' AND placed_at IS NOT NULL
    )
"""
_ATTEMPTS: Final = """
    lived AS (
        SELECT a.id, a.job_id, a.number, a.cause, a.placed_at, a.ended_at, a.resumed_from, a.tenant_id, j.tier, $group
        FROM attempts a JOIN jobs j ON j.id = a.job_id $place
        WHERE $lived
    ),
    resumed AS (
        SELECT *, EXISTS (SELECT FROM training_steps s WHERE s.attempt_id = lived.id) AS is_trained
        FROM lived
        WHERE placed_at >= :begins AND (resumed_from IS NOT NULL OR cause = 'checkpoint_corrupt')
    ),
    observed AS (
        SELECT 'preemption' AS figure, CASE WHEN cause = 'reclaimed' THEN 'reclaimed' ELSE 'other' END AS part,
            tenant_id, tier, job_class, site, 1 AS num, 1.0 AS total, CAST(NULL AS float8) AS value
        FROM lived WHERE ended_at < :ends
        UNION ALL
        SELECT 'requeue_rate',
            CASE WHEN before.cause IS NULL THEN 'first' WHEN before.cause = ANY(:moved) THEN 'after_move'
                WHEN before.cause = ANY(:infrastructure) THEN 'after_infrastructure' ELSE 'after_own' END,
            tenant_id, tier, job_class, site, 1, 1.0, NULL
        FROM lived LEFT JOIN LATERAL (
            SELECT cause FROM attempts b
            WHERE b.job_id = lived.job_id AND b.number < lived.number ORDER BY b.number DESC LIMIT 1
        ) before ON true
        WHERE placed_at >= :begins
        UNION ALL
        SELECT 'resume_success',
            CASE WHEN is_trained OR cause = 'succeeded' THEN 'went_on' WHEN cause IS NULL THEN 'undecided'
                WHEN cause = ANY(:infrastructure) THEN 'infrastructure' WHEN cause = ANY(:own) THEN 'own'
                ELSE 'moved' END,
            tenant_id, tier, job_class, site, 1, 1.0, NULL
        FROM resumed
    )
"""
_STEPS: Final = """
    spread AS (
        SELECT attempt_id, ceil(ln(nullif(step_s, 0)) / $log_gamma) AS bucket, count(*) AS num,
            sum(step_s) AS total, min(step_s) AS least, max(step_s) AS most
        FROM training_steps
        WHERE at >= :begins AND at < :ends AND step_s BETWEEN 0 AND $most_s
        GROUP BY attempt_id, bucket
    ),
    bucketed AS (
        SELECT 'step_time' AS figure, 'steps' AS part, a.tenant_id, j.tier, $group,
            CASE WHEN bucket IS NULL OR most < $least_value THEN $zero ELSE bucket END AS bucket, num, total,
            num AS of_bucket, least, most
        FROM spread JOIN attempts a ON a.id = spread.attempt_id JOIN jobs j ON j.id = a.job_id $place
    )
"""
_PACES: Final = """
    parts AS (
        SELECT attempt_id, (pace ->> 'num_steps')::float8 AS steps, (pace ->> 'data_s')::float8 AS data_s,
            (pace ->> 'forward_s')::float8 AS forward_s, (pace ->> 'backward_s')::float8 AS backward_s,
            (pace ->> 'collective_s')::float8 AS collective_s, (pace ->> 'optimizer_s')::float8 AS optimizer_s,
            (pace ->> 'other_s')::float8 AS other_s, (pace ->> 'tokens_per_s')::float8 AS tokens_per_s,
            (pace ->> 'samples_per_step')::float8 AS samples
        FROM training_steps
        WHERE at >= :begins AND at < :ends AND pace IS NOT NULL
        OFFSET 0
    ),
    reported AS (
        SELECT attempt_id, steps,
            CASE WHEN data_s < $least_value THEN 0 ELSE data_s END AS data_s,
            CASE WHEN collective_s < $least_value THEN 0 ELSE collective_s END AS collective_s,
            CASE WHEN tokens_per_s BETWEEN $least_value AND $most_rate THEN tokens_per_s
                WHEN tokens_per_s < $least_value THEN 0 END AS tokens_per_s,
            CASE WHEN samples BETWEEN $least_value AND $most_rate THEN samples
                WHEN samples < $least_value THEN 0 END AS samples,
            data_s + forward_s + backward_s + coalesce(collective_s, 0) + optimizer_s + other_s AS whole_s
        FROM parts
    ),
    summed AS (
        SELECT attempt_id, sum(steps * whole_s) AS whole_s, sum(steps * data_s) AS data_s,
            sum(steps * collective_s) AS collective_s,
            sum(steps * whole_s) FILTER (WHERE collective_s IS NOT NULL) AS measured_s,
            sum(steps * whole_s) FILTER (WHERE collective_s IS NULL) AS unmeasured_s,
            sum(steps * whole_s * tokens_per_s) AS tokens,
            sum(steps * whole_s) FILTER (WHERE tokens_per_s IS NOT NULL) AS tokens_s,
            sum(steps * samples) AS samples,
            sum(steps * whole_s) FILTER (WHERE samples IS NOT NULL) AS samples_s
        FROM reported
        WHERE steps BETWEEN 1 AND $most_rate AND whole_s BETWEEN $least_value AND $most_s
        GROUP BY attempt_id
    ),
    known AS (
        SELECT summed.*, coalesce(r.world_size, 1) AS ranks, a.tenant_id, j.tier, $group
        FROM summed JOIN attempts a ON a.id = summed.attempt_id JOIN jobs j ON j.id = a.job_id
        LEFT JOIN training_ranks r ON r.attempt_id = a.id AND r.rank = 0
        $place
    ),
    observed AS (
        SELECT each.figure, each.part, tenant_id, tier, job_class, site, 1 AS num, each.total, each.value
        FROM known CROSS JOIN LATERAL (VALUES
            ('tokens_per_s', 'tokens', tokens * ranks, tokens * ranks / tokens_s),
            ('tokens_per_s', 'seconds', tokens_s, NULL),
            ('samples_per_s', 'samples', samples * ranks, samples * ranks / samples_s),
            ('samples_per_s', 'seconds', samples_s, NULL),
            ('data_wait', 'waiting', data_s, data_s / whole_s),
            ('data_wait', 'whole', whole_s, NULL),
            ('collective_share', 'collective', collective_s, collective_s / measured_s),
            ('collective_share', 'whole', measured_s, NULL),
            ('collective_share', 'unmeasured', unmeasured_s, NULL)
        ) AS each (figure, part, total, value)
        WHERE each.total IS NOT NULL
    )
"""
_SAVES: Final = """
    lived AS (
        SELECT a.id, a.tenant_id, j.tier, $group
        FROM attempts a JOIN jobs j ON j.id = a.job_id $place
        WHERE $lived
    ),
    saved AS (
        SELECT c.*, lived.tier, lived.job_class, lived.site,
            c.status = 'REJECTED' AND EXISTS (
                SELECT FROM attempts b
                WHERE b.job_id = c.job_id AND b.fence > c.fence AND b.training_began_at <= c.committed_at
            ) AS is_overtaken
        FROM lived JOIN checkpoints c ON c.attempt_id = lived.id
        WHERE coalesce(c.committed_at, c.created_at) >= :begins AND coalesce(c.committed_at, c.created_at) < :ends
    ),
    unsaved AS (
        SELECT e.subject_id AS attempt_id, e.kind, e.payload ->> 'generation' AS generation,
            e.payload ->> 'job_id' AS job_id
        FROM events e
        WHERE e.at >= :begins AND e.at < :ends AND e.position IS NOT NULL
            AND e.kind IN ('checkpoint.failed', 'checkpoint.unfinished')
    ),
    observed AS (
        SELECT 'save_success' AS figure,
            CASE WHEN status = 'REJECTED' THEN 'corrupt' WHEN verified_at IS NOT NULL THEN 'verified'
                WHEN status = 'WRITING' THEN 'writing' ELSE 'unverified' END AS part,
            tenant_id, tier, job_class, site, 1 AS num, 1.0 AS total, CAST(NULL AS float8) AS value
        FROM saved WHERE NOT is_overtaken
        UNION ALL
        SELECT 'save_success', CASE kind WHEN 'checkpoint.failed' THEN 'failed' ELSE 'cut_off' END,
            lived.tenant_id, tier, job_class, site, 1, 1.0, NULL
        FROM unsaved JOIN lived ON lived.id = unsaved.attempt_id
        WHERE kind = 'checkpoint.failed' OR NOT EXISTS (
            SELECT FROM checkpoints c WHERE c.job_id = unsaved.job_id AND c.generation = unsaved.generation
        )
        UNION ALL
        SELECT 'save_time', 'saves', tenant_id, tier, job_class, site, 1, save_s, save_s
        FROM (SELECT *, (manifest ->> 'save_s')::float8 AS save_s FROM saved) s
        WHERE save_s BETWEEN 0 AND $most_s AND committed_at IS NOT NULL
    )
"""
_BUCKETED: Final = """
    , bucketed AS (
        SELECT $key, sum(num) AS num, sum(total) AS total, count(value) AS of_bucket, min(value) AS least,
            max(value) AS most,
            CASE WHEN value < $least_value THEN $zero ELSE ceil(ln(value) / $log_gamma) END AS bucket
        FROM (SELECT $key, num, total::float8 AS total, value::float8 AS value FROM observed) o
        GROUP BY $key, bucket
    )
"""


_STORE: Final = """
    WITH $common,
    of_bucket AS (
        SELECT $key, bucket, sum(num) AS num, sum(total) AS total, sum(of_bucket) AS of_bucket, min(least) AS least,
            max(most) AS most
        FROM bucketed GROUP BY $key, bucket
    )
    INSERT INTO figure_facts (begins_at, span_s, $key, num, total, least, most, buckets, counts)
    SELECT :begins, 3600, $key, sum(num), sum(total), min(least), max(most),
        coalesce(array_agg(bucket::int ORDER BY bucket) FILTER (WHERE bucket IS NOT NULL), '{}'),
        coalesce(array_agg(of_bucket::bigint ORDER BY bucket) FILTER (WHERE bucket IS NOT NULL), '{}')
    FROM of_bucket GROUP BY $key
"""


COUNTS: Final = (
    _statement(_STORE, _JOBS + _BUCKETED),
    _statement(_STORE, _ATTEMPTS + _BUCKETED),
    _statement(_STORE, _STEPS),
    _statement(_STORE, _PACES + _BUCKETED),
    _statement(_STORE, _SAVES + _BUCKETED),
)
"""Statements that count figures from records. They take the hour's ``begins`` and ``ends``, and causes by fault."""

ENDED_LOSSES: Final = _statement("""
    SELECT j.tenant_id, j.tier, $group, a.cause, a.history
    FROM jobs j
    JOIN LATERAL (
        SELECT b.id, b.cause, r.history
        FROM attempts b LEFT JOIN training_ranks r ON r.attempt_id = b.id AND r.rank = 0
        WHERE b.job_id = j.id
        ORDER BY r.history IS NULL, b.number DESC LIMIT 1
    ) a ON true
    $place
    WHERE j.finished_at >= :begins AND j.finished_at < :ends AND (a.history IS NOT NULL OR a.cause = 'diverged')
""")
"""Jobs that ended in the hour, with the losses of the newest attempt that has any."""

ENDED_WITH_EPOCHS: Final = _statement("""
    SELECT j.id AS job_id, j.tenant_id, j.tier, $group, j.created_at, a.num_epochs
    FROM jobs j
    JOIN LATERAL (
        SELECT b.id, max((r.pace ->> 'epochs')::float8) OVER () AS num_epochs
        FROM attempts b JOIN training_ranks r ON r.attempt_id = b.id AND r.rank = 0
        WHERE b.job_id = j.id AND r.pace ->> 'epochs' IS NOT NULL
        ORDER BY b.number DESC LIMIT 1
    ) a ON true
    $place
    WHERE j.finished_at >= :begins AND j.finished_at < :ends
    ORDER BY j.id
""")
"""Jobs that ended in the hour and whose first rank reported epochs, with the most of them."""

DAY: Final = _statement("""
    WITH hours AS (
        SELECT * FROM figure_facts
        WHERE span_s = 3600 AND begins_at >= :begins AND begins_at < :ends AND figure = ANY(:figures)
    ),
    spread AS (
        SELECT $key, bucket, sum(count) AS count FROM hours, unnest(buckets, counts) AS u (bucket, count)
        GROUP BY $key, bucket
    ),
    sketches AS (
        SELECT $key, array_agg(bucket ORDER BY bucket) AS buckets, array_agg(count::bigint ORDER BY bucket) AS counts
        FROM spread GROUP BY $key
    )
    INSERT INTO figure_facts (begins_at, span_s, $key, num, total, least, most, buckets, counts)
    SELECT :begins, 86400, $key, sum(num), sum(total), min(least), max(most),
        coalesce(sketches.buckets, '{}'), coalesce(sketches.counts, '{}')
    FROM hours LEFT JOIN sketches USING ($key)
    GROUP BY $key, sketches.buckets, sketches.counts
""")
"""Sums the hours of a day. Sketches merge by adding the counts of equal buckets."""

ASSIGNED: Final = _statement("""
    SELECT ag.gpu_uuid, ag.node_id, a.id AS attempt_id, a.placed_at, a.ended_at, a.tenant_id, j.tier,
        $class
    FROM attempts a JOIN jobs j ON j.id = a.job_id
    JOIN allocations al ON al.attempt_id = a.id JOIN allocation_gpus ag ON ag.allocation_id = al.id
    WHERE $lived
""")
"""GPUs that were assigned in the hour, each with its attempt."""
