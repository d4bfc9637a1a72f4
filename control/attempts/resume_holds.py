"""Resume holds: the GPUs of an interrupted attempt stay its job's until the next attempt is placed.

The transaction that ends the old allocation holds its GPUs for the job, so that release and next placement are one
decision for every other job: none takes the GPUs in between, in any crash, and however long one of its hosts takes to
be proved clean. A hold ends as the job is placed, as it waits no more, or with the first cycle that finds that the job
cannot continue on its held GPUs (``scheduler.planner``).
"""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import text

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Attempt, AttemptHost, Job
from muster.db.pipeline.packed_arrays import joined_texts
from muster.domain.exit.causes import KEEPS_ITS_GPUS
from muster.domain.states import JobState

_HOLD: Final = text(r"""
INSERT INTO gpu_holds (gpu_uuid, job_id, created_at)
SELECT gpu_uuid, :job_id, :now
FROM allocations JOIN allocation_gpus ON allocation_gpus.allocation_id = allocations.id
WHERE attempt_id = :attempt_id AND node_id <> ALL(string_to_array(:nodes, E'\x1f'))
ORDER BY gpu_uuid
ON CONFLICT (gpu_uuid) DO NOTHING
""")
"""A GPU held for another job stays so: a victim's GPUs are its beneficiary's, for any cause of the victim's end."""


def keep(unit: UnitOfWork, job: Job, attempt: Attempt, hosts: Sequence[AttemptHost]) -> None:
    """Hold GPUs for the locked job, whose locked ``attempt`` has just ended, except on the hosts that were at fault.

    A GPU that is not good for another reason is held too: no other job is placed on it either.
    """
    if attempt.cause not in KEEPS_ITS_GPUS or job.state is not JobState.RECOVERING:
        return
    at_fault = joined_texts(sorted(host.node_id for host in hosts if host.is_at_fault))
    said = {"job_id": job.id, "attempt_id": attempt.id, "nodes": at_fault, "now": unit.now}
    unit.session.flush()
    unit.session.execute(_HOLD, said)
