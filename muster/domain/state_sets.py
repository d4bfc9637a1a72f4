"""Sets of states that several packages ask for, each under one name."""

from typing import Final

from muster.domain.states import HostPartState, JobState, Standing

OUT_OF_SERVICE: Final = (Standing.QUARANTINED, Standing.REPAIR, Standing.RETIRED)
"""Standings in which a GPU takes no job."""
PARTS_THAT_MAY_RUN: Final = (HostPartState.CLAIMED, HostPartState.STARTED)
"""States of a part whose program may run on its host."""
ENDED_PARTS: Final = (HostPartState.EXITED, HostPartState.CLEAN)
"""States of a part whose program has ended."""
JOBS_THAT_WAIT_FOR_GPUS: Final = (JobState.QUEUED, JobState.RECOVERING)
"""States of a job that has no allocation and asks for one."""
