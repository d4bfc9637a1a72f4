"""The supervisor: one process per attempt and host that outlives all others. It runs, stops and records the program.

The launcher uses the names in this list; the supervisor itself is ``supervise``, started by path through ``entry``.
"""

from workers.host.supervisor.adoption import Adoption, adopt, prove_clean, reap_vanished, refuse_start, wake
from workers.host.supervisor.spawning import WaitingSupervisor, spawn_supervisor
from workers.host.supervisor.user.job_secrets import sweep as sweep_secrets

__all__ = [
    "Adoption",
    "WaitingSupervisor",
    "adopt",
    "prove_clean",
    "reap_vanished",
    "refuse_start",
    "spawn_supervisor",
    "sweep_secrets",
    "wake",
]
