"""Blame for checkpoints that cannot be saved: the host, the storage, or the job itself. Pure.

Programs report it, so no GPU is judged by it. A place that hosts share is at fault once several of them failed there;
one host that fails alone is at fault itself. Free space is the place's: a full place shows nothing about the host that
found it full. A refusal is about the caller: it is the job's own fault until several jobs are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from muster.domain.ids import JobId, NodeId
from muster.domain.policy.training import StoragePolicy


class Blamed(StrEnum):
    STORAGE = "storage"
    NODE = "node"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Failing:
    """Failed saves of one job on one host at one place, with no good save since.

    ``kind``: of the newest failure, as ``muster.train.checkpoint.save_faults`` names them.
    """

    place: str
    is_shared: bool
    node_id: NodeId
    job_id: JobId
    kind: str
    num_failures: int


def blamed_for(failing: Sequence[Failing], policy: StoragePolicy) -> dict[Failing, Blamed]:
    """Return the blame for each failure that counts. ``failing``: all of one place, or of one host's own places.

    A failure that is not in the result has not occurred often enough yet.
    """
    found: dict[Failing, Blamed] = {}
    for place in {(each.place, each.is_shared, None if each.is_shared else each.node_id) for each in failing}:
        here = [each for each in failing if (each.place, each.is_shared) == place[:2]]
        here = [each for each in here if place[2] in {None, each.node_id}]
        found |= _at_one_place(here, policy)
    return found


def _at_one_place(here: Sequence[Failing], policy: StoragePolicy) -> dict[Failing, Blamed]:
    refused = [each for each in here if each.kind == "refused"]
    is_refused_widely = len({each.job_id for each in refused}) >= policy.min_jobs_refused
    counted = [each for each in here if each.kind != "refused" or is_refused_widely]
    found = {each: Blamed.JOB for each in refused if not is_refused_widely}
    if not counted or sum(each.num_failures for each in counted) < policy.min_failures:
        return found
    is_wide = len({each.node_id for each in counted}) >= policy.min_hosts
    is_full = any(each.kind == "no_space" for each in counted)
    is_storage = counted[0].is_shared and (is_wide or is_full or is_refused_widely)
    return found | dict.fromkeys(counted, Blamed.STORAGE if is_storage else Blamed.NODE)
